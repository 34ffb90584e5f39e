package api

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/op"
)

// Tests of the endpoints that change who is who, on the real engine: what one of them does is read back through
// another.

// answers sends a body and wants this answer, status and text.
func (d *door) answers(t *testing.T, path, body string, status int, want string) {
	t.Helper()
	a := d.call("POST", path, demoKey, body)
	require.NoError(t, a.err)
	require.Equal(t, status, a.status, "%s %s: %s", path, body, a.body)
	require.Equal(t, want, a.body, "%s %s", path, body)
}

// users exports the users that a request names.
func (d *door) users(t *testing.T, body string) (list []map[string]any) {
	t.Helper()
	a := d.call("POST", "/users/export/ids", demoKey, body)
	require.Equal(t, 201, a.status, a.body)
	for _, u := range a.json(t)["users"].([]any) {
		list = append(list, u.(map[string]any))
	}
	return list
}

func (d *door) user(t *testing.T, body string) map[string]any {
	t.Helper()
	list := d.users(t, body)
	require.Len(t, list, 1, body)
	return list[0]
}

func byID(id string) string { return fmt.Sprintf(`{"external_ids":[%q]}`, id) }

func byAlias(label, name string) string {
	return fmt.Sprintf(`{"user_aliases":[{"alias_label":%q,"alias_name":%q}]}`, label, name)
}

func bySvcID(u map[string]any) string { return fmt.Sprintf(`{"svc_id":%q}`, u["svc_id"]) }

// aliasesOf lists a user's aliases as label/name.
func aliasesOf(u map[string]any) (list []string) {
	aliases, _ := u["user_aliases"].([]any)
	for _, a := range aliases {
		list = append(list, fmt.Sprint(a.(map[string]any)["alias_label"], "/", a.(map[string]any)["alias_name"]))
	}
	slices.Sort(list)
	return list
}

// tracks sends a body to /users/track, all of which must be accepted.
func (d *door) tracks(t *testing.T, body string) {
	t.Helper()
	a := d.call("POST", "/users/track", demoKey, body)
	require.Equal(t, 201, a.status, a.body)
	require.NotContains(t, a.body, "errors", body)
}

// many joins n elements, made from their index.
func many(n int, element string) string {
	var list []string
	for i := range n {
		list = append(list, strings.ReplaceAll(element, "#", fmt.Sprint(i)))
	}
	return strings.Join(list, ",")
}

// refusedWith is a body of errors, a text for each index.
func refusedWith(array string, processed int, texts ...string) string {
	var list []string
	for i, text := range texts {
		if text != "" {
			quoted, _ := json.Marshal(text)
			list = append(list, strings.NewReplacer(`\u0026`, "&").Replace(fmt.Sprintf(`{"type":%s,"input_array":"%s","index":%d}`, quoted, array, i)))
		}
	}
	return fmt.Sprintf(`{"aliases_processed":%d,"message":"success","errors":[%s]}`, processed, strings.Join(list, ","))
}

func processed(n int) string { return fmt.Sprintf(`{"aliases_processed":%d,"message":"success"}`, n) }

func message(text string) string { return fmt.Sprintf(`{"message":%q}`, text) }

