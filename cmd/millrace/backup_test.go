package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

func newAdminSite(t *testing.T, flags ...string) *site {
	s := newSite(t, flags...)
	s.admin = testaddr.Free(t)
	return s
}

// tool runs a command of the binary that must succeed, and returns what it prints.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.Command(binary, args...)
	var out, failure bytes.Buffer
	c.Stdout, c.Stderr = &out, &failure
	require.NoError(t, c.Run(), "%v: %s", args, failure.String())
	require.Empty(t, failure.String())
	return out.String()
}

func (s *site) target(args ...string) []string {
	return append(args, "--server", "http://"+s.admin, "--data", s.dir)
}

// backup makes a backup and returns the file.
func (s *site) backup(t *testing.T, more ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup.tar.zst")
	require.Contains(t, tool(t, s.target(append([]string{"backup", file}, more...)...)...), file+": ")
	return file
}

// restore makes another site of a backup, under other addresses.
func (s *site) restore(t *testing.T, file string) *site {
	t.Helper()
	other := newAdminSite(t, s.flags...)
	require.Contains(t, tool(t, "restore", file, "--data", other.dir), "restored to "+other.dir)
	return other
}

// exported are the events that a server exports, a line each, sorted; only those of users that begin with prefix.
func (s *site) exported(t *testing.T, prefix string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(tool(t, s.target("export", "events")...)) {
		if strings.Contains(line, `"external_id":"`+prefix) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// tracker sends one request after the other, each with an event for three users, who are addressed in different ways.
type tracker struct {
	s           *site
	sent, acked atomic.Int64
	failed      atomic.Pointer[string]
}

var trackerUsers = []string{`"external_id":"tracker"`, `"email":"tracker@example.com"`, `"user_alias":{"alias_label":"crm","alias_name":"tracker"},"_update_existing_only":false`}

func (k *tracker) run(ctx context.Context) {
	var events []string
	for _, u := range trackerUsers {
		events = append(events, `{`+u+`,"name":"e","time":"2026-01-31T09:30:00Z"}`)
	}
	text := `{"events":[` + strings.Join(events, ",") + `]}`
	for ctx.Err() == nil {
		k.sent.Add(1)
		a, err := call(patient, http.MethodPost, k.s.url("/users/track"), allKey, text)
		if err != nil || a.status != 201 || strings.Contains(a.body, "errors") {
			said := fmt.Sprint(a, err)
			k.failed.Store(&said)
			return
		}
		k.acked.Add(1)
	}
}

// counts are what a server shows at the three users.
func (k *tracker) counts(t *testing.T, s *site) (counts []int64) {
	t.Helper()
	for _, question := range []string{`"external_ids":["tracker"]`, `"email_address":"tracker@example.com"`, `"user_aliases":[{"alias_label":"crm","alias_name":"tracker"}]`} {
		a := s.post(t, "/users/export/ids", allKey, `{`+question+`,"fields_to_export":["custom_events"]}`)
		require.Equal(t, 201, a.status, a.body)
		var v struct {
			Users []crowdUser `json:"users"`
		}
		require.NoError(t, json.Unmarshal([]byte(a.body), &v))
		require.Len(t, v.Users, 1, a.body)
		counts = append(counts, v.Users[0].Events[0].Count)
	}
	return counts
}

// F21: a backup under full load. What was acknowledged before it is there, exactly once; what came meanwhile is there
// whole or not at all.
func TestBackupUnderLoad(t *testing.T) {
	r := testseed.Rand(t)
	rounds := testsize.Of(100, 1, 1)
	for range rounds {
		backupUnderLoad(t, r)
	}
}

func backupUnderLoad(t *testing.T, r *rand.Rand) {
	s := newAdminSite(t)
	s.flags = append(bounds(r), "--event-pack-after", "100ms", "--event-duty", "1")
	p := s.start(t)
	first := s.load(func(o *loadtest.Options) { o.Atomic, o.AtomicUsers, o.Body.Prefix = true, 10, "first" })
	first.waitForMore(t, 100)
	first.verify(t)

	second := s.load(func(o *loadtest.Options) { o.Body.Prefix = "second" })
	k := &tracker{s: s}
	ctx, cancel := context.WithCancel(context.Background())
	var tracking sync.WaitGroup
	tracking.Go(func() { k.run(ctx) })
	require.Eventually(t, func() bool { return k.acked.Load() > 20 }, testPatience, time.Millisecond)
	least := k.acked.Load()
	file := s.backup(t)
	most := k.sent.Load()
	time.Sleep(100 * time.Millisecond)
	cancel()
	tracking.Wait()
	require.Nil(t, k.failed.Load())
	second.verify(t) // the load has felt nothing
	want := s.exported(t, "first")
	require.NotEmpty(t, want)
	p.stop()

	other := s.restore(t, file)
	p = other.start(t)
	d, err := first.ledger.Verify(context.Background(), []string{"http://" + other.addr}, allKey)
	require.NoError(t, err)
	require.True(t, d.OK(), "%s\n%s", d.String(), strings.Join(d.Samples, "\n"))
	require.Equal(t, want, other.exported(t, "first"))
	counts := k.counts(t, other)
	require.Equal(t, counts[0], counts[1])
	require.Equal(t, counts[0], counts[2])
	require.GreaterOrEqual(t, counts[0], least)
	require.LessOrEqual(t, counts[0], most)
	third := other.load(func(o *loadtest.Options) { o.Body.Prefix = "third" }) // it goes on
	third.verify(t)
	p.stop()
}

// Merges that are under way at the moment of the backup come to their end after the restore. No sum changes.
func TestBackupOfMerges(t *testing.T) {
	r := testseed.Rand(t)
	s := newAdminSite(t)
	p := s.start(t)
	c := &crowd{s: s, sites: []*site{s}, users: testsize.Short(250, 150), http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	c.found(t, r)
	for range 100 {
		c.track(r)
	}
	var done atomic.Bool
	var merging sync.WaitGroup
	for i := range 12 {
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		merging.Go(func() {
			for !done.Load() && c.unexpected.Load() == nil {
				c.merge(own, 1+own.IntN(8))
			}
		})
	}
	var files []string
	for range testsize.Short(2, 1) {
		before := c.merges.Load()
		require.Eventually(t, func() bool { return c.merges.Load() > before+100 }, testPatience, time.Millisecond)
		files = append(files, s.backup(t))
	}
	done.Store(true)
	merging.Wait()
	c.settle(t)
	c.check(t)
	p.stop()
	for _, file := range files {
		c.s = s.restore(t, file)
		p = c.s.start(t)
		c.settle(t)
		c.check(t)
		p.stop()
	}
}

// A restored server says what the other one said, byte by byte: users, events, control data, audit log, kept answers.
// Only the admin token is its own.
func TestRestoredIsEqual(t *testing.T) {
	testsize.SkipSerial(t)
	s := newAdminSite(t)
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) {
		o.Body.EmailShare, o.Body.AliasShare, o.Body.Users, o.Body.Prefix = 0.2, 0.2, 500, "equal"
	})
	l.waitForMore(t, 100)
	l.verify(t)
	kept := s.track(t, "ann", "Idempotency-Key", "k1")
	require.Equal(t, 201, kept.status)
	require.Equal(t, 201, s.post(t, "/subscription/status/set", allKey,
		`{"subscription_group_id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","subscription_state":"subscribed","external_id":["ann"]}`).status)
	state := func(s *site) string {
		a, err := call(patient, http.MethodGet, s.url("/subscription/user/status?external_id=ann"), allKey, "")
		require.NoError(t, err)
		require.Contains(t, a.body, "News")
		return a.body
	}
	users := func(s *site) (all []string) {
		for first := 0; first < 500; first += 50 {
			var ids []string
			for i := first; i < first+50; i++ {
				ids = append(ids, fmt.Sprintf("%q", body.AppendIdentifier(nil, "equal", body.ExternalID, i)))
			}
			a := s.post(t, "/users/export/ids", allKey, `{"external_ids":[`+strings.Join(ids, ",")+`]}`)
			require.Equal(t, 201, a.status)
			all = append(all, a.body)
		}
		return all
	}
	// All but the minute of a key's last use, which goes on with each request of this test.
	lastUse := regexp.MustCompile(`,"last_used_at":"[^"]*"`)
	keyList := func(s *site) string {
		return lastUse.ReplaceAllString((&operator{t, s}).run("keys", "list", "test", "--json"), "")
	}
	events, profiles, states, keys := tool(t, s.target("export", "events")...), users(s), state(s), keyList(s)
	file := s.backup(t, "--compression", "none")
	o := &operator{t, s}
	audit := o.run("audit", "list", "--all", "--json")
	begun := strings.Index(audit, "backup begun")
	require.Positive(t, begun)
	require.Contains(t, audit[begun:], "backup finished")
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	archive, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(archive), strings.TrimSpace(string(token)))
	require.NotContains(t, string(archive), "admin-token")
	p.stop()

	other := s.restore(t, file)
	require.NoFileExists(t, filepath.Join(other.dir, "admin-token"))
	p = other.start(t)
	o = &operator{t, other}
	for range 2 {
		require.Equal(t, profiles, users(other))
		require.Equal(t, events, tool(t, other.target("export", "events")...))
		require.Equal(t, states, state(other))
		require.Equal(t, keys, keyList(other))
		shown := o.run("audit", "list", "--all", "--json")
		require.True(t, strings.HasPrefix(shown, audit[:begun]), "the audit log up to the backup")
		require.Contains(t, shown, "backup begun")
		require.NotContains(t, shown, "backup finished")
		require.Contains(t, o.run("audit", "verify"), "intact")
		again := other.track(t, "ann", "Idempotency-Key", "k1")
		require.Equal(t, "true", again.header.Get("Idempotent-Replay"))
		require.Equal(t, kept.body, again.body)
		p.kill()
		p = other.start(t)
	}
	fresh, err := os.ReadFile(filepath.Join(other.dir, "admin-token"))
	require.NoError(t, err)
	require.NotEqual(t, token, fresh)
	p.stop()
}

