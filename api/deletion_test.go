package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard"
	"millrace/shard/op"
)

// Who was deleted, or merged, by another request between the look-up and the record has not been removed by this one.
func TestDeletionOfWhoIsGoneMeanwhile(t *testing.T) {
	d := open(t, nil)
	goes := func() (svcID string) {
		u := d.put(1, op.ExternalID, "a", "")
		d.store.commit = func() error {
			d.store.mu.Lock()
			defer d.store.mu.Unlock()
			clear(d.store.users)
			return nil
		}
		return fmt.Sprintf("svc-1-%d", u.Number)
	}
	goes()
	a := d.call("POST", "/users/delete", demoKey, `{"external_ids":["a"]}`)
	require.Equal(t, 201, a.status)
	require.JSONEq(t, `{"deleted":0,"invalid_user_ids":["a"],"message":"success"}`, a.body)
	status, _, text := d.admin("DELETE", "/admin/workspaces/demo/users/"+goes(), "admin-token", "")
	require.Equal(t, 404, status, text)
}

// Whoever is told that a user is gone is told so once the deletion is done that has removed the user: another one may be
// under way. When that can't be waited for, nothing was done, unless the request itself has removed somebody.
func TestDeletionWaitsForAnother(t *testing.T) {
	d := open(t, nil)
	flushed, fault := 0, error(nil)
	d.store.flush = func() error { flushed++; return fault }
	d.put(1, op.ExternalID, "a", "")
	here := fmt.Sprintf("svc-1-%d", d.put(1, op.ExternalID, "b", "").Number)
	ask := func(status, flushes int, body string) answer {
		t.Helper()
		a := d.call("POST", "/users/delete", demoKey, body)
		require.Equal(t, status, a.status, a.body)
		require.Equal(t, flushes, flushed)
		return a
	}
	ask(201, 0, `{"external_ids":["a"]}`)
	ask(201, 1, `{"external_ids":["a"]}`)
	d.put(1, op.ExternalID, "a", "")
	ask(201, 2, `{"external_ids":["a","nobody"]}`)
	fault = shard.ErrUnavailable
	require.Contains(t, ask(503, 3, `{"external_ids":["a"]}`).body, "Nothing was done")
	d.put(1, op.ExternalID, "a", "")
	require.Contains(t, ask(503, 4, `{"external_ids":["a","nobody"]}`).body, "in part or whole, is unknown")

	status, _, text := d.admin("DELETE", "/admin/workspaces/demo/users/"+here, "admin-token", "")
	require.Equal(t, 200, status, text)
	require.Equal(t, 4, flushed)
	status, _, text = d.admin("DELETE", "/admin/workspaces/demo/users/"+here, "admin-token", "")
	require.Equal(t, 503, status, text)
	fault = nil
	status, _, text = d.admin("DELETE", "/admin/workspaces/demo/users/"+here, "admin-token", "")
	require.Equal(t, 404, status, text)
	require.Equal(t, 6, flushed)
}
