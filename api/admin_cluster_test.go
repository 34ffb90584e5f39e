package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/bodies"
)

// clusterStub notes what it is asked to do, and stores it with its entry of the audit log as a cluster does.
type clusterStub struct {
	store store.Store
	did   []string
	err   error
}

func (c *clusterStub) Status(context.Context) (any, error) {
	return map[string]any{"cluster": "c1", "nodes": []int{1, 2}}, c.err
}

// clusterEntry is admin.ClusterEntry.
type clusterEntry = func(what, kind, id string, before, after []byte, details []any) []byte

func (c *clusterStub) do(entry clusterEntry, format string, args ...any) error {
	if c.err != nil {
		return c.err
	}
	c.did = append(c.did, fmt.Sprintf(format, args...))
	entry("overtaken", "cluster_node", "9", nil, nil, nil)
	return c.store.(interface {
		PutDocuments(uint32, []bodies.DocumentChange, []byte) error
	}).PutDocuments(control.AdminActor, nil, entry("node changed", "cluster_node", "4", []byte(`{"state":"active"}`), []byte(`{"state":"drained"}`), []any{"state", "drained"}))
}

func (c *clusterStub) Add(_ context.Context, node uint32, address string, entry clusterEntry) error {
	return c.do(entry, "add %d %s", node, address)
}

func (c *clusterStub) Drain(_ context.Context, node uint32, entry clusterEntry) error {
	return c.do(entry, "drain %d", node)
}

func (c *clusterStub) Remove(_ context.Context, node uint32, force bool, entry clusterEntry) error {
	return c.do(entry, "remove %d %v", node, force)
}

func TestAdminCluster(t *testing.T) {
	aloneOnly(t)
	stub := &clusterStub{}
	d := openEngine(t, t.TempDir(), func(o *Options) { stub.store = o.Store })
	d.operator.Cluster = stub
	status := d.administer(t, "GET", "/cluster", "")
	require.Equal(t, 200, status.status)
	require.Equal(t, "c1", status.v["cluster"])

	for _, c := range []struct{ method, path, body, did string }{
		{"POST", "/cluster/nodes", `{"node":4,"address":"10.0.0.4:7000"}`, "add 4 10.0.0.4:7000"},
		{"POST", "/cluster/nodes", `{"node":4}`, "add 4 "},
		{"POST", "/cluster/nodes/4/drain", ``, "drain 4"},
		{"DELETE", "/cluster/nodes/4", ``, "remove 4 false"},
		{"DELETE", "/cluster/nodes/4294967295?force=false", ``, "remove 4294967295 false"},
		{"DELETE", "/cluster/nodes/4?force=true", ``, "remove 4 true"},
	} {
		stub.did = nil
		a := d.administer(t, c.method, c.path, c.body)
		require.Equal(t, 200, a.status, c.did)
		require.Equal(t, map[string]any{"message": "success", "what": "node changed"}, a.v)
		require.Equal(t, []string{c.did}, stub.did)
	}
	entries := d.administer(t, "GET", "/audit?kind=cluster_node&id=4", "").v["entries"].([]any)
	require.Len(t, entries, 6, "one of each, and none of a change that was overtaken")
	e := entries[0].(map[string]any)
	require.Equal(t, []any{"node changed", "admin token", "192.0.2.9:1234", []any{"state"}}, []any{e["what"], e["by"], e["address"], e["changed"]})
	require.Equal(t, 6, strings.Count(d.log.String(), "audit: node changed"))

	stub.did = nil
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/cluster/nodes", `{"node":"4"}`, 400, "node: want"},
		{"POST", "/cluster/nodes", `{"node":-1}`, 400, "node: want"},
		{"POST", "/cluster/nodes", `{"node":4294967296}`, 400, "node: want"},
		{"POST", "/cluster/nodes", `{"nod":4}`, 400, "nod is not a known member"},
		{"POST", "/cluster/nodes", `{"node":4,"node":5}`, 400, "node appears twice"},
		{"POST", "/cluster/nodes", `[]`, 400, "want an object"},
		{"POST", "/cluster/nodes", ``, 400, "malformed JSON"},
		{"POST", "/cluster/nodes/0/drain", ``, 400, `node "0"`},
		{"POST", "/cluster/nodes/04/drain", ``, 400, `node "04"`},
		{"POST", "/cluster/nodes/+4/drain", ``, 400, `node "+4"`},
		{"POST", "/cluster/nodes/4294967296/drain", ``, 400, "want its number"},
		{"POST", "/cluster/nodes/x%00" + strings.Repeat("y", 100) + "/drain", ``, 400, "want its number"},
		{"DELETE", "/cluster/nodes/-4", ``, 400, "want its number"},
		{"DELETE", "/cluster/nodes/4?force=yes", ``, 400, "force: want true or false"},
		{"PUT", "/cluster/nodes/4", ``, 405, "Method Not Allowed"},
	} {
		a := d.administer(t, c.method, c.path, c.body)
		require.Equal(t, c.status, a.status, "%s %s", c.path, c.body)
		require.Contains(t, a.v["message"], c.says)
	}
	require.Empty(t, stub.did, "nothing of what is refused is done")

	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{fmt.Errorf("%w: group 5 would be left without a majority", control.ErrConflict), 409, "group 5"},
		{fmt.Errorf("node 4: %w", control.ErrNotFound), 404, "node 4"},
		{fmt.Errorf("%w: address", document.ErrInvalid), 400, "address"},
		{shard.ErrUnavailable, 503, ""},
		{shard.ErrUnknown, 503, ""},
		{errors.New("a secret"), 500, "Internal"},
	} {
		stub.err = c.err
		for _, a := range []answered{d.administer(t, "POST", "/cluster/nodes/4/drain", ""), d.administer(t, "GET", "/cluster", "")} {
			require.Equal(t, c.status, a.status, c.err)
			require.Contains(t, a.v["message"], c.says)
			require.NotContains(t, a.body, "secret")
		}
	}
	require.Equal(t, 6, strings.Count(d.log.String(), "audit: node changed"), "what isn't done isn't logged as done")
}

// A server that is alone says so; without the token nobody gets as far.
func TestAdminClusterAlone(t *testing.T) {
	d := open(t, nil)
	for _, c := range []string{"GET /cluster", "POST /cluster/nodes/4/drain", "DELETE /cluster/nodes/4"} {
		method, path, _ := strings.Cut(c, " ")
		a := d.administer(t, method, path, "")
		require.Equal(t, 404, a.status, c)
		require.Contains(t, a.v["message"], "this server is not a node of a cluster")
	}
	w := httptest.NewRecorder()
	d.operatorServer().Handler.ServeHTTP(w, httptest.NewRequest("DELETE", "http://admin/admin/cluster/nodes/4", nil))
	require.Equal(t, 401, w.Code)
	require.True(t, json.Valid(w.Body.Bytes()))
}