// slow begins a transfer and reads nothing of it but the first bytes.
func (s *site) slow(t *testing.T, path string) io.ReadCloser {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	// A small window, so that little is enough to make the server wait.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return errors.Join(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }), err)
		}}
		return d.DialContext(ctx, network, address)
	}}}
	r, err := http.NewRequest(http.MethodGet, "http://"+s.admin+path, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	a, err := client.Do(r)
	require.NoError(t, err)
	require.Equal(t, 200, a.StatusCode)
	_, err = io.ReadFull(a.Body, make([]byte, 600))
	require.NoError(t, err)
	return a.Body
}

var loggedBytes = regexp.MustCompile(`(?m)^millrace_wal_bytes_total (\d+)$`)

func (s *site) metrics(t *testing.T) string {
	t.Helper()
	a, err := call(patient, http.MethodGet, "http://"+s.admin+"/metrics", "", "")
	require.NoError(t, err)
	return a.body
}

// A backup that doesn't come to its end leaves nothing behind: its client goes, the server is stopped, or killed. One
// runs at a time.
func TestBackupEndsEarly(t *testing.T) {
	testsize.SkipSerial(t)
	t.Parallel()
	s := newAdminSite(t, "--checkpoint-interval", "100ms", "--read-timeout", "1s", "--drain-timeout", "10m")
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) { // not as fast as it goes, so that backups don't grow
		o.Connections, o.Rate, o.Backlog, o.Body.Users, o.Body.Mix = 2, 100, 4, 500, body.Mix{75, 75, 75}
	})
	require.Eventually(t, func() bool { // more than sockets take up by themselves
		m := loggedBytes.FindStringSubmatch(s.metrics(t))
		return m != nil && len(m[1]) >= len("16000000")
	}, testPatience, 10*time.Millisecond)
	image := filepath.Join(s.dir, "image")

	slow := s.slow(t, "/admin/backup")
	time.Sleep(1500 * time.Millisecond) // the bound on requests is none on answers
	_, err := io.Copy(io.Discard, slow)
	require.NoError(t, err)
	require.NoError(t, slow.Close())
	slow = s.slow(t, "/admin/events")
	time.Sleep(1500 * time.Millisecond)
	_, err = io.Copy(io.Discard, slow)
	require.NoError(t, err)
	require.NoError(t, slow.Close())

	slow = s.slow(t, "/admin/backup")
	require.DirExists(t, image)
	file := filepath.Join(t.TempDir(), "file")
	require.Contains(t, refused(t, nil, s.target("backup", file)...), "409 Conflict: another backup is running")
	require.NoFileExists(t, file)
	require.NoError(t, slow.Close())
	require.Eventually(t, func() bool { _, err := os.Stat(image); return os.IsNotExist(err) }, testPatience, 10*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(s.metrics(t), "millrace_backup_failures_total 1\n") }, testPatience, 10*time.Millisecond)
	s.backup(t)
	shown := s.metrics(t)
	require.Contains(t, shown, "millrace_backups_total 2\n")
	require.Regexp(t, `millrace_backup_last_bytes [1-9]`, shown)
	require.Regexp(t, `millrace_backup_last_time_seconds [1-9]`, shown)

	slow = s.slow(t, "/admin/backup")
	require.DirExists(t, image)
	p.kill()
	require.DirExists(t, image)
	slow.Close()
	p = s.start(t)
	require.NoDirExists(t, image)
	s.backup(t)

	// The client that waits is told, and keeps no file.
	slow = s.slow(t, "/admin/backup")
	p.stop() // long before the drain would end: a backup doesn't hold the server up
	_, err = io.Copy(io.Discard, slow)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	slow.Close()
	require.NoDirExists(t, image)
	p = s.start(t)
	l.verify(t)
	p.stop()
}

