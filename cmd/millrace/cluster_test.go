package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// clusterListener is an admin listener whose cluster is told by the test.
type clusterListener struct {
	*httptest.Server
	status  placement.Status
	asked   []string
	what    string // what the cluster says that it has done
	refusal string
}

func newClusterListener(t *testing.T) *clusterListener {
	l := &clusterListener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(401)
			fmt.Fprint(w, `{"message":"Invalid admin token"}`)
			return
		}
		l.asked = append(l.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		switch {
		case l.refusal != "":
			w.WriteHeader(409)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": l.refusal})
		case r.Method == "GET":
			_ = json.NewEncoder(w).Encode(struct {
				placement.Status
				Message string `json:"message"`
			}{l.status, "success"})
		default:
			_ = json.NewEncoder(w).Encode(struct {
				What    string `json:"what,omitempty"`
				Message string `json:"message"`
			}{l.what, "success"})
		}
	}))
	t.Cleanup(l.Close)
	return l
}

// run is what the command prints, and its error.
func (l *clusterListener) run(args ...string) (string, error) {
	var out bytes.Buffer
	l.asked = nil
	err := run(context.Background(), append([]string{"cluster", "--server", l.URL, "--token", "secret"}, args...), &out)
	return out.String(), err
}

func someStatus() placement.Status {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	return placement.Status{
		Cluster: "c1", Node: 1, Time: now, Replicas: 3,
		Control: placement.GroupStatus{Leader: 1, Term: 7, Replicas: []placement.ReplicaStatus{{Node: 1, Role: "leader", Voter: true, Open: true}}},
		Nodes: []placement.NodeStatus{
			{Node: 1, State: placement.Active, Address: "10.0.0.1:7000", API: "10.0.0.1:8080", Program: "1.4.0", Alive: true, Seen: now, Leads: 1, Holds: 2},
			{Node: 2, State: placement.Draining, Address: "10.0.0.2:7000", Seen: now.Add(-4*time.Minute - time.Second), Holds: 2, Problem: "does not answer"},
			{Node: 3, State: placement.Joining, Address: "10.0.0.3:7000\x1b[31m"},
		},
		Groups: []placement.GroupStatus{
			{Group: 1, First: 0, Count: 128, Leader: 1, Term: 12, Doing: "node 3 catches up", Replicas: []placement.ReplicaStatus{
				{Node: 1, Role: "leader", Voter: true, Open: true}, {Node: 2, Role: "voter", Voter: true, Leaving: true},
				{Node: 3, Role: "learner", Open: true, CommitLag: 4, ApplyLag: 70}, {Node: 4, Role: "coming"}}},
			{Group: 2, First: 128, Count: 128, Term: 3, Problem: "has no leader", Replicas: []placement.ReplicaStatus{}},
		},
	}
}

