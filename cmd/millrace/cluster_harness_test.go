package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testsize"
)

// spareNodes can be added to each cluster later.
const spareNodes = 1

// skipShort leaves a test of a fleet out of -short.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("clusters of processes are for the long run")
	}
}

// fleet is the nodes of a cluster as processes, with what lies between them. With net == nil it is one node alone,
// which is held to the same.
type fleet struct {
	t         *testing.T
	net       network
	dir       string
	bootstrap string
	flags     []string
	nodes     []*peer
	founders  int     // the first so many nodes made the cluster
	disks     []*disk // by node, from 0; nil: folders of dir
	client    *http.Client
}

// peer is one node.
type peer struct {
	*site
	c      *fleet
	number int
	p      *process
	paused bool
}

// clusterBootstrap has more than bootstrapText: limits that no test meets, and messages whose translations are set.
func clusterBootstrap(texts int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
workspaces:
  - id: test
    name: Test
    plan: base
    multi_language: true
    locales: [{name: de}]
    rate_limits: {users.track: 10000000/1s, users.export.ids: 10000000/1s, users.merge: 10000000/1s, subscription.status.set: 10000000/1s,
      subscription.status.get: 10000000/1s, campaigns.translations.get: 10000000/1s, campaigns.translations.update: 10000000/1s}
    apps: [{id: 11ae5b4b-2445-4440-a04f-bf537764c9ad, name: iOS}]
    api_keys:
      - {name: all, key: %s, permissions: ["*"]}
    subscription_groups:
      - {id: %s, name: News, channel: email}
    campaigns:
      - id: c
        messages:
`, allKey, newsGroup)
	for i := range texts {
		fmt.Fprintf(&b, "          - {id: m%d, channel: email, multi_language: true, source: {id_0: Hello}, translations: [{locale: {name: de}, translation_map: {id_0: none}}]}\n", i)
	}
	return b.String()
}

const newsGroup = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"

// maxTexts is how many messages there are.
const maxTexts = 40

// newAlone starts one node that is no cluster.
func newAlone(t *testing.T, flags ...string) *fleet {
	c := emptyCluster(t, nil, flags)
	m := &peer{c: c, number: 1, site: &site{dir: filepath.Join(c.dir, "data1"), addr: testaddr.Free(t), admin: testaddr.Free(t), bootstrap: c.bootstrap}}
	c.nodes = []*peer{m}
	m.start()
	m.p.waitReady(m.url("/readyz"))
	return c
}

// newCluster starts so many nodes, and waits until all are ready. It has the usual number of groups when there is time,
// otherwise fewer. disks nil: data are in folders. More flags are for all nodes.
func newCluster(t *testing.T, nodes int, disks []*disk, more ...string) *fleet {
	flags := []string{"--groups", "5", "--max-moves", "6", "--raft-timeout", calm, "--commit-timeout", calm}
	if testsize.Stress() {
		flags = nil
	}
	c := emptyCluster(t, newNetwork(t, nodes+spareNodes), append(flags, more...))
	c.founders, c.disks = nodes, disks
	c.found()
	return c
}

// found starts the nodes that make the cluster, for the first time.
func (c *fleet) found() {
	for range c.founders {
		c.place()
	}
	for _, m := range c.nodes {
		m.start()
	}
	c.waitReady()
}

func emptyCluster(t *testing.T, net network, flags []string) *fleet {
	dir := t.TempDir()
	c := &fleet{t: t, net: net, dir: dir, flags: flags, bootstrap: filepath.Join(dir, "bootstrap.yaml")}
	require.NoError(t, os.WriteFile(c.bootstrap, []byte(clusterBootstrap(maxTexts)), 0o600))
	c.client = &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 10 * time.Second}}
	return c
}

// place makes the next node, without starting it.
func (c *fleet) place() *peer {
	n := len(c.nodes) + 1
	m := &peer{c: c, number: n}
	data := filepath.Join(c.dir, "data"+strconv.Itoa(n))
	if n <= len(c.disks) {
		data = filepath.Join(c.disks[n-1].dir, "data")
	}
	m.site = &site{dir: data, addr: c.net.api(n), admin: c.net.admin(n), bootstrap: c.bootstrap}
	c.nodes = append(c.nodes, m)
	return m
}

// members is --members: those that made the cluster.
func (c *fleet) members() string {
	var parts []string
	for n := 1; n <= c.founders; n++ {
		parts = append(parts, fmt.Sprintf("%d=%s", n, c.net.raft(n)))
	}
	return strings.Join(parts, ",")
}

// start starts the process and does not wait.
func (m *peer) start(flags ...string) {
	m.c.t.Helper()
	args := append(m.args(), m.c.flags...)
	program := binary
	if m.c.net != nil {
		args = append(args, "--node", strconv.Itoa(m.number), "--raft", m.c.net.raft(m.number), "--members", m.c.members())
		args = append(args, m.c.net.flags(m.number)...)
		program, args = m.c.net.command(m.number, program, append(args, flags...)...)
	}
	m.p = startProcess(m.c.t, program, args...)
	m.paused = false
}

func (m *peer) kill() { m.p.kill() }

func (m *peer) pause() {
	m.p.signal(syscall.SIGSTOP)
	m.paused = true
}

func (m *peer) resume() {
	m.p.signal(syscall.SIGCONT)
	m.paused = false
}

// isReady is what /readyz says.
func (m *peer) isReady() bool {
	a, err := call(m.c.client, http.MethodGet, m.url("/readyz"), "", "")
	return err == nil && a.status == http.StatusOK
}

// recovery is how long a cluster has to get well once nothing is in its way.
const recovery = testPatience

// calm is a --raft-timeout for machines that have other work, where a node may say nothing for seconds. One that ends is
// noticed at once all the same.
const calm = "4s"

// waitReady waits until all nodes that run say that they are ready.
func (c *fleet) waitReady() {
	c.t.Helper()
	for _, m := range c.nodes {
		if m.p == nil || m.paused || !m.p.isAlive() {
			continue
		}
		start := time.Now()
		for !m.isReady() {
			if !m.p.isAlive() {
				c.t.Fatalf("node %d has ended with %d", m.number, m.p.exit(time.Second))
			}
			if time.Since(start) > recovery {
				a, err := call(c.client, http.MethodGet, m.url("/readyz"), "", "")
				c.t.Fatalf("node %d is not ready after %v: %v %s", m.number, recovery, err, a.body)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// until polls.
func (c *fleet) until(what string, f func() bool) time.Duration {
	c.t.Helper()
	start := time.Now()
	for !f() {
		if time.Since(start) > recovery {
			c.t.Fatalf("after %v still not: %s", recovery, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start)
}

// urls of all nodes that run.
func (c *fleet) urls() (list []string) {
	for _, m := range c.nodes {
		if m.p != nil && m.p.isAlive() {
			list = append(list, "http://"+m.addr)
		}
	}
	return list
}

// metric is the sum of a metric over its labels.
func (m *peer) metric(name string) (sum float64, err error) {
	a, err := m.c.client.Get("http://" + m.admin + "/metrics")
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return 0, err
	}
	found := false
	for _, v := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		f, err := strconv.ParseFloat(string(v[1]), 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+f, true
	}
	if !found {
		return 0, fmt.Errorf("node %d has no metric %s", m.number, name)
	}
	return sum, nil
}

// settled waits until nothing is under way between users any more. The gauges are of up to a second ago, so it must
// stay like that for longer.
func (c *fleet) settled() {
	c.t.Helper()
	var quiet time.Time
	c.until("no merge and no message is under way", func() bool {
		for _, m := range c.nodes {
			if m.p == nil || !m.p.isAlive() {
				continue
			}
			for _, name := range []string{"millrace_merges_waiting", "millrace_outbox_messages", "millrace_deferred_waiting_records"} {
				if v, err := m.metric(name); err != nil || v != 0 {
					quiet = time.Time{}
					return false
				}
			}
		}
		if quiet.IsZero() {
			quiet = time.Now()
		}
		return time.Since(quiet) > 1500*time.Millisecond
	})
}

// isUnsent: the request never left.
func isUnsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isUndone tells from a 503 that nothing was done.
func (a reply) isUndone() bool {
	return a.status == 429 || a.status == 503 && !strings.Contains(a.message(), "unknown")
}

// load is load on all nodes of a cluster, one after the other: so much that something is always under way, and not so
// much that nothing else is.
func (c *fleet) load(change func(*loadtest.Options)) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, ended: make(chan struct{})}
	o := loadtest.Options{Key: allKey, Duration: 24 * time.Hour, Connections: 12, Rate: 120, Backlog: 24, Ledger: true, SurviveRestarts: true, Pool: 24,
		Timeout: 2 * time.Second, AllowRemote: true, Acked: &l.acked}
	for _, m := range c.nodes {
		if m.p.isAlive() {
			o.Targets = append(o.Targets, "http://"+m.addr)
		}
	}
	o.Body = body.Options{Mix: body.Mix{10, 10, 10}, Users: 600}
	if change != nil {
		change(&o)
	}
	go func() {
		defer close(l.ended)
		l.report, l.ledger, l.err = loadtest.Run(ctx, o)
	}()
	return l
}

// waitForMore waits until so many more requests of a load are acknowledged.
func (c *fleet) waitForMore(l *load, n int64) {
	c.t.Helper()
	n += l.acked.Load()
	c.until("the load is acknowledged", func() bool { return l.acked.Load() >= n })
}

// endLoad ends a load.
func (c *fleet) endLoad(l *load) {
	c.t.Helper()
	l.cancel()
	select {
	case <-l.ended:
	case <-time.After(recovery):
		c.t.Fatal("the load does not end")
	}
	require.NoError(c.t, l.err)
	require.Zero(c.t, l.report.Unexpected, l.report.UnexpectedSamples)
	require.Positive(c.t, l.report.Acked)
}

// verify reads all that a load was told to be there back, through each node.
func (c *fleet) verify(l *load) {
	c.t.Helper()
	for _, url := range c.urls() {
		d, err := l.ledger.Verify(context.Background(), []string{url}, allKey)
		require.NoError(c.t, err, url)
		require.True(c.t, d.OK(), "%s: %s\n%s", url, d.String(), strings.Join(d.Samples, "\n"))
		require.NotZero(c.t, d.Objects)
	}
}