// When a server ends in the middle of a backup, the command says so, and what to do. Where nothing has begun, such as at
// a port of something else, it blames no backup.
func TestBackupOfAServerThatEnds(t *testing.T) {
	for name, end := range map[string]func(http.ResponseWriter){
		"before": func(http.ResponseWriter) {},
		"within": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "a part")
			_ = http.NewResponseController(w).Flush()
		},
		"reset": func(w http.ResponseWriter) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na part")
			}
			assert.NoError(t, errors.Join(err, c.(*net.TCPConn).SetLinger(0), c.Close()))
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/admin/backup" {
				end(w)
				panic(http.ErrAbortHandler)
			}
		}))
		file := filepath.Join(t.TempDir(), "file")
		err := run(t.Context(), []string{"backup", file, "--server", server.URL, "--token", "t"}, io.Discard)
		const early = "the server ended the backup early: see its log for the reason, and run the command again: "
		if name == "before" {
			require.ErrorContains(t, err, "EOF")
			require.NotContains(t, err.Error(), early)
		} else {
			require.ErrorContains(t, err, early, name)
		}
		require.NoFileExists(t, file)
		server.Close()
	}
}

// What can't be restored is refused with its reason, code 1, and nothing is there afterwards.
func TestRestoreRefuses(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	s := newAdminSite(t)
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) { o.Body.Users = 200 })
	l.waitForMore(t, 50)
	l.verify(t)
	dir := t.TempDir()
	require.Contains(t, tool(t, s.target("backup", dir)...), "/millrace-2")
	names, err := filepath.Glob(filepath.Join(dir, "millrace-*Z.tar.zst"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	good := names[0]
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no unfinished file")
	piped := exec.Command(binary, s.target("backup", "-", "--compression", "none")...)
	plain, err := piped.Output()
	require.NoError(t, err)
	require.Contains(t, refused(t, nil, s.target("backup", filepath.Join(dir, "no", "file"))...), "no such file")
	require.Contains(t, refused(t, nil, "backup", "x", "--server", "http://"+s.admin, "--token", "wrong-wrong-wrong"), "401")
	p.stop()

	require.Contains(t, tool(t, "restore", good, "--verify-only"), "intact")
	require.Contains(t, refused(t, nil, "restore", good), "--data or --verify-only is required")
	for _, flag := range []string{"--node", "--groups", "--replicas"} {
		require.Contains(t, refused(t, nil, "restore", good, "--data", filepath.Join(dir, "alone"), flag, "2"),
			"--node, --groups and --replicas go with --members")
	}
	require.Contains(t, refused(t, nil, "restore", filepath.Join(dir, "none"), "--data", dir), "no such file")
	require.Contains(t, refused(t, nil, "restore", good, "--data", s.dir), "the directory is not empty")
	require.Contains(t, refused(t, nil, "restore", good, "--data", filepath.Join(dir, "cluster"), "--members", "1=127.0.0.1:7000"), "restore it without --members")
	locked := newSite(t)
	p = locked.start(t)
	require.Contains(t, refused(t, nil, "restore", good, "--data", locked.dir), "in use by another server")
	p.stop()

	target, bad := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "bad")
	nothing := func(archive []byte, says string) {
		t.Helper()
		require.NoError(t, os.WriteFile(bad, archive, 0o600))
		require.Contains(t, refused(t, nil, "restore", bad, "--verify-only"), says)
		require.Contains(t, refused(t, nil, "restore", bad, "--data", target), says)
		require.NoDirExists(t, target)
		require.NoError(t, os.Mkdir(target, 0o700))
		require.Contains(t, refused(t, nil, "restore", bad, "--data", target), says)
		left, err := os.ReadDir(target)
		require.NoError(t, err)
		require.Empty(t, left)
		require.NoError(t, os.Remove(target))
	}
	for range testsize.Short(3, 2) {
		nothing(plain[:r.IntN(len(plain))], "it ends early")
		flipped := bytes.Clone(plain)
		flipped[r.IntN(len(plain))] ^= 1 << r.IntN(8)
		nothing(flipped, "archive")
	}

	// From standard input, into a directory with the token of a server that is to be replaced.
	require.NoError(t, os.Mkdir(target, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(target, "admin-token"), []byte("0123456789abcdef-token\n"), 0o600))
	c := exec.Command(binary, "restore", "-", "--data", target)
	c.Stdin = bytes.NewReader(plain)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	other := newSite(t)
	other.dir = target
	p = other.start(t)
	d, err := l.ledger.Verify(context.Background(), []string{"http://" + other.addr}, allKey)
	require.NoError(t, err)
	require.True(t, d.OK(), d.String())
	p.stop()

	// One that was killed.
	killed := newSite(t)
	c = exec.Command(binary, "restore", "-", "--data", killed.dir)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	_, err = in.Write(plain[:len(plain)/2])
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		found, _ := filepath.Glob(filepath.Join(killed.dir, "log", "*.log"))
		return len(found) > 0
	}, testPatience, time.Millisecond)
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	require.Contains(t, refused(t, nil, killed.args()...), "restore again")
	tool(t, "restore", good, "--data", killed.dir)
	killed.start(t).stop()
}