func TestNewAliases(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const path = "/users/alias/new"
	d.tracks(t, `{"attributes":[{"external_id":"a","x":1},{"external_id":"7","x":1}]}`)

	// To users with an external id, and alias-only users.
	d.answers(t, path, `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"one"},{"alias_label":"l","alias_name":"two"},{"external_id":7,"alias_label":"l","alias_name":"three"}]}`, 201, processed(3))
	require.Equal(t, "a", d.user(t, byAlias("l", "one"))["external_id"])
	require.Equal(t, []string{"l/one"}, aliasesOf(d.user(t, byID("a"))))
	require.Equal(t, "7", d.user(t, byAlias("l", "three"))["external_id"])
	only := d.user(t, byAlias("l", "two"))
	require.NotContains(t, only, "external_id")
	require.Equal(t, []string{"l/two"}, aliasesOf(only))

	// They are users for /users/track, which makes none by alias by itself.
	d.tracks(t, `{"attributes":[{"user_alias":{"alias_label":"l","alias_name":"two"},"y":2},{"user_alias":{"alias_label":"l","alias_name":"one"},"y":3}]}`)
	require.Equal(t, map[string]any{"y": 2.0}, d.user(t, byAlias("l", "two"))["custom_attributes"])
	require.Equal(t, map[string]any{"x": 1.0, "y": 3.0}, d.user(t, byID("a"))["custom_attributes"])

	// An external id that nobody has: the alias is added to nobody. So with a svc_id of nobody.
	d.answers(t, path, `{"user_aliases":[{"external_id":"nobody","alias_label":"l","alias_name":"none"},{"svc_id":"0123","alias_label":"l","alias_name":"none"}]}`, 201, processed(2))
	require.Empty(t, d.users(t, byAlias("l", "none")))
	require.Empty(t, d.users(t, byID("nobody")))
	for _, member := range []string{"svc_id", "braze_id"} {
		d.answers(t, path, fmt.Sprintf(`{"user_aliases":[{%q:%q,"alias_label":%q,"alias_name":"n"}]}`, member, only["svc_id"], member), 201, processed(1))
	}
	require.Equal(t, []string{"braze_id/n", "l/two", "svc_id/n"}, aliasesOf(d.user(t, bySvcID(only))))

	// Again: for the same user it is so already; an alias-only user can't be made a second time, nor can an alias have
	// two users.
	d.answers(t, path, `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"one"}]}`, 201, processed(1))
	inUse := "'alias_name' is already in use"
	d.answers(t, path, `{"user_aliases":[{"alias_label":"l","alias_name":"two"},{"alias_label":"l","alias_name":"one"},{"external_id":"7","alias_label":"l","alias_name":"one"},{"alias_label":"l","alias_name":"Two"}]}`,
		201, refusedWith("user_aliases", 1, inUse, inUse, inUse))
	require.Equal(t, []string{"l/three"}, aliasesOf(d.user(t, byID("7"))))
	// Nor a user two names under one label.
	d.answers(t, path, `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"other"},{"external_id":"a","alias_label":"m","alias_name":"other"}]}`,
		201, refusedWith("user_aliases", 1, "the user already has an alias with this 'alias_label'"))
	require.Equal(t, []string{"l/one", "m/other"}, aliasesOf(d.user(t, byID("a"))))
	require.Empty(t, d.users(t, byAlias("l", "other")))

	// Within one request the first wins.
	d.answers(t, path, `{"user_aliases":[{"external_id":"a","alias_label":"o","alias_name":"1"},{"external_id":"a","alias_label":"o","alias_name":"2"},{"alias_label":"o","alias_name":"2"},
		{"external_id":"7","alias_label":"o","alias_name":"2"},{"alias_label":"o","alias_name":"1"},{"external_id":"a","alias_label":"o","alias_name":"1"},{"external_id":"a","alias_label":"p","alias_name":"1"}]}`,
		201, refusedWith("user_aliases", 4, "", "the user already has an alias with this 'alias_label'", "", inUse, inUse))
	require.Equal(t, []string{"l/one", "m/other", "o/1", "p/1"}, aliasesOf(d.user(t, byID("a"))))
	require.NotContains(t, d.user(t, byAlias("o", "2")), "external_id")

	d.tracks(t, `{"attributes":[`+many(25, `{"external_id":"first#","x":1}`)+`]}`)
	a := d.call("POST", path, demoKey, `{"user_aliases":[`+many(25, `{"external_id":"first#","alias_label":"l","alias_name":"first#"},{"external_id":"first#","alias_label":"l","alias_name":"second#"}`)+`]}`)
	require.Equal(t, 25.0, a.json(t)["aliases_processed"], a.body)
	for i := range 25 {
		require.Equal(t, []string{fmt.Sprint("l/first", i)}, aliasesOf(d.user(t, byID(fmt.Sprint("first", i)))))
	}

	// The shape of a client library, which the real service takes.
	d.answers(t, path, `{"user_aliases":[{"user_alias":{"alias_name":"abc","alias_label":"foo"}}]}`, 201, processed(1))
	require.Equal(t, []string{"foo/abc"}, aliasesOf(d.user(t, byAlias("foo", "abc"))))

	// Labels and names of any text; the other workspace sees none.
	long := strings.Repeat("é", 118)
	d.answers(t, path, fmt.Sprintf(`{"user_aliases":[{"alias_label":%q,"alias_name":%q},{"alias_label":"a\u0000b","alias_name":"\ud83d\ude00"}]}`, long, long), 201, processed(2))
	require.Len(t, d.users(t, byAlias(long, long)), 1)
	require.Len(t, d.users(t, `{"user_aliases":[{"alias_label":"a\u0000b","alias_name":"😀"}]}`), 1)
	require.Empty(t, d.call("POST", "/users/export/ids", otherKey, byAlias("l", "one")).json(t)["users"])

	d.answers(t, path, `{"user_aliases":[`+many(50, `{"alias_label":"fifty","alias_name":"#"}`)+`]}`, 201, processed(50))
	require.Len(t, d.users(t, byAlias("fifty", "49")), 1)
	d.answers(t, path, `{"user_aliases":[`+many(50, `{"external_id":"a","alias_label":"label#","alias_name":"#"}`)+`]}`, 201, processed(50))
	require.Len(t, aliasesOf(d.user(t, byID("a"))), 54)
	d.answers(t, path, `{"user_aliases":[`+many(51, `{"alias_label":"more","alias_name":"#"}`)+`]}`, 400, message("The max number of external_ids and aliases per request was exceeded"))
	require.Empty(t, d.users(t, byAlias("more", "0")))
}

func TestNewAliasRefusals(t *testing.T) {
	d := openEngine(t, t.TempDir())
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(`{"blocked_external_ids":["blocked"]}`)) })
	require.NoError(t, err)
	const good = `"alias_label":"l","alias_name":"n"`
	tooLong := strings.Repeat("x", 237)
	for element, want := range map[string]string{
		`7`: "must be an object", `null`: "must be an object", `"a"`: "must be an object", `[{` + good + `}]`: "must be an object",
		`{` + good + `,"alias_name":"m"}`: "Invalid JSON: member 'alias_name' is there more than once", `{"alias_label":"l","alias_name":"\ud800"}`: "Invalid JSON: a lone surrogate in a string",
		`{` + good + `,"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`: "Invalid JSON: nested too deeply",
		`{}`: "'alias_name' must be a String", `{"alias_label":"l"}`: "'alias_name' must be a String", `{"alias_name":"n"}`: "'alias_label' must be a String",
		`{"alias_label":"l","alias_name":7}`: "'alias_name' must be a String", `{"alias_label":null,"alias_name":"n"}`: "'alias_label' must be a String",
		`{"ALIAS_LABEL":"l","alias_name":"n"}`: "'alias_label' must be a String",
		`{"alias_label":"l","alias_name":""}`:  "'alias_name' is required", `{"alias_label":"","alias_name":"n"}`: "'alias_label' is required",
		`{"alias_label":"l","alias_name":"` + tooLong + `"}`: "'alias_name' must be fewer than 237 bytes", `{"alias_label":"` + tooLong + `","alias_name":"n"}`: "'alias_label' must be fewer than 237 bytes",
		`{"external_id":"",` + good + `}`: "'external_id' must not be empty", `{"external_id":true,` + good + `}`: "'external_id' must be a String", `{"external_id":1.5,` + good + `}`: "'external_id' must be a String",
		`{"external_id":{},` + good + `}`: "'external_id' must be a String", `{"external_id":"` + strings.Repeat("x", 988) + `",` + good + `}`: "'external_id' must be fewer than 988 bytes",
		`{"external_id":"blocked",` + good + `}`: "provided external_id is blacklisted and disallowed", `{"svc_id":7,` + good + `}`: "'svc_id' must be a String",
		`{"external_id":"a","svc_id":"b",` + good + `}`: "You must specify only one of 'external_id' or 'svc_id'", `{"braze_id":"a","svc_id":"b",` + good + `}`: "You must specify only one of 'external_id' or 'svc_id'",
		`{"user_alias":{"alias_label":"l"}}`: "'alias_name' must be a String", `{"user_alias":{` + good + `},"alias_label":"l"}`: "'alias_name' must be a String",
	} {
		d.answers(t, "/users/alias/new", `{"user_aliases":[`+element+`]}`, 201, refusedWith("user_aliases", 0, want))
	}
	require.Empty(t, d.users(t, byAlias("l", "n")))
	// What is right beside what is wrong is done.
	d.answers(t, "/users/alias/new", `{"user_aliases":[{},{`+good+`},{}]}`, 201, refusedWith("user_aliases", 1, "'alias_name' must be a String", "", "'alias_name' must be a String"))
	require.Len(t, d.users(t, byAlias("l", "n")), 1)
	require.NotContains(t, d.logged(), "panic")
}

