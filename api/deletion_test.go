package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
