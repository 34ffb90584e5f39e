package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testaddr"
	"millrace/shard"
)

// authority makes certificates of nodes.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string // PEM
}

func newAuthority(t *testing.T, dir, name string) *authority {
	a := &authority{t: t, file: filepath.Join(dir, name+".pem")}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	a.renew(time.Now().Add(time.Hour))
	return a
}

// renew makes a certificate of the authority, which proves what it has issued and will issue.
func (a *authority) renew(expiry time.Time) {
	name := strings.TrimSuffix(filepath.Base(a.file), ".pem")
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: expiry,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(a.t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

// issue writes a certificate and its key.
func (a *authority) issue(serial int64, certFile, keyFile string, change ...func(*x509.Certificate)) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "node"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, f := range change {
		f(template)
	}
	der, err := x509.CreateCertificate(crand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
}

// The whole of a cluster from the command line: mutual TLS between the nodes, one bootstrap file for all of them, keys
// and limits that hold everywhere, stops and starts in order.
func TestServeAsNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	file := func(node int, what string) string { return filepath.Join(dir, fmt.Sprintf("%s%d.pem", what, node)) }
	text := strings.Replace(bootstrapText, "    subscription_groups:", "      - {name: made, permissions: [users.track]}\n    subscription_groups:", 1)
	text = strings.Replace(text, "rate_limits: {", "rate_limits: {email.status: 60/31d, ", 1)
	bootstrap := filepath.Join(dir, "bootstrap.yaml")
	require.NoError(t, os.WriteFile(bootstrap, []byte(text), 0o600))
	var raft, members []string
	for i := range 3 {
		raft = append(raft, testaddr.Free(t))
		members = append(members, fmt.Sprintf("%d=%s", i+1, raft[i]))
	}
	nodes, processes := make([]*site, 3), make([]*process, 3)
	for i := range nodes {
		ca.issue(int64(10+i), file(i, "cert"), file(i, "key"))
		nodes[i] = &site{dir: filepath.Join(dir, fmt.Sprint("data", i+1)), addr: testaddr.Free(t), admin: testaddr.Free(t), bootstrap: bootstrap, flags: []string{
			"--node", fmt.Sprint(i + 1), "--raft", raft[i], "--members", strings.Join(members, ","), "--groups", "4", "--raft-timeout", calm, "--commit-timeout", calm,
			"--raft-cert", file(i, "cert"), "--raft-key", file(i, "key"), "--raft-ca", ca.file,
		}}
	}
	get := func(i int, path string) reply {
		a, err := call(patient, http.MethodGet, nodes[i].url(path), "", "")
		require.NoError(t, err)
		return a
	}
	start := func(which ...int) {
		for _, i := range which {
			processes[i] = startProcess(t, binary, nodes[i].args()...)
		}
		for _, i := range which {
			processes[i].waitReady(nodes[i].url("/readyz"))
		}
	}
	stop := func() {
		for _, p := range processes {
			p.signal(syscall.SIGTERM)
		}
		for _, p := range processes {
			require.Zero(t, p.exit(testPatience), p.log.String())
		}
	}

	// A node on its own waits for the others, is alive, and says so to everybody.
	processes[0] = startProcess(t, binary, nodes[0].args()...)
	require.Eventually(t, func() bool {
		a, err := call(patient, http.MethodGet, nodes[0].url("/livez"), "", "")
		return err == nil && a.status == 200
	}, testPatience, 5*time.Millisecond)
	for _, path := range []string{"/readyz", "/users/track"} {
		a := get(0, path)
		require.Equal(t, 503, a.status)
		require.Equal(t, "5", a.header.Get("Retry-After"))
		require.Contains(t, a.message(), "Nothing was done")
	}
	processes[0].stop() // and can be stopped
	start(0, 1, 2)

	// The keys of the file work on all nodes. The one without a token was made once, and is printed once.
	made := regexp.MustCompile(`API key "made" of workspace "test", shown once: (\S+)`).FindAllStringSubmatch(processes[0].out.String()+processes[1].out.String()+processes[2].out.String(), -1)
	require.Len(t, made, 1)
	for i, n := range nodes {
		require.Equal(t, 201, n.track(t, "ann").status)
		require.Equal(t, 201, n.post(t, "/users/track", made[0][1], `{"attributes":[{"external_id":"ann"}]}`).status)
		require.Equal(t, i+1, nodes[(i+1)%3].events(t, "ann"))
	}

	// A key that is made on one node works on the others when the answer is there; so does the end of one.
	admin := func(i int, method, path, body string) reply {
		token, err := os.ReadFile(filepath.Join(nodes[i].dir, "admin-token"))
		require.NoError(t, err)
		a, err := call(patient, method, "http://"+nodes[i].admin+path, strings.TrimSpace(string(token)), body)
		require.NoError(t, err)
		return a
	}
	for i := range nodes {
		a := admin(i, http.MethodPost, "/admin/workspaces/test/api_keys", fmt.Sprintf(`{"name":"k%d","permissions":["users.track"]}`, i))
		require.Equal(t, 201, a.status, a.body)
		var key struct {
			ID    string `json:"id"`
			Token string `json:"key"`
		}
		require.NoError(t, json.Unmarshal([]byte(a.body), &key), a.body)
		require.NotEmpty(t, key.Token, a.body)
		for _, n := range nodes {
			require.Equal(t, 201, n.post(t, "/users/track", key.Token, `{"attributes":[{"external_id":"ann"}]}`).status)
		}
		a = admin((i+1)%3, http.MethodDelete, "/admin/workspaces/test/api_keys/"+key.ID, "")
		require.Equal(t, 200, a.status, a.body)
		for _, n := range nodes {
			require.Equal(t, 401, n.post(t, "/users/track", key.Token, `{"attributes":[{"external_id":"ann"}]}`).status)
		}
	}

	// A limit is that of all nodes together.
	accepted := 0
	for i := range 120 {
		a := nodes[i%3].post(t, "/email/status", allKey, `{"email":"ann@example.com","subscription_state":"subscribed"}`)
		if a.status == 201 {
			accepted++
			continue
		}
		require.Equal(t, 429, a.status)
		require.Equal(t, "60", a.header.Get("X-RateLimit-Limit"))
		require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
	}
	require.InDelta(t, 60, accepted, 6)

	// What the operator's side has of a cluster: events of all groups, figures by group, a backup.
	events := admin(2, http.MethodGet, "/admin/events?workspace=test", "")
	require.Equal(t, 3, strings.Count(events.body, `"name":"e"`), "%d %s", events.status, events.body)
	counts := admin(2, http.MethodGet, "/admin/events/counts", "")
	require.Contains(t, counts.body, `"hours":[`)
	require.NotContains(t, counts.body, "missing_groups", "it has a replica of each")
	require.Equal(t, 200, admin(1, http.MethodGet, "/admin/backup", "").status)
	var metrics string
	require.Eventually(t, func() bool { // gauges are of up to a second ago
		metrics = admin(1, http.MethodGet, "/metrics", "").body
		return strings.Contains(metrics, "\nmillrace_ready 1\n")
	}, testPatience, 50*time.Millisecond)
	for _, line := range []string{"\nmillrace_entries{group=\"0\"} ", "\nmillrace_entries{group=\"4\"} ", "\nmillrace_inflight_bytes{group=\"coordinator\"} 0\n", "\nmillrace_certificate_expiry_time_seconds{use=\"nodes\"} "} {
		require.Contains(t, metrics, line)
	}
	require.Len(t, readMetrics(t, metrics)["millrace_entries"].GetMetric(), 5)

	// Who has no certificate of the authority comes to no node.
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	stranger := newAuthority(t, dir, "other")
	stranger.issue(1, file(9, "cert"), file(9, "key"))
	foreign, err := tls.LoadX509KeyPair(file(9, "cert"), file(9, "key"))
	require.NoError(t, err)
	for _, certificates := range [][]tls.Certificate{nil, {foreign}} {
		c, err := tls.Dial("tcp", raft[0], &tls.Config{RootCAs: pool, InsecureSkipVerify: true, Certificates: certificates})
		if err == nil { // of TLS 1.3 the client learns with the first read
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		var alert tls.AlertError
		require.True(t, errors.As(err, &alert) || strings.Contains(fmt.Sprint(err), "tls: "), "%v", err)
	}

	// New certificates come into use without a restart, and the nodes go on with one another.
	serial := func(i int) int64 {
		own, err := tls.LoadX509KeyPair(file(1, "cert"), file(1, "key"))
		require.NoError(t, err)
		c, err := tls.Dial("tcp", raft[i], &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own}})
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.Equal(t, int64(10), serial(0))
	ca.issue(77, file(0, "cert"), file(0, "key"))
	processes[0].signal(syscall.SIGHUP)
	require.Eventually(t, func() bool { return serial(0) == 77 }, testPatience, 10*time.Millisecond)

	processes[2].stop()
	start(2)
	require.Equal(t, 3, nodes[2].events(t, "ann"))
	stop()

	// Neither kind of server takes the other's directory.
	require.Contains(t, refused(t, nil, "serve", "--data", nodes[0].dir, "--listen", nodes[0].addr, "--admin", "off"), "--node 1")
	require.Contains(t, refused(t, nil, strings.Fields(strings.Replace(strings.Join(nodes[0].args(), " "), "--node 1", "--node 2", 1))...), "belongs to node 1")
	start(0, 1, 2)
	require.Equal(t, 3, nodes[1].events(t, "ann"))
	stop()
}

// A certificate that the other nodes would turn away is refused at the start and on SIGHUP: the node would wait for them
// for ever.
func TestCertificateOfANodeIsChecked(t *testing.T) {
	dir := t.TempDir()
	own, foreign := newAuthority(t, dir, "own"), newAuthority(t, dir, "foreign")
	c := serveCommand{RaftCert: filepath.Join(dir, "cert.pem"), RaftKey: filepath.Join(dir, "key.pem"), RaftCA: own.file}
	own.issue(2, c.RaftCert, c.RaftKey)
	link, _, err := c.linkTLS()
	require.NoError(t, err)
	good := link.Certificate()
	for says, issue := range map[string]func(){
		"unknown authority": func() { foreign.issue(3, c.RaftCert, c.RaftKey) },
		"expired": func() {
			own.issue(4, c.RaftCert, c.RaftKey, func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) })
		},
		"incompatible key us": func() {
			own.issue(5, c.RaftCert, c.RaftKey, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] })
		},
		"incompatible key": func() {
			own.issue(6, c.RaftCert, c.RaftKey, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] })
		},
	} {
		issue()
		_, _, err := c.linkTLS()
		require.ErrorContains(t, err, "--raft-cert: certificate")
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, link.Reload(), says)
		require.Same(t, good, link.Certificate())
	}
	own.issue(7, c.RaftCert, c.RaftKey)
	require.NoError(t, link.Reload())
	require.NotSame(t, good, link.Certificate())
}