func TestUpdateAliases(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const path = "/users/alias/update"
	update := func(label, from, to string) string {
		return fmt.Sprintf(`{"alias_label":%q,"old_alias_name":%q,"new_alias_name":%q}`, label, from, to)
	}
	body := func(updates ...string) string { return `{"alias_updates":[` + strings.Join(updates, ",") + `]}` }
	d.tracks(t, `{"attributes":[{"external_id":"a","x":1}]}`)
	d.answers(t, "/users/alias/new", `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"a"},{"external_id":"a","alias_label":"m","alias_name":"a"},{"alias_label":"l","alias_name":"b"}]}`, 201, processed(3))
	b := d.user(t, byAlias("l", "b"))

	d.answers(t, path, body(update("l", "a", "new")), 201, processed(1))
	require.Equal(t, []string{"l/new", "m/a"}, aliasesOf(d.user(t, byID("a"))))
	require.Empty(t, d.users(t, byAlias("l", "a")))
	require.Equal(t, "a", d.user(t, byAlias("l", "new"))["external_id"])
	d.tracks(t, `{"attributes":[{"user_alias":{"alias_label":"l","alias_name":"new"},"y":1}]}`)
	require.Equal(t, map[string]any{"x": 1.0, "y": 1.0}, d.user(t, byID("a"))["custom_attributes"])

	nobody, inUse := "nobody has an alias with this 'alias_label' and 'old_alias_name'", "'new_alias_name' is already in use"
	d.answers(t, path, body(update("l", "a", "c"), update("l", "new", "b"), update("M", "a", "c"), update("l", "New", "c")), 201, refusedWith("alias_updates", 0, nobody, inUse, nobody, nobody))
	d.answers(t, path, body(update("l", "new", "new")), 201, processed(1)) // it is so
	require.Equal(t, []string{"l/new", "m/a"}, aliasesOf(d.user(t, byID("a"))))

	// In their order: two change names by way of a third; the alias that was given up is free.
	d.answers(t, path, body(update("l", "new", "tmp"), update("l", "b", "new"), update("l", "tmp", "b"), update("l", "tmp", "x"), update("m", "a", "z")), 201, refusedWith("alias_updates", 4, "", "", "", nobody))
	require.Equal(t, []string{"l/b", "m/z"}, aliasesOf(d.user(t, byID("a"))))
	require.Equal(t, b["svc_id"], d.user(t, byAlias("l", "new"))["svc_id"])
	d.answers(t, "/users/alias/new", `{"user_aliases":[{"alias_label":"m","alias_name":"a"}]}`, 201, processed(1))

	for element, want := range map[string]string{
		`7`: "must be an object", `{}`: "'alias_label' must be a String", `{"alias_label":"l","old_alias_name":7,"new_alias_name":"n"}`: "'old_alias_name' must be a String",
		`{"alias_label":"l","old_alias_name":"b"}`: "'new_alias_name' must be a String", update("l", "b", ""): "'new_alias_name' is required", update("", "b", "c"): "'alias_label' is required",
		update("l", "b", strings.Repeat("x", 237)): "'new_alias_name' must be fewer than 237 bytes", `{"alias_label":"l","old_alias_name":"b","new_alias_name":"\udc00"}`: "Invalid JSON: a lone surrogate in a string",
	} {
		d.answers(t, path, body(element), 201, refusedWith("alias_updates", 0, want))
	}
	d.answers(t, "/users/alias/new", `{"user_aliases":[`+many(50, `{"alias_label":"u","alias_name":"#"}`)+`]}`, 201, processed(50))
	d.answers(t, path, body(many(50, `{"alias_label":"u","old_alias_name":"#","new_alias_name":"new#"}`)), 201, processed(50))
	require.Len(t, d.users(t, byAlias("u", "new49")), 1)
	d.answers(t, path, body(many(51, `{"alias_label":"u","old_alias_name":"new#","new_alias_name":"#"}`)), 400, message("The max number of external_ids and aliases per request was exceeded"))
	require.Len(t, d.users(t, byAlias("u", "new0")), 1)
}

// toIdentify is a request for one alias.
func toIdentify(label, name, id, more string) string {
	return fmt.Sprintf(`{"aliases_to_identify":[{"external_id":%q,"user_alias":{"alias_label":%q,"alias_name":%q}}]%s}`, id, label, name, more)
}

