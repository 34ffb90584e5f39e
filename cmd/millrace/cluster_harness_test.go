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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest"
	"millrace/loadtest/body"
)

// fleet is the nodes of a cluster as processes, with what lies between them. With net == nil it is one node alone, which is held to the same.
type fleet struct {
	t         *testing.T
	net       network
	dir       string
	bootstrap string
	flags     []string
	nodes     []*peer
	founders  int // the first so many nodes made the cluster
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
	m := &peer{c: c, number: 1, site: &site{dir: filepath.Join(c.dir, "data1"), addr: freeAddr(t), admin: freeAddr(t), bootstrap: c.bootstrap}}
	c.nodes = []*peer{m}
	m.start()
	m.p.waitReady(m.url("/readyz"))
	return c
}

// newCluster starts so many nodes, and waits until all are ready. Flags are those of every node, at every start.
func newCluster(t *testing.T, nodes int, flags ...string) *fleet {
	return startCluster(t, newLinks(t, nodes+spareNodes), nodes, flags...)
}

// spareNodes can be added to each cluster later.
const spareNodes = 2

func startCluster(t *testing.T, net network, nodes int, flags ...string) *fleet {
	c := emptyCluster(t, net, flags)
	c.founders = nodes
	for range nodes {
		c.place()
	}
	for _, m := range c.nodes {
		m.start()
	}
	c.waitReady()
	return c
}

func emptyCluster(t *testing.T, net network, flags []string) *fleet {
	dir := t.TempDir()
	c := &fleet{t: t, net: net, dir: dir, flags: flags, bootstrap: filepath.Join(dir, "bootstrap.yaml")}
	require.NoError(t, os.WriteFile(c.bootstrap, []byte(clusterBootstrap(maxTexts)), 0o600))
	c.client = &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 10 * time.Second}}
	t.Cleanup(func() {
		for _, m := range c.nodes { // so that the ends of the processes can be waited for
			if m.paused {
				m.resume()
			}
		}
	})
	return c
}

// place makes the next node, without starting it.
func (c *fleet) place() *peer {
	n := len(c.nodes) + 1
	m := &peer{c: c, number: n}
	m.site = &site{dir: filepath.Join(c.dir, "data"+strconv.Itoa(n)), addr: c.net.api(n), admin: c.net.admin(n), bootstrap: c.bootstrap}
	c.nodes = append(c.nodes, m)
	return m
}

// members is --members: those that made the cluster.
func (c *fleet) members() string {
	var parts []string
	for n := 1; n <= c.founders; n++ {
		parts = append(parts, fmt.Sprintf("%d=%s", n, c.net.member(n)))
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
		program, args = m.c.net.command(m.number, program, append(args, flags...)...)
	}
	m.p = startProcess(m.c.t, program, args...)
	m.paused = false
	if m.c.net != nil {
		m.c.net.started(m.number, m.p.cmd.Process.Pid)
	}
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

// recovery is how long a cluster has to get well once nothing is in its way. Nothing depends on how fast it is.
const recovery = 90 * time.Second

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

// settled waits until nothing is under way between users any more. The gauges are of up to a second ago, so it must stay like that for longer.
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

// ask sends a request to one node after the other until one answers it with another status than 503 or 429.
func (c *fleet) ask(method, path, body string, more ...string) reply {
	c.t.Helper()
	start := time.Now()
	for i := 0; ; i++ {
		m := c.nodes[i%len(c.nodes)]
		a, err := call(c.client, method, m.url(path), allKey, body, more...)
		if err == nil && a.status != 503 && a.status != 429 {
			return a
		}
		if time.Since(start) > recovery {
			c.t.Fatalf("%s is not answered: %v %d %s", path, err, a.status, a.body)
		}
		time.Sleep(10 * time.Millisecond)
	}
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

// clusterLoad is load on all nodes of a cluster, one after the other.
func (c *fleet) load(change func(*loadtest.Options)) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, ended: make(chan struct{})}
	o := loadtest.Options{Key: allKey, Duration: 24 * time.Hour, Connections: 6, Ledger: true, SurviveRestarts: true, Pool: 16, Timeout: 15 * time.Second, AllowRemote: true}
	for _, m := range c.nodes {
		o.Targets = append(o.Targets, "http://"+m.addr)
	}
	o.Body = body.Options{Mix: body.Mix{10, 10, 10}, Users: 2000}
	if change != nil {
		change(&o)
	}
	go func() {
		defer close(l.ended)
		l.report, l.ledger, l.err = loadtest.Run(ctx, o)
	}()
	return l
}

// verify ends the load and reads everything back through each node.
func (c *fleet) verify(l *load) {
	c.t.Helper()
	time.Sleep(300 * time.Millisecond) // it comes back after the last fault
	l.cancel()
	select {
	case <-l.ended:
	case <-time.After(recovery):
		c.t.Fatal("the load does not end")
	}
	require.NoError(c.t, l.err)
	require.Zero(c.t, l.report.Unexpected, l.report.UnexpectedSamples)
	require.Positive(c.t, l.report.Acked)
	var wg sync.WaitGroup
	for _, url := range c.urls() {
		wg.Go(func() {
			d, err := l.ledger.Verify(context.Background(), []string{url}, allKey)
			if err != nil {
				c.t.Errorf("%s: %v", url, err)
			}
			if !d.OK() {
				c.t.Errorf("%s: %s\n%s", url, d.String(), strings.Join(d.Samples, "\n"))
			}
			c.t.Logf("%s: %s", url, d.String())
		})
	}
	wg.Wait()
}
