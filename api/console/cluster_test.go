package console

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pretendCluster has the admin API answer as a node of a cluster does, and notes what it is asked to change.
func pretendCluster(status string, asked *[]string) func(*Options) {
	return func(o *Options) {
		real := o.API
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodGet && r.URL.Path == "/admin/cluster":
				_, _ = io.WriteString(w, status)
			case r.Method == http.MethodGet:
				real.ServeHTTP(w, r)
			case r.URL.RequestURI() == "/admin/cluster/nodes/1":
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"message":"conflict: node 1 is not drained"}`)
			default:
				body, _ := io.ReadAll(r.Body)
				*asked = append(*asked, r.Method+" "+r.URL.RequestURI()+" "+string(body))
				what := ""
				if strings.Contains(string(body), `"node":4`) {
					what = "node added"
				}
				_, _ = io.WriteString(w, `{"what":"`+what+`","message":"success"}`)
			}
		})
	}
}

const statusOfThree = `{"cluster":"c-7f","node":1,"time":"2026-11-23T06:00:00Z","replicas":3,"control":{"group":0,"leader":1,"term":3,"replicas":[{"node":1,"role":"leader","open":true},{"node":2,"role":"voter","open":true}]},
	"nodes":[{"node":1,"state":"active","address":"10.0.0.1:7000","api":"10.0.0.1:8080","version":"v1","alive":true,"leads":1,"holds":1},{"node":2,"state":"draining","address":"10.0.0.2:7000","alive":false,"holds":1,"problem":"does not answer"}],
	"groups":[{"group":1,"first":0,"count":256,"leader":0,"term":9,"replicas":[{"node":1,"role":"voter","open":true,"commit_lag":4,"apply_lag":70},{"node":2,"role":"coming"}],"doing":"adds a learner","problem":"has no leader"}],"message":"success"}`

func TestCluster(t *testing.T) {
	require.True(t, json.Valid([]byte(statusOfThree)))
	alone := openHouse(t).signedIn()
	p := alone.get(clusterPath)
	require.Equal(t, 200, p.status)
	require.Contains(t, p.text, "This server is not part of a cluster")
	p = alone.post("/console/cluster/nodes", "node", "4", "address", "10.0.0.4:7000")
	require.Equal(t, 404, p.status)
	require.Contains(t, p.text, "this server is not a node of a cluster")

	var asked []string
	h := openHouse(t, pretendCluster(statusOfThree, &asked))
	b := h.signedIn()
	p = b.get(clusterPath)
	for _, text := range []string{"does not answer", "has no leader", "1 voter, lags 4/70", "0–255", "Drain node 2"} {
		require.Contains(t, p.text, text)
	}
	require.Contains(t, b.get(home).text, "does not answer", "the overview has the nodes, too")
	p = b.post("/console/cluster/nodes", "node", "x", "address", "a<b")
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "a&lt;b", "nobody has to write it again")
	require.Contains(t, b.post("/console/cluster/nodes", "node", "4", "address", "10.0.0.4:7000").text, "Node added.")
	require.Contains(t, b.post("/console/cluster/nodes", "node", "2").text, "The node was already known")
	require.Contains(t, b.post("/console/cluster/nodes/2/drain").text, "The node is draining")
	require.Contains(t, b.post("/console/cluster/nodes/2/remove", "force", "true").text, "Node removed.")
	p = b.post("/console/cluster/nodes/1/remove")
	require.Equal(t, 409, p.status)
	require.Contains(t, p.text, "Node 1 is not drained")
	require.Equal(t, []string{`POST /admin/cluster/nodes {"address":"10.0.0.4:7000","node":4}`, `POST /admin/cluster/nodes {"address":"","node":2}`, "POST /admin/cluster/nodes/2/drain ", "DELETE /admin/cluster/nodes/2?force=true "}, asked)
}