func TestIdentify(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const path = "/users/identify"
	aliasOnly := func(name, more string) {
		t.Helper()
		d.tracks(t, fmt.Sprintf(`{"attributes":[{"user_alias":{"alias_label":"l","alias_name":%q},"_update_existing_only":false,"of":%q%s}],"events":[{"user_alias":{"alias_label":"l","alias_name":%q},"_update_existing_only":false,"name":"e","time":"2026-01-02T03:04:05Z"}]}`, name, name, more, name))
	}

	// Nobody has the external id: the alias-only user gets it.
	aliasOnly("new", "")
	before := d.user(t, byAlias("l", "new"))
	d.answers(t, path, toIdentify("l", "new", "a", ""), 201, processed(1))
	a := d.user(t, byID("a"))
	require.Equal(t, before["svc_id"], a["svc_id"])
	require.Equal(t, map[string]any{"of": "new"}, a["custom_attributes"])
	require.Equal(t, []string{"l/new"}, aliasesOf(a))
	d.tracks(t, `{"attributes":[{"external_id":"a","y":1}]}`)
	require.Equal(t, map[string]any{"of": "new", "y": 1.0}, d.user(t, byAlias("l", "new"))["custom_attributes"])

	// Somebody has it: the alias-only user is merged in, and is gone. What the identified user has stays.
	aliasOnly("second", `,"z":1,"email":"second@example.com"`)
	second := d.user(t, byAlias("l", "second"))
	d.answers(t, path, toIdentify("l", "second", "a", ""), 201, processed(1))
	a = d.user(t, byID("a"))
	require.Equal(t, map[string]any{"of": "new", "y": 1.0, "z": 1.0}, a["custom_attributes"])
	require.Equal(t, 2.0, a["custom_events"].([]any)[0].(map[string]any)["count"])
	require.Equal(t, "second@example.com", a["email"])
	require.Empty(t, d.users(t, bySvcID(second)))
	require.Equal(t, "a", d.user(t, `{"email_address":"second@example.com"}`)["external_id"])

	// merge_behavior none: attributes and events are left behind.
	aliasOnly("third", `,"q":1`)
	d.answers(t, path, toIdentify("l", "third", "a", `,"merge_behavior":"none"`), 201, processed(1))
	a = d.user(t, byID("a"))
	require.NotContains(t, a["custom_attributes"], "q")
	require.Equal(t, 2.0, a["custom_events"].([]any)[0].(map[string]any)["count"])
	// An integer, as clients send it, and the default said aloud.
	aliasOnly("fourth", "")
	d.answers(t, path, `{"aliases_to_identify":[{"external_id":12345,"user_alias":{"alias_label":"l","alias_name":"fourth"}}],"merge_behavior":"merge"}`, 201, processed(1))
	require.Equal(t, []string{"l/fourth"}, aliasesOf(d.user(t, byID("12345"))))

	// No effect, and a success: unknown alias, an alias in another case, a user who has an external id.
	state := []any{d.users(t, byID("a")), d.users(t, byID("12345"))}
	for _, body := range []string{toIdentify("l", "nobody", "x", ""), toIdentify("l", "Fourth", "x", ""), toIdentify("l", "fourth", "x", ""), toIdentify("l", "fourth", "a", ""), toIdentify("l", "fourth", "12345", "")} {
		d.answers(t, path, body, 201, processed(1))
	}
	require.Equal(t, state, []any{d.users(t, byID("a")), d.users(t, byID("12345"))})
	require.Empty(t, d.users(t, byID("x")))

	// Elements of one request in their order: the first makes the user whom the others join.
	for _, name := range []string{"w1", "w2", "w3"} {
		aliasOnly(name, "")
	}
	d.answers(t, path, `{"aliases_to_identify":[{"external_id":"w","user_alias":{"alias_label":"l","alias_name":"w1"}},{"external_id":"w","user_alias":{"alias_label":"l","alias_name":"w2"}},
		{"external_id":"w","user_alias":{"alias_label":"l","alias_name":"w3"}},{"external_id":"v","user_alias":{"alias_label":"l","alias_name":"w1"}}]}`, 201, processed(4))
	w := d.user(t, byID("w"))
	require.Equal(t, "w1", w["custom_attributes"].(map[string]any)["of"])
	require.Equal(t, 3.0, w["custom_events"].([]any)[0].(map[string]any)["count"])
	require.Empty(t, d.users(t, byID("v")))

	d.answers(t, "/users/alias/new", `{"user_aliases":[`+many(50, `{"alias_label":"fifty","alias_name":"#"}`)+`]}`, 201, processed(50))
	d.answers(t, path, `{"aliases_to_identify":[`+many(50, `{"external_id":"fifty#","user_alias":{"alias_label":"fifty","alias_name":"#"}}`)+`]}`, 201, processed(50))
	require.Equal(t, []string{"fifty/49"}, aliasesOf(d.user(t, byID("fifty49"))))
	tooMany := message("The max number of external_ids and aliases per request was exceeded")
	d.answers(t, path, `{"aliases_to_identify":[`+many(51, `{"external_id":"more","user_alias":{"alias_label":"l","alias_name":"#"}}`)+`]}`, 400, tooMany)
	d.answers(t, path, `{"aliases_to_identify":[`+many(50, `{"external_id":"more","user_alias":{"alias_label":"l","alias_name":"#"}}`)+`],"phone_numbers_to_identify":[{}]}`, 400, tooMany)
}

// Users by an address that several share: the prioritization chooses one, or nothing happens.
func TestIdentifyByAddress(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const path = "/users/identify"
	identify := func(email, id, prioritization string) string {
		return fmt.Sprintf(`{"emails_to_identify":[{"external_id":%q,"email":%q,"prioritization":%s}]}`, id, email, prioritization)
	}
	// An email-only user.
	d.tracks(t, `{"attributes":[{"email":"one@example.com","x":1}]}`)
	d.answers(t, path, identify("One@Example.com", "one", `["unidentified"]`), 201, processed(1))
	require.Equal(t, map[string]any{"x": 1.0}, d.user(t, byID("one"))["custom_attributes"])
	// A phone-only user, into somebody.
	d.tracks(t, `{"attributes":[{"phone":"+14155552671","y":1}]}`)
	d.answers(t, path, `{"phone_numbers_to_identify":[{"external_id":"one","phone":"+1 (415) 555-2671","prioritization":["unidentified","most_recently_updated"]}]}`, 201, processed(1))
	require.Equal(t, map[string]any{"x": 1.0, "y": 1.0}, d.user(t, byID("one"))["custom_attributes"])

	share := func(email string, names ...string) { // the last is the most recently updated
		t.Helper()
		for _, name := range names {
			d.tracks(t, fmt.Sprintf(`{"attributes":[{"user_alias":{"alias_label":"l","alias_name":%q},"_update_existing_only":false,"email":%q}]}`, name, email))
		}
	}
	idOf := func(name string) any { return d.user(t, byAlias("l", name))["external_id"] }
	share("two@example.com", "t1", "t2", "t3")
	for _, ambiguous := range []string{`[]`, `["unidentified"]`, `["identified"]`} {
		d.answers(t, path, identify("two@example.com", "two", ambiguous), 201, processed(1))
		require.Empty(t, d.users(t, byID("two")), ambiguous)
	}
	d.answers(t, path, identify("two@example.com", "two", `["unidentified","most_recently_updated"]`), 201, processed(1))
	require.Equal(t, []any{nil, nil, "two"}, []any{idOf("t1"), idOf("t2"), idOf("t3")})
	d.answers(t, path, identify("two@example.com", "three", `["identified"]`), 201, processed(1)) // it chooses who has an external id
	require.Empty(t, d.users(t, byID("three")))
	d.answers(t, path, identify("two@example.com", "three", `["unidentified","least_recently_updated"]`), 201, processed(1))
	require.Equal(t, []any{"three", nil, "two"}, []any{idOf("t1"), idOf("t2"), idOf("t3")})

	// In one request: the first takes one of three away, the second finds two.
	share("three@example.com", "u1", "u2", "u3")
	d.answers(t, path, `{"emails_to_identify":[{"external_id":"u","email":"three@example.com","prioritization":["unidentified","most_recently_updated"]},{"external_id":"v","email":"three@example.com","prioritization":["unidentified","most_recently_updated"]}],
		"aliases_to_identify":[{"external_id":"w","user_alias":{"alias_label":"l","alias_name":"u1"}}]}`, 201, processed(3))
	require.Equal(t, []any{"w", "v", "u"}, []any{idOf("u1"), idOf("u2"), idOf("u3")})
}