func TestClusterStatusCommand(t *testing.T) {
	l := newClusterListener(t)
	l.status = someStatus()
	out, err := l.run("status")
	require.NoError(t, err)
	require.Equal(t, `cluster c1, 3 replicas per group; as seen by node 1

NODE  STATE     ALIVE  SEEN  LEADS  HOLDS  ADDRESS             API            VERSION  PROBLEM
1     active    yes    0s    1      2      10.0.0.1:7000       10.0.0.1:8080  1.4.0    -
2     draining  no     4m    0      2      10.0.0.2:7000       -              -        does not answer
3     joining   no     -     0      0      10.0.0.3:7000�[31m  -              -        -

GROUP    PARTITIONS  LEADER  TERM  REPLICAS                 STATE
control  -           1       7     1*                       -
1        0-127       1       12    1* 2-? 3~(lag 4,70) 4+?  node 3 catches up
2        128-255     -       3     -                        has no leader
`, out)
	require.Equal(t, []string{"GET /admin/cluster"}, l.asked)

	out, err = l.run("status", "--json")
	require.NoError(t, err)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	require.Equal(t, "c1", v["cluster"])
	require.NotContains(t, v, "message")
	require.Len(t, v["groups"], 2)

	out, err = l.run("status", "--check")
	require.EqualError(t, err, "node 2 does not answer; group 1: 1 of 3 replicas are in sync: node 2 does not answer, node 3 has no vote yet, "+
		"node 4 has none yet, node 3 catches up; group 2: has no leader")
	require.Contains(t, out, "GROUP")
	l.status.Nodes, l.status.Groups = l.status.Nodes[:1], []placement.GroupStatus{{Group: 1, Leader: 1, Doing: "node 2 is removed, and waits for its turn to be moved"}}
	for node := quorum.Node(1); node <= 3; node++ {
		l.status.Groups[0].Replicas = append(l.status.Groups[0].Replicas, placement.ReplicaStatus{Node: node, Role: "voter", Voter: true, Open: true})
	}
	_, err = l.run("status", "--check")
	require.NoError(t, err)
	l.status.Nodes = append(l.status.Nodes, placement.NodeStatus{Node: 2, State: placement.Removed, Alive: true})
	_, err = l.run("status", "--check")
	require.EqualError(t, err, "group 1: 2 of 3 replicas are in sync: node 2 is removed, and waits for its turn to be moved")
	l.status.Groups = append(l.status.Groups, placement.GroupStatus{Group: 2, Problem: "no node"}, placement.GroupStatus{Group: 3, Problem: "no node"})
	_, err = l.run("status", "--check")
	require.EqualError(t, err, "group 1: 2 of 3 replicas are in sync: node 2 is removed, and waits for its turn to be moved; groups 2, 3: no node")
	out, err = l.run("remove", "2", "--force")
	require.NoError(t, err)
	require.Equal(t, "node 2 is removed\ngroups that lack a replica until another node takes over: 1. Add a node if there is none to spare; "+
		"millrace cluster status shows the progress\n", out)
	out, err = l.run("remove", "5", "--force") // it had none
	require.NoError(t, err)
	require.Equal(t, "node 5 is removed\n", out)
	l.status.Nodes, l.status.Groups = l.status.Nodes[:1], nil
	_, err = l.run("status", "--check")
	require.NoError(t, err)
}

