package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// clusterOperator is somebody with a shell on the machine of a node.
type clusterOperator struct {
	t    *testing.T
	site *site
}

func (o clusterOperator) run(args ...string) (string, error) {
	target := []string{"--server", "http://" + o.site.admin, "--data", o.site.dir}
	text, err := exec.Command(binary, append(append([]string{args[0]}, target...), args[1:]...)...).CombinedOutput()
	return string(text), err
}

func (o clusterOperator) status() (status placement.Status) {
	o.t.Helper()
	text, err := o.run("cluster", "status", "--json")
	require.NoError(o.t, err, text)
	require.NoError(o.t, json.Unmarshal([]byte(text), &status), text)
	return status
}

// isWhole is cluster status --check.
func (o clusterOperator) isWhole() bool {
	_, err := o.run("cluster", "status", "--check")
	return err == nil
}

// until waits for a status.
func (o clusterOperator) until(what string, f func(placement.Status) bool) (status placement.Status) {
	o.t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if status = o.status(); f(status) {
			return status
		}
		if time.Since(start) > testPatience {
			text, _ := o.run("cluster", "status")
			o.t.Fatalf("not %s:\n%s", what, text)
		}
	}
}

// A fourth node is added from the shell, the first one drained and removed, while users are written on another. It is
// all in the audit log.
func TestClusterFromTheShell(t *testing.T) {
	t.Parallel()
	var sites []*site
	var members []string
	for n := 1; n <= 4; n++ {
		s := newSite(t)
		s.admin = testaddr.Free(t)
		raft := testaddr.Free(t)
		if n <= 3 {
			members = append(members, fmt.Sprintf("%d=%s", n, raft))
		}
		s.flags = []string{"--node", fmt.Sprint(n), "--raft", raft, "--raft-insecure", "--groups", "4", "--raft-timeout", calm, "--commit-timeout", calm}
		sites = append(sites, s)
	}
	var nodes []*process
	for _, s := range sites {
		s.flags = append(s.flags, "--members", strings.Join(members, ","))
	}
	for _, s := range sites[:3] {
		nodes = append(nodes, startProcess(t, binary, s.args()...))
	}
	for i, p := range nodes {
		p.waitReady(sites[i].url("/readyz"))
	}
	first, last := clusterOperator{t, sites[0]}, clusterOperator{t, sites[2]}
	status := first.until("placed", func(s placement.Status) bool {
		return first.isWhole() && len(s.Groups) == 4 && s.Groups[0].Doing == ""
	})
	require.Len(t, status.Nodes, 3)
	require.Equal(t, []any{version, sites[1].addr, sites[1].admin}, []any{status.Nodes[1].Program, status.Nodes[1].API, status.Nodes[1].Admin})
	write := func(user string) {
		require.Equal(t, http.StatusCreated, sites[2].track(t, user).status)
	}
	write("before")

	raft := sites[3].flags[3]
	text, err := first.run("cluster", "remove", "4")
	require.Error(t, err)
	require.Contains(t, text, "404 Not Found: node 4: not found")
	text, err = last.run("cluster", "add", "4", raft)
	require.NoError(t, err, text)
	text, err = first.run("cluster", "add", "5", raft)
	require.Error(t, err)
	require.Contains(t, text, "409 Conflict: refused: node 4 is at "+raft)
	text, err = first.run("cluster", "add", "5", "nowhere")
	require.Error(t, err)
	require.Contains(t, text, `400 Bad Request: invalid: address "nowhere": want HOST:PORT`)
	sites[3].start(t)
	write("between")
	first.until("joined", func(s placement.Status) bool {
		return s.Nodes[3].State == placement.Active && s.Nodes[3].Holds == 3
	})
	text, err = last.run("cluster", "remove", "1")
	require.Error(t, err)
	require.Contains(t, text, "node 1 is active: drain it first")
	text, err = last.run("cluster", "drain", "1", "--wait")
	require.NoError(t, err, text)
	require.Contains(t, text, "node 1 is drained")
	text, err = last.run("cluster", "remove", "1")
	require.NoError(t, err, text)
	nodes[0].stop()
	write("after")
	status = last.until("even", func(s placement.Status) bool {
		return len(s.Control.Replicas) == 3 && s.Nodes[3].Holds == 4 && s.Groups[3].Doing == ""
	})
	require.Equal(t, placement.Removed, status.Nodes[0].State)
	for _, g := range status.Groups {
		for _, r := range g.Replicas {
			require.NotEqual(t, quorum.Node(1), r.Node)
		}
	}
	text, err = last.run("cluster", "status")
	require.NoError(t, err, text)
	require.Contains(t, text, "GROUP")
	for _, user := range []string{"before", "between", "after"} {
		require.Equal(t, 1, sites[3].events(t, user))
	}

	text, err = last.run("admin", "audit", "list", "--limit", "1000")
	require.NoError(t, err, text)
	for _, what := range []string{"cluster made", "node added", "node has come", "node has joined", "group to be moved", "group moved", "node to be drained", "node is drained", "node removed"} {
		require.Contains(t, text, what)
	}
	require.Contains(t, text, "reconciler")
	text, err = last.run("admin", "audit", "verify")
	require.NoError(t, err, text)
}