func TestIdentifyRefusals(t *testing.T) {
	d := openEngine(t, t.TempDir())
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(`{"blocked_external_ids":["blocked"]}`)) })
	require.NoError(t, err)
	const path, alias = "/users/identify", `"user_alias":{"alias_label":"l","alias_name":"n"}`
	for element, want := range map[string]string{
		`7`: "must be an object", `{` + alias + `}`: "'external_id' is required", `{"external_id":null,` + alias + `}`: "'external_id' is required", `{"external_id":"",` + alias + `}`: "'external_id' must not be empty",
		`{"external_id":[],` + alias + `}`: "'external_id' must be a String", `{"external_id":"` + strings.Repeat("x", 988) + `",` + alias + `}`: "'external_id' must be fewer than 988 bytes",
		`{"external_id":"blocked",` + alias + `}`: "provided external_id is blacklisted and disallowed",
		`{"external_id":"a"}`:                     "'user_alias' must be an object with 'alias_name' and 'alias_label'", `{"external_id":"a","user_alias":"n"}`: "'user_alias' must be an object with 'alias_name' and 'alias_label'",
		`{"external_id":"a","user_alias":{"alias_label":"l"}}`:                       "'alias_name' must be a String",
		`{"external_id":"a","user_alias":{"alias_label":7,"alias_name":"n"}}`:        "'alias_label' must be a String",
		`{"external_id":"a","user_alias":{"alias_label":"l","alias_name":""}}`:       "'alias_name' is required",
		`{"external_id":"a","external_id":"b",` + alias + `}`:                        "Invalid JSON: member 'external_id' is there more than once",
		`{"external_id":"a","user_alias":{"alias_label":"l","alias_name":"\ud800"}}`: "Invalid JSON: a lone surrogate in a string",
	} {
		d.answers(t, path, `{"aliases_to_identify":[`+element+`]}`, 201, refusedWith("aliases_to_identify", 0, want))
	}
	for _, kind := range []struct{ array, by, value string }{{"emails_to_identify", "email", "a@example.com"}, {"phone_numbers_to_identify", "phone", "+14155552671"}} {
		for element, want := range map[string]string{
			`"a"`: "must be an object", `{"external_id":"a","prioritization":[]}`: "'" + kind.by + "' is required", `{"external_id":"a","` + kind.by + `":"","prioritization":[]}`: "'" + kind.by + "' is required",
			`{"external_id":"a","` + kind.by + `":7,"prioritization":[]}`: "'" + kind.by + "' must be a String", `{"` + kind.by + `":"` + kind.value + `","prioritization":[]}`: "'external_id' is required",
			`{"external_id":"a","` + kind.by + `":"` + kind.value + `"}`: "'prioritization' is required", `{"external_id":"a","` + kind.by + `":"` + kind.value + `","prioritization":null}`: "'prioritization' is required",
		} {
			d.answers(t, path, `{"`+kind.array+`":[`+element+`]}`, 201, refusedWith(kind.array, 0, want))
		}
		for _, bad := range []string{`"identified"`, `{}`, `7`, `["newest"]`, `["identified","unidentified"]`, `["most_recently_updated","least_recently_updated"]`, `["identified","identified"]`, `[7]`, `["Identified"]`} {
			d.answers(t, path, `{"`+kind.array+`":[{"external_id":"a","`+kind.by+`":"`+kind.value+`","prioritization":`+bad+`}]}`, 400, message("'prioritization' is not valid"))
		}
	}
	// One entry each, with the place in its own array, and the rest is done.
	d.tracks(t, `{"attributes":[{"user_alias":{"alias_label":"l","alias_name":"n"},"_update_existing_only":false,"x":1}]}`)
	d.answers(t, path, `{"emails_to_identify":[{},{}],"aliases_to_identify":[{},{"external_id":"a",`+alias+`}]}`, 201,
		`{"aliases_processed":1,"message":"success","errors":[{"type":"'external_id' is required","input_array":"emails_to_identify","index":0},{"type":"'external_id' is required","input_array":"emails_to_identify","index":1},`+
			`{"type":"'external_id' is required","input_array":"aliases_to_identify","index":0}]}`)
	require.Len(t, d.users(t, byID("a")), 1)

	good := `[{"external_id":"b","user_alias":{"alias_label":"l","alias_name":"n"}}]`
	for _, behavior := range []string{`"both"`, `"Merge"`, `7`, `true`, `["merge"]`, `""`} {
		d.answers(t, path, `{"aliases_to_identify":`+good+`,"merge_behavior":`+behavior+`}`, 400, message("'merge_behavior' must be 'none' or 'merge'"))
	}
	d.answers(t, path, `{"aliases_to_identify":`+good+`,"merge_behavior":null}`, 201, processed(1))
	required := message("One of 'aliases_to_identify', 'emails_to_identify' or 'phone_numbers_to_identify' is required")
	for body, want := range map[string]string{
		`{}`: required, `{"aliases_to_identify":[]}`: required, `{"aliases_to_identify":null,"emails_to_identify":[]}`: required,
		`{"aliases_to_identify":{}}`:                                         message("'aliases_to_identify' must be an array of objects"),
		`{"emails_to_identify":"a"}`:                                         message("'emails_to_identify' must be an array of objects"),
		`{"aliases_to_identify":` + good + `,"phone_numbers_to_identify":7}`: message("'phone_numbers_to_identify' must be an array of objects"),
	} {
		d.answers(t, path, body, 400, want)
	}
	require.Empty(t, d.users(t, byID("b")))
}

