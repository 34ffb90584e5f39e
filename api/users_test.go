package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/store"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

func (d *door) put(workspace uint32, id op.IDKind, key string, more string) store.User {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	d.store.next++
	u := store.User{Number: d.store.next, Blob: profile.New(nil, workspace, id, []byte(key), int64(d.store.next)*1000)}
	d.store.users[userKey(workspace, id, []byte(key))+more] = u
	return u
}

func alias(label, name string) string {
	return string(op.AppendAliasKey(nil, []byte(label), []byte(name)))
}

func TestExport(t *testing.T) {
	d := open(t, nil)
	d.put(1, op.ExternalID, "a", "")
	d.put(1, op.ExternalID, "7", "")
	d.put(1, op.Alias, alias("l", "n"), "")
	mail := d.put(1, op.Email, "x@example.com", "")
	d.put(1, op.Email, "x@example.com", "#2")
	d.put(1, op.Phone, "+14155550123", "")
	d.put(2, op.ExternalID, "foreign", "")

	export := func(body string, want int) (users []map[string]any, unknown []any) {
		a := d.call("POST", "/users/export/ids", demoKey, body)
		require.Equal(t, want, a.status, a.body)
		var v struct {
			Users   []map[string]any `json:"users"`
			Unknown []any            `json:"invalid_user_ids"`
			Message string           `json:"message"`
		}
		require.NoError(t, json.Unmarshal([]byte(a.body), &v), a.body)
		if want == 201 {
			require.Equal(t, "success", v.Message)
			require.NotNil(t, v.Users)
		} else {
			require.NotEmpty(t, v.Message)
		}
		return v.Users, v.Unknown
	}
	users, unknown := export(`{"external_ids":["a","nobody",7,"a"],"user_aliases":[{"alias_label":"l","alias_name":"n"},{"alias_label":"l","alias_name":"no"}]}`, 201)
	require.Len(t, users, 3, "each user once")
	require.Equal(t, "a", users[0]["external_id"])
	require.Equal(t, []any{"nobody"}, unknown, "of external ids alone")
	users, _ = export(`{"email_address":"X@Example.com"}`, 201)
	require.Len(t, users, 2)
	users, _ = export(`{"phone":"+14155550123"}`, 201)
	require.Len(t, users, 1)
	users, unknown = export(fmt.Sprintf(`{"svc_id":"svc-1-%d"}`, mail.Number), 201)
	require.Len(t, users, 1)
	require.Equal(t, fmt.Sprintf("svc-1-%d", mail.Number), users[0]["svc_id"])
	require.Empty(t, unknown)
	users, _ = export(fmt.Sprintf(`{"braze_id":"svc-1-%d","fields_to_export":["svc_id"]}`, mail.Number), 201)
	require.Equal(t, []map[string]any{{"svc_id": fmt.Sprintf("svc-1-%d", mail.Number)}}, users)
	users, _ = export(`{"external_ids":["a"],"fields_to_export":["nonsense"]}`, 201)
	require.Equal(t, []map[string]any{{}}, users)

	// Nobody of another workspace, whatever is asked.
	for _, body := range []string{`{"external_ids":["foreign"]}`, `{"svc_id":"svc-2-7"}`, `{"svc_id":"svc-1-7"}`, `{"device_id":"x"}`, `{"phone":"not a number"}`} {
		users, unknown = export(body, 201)
		require.Empty(t, users, body)
		require.Equal(t, strings.Contains(body, "external_ids"), len(unknown) == 1, body)
	}

	ids := make([]string, 51)
	for i := range ids {
		ids[i] = fmt.Sprintf("%q", fmt.Sprint("id", i))
	}
	export(`{"external_ids":[`+strings.Join(ids[:50], ",")+`]}`, 201)
	for _, body := range []string{
		`{"external_ids":[` + strings.Join(ids, ",") + `]}`, `{"external_ids":[` + strings.Join(ids[:49], ",") + `],"user_aliases":[{"alias_label":"a","alias_name":"b"},{"alias_label":"a","alias_name":"c"}]}`,
		`{}`, `{"external_ids":[]}`, `{"external_ids":"a"}`, `{"external_ids":[null]}`, `{"external_ids":[1.5]}`, `{"EXTERNAL_IDS":["a"]}`, `{"user_aliases":["a"]}`, `{"user_aliases":[{"alias_label":"l"}]}`,
		`{"user_aliases":[{"alias_name":7,"alias_label":"l"}]}`, `{"user_aliases":[{"alias_name":"a","alias_name":"b","alias_label":"l"}]}`, `{"external_ids":["a"],"external_ids":["b"]}`, `{"external_ids":["\ud800"]}`,
		`{"email_address":7.5}`, `{"external_ids":["a"],"fields_to_export":"x"}`, `{"external_ids":["a"],"fields_to_export":[7]}`, `[]`, ``, `{"external_ids":["a"]`, `{"external_ids":["a"]}x`,
	} {
		export(body, 400)
	}
	a := d.call("POST", "/users/export/ids", demoKey, `{"a":tru}`)
	require.Equal(t, "Invalid JSON at byte 5: a value is expected", a.json(t)["message"])
}