// What fails for a moment is done again; what is wrong is not.
func TestPatiently(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		err   error
		calls int
	}{{shard.ErrUnavailable, 2}, {fmt.Errorf("x: %w", shard.ErrNotLeader), 2}, {shard.ErrUnknown, 2}, {control.ErrConflict, 2}, {document.ErrInvalid, 1}, {shard.ErrDiskFull, 1}} {
		calls := 0
		err := patiently(t.Context(), nil, log, func() error {
			if calls++; calls == 1 {
				return c.err
			}
			return nil
		})
		require.Equal(t, c.calls, calls, c.err)
		if c.calls == 1 {
			require.ErrorIs(t, err, c.err)
		} else {
			require.NoError(t, err)
		}
	}
}

// Members may stand in the file of --config, too.
func TestMembersOfTheConfigurationFile(t *testing.T) {
	resolver, err := yamlConfig([]byte("serve:\n  node: 2\n  members: {1: 10.0.0.1:7081, 2: 10.0.0.2:7081}\n"))
	require.NoError(t, err)
	require.NotNil(t, resolver)
	require.Equal(t, "1=10.0.0.1:7081,2=10.0.0.2:7081", text(map[any]any{2: "10.0.0.2:7081", 1: "10.0.0.1:7081"}))
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("data: "+dir+"\nnode: 2\nraft: 10.0.0.2:7081\nraft-insecure: true\nserve:\n  members: {1: 10.0.0.1:7081, 2: 10.0.0.2:7081}\n"), 0o600))
	require.Contains(t, refused(t, nil, "serve", "--config", file), `node 1 at "10.0.0.1:7081" is not on loopback`)
}