// The requests of all six: wrong array, wrong method, trailing slash, unknown members, compressed bodies, unsafe JSON,
// limits of their buckets.
func TestIdentityRequests(t *testing.T) {
	d := openEngine(t, t.TempDir())
	d.tracks(t, `{"attributes":[{"external_id":"a","x":1}]}`)
	for path, c := range map[string]struct {
		array, good, required string
		limit                 string
		empty                 int
	}{
		"/users/alias/new":           {"user_aliases", `{"external_id":"a","alias_label":"l","alias_name":"n"}`, "'user_aliases' is required", "20000", 400},
		"/users/alias/update":        {"alias_updates", `{"alias_label":"l","old_alias_name":"n","new_alias_name":"n"}`, "'alias_updates' is required", "20000", 400},
		"/users/identify":            {"aliases_to_identify", `{"external_id":"a","user_alias":{"alias_label":"l","alias_name":"n"}}`, "One of 'aliases_to_identify', 'emails_to_identify' or 'phone_numbers_to_identify' is required", "20000", 400},
		"/users/merge":               {"merge_updates", `{"identifier_to_merge":{"external_id":"z"},"identifier_to_keep":{"external_id":"a"}}`, "'merge_updates' must be an array of objects", "20000", 202},
		"/users/external_ids/rename": {"external_id_renames", `{"current_external_id":"z","new_external_id":"y"}`, "'external_id_renames' is required", "1000", 400},
		"/users/external_ids/remove": {"external_ids", `"z"`, "'external_ids' is required", "1000", 400},
	} {
		body := `{"` + c.array + `":[` + c.good + `]}`
		want := d.call("POST", path, demoKey, body)
		require.Less(t, want.status, 300, want.body)
		require.Equal(t, "success", want.json(t)["message"])
		require.Equal(t, c.limit, want.header.Get("X-RateLimit-Limit"), path)
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write([]byte(body))
		require.NoError(t, z.Close())
		for _, same := range []answer{
			d.call("POST", path+"/", demoKey, body), d.call("POST", path, demoKey, `{"partner":"p","api_key":7,"x":{"y":[]},`+body[1:]), d.call("POST", path, demoKey, zipped.String(), "Content-Encoding", "gzip"),
		} {
			require.Equal(t, []any{want.status, want.body}, []any{same.status, same.body}, path)
		}
		for _, method := range []string{"GET", "PUT", "DELETE", "PATCH"} {
			a := d.call(method, path, demoKey, body)
			require.Equal(t, 405, a.status, path)
			require.Equal(t, "POST", a.header.Get("Allow"))
		}
		kind := "objects"
		if path == "/users/external_ids/remove" {
			kind = "strings"
		}
		mustBe := "'" + c.array + "' must be an array of " + kind
		for bad, text := range map[string]string{
			`{}`: c.required, `{"` + strings.ToUpper(c.array) + `":[` + c.good + `]}`: c.required, `{"` + c.array + `":null}`: c.required, `{"` + c.array + `":7}`: mustBe, `{"` + c.array + `":` + c.good + `}`: mustBe,
			`{"` + c.array + `":"a"}`: mustBe, `{"` + c.array + `":[` + c.good + `],"` + c.array + `":[]}`: "Invalid JSON: member '" + c.array + "' is there more than once", `{"` + c.array + `":["\ud800"]}`: "Invalid JSON: a lone surrogate in a string",
			`[]`: "the body must be an object", body + "x": fmt.Sprintf("Invalid JSON at byte %d: unexpected data after the object", len(body)),
		} {
			d.answers(t, path, bad, 400, message(text))
		}
		a := d.call("POST", path, demoKey, `{"`+c.array+`":[]}`)
		require.Equal(t, c.empty, a.status, path)
		if c.empty == 400 {
			require.Equal(t, message(c.required), a.body)
		}
	}
	require.NotContains(t, d.logged(), "panic")
}