// logged is how many bytes the log's records have.
func (s *site) logged() (bytes int64) {
	files, _ := filepath.Glob(filepath.Join(s.dir, "log", "*.log"))
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// A disk that is too small for what is restored.
func TestRestoreToFullDisk(t *testing.T) {
	testsize.SkipSerial(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system of a given size without the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	s := newAdminSite(t)
	p := s.start(t)
	l := s.load(nil)
	require.Eventually(t, func() bool { return s.logged() > 1<<20 }, testPatience, 10*time.Millisecond, "more than the disk takes")
	l.verify(t)
	file := s.backup(t)
	p.stop()
	target := filepath.Join(dir, "data")
	require.Contains(t, refused(t, nil, "restore", file, "--data", target), "no space left on device")
	require.NoDirExists(t, target)
	require.Contains(t, refused(t, nil, "restore", file, "--data", dir), "no space left on device") // a mount point
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=200m"))
	tool(t, "restore", file, "--data", dir)
	other := newSite(t)
	other.dir = dir
	p = other.start(t)
	d, err := l.ledger.Verify(context.Background(), []string{"http://" + other.addr}, allKey)
	require.NoError(t, err)
	require.True(t, d.OK(), d.String())
	p.stop()
}

// A backup for which the disk has no room is an error, whichever of its bytes is the first without room.
func TestBackupToFullDisk(t *testing.T) {
	s := newAdminSite(t)
	p := s.start(t)
	archive, err := os.ReadFile(s.backup(t, "--compression", "none"))
	require.NoError(t, err)
	p.stop()
	for _, compression := range []string{"zstd", "none"} {
		c := backupCommand{Compression: compression}
		save := func(w io.Writer) error {
			_, err := c.save(t.Context(), w, bytes.NewReader(archive))
			return err
		}
		var whole bytes.Buffer
		require.NoError(t, save(&whole))
		for room := range whole.Len() {
			if room%997 < 10 || whole.Len()-room <= 10 {
				require.ErrorIs(t, save(&full{room}), syscall.ENOSPC, "%s, %d of %d bytes", compression, room, whole.Len())
			}
		}
	}
}

// full is a disk with room for some bytes.
type full struct{ room int }

// Write takes what there is room for.
func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// What goes to standard output is the backup alone, by any name.
func TestStandardOutputIsKnown(t *testing.T) {
	require.True(t, isStdout("/dev/stdout"))
	require.True(t, isStdout("/proc/self/fd/1"))
	require.False(t, isStdout(t.TempDir()))
	require.False(t, isStdout("no such file"))
}

// What is interrupted says so.
func TestInterruptedCommands(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "backup.tar")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	for _, args := range [][]string{{"backup", file, "--token", "t"}, {"restore", file, "--verify-only"},
		{"restore", file, "--data", filepath.Join(t.TempDir(), "data")}} {
		err := run(ctx, args, io.Discard)
		require.ErrorContains(t, err, "interrupted")
		require.NotContains(t, err.Error(), "context")
	}
}

// A command that waits for standard input doesn't notice that it is told to end; told again, it ends.
func TestSecondSignal(t *testing.T) {
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()
	c := exec.Command(binary, "restore", "-", "--verify-only")
	c.Stdin = in
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	_, err = out.WriteString("x")
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it reads, so it catches signals
		n, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
		return err == nil && n == 0
	}, testPatience, time.Millisecond)
	giveUp := time.After(time.Minute)
	for signals := 0; ; signals++ {
		select {
		case <-ended:
			require.Greater(t, signals, 1)
			return
		case <-time.After(100 * time.Millisecond):
			require.NoError(t, c.Process.Signal(os.Interrupt))
		case <-giveUp:
			_ = c.Process.Kill()
			t.Fatal("it goes on")
		}
	}
}
