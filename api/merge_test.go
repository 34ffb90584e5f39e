package api

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// toMerge is a merge update object of two identifier objects.
func toMerge(gone, keep string) string {
	return fmt.Sprintf(`{"identifier_to_merge":%s,"identifier_to_keep":%s}`, gone, keep)
}

func idObject(id string) string { return fmt.Sprintf(`{"external_id":%q}`, id) }

// merges sends merge updates, which must be accepted.
func (d *door) merges(t *testing.T, updates ...string) {
	t.Helper()
	d.answers(t, "/users/merge", `{"merge_updates":[`+strings.Join(updates, ",")+`]}`, 202, `{"message":"success"}`)
}

// becomes waits for what a merge does after it was accepted.
func (d *door) becomes(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, waitLimit, 2*time.Millisecond, what)
}

// isGone waits until nobody is found.
func (d *door) isGone(t *testing.T, body string) {
	t.Helper()
	d.becomes(t, body+" is gone", func() bool { return len(d.users(t, body)) == 0 })
}

func TestMergeUsers(t *testing.T) {
	d := openEngine(t, t.TempDir())
	event := func(id string) string {
		return fmt.Sprintf(`{"events":[{"external_id":%q,"name":"e","time":"2026-01-02T03:04:05Z"}]}`, id)
	}
	d.tracks(t, `{"attributes":[{"external_id":"keep","x":1,"first_name":"Keep"},{"external_id":"gone","x":2,"y":3,"first_name":"Gone","last_name":"Both"}],
		"events":[{"external_id":"keep","name":"e","time":"2026-01-02T03:04:05Z"},{"external_id":"gone","name":"e","time":"2026-01-02T03:04:05Z"},{"external_id":"gone","name":"f","time":"2026-01-02T03:04:05Z"}],
		"purchases":[{"external_id":"gone","product_id":"p","currency":"USD","price":1.25,"quantity":2,"time":"2026-01-02T03:04:05Z"}]}`)
	d.answers(t, "/users/alias/new", `{"user_aliases":[{"external_id":"gone","alias_label":"l","alias_name":"gone"}]}`, 201, processed(1))
	gone, keep := d.user(t, byID("gone")), d.user(t, byID("keep"))
	d.merges(t, toMerge(idObject("gone"), idObject("keep")))
	d.isGone(t, byID("gone"))
	d.isGone(t, bySvcID(gone))
	d.becomes(t, "merged", func() bool { return d.user(t, byID("keep"))["last_name"] == "Both" })
	u := d.user(t, byID("keep"))
	require.Equal(t, keep["svc_id"], u["svc_id"])
	require.Equal(t, "Keep", u["first_name"])
	require.Equal(t, map[string]any{"x": 1.0, "y": 3.0}, u["custom_attributes"])
	require.Equal(t, 2.5, u["total_revenue"])
	counts := map[string]any{}
	for _, e := range u["custom_events"].([]any) {
		counts[e.(map[string]any)["name"].(string)] = e.(map[string]any)["count"]
	}
	require.Equal(t, map[string]any{"e": 2.0, "f": 1.0}, counts)
	d.becomes(t, "the alias moves", func() bool {
		list := d.users(t, byAlias("l", "gone"))
		return len(list) == 1 && list[0]["external_id"] == "keep"
	})
	// The external id is free: it is another user from now on. The svc_id still reaches the kept one.
	d.tracks(t, event("gone"))
	require.NotEqual(t, gone["svc_id"], d.user(t, byID("gone"))["svc_id"])
	d.tracks(t, fmt.Sprintf(`{"attributes":[{"svc_id":%q,"late":true}]}`, gone["svc_id"]))
	d.becomes(t, "what is written to the svc_id arrives", func() bool {
		return d.user(t, byID("keep"))["custom_attributes"].(map[string]any)["late"] == true
	})
	d.answers(t, "/users/alias/new", fmt.Sprintf(`{"user_aliases":[{"svc_id":%q,"alias_label":"crm","alias_name":"late"}]}`, gone["svc_id"]), 201, processed(1))
	require.Equal(t, "keep", d.user(t, byAlias("crm", "late"))["external_id"])

	// Users who are not there, and a user with himself: no effect.
	before := d.user(t, byID("keep"))
	d.merges(t, toMerge(idObject("nobody"), idObject("keep")), toMerge(idObject("keep"), idObject("nobody")), toMerge(idObject("keep"), idObject("keep")),
		toMerge(idObject("keep"), `{"user_alias":{"alias_label":"l","alias_name":"gone"}}`), toMerge(`{"phone":"no number","prioritization":["identified"]}`, idObject("keep")))
	require.Equal(t, before, d.user(t, byID("keep")))
	d.merges(t)

	// A chain in one request.
	d.tracks(t, `{"events":[`+many(50, `{"external_id":"c#","name":"e","time":"2026-01-02T03:04:05Z"}`)+`]}`)
	var chain []string
	for i := range 49 {
		chain = append(chain, toMerge(idObject(fmt.Sprint("c", i)), idObject(fmt.Sprint("c", i+1))))
	}
	d.merges(t, append(chain, toMerge(idObject("nobody"), idObject("c0")))...)
	d.becomes(t, "the chain comes to its end", func() bool {
		return d.user(t, byID("c49"))["custom_events"].([]any)[0].(map[string]any)["count"] == 50.0
	})
	for i := range 49 {
		require.Empty(t, d.users(t, byID(fmt.Sprint("c", i))))
	}
}