func TestExternalIDs(t *testing.T) {
	d := openEngine(t, t.TempDir())
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(`{"blocked_external_ids":["blocked"]}`)) })
	require.NoError(t, err)
	const rename, remove = "/users/external_ids/rename", "/users/external_ids/remove"
	d.tracks(t, `{"attributes":[{"external_id":"abc","x":1},{"external_id":"b","x":2}]}`)
	abc := d.user(t, byID("abc"))
	d.answers(t, rename, `{"external_id_renames":[{"current_external_id":"abc","new_external_id":"foo"}]}`, 201,
		`{"rename_errors":[],"external_ids":[{"current_external_id":"abc","new_external_id":"foo"}],"message":"success"}`)
	// Both lead to the user now, for reading and for writing; foo is what it is called.
	d.tracks(t, `{"attributes":[{"external_id":"abc","y":1},{"external_id":"foo","z":1}]}`)
	for _, id := range []string{"abc", "foo"} {
		u := d.user(t, byID(id))
		require.Equal(t, "foo", u["external_id"])
		require.Equal(t, abc["svc_id"], u["svc_id"])
		require.Equal(t, map[string]any{"x": 1.0, "y": 1.0, "z": 1.0}, u["custom_attributes"])
	}

	const notPrimary, inUse = "current_external_id is not the primary external_id of a user", "new_external_id is already in use"
	renamed := func(elements, errors, ids string) {
		t.Helper()
		d.answers(t, rename, `{"external_id_renames":[`+elements+`]}`, 201, `{"rename_errors":[`+errors+`],"external_ids":[`+ids+`],"message":"success"}`)
	}
	renamed(`{"current_external_id":"abc","new_external_id":"x"}`, `[0,"`+notPrimary+`"]`, ``) // it is deprecated
	renamed(`{"current_external_id":"nobody","new_external_id":"x"}`, `[0,"`+notPrimary+`"]`, ``)
	renamed(`{"current_external_id":"b","new_external_id":"foo"},{"current_external_id":"b","new_external_id":"abc"}`, `[0,"`+inUse+`"],[1,"`+inUse+`"]`, ``)
	renamed(`{"current_external_id":"b","new_external_id":"b"},7,{"current_external_id":"b","new_external_id":"blocked"},{"current_external_id":"b"},{"new_external_id":"c"},{"current_external_id":"b","new_external_id":""}`,
		`[0,"current_external_id and new_external_id must not be the same"],[1,"must be an object"],[2,"provided external_id is blacklisted and disallowed"],[3,"'new_external_id' is required"],`+
			`[4,"'current_external_id' is required"],[5,"'new_external_id' must not be empty"]`, ``)
	require.Equal(t, "b", d.user(t, byID("b"))["external_id"])
	require.Empty(t, d.users(t, byID("x")))
	// In their order: b → c → d; then what b was called is deprecated, and not free.
	renamed(`{"current_external_id":"b","new_external_id":"c"},{"current_external_id":"c","new_external_id":7},{"current_external_id":"foo","new_external_id":"b"}`, `[2,"`+inUse+`"]`,
		`{"current_external_id":"b","new_external_id":"c"},{"current_external_id":"c","new_external_id":"7"}`)
	for _, id := range []string{"b", "c", "7"} {
		require.Equal(t, "7", d.user(t, byID(id))["external_id"])
	}

	// Only deprecated ids can be removed; then they are nobody's, and free.
	const unknown, primary = "external_id is not a deprecated external_id of a user", "a primary external_id can not be removed"
	removed := func(ids, done, errors string) {
		t.Helper()
		d.answers(t, remove, `{"external_ids":[`+ids+`]}`, 201, `{"removed_ids":[`+done+`],"removal_errors":[`+errors+`],"message":"success"}`)
	}
	removed(`"nobody","foo",{},"","abc",7,"b","b"`, `"abc","b"`, `[0,"`+unknown+`"],[1,"`+primary+`"],[2,"'external_id' must be a String"],[3,"'external_id' must not be empty"],[5,"`+primary+`"],[7,"`+unknown+`"]`)
	require.Empty(t, d.users(t, byID("abc")))
	require.Empty(t, d.users(t, byID("b")))
	require.Equal(t, "7", d.user(t, byID("c"))["external_id"])
	require.Equal(t, abc["svc_id"], d.user(t, byID("foo"))["svc_id"])
	d.tracks(t, `{"attributes":[{"external_id":"abc","new":true}]}`)
	require.Equal(t, map[string]any{"new": true}, d.user(t, byID("abc"))["custom_attributes"])
	require.Equal(t, map[string]any{"x": 1.0, "y": 1.0, "z": 1.0}, d.user(t, byID("foo"))["custom_attributes"])

	d.tracks(t, `{"attributes":[`+many(50, `{"external_id":"n#","x":1}`)+`]}`)
	a := d.call("POST", rename, demoKey, `{"external_id_renames":[`+many(50, `{"current_external_id":"n#","new_external_id":"m#"}`)+`]}`)
	require.Len(t, a.json(t)["external_ids"], 50, a.body)
	a = d.call("POST", remove, demoKey, `{"external_ids":[`+many(50, `"n#"`)+`]}`)
	require.Len(t, a.json(t)["removed_ids"], 50, a.body)
	require.Equal(t, "m49", d.user(t, byID("m49"))["external_id"])
	tooMany := message("The max number of external_ids and aliases per request was exceeded")
	d.answers(t, rename, `{"external_id_renames":[`+many(51, `{"current_external_id":"m#","new_external_id":"o#"}`)+`]}`, 400, tooMany)
	d.answers(t, remove, `{"external_ids":[`+many(51, `"m#"`)+`]}`, 400, tooMany)
	require.Len(t, d.users(t, byID("m0")), 1)
}

// Many ask for the same alias at once: one has it, and each answer is true.
func TestOneAliasForMany(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const clients, rounds = 16, 20
	d.tracks(t, `{"attributes":[`+many(clients, `{"external_id":"u#","x":1}`)+`]}`)
	for round := range rounds {
		var group sync.WaitGroup
		var won, lost atomic.Int64
		var winner atomic.Pointer[string]
		for i := range clients {
			group.Go(func() {
				id := fmt.Sprint("u", i)
				body := fmt.Sprintf(`{"user_aliases":[{"external_id":%q,"alias_label":"l%d","alias_name":"n"}]}`, id, round)
				if i%4 == 0 { // or as an alias-only user
					id, body = "", fmt.Sprintf(`{"user_aliases":[{"alias_label":"l%d","alias_name":"n"}]}`, round)
				}
				switch a := d.call("POST", "/users/alias/new", demoKey, body); a.body {
				case processed(1):
					won.Add(1)
					winner.Store(&id)
				case refusedWith("user_aliases", 0, "'alias_name' is already in use"):
					lost.Add(1)
				default:
					t.Errorf("%d %s", a.status, a.body)
				}
			})
		}
		group.Wait()
		require.EqualValues(t, []int64{1, clients - 1}, []int64{won.Load(), lost.Load()})
		id, _ := d.user(t, byAlias(fmt.Sprint("l", round), "n"))["external_id"].(string)
		require.Equal(t, *winner.Load(), id)
	}
}