// While the node that leads the control group hangs, a command that asks this node says so and ends; a backup that
// another node makes waits for the next leader.
func TestCommandsWhileANodeHangs(t *testing.T) {
	t.Parallel()
	skipShort(t)
	c := newCluster(t, 3, nil)
	status := clusterOperator{t, c.nodes[0].site}.status()
	hangs, other := c.nodes[status.Control.Leader-1], c.nodes[status.Control.Leader%3]
	hangs.pause()
	other.backup(t, "--silence", recovery.String())
	for _, args := range [][]string{{"cluster", "status"}, {"backup", filepath.Join(t.TempDir(), "file")}} {
		said := refused(t, nil, hangs.target(append(args, "--silence", "1s")...)...)
		require.Contains(t, said, "the server at http://"+hangs.admin+" does not answer: it has been silent for 1s")
	}
	hangs.resume()
	c.waitReady()
}

// Profiles are imported while a node that leads a part of the groups is killed: the import waits until they are led
// again, and all are there.
func TestImportProfilesWhileLeadersDie(t *testing.T) {
	t.Parallel()
	skipShort(t)
	c := newCluster(t, 3, nil)
	token, err := os.ReadFile(filepath.Join(c.nodes[0].dir, "admin-token"))
	require.NoError(t, err)
	const killed, all = 20 * importBatch, 60 * importBatch
	body, lines := io.Pipe()
	go func() {
		for i := range all {
			if i == killed {
				c.nodes[1].kill()
			}
			fmt.Fprintf(lines, "{\"external_id\":\"i%d\",\"first_name\":\"I\"}\n", i)
		}
		_ = lines.Close()
	}()
	request, err := http.NewRequest(http.MethodPost, "http://"+c.nodes[0].admin+"/admin/workspaces/test/profiles", body)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := (&http.Client{Transport: c.client.Transport, Timeout: recovery}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	var answer importAnswer
	require.NoError(t, json.Unmarshal(text, &answer), string(text))
	requireSuccess(t, text)
	require.Equal(t, importAnswer{Imported: all}, answer)
	for i := 0; i < all; i += 50 {
		var ids []string
		for n := range 50 {
			ids = append(ids, fmt.Sprintf("%q", fmt.Sprintf("i%d", i+n)))
		}
		a := c.nodes[2].site.export(t, `{"external_ids":[`+strings.Join(ids, ",")+`],"fields_to_export":["external_id"]}`)
		require.Equal(t, 201, a.status, a.body)
		require.Equal(t, 50, strings.Count(a.body, `"external_id"`), a.body)
	}
}