// Each kind of identifier, on both sides.
func TestMergeIdentifiers(t *testing.T) {
	d := openEngine(t, t.TempDir())
	kinds := map[string]struct {
		track, object, export string
	}{
		"external_id": {`"external_id":"#"`, `{"external_id":"#"}`, `{"external_ids":["#"]}`},
		"user_alias":  {`"user_alias":{"alias_label":"l","alias_name":"#"},"_update_existing_only":false`, `{"user_alias":{"alias_label":"l","alias_name":"#"}}`, `{"user_aliases":[{"alias_label":"l","alias_name":"#"}]}`},
		"email":       {`"email":"#@example.com"`, `{"email":"#@Example.com","prioritization":["unidentified","most_recently_updated"]}`, `{"email_address":"#@example.com"}`},
		"phone":       {`"phone":"+1415555####"`, `{"phone":"(415) 555-####","prioritization":["most_recently_updated"]}`, `{"phone":"+1415555####"}`},
	}
	n := 0
	name := func(kind, template string) string {
		return strings.NewReplacer("####", fmt.Sprint(2000+n), "#", fmt.Sprint(kind, n)).Replace(template)
	}
	for gone, g := range kinds {
		for keep, k := range kinds {
			n += 2
			track, object, export := name(gone, g.track), name(gone, g.object), name(gone, g.export)
			n++
			d.tracks(t, `{"attributes":[{`+track+`,"gone":1},{`+name(keep, k.track)+`,"keep":1}]}`)
			was := d.user(t, export)
			d.merges(t, toMerge(object, name(keep, k.object)))
			d.isGone(t, bySvcID(was))
			d.becomes(t, gone+" into "+keep, func() bool {
				list := d.users(t, name(keep, k.export))
				return len(list) == 1 && fmt.Sprint(list[0]["custom_attributes"]) == "map[gone:1 keep:1]"
			})
		}
	}

	// An address that several share: the prioritization chooses, or nothing happens.
	d.tracks(t, `{"attributes":[{"external_id":"s1","email":"s@example.com"},{"external_id":"keep","x":1}]}`)
	d.tracks(t, `{"attributes":[{"external_id":"s2","email":"s@example.com","chosen":true}]}`)
	shared := func(prioritization string) string {
		return toMerge(`{"email":"s@example.com","prioritization":`+prioritization+`}`, idObject("keep"))
	}
	d.merges(t, shared(`[]`), shared(`["identified"]`), shared(`["unidentified"]`), toMerge(idObject("keep"), `{"email":"s@example.com","prioritization":["identified"]}`))
	require.Len(t, d.users(t, `{"email_address":"s@example.com"}`), 2)
	require.Len(t, d.users(t, byID("keep")), 1)
	d.merges(t, shared(`["identified","most_recently_updated"]`))
	d.isGone(t, byID("s2"))
	require.Len(t, d.users(t, byID("s1")), 1)
	d.becomes(t, "the chosen one", func() bool {
		return fmt.Sprint(d.user(t, byID("keep"))["custom_attributes"]) == "map[chosen:true x:1]"
	})
}