// Users are identified while their events come in, by alias and by external id: nothing is lost.
func TestIdentifyWhileTracking(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const users, events = 8, 40
	var group sync.WaitGroup
	d.answers(t, "/users/alias/new", `{"user_aliases":[`+many(users, `{"alias_label":"l","alias_name":"n#"}`)+`]}`, 201, processed(users))
	for u := range users {
		for _, by := range []string{fmt.Sprintf(`"user_alias":{"alias_label":"l","alias_name":"n%d"}`, u), fmt.Sprintf(`"external_id":"u%d"`, u)} {
			group.Go(func() {
				for range events {
					if a := d.call("POST", "/users/track", demoKey, `{"events":[{`+by+`,"name":"e","time":"2026-01-02T03:04:05Z"}]}`); a.status != 201 {
						t.Errorf("%d %s", a.status, a.body)
					}
				}
			})
		}
		group.Go(func() {
			time.Sleep(time.Duration(u) * time.Millisecond)
			if a := d.call("POST", "/users/identify", demoKey, toIdentify("l", fmt.Sprint("n", u), fmt.Sprint("u", u), "")); a.body != processed(1) {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	group.Wait()
	for u := range users {
		user := d.user(t, byID(fmt.Sprint("u", u)))
		require.Equal(t, 2.0*events, user["custom_events"].([]any)[0].(map[string]any)["count"], user)
		require.Equal(t, []string{fmt.Sprint("l/n", u)}, aliasesOf(user))
	}
}

// brokenStore fails to commit, as an engine may.
type brokenStore struct {
	store.Store
	armed   bool
	commits int   // that succeed, when it is armed
	err     error // of the others
}

type brokenBatch struct {
	store.Batch
	s *brokenStore
}

func (s *brokenStore) arm(commits int, err error) { s.armed, s.commits, s.err = true, commits, err }

func (s *brokenStore) NewBatch(workspace, actor uint32) store.Batch {
	if !s.armed {
		return s.Store.NewBatch(workspace, actor)
	}
	return brokenBatch{s.Store.NewBatch(workspace, actor), s}
}

func (b brokenBatch) Commit() error {
	if b.s.commits--; b.s.commits < 0 {
		return b.s.err
	}
	return b.Batch.Commit()
}

// The engine refuses the second of two elements that wait for one another, and those behind. The first is done, so the
// request has not failed.
func TestElementsThatTheEngineRefuses(t *testing.T) {
	aloneOnly(t)
	var broken *brokenStore
	d := openEngine(t, t.TempDir(), func(o *Options) {
		broken = &brokenStore{Store: o.Store}
		o.Store = broken
	})
	const body = `{"user_aliases":[{"alias_label":"l","alias_name":"%d"},{"alias_label":"l","alias_name":"%[1]d"},{"alias_label":"l","alias_name":"%[1]d-2"}]}`
	busy, full := "The service is busy. Please try again later.", "The service can't store more data at the moment. Please try again later."
	for i, c := range []struct {
		commits int
		err     error
		status  int
		want    string
	}{
		{0, shard.ErrBusy, 503, message(busy)}, {1, shard.ErrBusy, 201, refusedWith("user_aliases", 1, "", busy, busy)}, {1, fmt.Errorf("x: %w", shard.ErrDiskFull), 201, refusedWith("user_aliases", 1, "", full, full)},
		{1, shard.ErrFailed, 503, message("The service has failed. Whether the data were stored is unknown; please try again later.")}, {1, fmt.Errorf("unheard of"), 500, message("Internal Server Error")},
		{2, nil, 201, refusedWith("user_aliases", 2, "", "'alias_name' is already in use")},
	} {
		broken.arm(c.commits, c.err)
		d.answers(t, "/users/alias/new", fmt.Sprintf(body, i), c.status, c.want)
		broken.armed = false
		require.Len(t, d.users(t, byAlias("l", fmt.Sprint(i))), min(c.commits, 1), i)
	}
	for path, body := range map[string]string{
		"/users/merge":               `{"merge_updates":[{"identifier_to_merge":{"user_alias":{"alias_label":"l","alias_name":"1"}},"identifier_to_keep":{"user_alias":{"alias_label":"l","alias_name":"2"}}}]}`,
		"/users/external_ids/rename": `{"external_id_renames":[{"current_external_id":"a","new_external_id":"b"}]}`,
		"/users/identify":            toIdentify("l", "1", "x", ""),
	} {
		d.tracks(t, `{"attributes":[{"external_id":"a","x":1}]}`)
		broken.arm(0, shard.ErrBusy)
		d.answers(t, path, body, 503, message(busy))
		broken.armed = false
	}
}

// findingStore counts the users that are looked up.
type findingStore struct {
	store.Store
	found int
}

func (s *findingStore) NewReads(room shard.Room) store.Reads {
	return findingReads{s.Store.NewReads(room), s}
}

type findingReads struct {
	store.Reads
	store *findingStore
}

func (r findingReads) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	n := 0
	err := r.Reads.View(workspace, id, key, func(number uint64, blob []byte) {
		n++
		f(number, blob)
	})
	r.store.found += max(n, 1)
	return err
}

func (r findingReads) Sharers(workspace uint32, id op.IDKind, key []byte) ([]shard.Sharer, error) {
	list, err := r.Reads.Sharers(workspace, id, key)
	r.store.found += max(len(list), 1)
	return list, err
}

// Elements that wait for one another are not looked up again and again while they wait: what thousands share would make
// a request of them that takes minutes.
func TestElementsAreLookedUpAsOften(t *testing.T) {
	aloneOnly(t)
	var store *findingStore
	d := openEngine(t, t.TempDir(), func(o *Options) {
		store = &findingStore{Store: o.Store}
		o.Store = store
	})
	const sharing = 30
	d.tracks(t, `{"attributes":[`+many(sharing, `{"external_id":"u#","email":"x@example.com"}`)+`]}`)
	d.answers(t, "/users/alias/new", `{"user_aliases":[`+many(50, `{"alias_label":"l","alias_name":"n#"}`)+`]}`, 201, processed(50))
	for _, c := range []struct {
		body string
		each int // users that an element has to do with
	}{
		{`{"emails_to_identify":[` + many(50, `{"external_id":"i#","email":"X@example.com","prioritization":["unidentified"]}`) + `]}`, sharing + 1},
		{`{"aliases_to_identify":[` + many(50, `{"external_id":"one","user_alias":{"alias_label":"l","alias_name":"n#"}}`) + `]}`, 2},
	} {
		store.found = 0
		d.answers(t, "/users/identify", c.body, 201, processed(50))
		require.LessOrEqual(t, store.found, 2*50*c.each)
		require.GreaterOrEqual(t, store.found, 50*c.each)
	}
	require.Len(t, aliasesOf(d.user(t, byID("one"))), 50)
}