func TestClusterCommands(t *testing.T) {
	l := newClusterListener(t)
	for _, c := range []struct {
		args, asked, done, says string
	}{
		{"add 4 10.0.0.4:7000", `POST /admin/cluster/nodes {"address":"10.0.0.4:7000","node":4}`, "node added", "node 4 is added; start it with --node 4, and the other nodes in --members"},
		{"add 4 10.0.0.4:7000", `POST /admin/cluster/nodes {"address":"10.0.0.4:7000","node":4}`, "node's address changed", "node 4 was already known: its address is changed; restart it with --raft 10.0.0.4:7000"},
		{"add 4", `POST /admin/cluster/nodes {"address":"","node":4}`, "node's drain taken back", "node 4 was already known: its drain is cancelled"},
		{"add 4", `POST /admin/cluster/nodes {"address":"","node":4}`, "", "node 4 was already known; nothing has changed"},
		{"drain 4", `POST /admin/cluster/nodes/4/drain`, "node to be drained", "node 4 is draining"},
		{"remove 4", `DELETE /admin/cluster/nodes/4`, "node removed", "node 4 is removed"},
		{"remove 4 --force", `DELETE /admin/cluster/nodes/4?force=true`, "node removed", "node 4 is removed"},
	} {
		l.what = c.done
		out, err := l.run(strings.Fields(c.args)...)
		require.NoError(t, err, c.args)
		require.Equal(t, c.asked, l.asked[0])
		require.Contains(t, out, c.says)
		out, err = l.run(append(strings.Fields(c.args), "--json")...)
		require.NoError(t, err, c.args)
		require.Contains(t, out, c.done)
	}
	for _, wrong := range []string{"add", "add x", "add -1", "add 4294967296 10.0.0.4:7000", "add 4 10.0.0.4:7000 more", "drain", "drain x", "remove", "remove 4 --force=maybe", "status 4", "nothing"} {
		_, err := l.run(strings.Fields(wrong)...)
		require.Error(t, err, wrong)
		require.Empty(t, l.asked, wrong)
	}
	l.refusal = "refused: group 5 would be left without a majority"
	for _, c := range []string{"status", "add 4 a:1", "drain 4 --wait", "remove 4"} {
		out, err := l.run(strings.Fields(c)...)
		require.ErrorContains(t, err, "409 Conflict: refused: group 5 would be left without a majority", c)
		require.Empty(t, out)
	}
	require.ErrorContains(t, run(context.Background(), []string{"cluster", "--server", l.URL, "--token", "wrong", "status"}, io.Discard), "Invalid admin token")
	require.ErrorContains(t, run(context.Background(), []string{"cluster", "--server", l.URL, "status"}, io.Discard), "--data or --token")
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// drain --wait says how far it is and what it waits for, and ends when the node is drained, or when somebody takes it back.
func TestClusterDrainWaits(t *testing.T) {
	l := newClusterListener(t)
	l.status = placement.Status{Nodes: []placement.NodeStatus{{Node: 3, State: placement.Active}, {Node: 4, State: placement.Drained}}}
	out, err := l.run("drain", "4", "--wait")
	require.NoError(t, err)
	require.Equal(t, "node 4 is draining\nnode 4 is drained\n", out)
	l.status.Nodes[1].State = placement.Active
	_, err = l.run("drain", "4", "--wait")
	require.EqualError(t, err, "node 4 is active")

	// Once, and only of the node's groups, it says what is in the way.
	l.status.Nodes[1].State = placement.Draining
	group := func(number uint32, problem string, node quorum.Node) placement.GroupStatus {
		return placement.GroupStatus{Group: number, Problem: problem, Replicas: []placement.ReplicaStatus{{Node: node}}}
	}
	l.status.Groups = []placement.GroupStatus{group(1, "not its group", 3), group(2, "nobody takes its place", 4), group(3, "nobody takes its place", 4), group(4, "last", 4)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said strings.Builder
	err = run(ctx, []string{"cluster", "--server", l.URL, "--token", "secret", "drain", "4", "--wait"}, writerFunc(func(p []byte) (int, error) {
		if said.Write(p); strings.Contains(said.String(), "last") {
			cancel()
		}
		return len(p), nil
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "node 4 is draining\nnode 4: 0 groups left to move\ngroup 2 waits: nobody takes its place\ngroup 4 waits: last\n", said.String())
}

// What the cluster says reaches the admin API with its meaning, and its text.
func TestClusterErrors(t *testing.T) {
	for from, to := range map[error]error{placement.ErrInvalid: document.ErrInvalid, placement.ErrNotFound: control.ErrNotFound, placement.ErrRefused: control.ErrConflict} {
		err := clusterError(fmt.Errorf("node %d: %w", quorum.Node(4), from))
		require.ErrorIs(t, err, to)
		require.ErrorIs(t, err, from)
		require.EqualError(t, err, fmt.Sprintf("node 4: %v", from))
	}
	require.NoError(t, clusterError(nil))
	require.Equal(t, shard.ErrUnavailable, clusterError(shard.ErrUnavailable))
	other := errors.New("other")
	require.Equal(t, other, clusterError(other))
}

func TestReconcilerEntry(t *testing.T) {
	c := control.New(control.Options{Now: func() int64 { return 0 }})
	entry := reconcilerEntry(c)(placement.Entry{What: "group moved", Kind: "cluster_group", ID: "5", Before: []byte(`{"replicas":[1]}`), After: []byte(`{"replicas":[2]}`), Details: []any{"why", "x"}})
	var e control.Entry
	require.NoError(t, json.Unmarshal(entry, &e))
	require.Equal(t, []any{"reconciler", "group moved", "cluster_group", "5", []string{"replicas"}}, []any{e.By, e.What, e.Kind, e.ID, e.Changed})
	require.Equal(t, "x", e.Details["why"])
	require.NotEqual(t, e.Before, e.After)
}