// The texts are those of service.md 7, letter by letter; a request with one fault does nothing at all.
func TestMergeRefusals(t *testing.T) {
	d := openEngine(t, t.TempDir())
	d.tracks(t, `{"attributes":[{"external_id":"a","x":1},{"external_id":"b","x":1}]}`)
	const (
		array      = "'merge_updates' must be an array of objects"
		tooMany    = "a single request may not contain more than 50 merge updates"
		identifier = "identifiers must be objects with an 'external_id' property that is a string, 'user_alias' property that is an object, or 'email' property that is a string"
		members    = "'merge_updates' must only have 'identifier_to_merge' and 'identifier_to_keep'"
	)
	good := toMerge(idObject("a"), idObject("b"))
	for list, want := range map[string]string{
		`7`: array, `"a"`: array, `{}`: array, `null`: array, `["a"]`: array, `[7]`: array, `[null]`: array, `[[]]`: array, `[` + good + `,7]`: array, good: array,
		`[` + many(51, good) + `]`: tooMany, `[` + many(51, `{}`) + `]`: tooMany, `[` + many(51, `7`) + `]`: array,
		`[{}]`: members, `[` + good + `,{}]`: members, `[{"identifier_to_merge":{"external_id":"a"}}]`: members, `[{"identifier_to_keep":{"external_id":"a"}}]`: members,
		`[{"identifier_to_merge":{"external_id":"a"},"identifier_to_keep":{"external_id":"b"},"x":1}]`: members, `[{"Identifier_to_merge":{"external_id":"a"},"identifier_to_keep":{"external_id":"b"}}]`: members,
		`[{"identifier_to_merge":{"external_id":"a","external_id":"b"},"identifier_to_keep":{"external_id":"b"}}]`: "Invalid JSON: member 'external_id' is there more than once",
		`[{"identifier_to_merge":{"external_id":"\ud800"},"identifier_to_keep":{"external_id":"b"}}]`:              "Invalid JSON: a lone surrogate in a string",
	} {
		d.answers(t, "/users/merge", `{"merge_updates":`+list+`}`, 400, message(want))
	}
	d.answers(t, "/users/merge", `{}`, 400, message(array))
	for _, bad := range []string{`7`, `"a"`, `null`, `[]`, `{}`, `{"external_id":7}`, `{"external_id":null}`, `{"external_id":""}`, `{"external_id":{}}`, `{"EXTERNAL_ID":"a"}`, `{"svc_id":"a"}`, `{"user_alias":"a"}`, `{"user_alias":{}}`,
		`{"user_alias":{"alias_label":"l"}}`, `{"user_alias":{"alias_label":"l","alias_name":7}}`, `{"external_id":"a","user_alias":{"alias_label":"l","alias_name":"n"}}`, `{"external_id":"a","email":"a@example.com"}`,
		`{"email":7,"prioritization":["identified"]}`, `{"email":"","prioritization":["identified"]}`, `{"email":"a@example.com"}`, `{"email":"a@example.com","prioritization":null}`, `{"phone":"+14155552671"}`,
		`{"phone":14155552671,"prioritization":["identified"]}`, `{"phone":"+14155552671","email":"a@example.com","prioritization":["identified"]}`, `{"external_id":"` + strings.Repeat("x", 988) + `"}`,
	} {
		for _, update := range []string{toMerge(bad, idObject("b")), toMerge(idObject("a"), bad), good + "," + toMerge(bad, idObject("b"))} {
			d.answers(t, "/users/merge", `{"merge_updates":[`+update+`]}`, 400, message(identifier))
		}
	}
	for _, bad := range []string{`"identified"`, `["identified","unidentified"]`, `["x"]`, `{}`} {
		d.answers(t, "/users/merge", `{"merge_updates":[`+toMerge(`{"email":"a@example.com","prioritization":`+bad+`}`, idObject("b"))+`]}`, 400, message("'prioritization' is not valid"))
	}
	require.Len(t, d.users(t, byID("a")), 1)
	// null is not there, and what is not known does not matter.
	d.merges(t, toMerge(`{"external_id":"a","email":null,"x":1}`, idObject("b")))
	d.isGone(t, byID("a"))
}

// Merges in circles and against one another, while their users are tracked: events and aliases are conserved.
func TestMergeWhileTracking(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const users, clients, rounds = 12, 6, 15
	d.tracks(t, `{"attributes":[`+many(users, `{"external_id":"u#","x":1}`)+`]}`)
	d.answers(t, "/users/alias/new", `{"user_aliases":[`+many(users, `{"external_id":"u#","alias_label":"l#","alias_name":"n"}`)+`]}`, 201, processed(users))
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			for i := range rounds {
				a, b := (c*5+i*7)%users, (c*3+i*5+1)%users
				d.merges(t, toMerge(idObject(fmt.Sprint("u", a)), idObject(fmt.Sprint("u", b))), toMerge(idObject(fmt.Sprint("u", b)), idObject(fmt.Sprint("u", a))))
				d.tracks(t, fmt.Sprintf(`{"events":[{"external_id":"u%d","name":"e","time":"2026-01-02T03:04:05Z"},{"external_id":"u%d","name":"e","time":"2026-01-02T03:04:05Z"}]}`, a, b))
			}
		})
	}
	group.Wait()
	everybody := func() (events float64, aliases int) {
		for i := range users {
			for _, u := range d.users(t, byID(fmt.Sprint("u", i))) {
				if list, ok := u["custom_events"].([]any); ok {
					events += list[0].(map[string]any)["count"].(float64)
				}
				aliases += len(aliasesOf(u))
			}
		}
		return events, aliases
	}
	d.becomes(t, "all is applied", func() bool {
		events, aliases := everybody()
		return events == 2*clients*rounds && aliases == users
	})
	for i := range users {
		require.Len(t, d.users(t, byAlias(fmt.Sprint("l", i), "n")), 1)
	}
}