// The name of a user's id is a setting of the workspace; requests take both.
func TestProfileIDName(t *testing.T) {
	d := open(t, nil)
	id := fmt.Sprintf("svc-1-%d", d.put(1, op.ExternalID, "a", "").Number)
	export := func(body string) map[string]any {
		a := d.call("POST", "/users/export/ids", demoKey, body)
		require.Equal(t, 201, a.status, a.body)
		return a.json(t)["users"].([]any)[0].(map[string]any)
	}
	refusal := func(path, body string) any {
		a := d.call("POST", path, demoKey, body)
		require.Equal(t, 400, a.status, a.body)
		return a.json(t)["message"]
	}
	require.Equal(t, id, export(`{"external_ids":["a"]}`)["svc_id"])
	require.NotContains(t, export(`{"external_ids":["a"]}`), "braze_id")
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(`{"profile_id_name":"braze_id"}`)) })
	require.NoError(t, err)
	for _, name := range []string{"svc_id", "braze_id"} {
		u := export(fmt.Sprintf(`{%q:%q}`, name, id))
		require.Equal(t, []any{id, id}, []any{u["braze_id"], u["appboy_id"]})
		require.NotContains(t, u, "svc_id")
		require.Equal(t, map[string]any{"braze_id": id}, export(fmt.Sprintf(`{"external_ids":["a"],"fields_to_export":[%q]}`, name)))
	}
	require.Equal(t, map[string]any{"appboy_id": id}, export(`{"external_ids":["a"],"fields_to_export":["appboy_id"]}`))
	require.Equal(t, "One of 'external_ids', 'user_aliases', 'braze_id', 'email_address' or 'phone' is required", refusal("/users/export/ids", `{}`))
	require.Equal(t, "One of 'external_ids', 'user_aliases', 'braze_ids', 'email_addresses' or 'phone_numbers' is required", refusal("/users/delete", `{}`))
	require.Equal(t, "'email_addresses' must be an array of strings or objects", refusal("/users/delete", `{"email_addresses":[7]}`))
	require.Equal(t, "'email_addresses' must be an array of strings or objects", refusal("/users/delete", `{"email_addresses":7}`))
	a := d.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"external_id":"a","svc_id":"b","alias_name":"n","alias_label":"l"}]}`)
	require.Contains(t, a.body, "You must specify only one of 'external_id' or 'braze_id'")
}

// An address may be that of very many users: the answer is bounded.
func TestExportBound(t *testing.T) {
	testsize.SkipSerial(t)
	const maxExportBytes = 64 << 20
	d := open(t, nil)
	blob := profile.New(nil, 1, op.ExternalID, bytes.Repeat([]byte("x"), 60_000), 1)
	for i := range uint64(maxExportBytes/60_000 + 2) {
		d.store.users[fmt.Sprint(userKey(1, op.Email, []byte("x@example.com")), "#", i)] = store.User{Number: 1000 + i, Blob: blob}
	}
	a := d.call("POST", "/users/export/ids", demoKey, `{"email_address":"x@example.com"}`)
	require.Equal(t, 400, a.status)
	require.Equal(t, message("The answer would have more than 64 MiB: name fewer users, or fewer fields in 'fields_to_export'"), strings.ReplaceAll(a.body, `\u0027`, "'"))
	a = d.call("POST", "/users/export/ids", demoKey, `{"email_address":"x@example.com","fields_to_export":["svc_id"]}`)
	require.Equal(t, 201, a.status)
	require.Len(t, a.json(t)["users"], maxExportBytes/60_000+2)
}

func TestDelete(t *testing.T) {
	d := open(t, nil)
	remove := func(body string, want int) (deleted float64, unknown any) {
		a := d.call("POST", "/users/delete", demoKey, body)
		require.Equal(t, want, a.status, "%s: %s", body, a.body)
		v := a.json(t)
		if want == 201 {
			require.Equal(t, "success", v["message"])
			return v["deleted"].(float64), v["invalid_user_ids"]
		}
		return 0, nil
	}
	there := func(id op.IDKind, key string) int {
		users, err := d.store.Find(1, id, []byte(key))
		require.NoError(t, err)
		return len(users)
	}
	d.put(1, op.ExternalID, "a", "")
	d.put(1, op.ExternalID, "b", "")
	d.put(2, op.ExternalID, "foreign", "")
	n, unknown := remove(`{"external_ids":["a","nobody","a","foreign"]}`, 201)
	require.Equal(t, 1.0, n)
	require.Equal(t, []any{"nobody", "foreign"}, unknown)
	require.Zero(t, there(op.ExternalID, "a"))
	require.Equal(t, 1, there(op.ExternalID, "b"))
	n, unknown = remove(`{"external_ids":["a"]}`, 201)
	require.Zero(t, n)
	require.Equal(t, []any{"a"}, unknown)

	d.put(1, op.Alias, alias("l", "n"), "")
	n, unknown = remove(`{"user_aliases":[{"alias_label":"l","alias_name":"n"}]}`, 201)
	require.Equal(t, 1.0, n)
	require.Nil(t, unknown)
	u := d.put(1, op.Phone, "+1", "")
	n, _ = remove(fmt.Sprintf(`{"braze_ids":["svc-1-%d"]}`, u.Number), 201)
	require.Equal(t, 1.0, n)

	// Several share an address: nothing happens unless a prioritization leaves one.
	d.put(1, op.Email, "x@example.com", "")
	d.put(1, op.Email, "x@example.com", "#2")
	n, unknown = remove(`{"email_addresses":[{"email":"X@example.com"}]}`, 201)
	require.Zero(t, n)
	require.Equal(t, []any{"X@example.com"}, unknown)
	n, _ = remove(`{"email_addresses":[{"email":"x@example.com","prioritization":["unidentified"]}]}`, 201)
	require.Zero(t, n)
	n, _ = remove(`{"email_addresses":[{"email":"x@example.com","prioritization":["unidentified","most_recently_updated"]}]}`, 201)
	require.Equal(t, 1.0, n)
	require.Equal(t, 1, there(op.Email, "x@example.com"))
	n, _ = remove(`{"email_addresses":["x@example.com"]}`, 201)
	require.Equal(t, 1.0, n)

	commits := d.store.commits.Load()
	for _, body := range []string{
		`{}`, `{"external_ids":[]}`, `{"external_ids":["b"],"braze_ids":["x"]}`, `{"external_ids":["b",{}]}`, `{"email_addresses":[{"prioritization":["identified"]}]}`, `{"email_addresses":[7]}`,
		`{"email_addresses":[{"email":"x@example.com","prioritization":["identified","unidentified"]}]}`, `{"email_addresses":[{"email":"x@example.com","prioritization":["newest"]}]}`,
		`{"email_addresses":[{"email":"x@example.com","prioritization":"identified"}]}`, `{"external_ids":["b"`,
	} {
		remove(body, 400)
	}
	require.Equal(t, commits, d.store.commits.Load())
	require.Equal(t, 1, there(op.ExternalID, "b"))
}
