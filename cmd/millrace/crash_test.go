package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// load is a load test that goes on whatever happens to the server, and at the end knows what that owes.
type load struct {
	s      *site
	enough chan struct{}      // of a site: closed when no more is to be sent
	cancel context.CancelFunc // of a cluster
	ended  chan struct{}
	report *loadtest.Report
	ledger *loadtest.Ledger
	err    error
	acked  atomic.Int64 // requests, so far
}

func (s *site) load(change func(*loadtest.Options)) *load {
	l := &load{s: s, enough: make(chan struct{}), ended: make(chan struct{})}
	o := loadtest.Options{Targets: []string{"http://" + s.addr}, Key: allKey, Duration: 24 * time.Hour, Connections: 8, Ledger: true, SurviveRestarts: true, Pool: 16,
		Enough: l.enough, Acked: &l.acked}
	o.Body = body.Options{Mix: body.Mix{30, 30, 30}, Users: 3000}
	if change != nil {
		change(&o)
	}
	go func() {
		defer close(l.ended)
		l.report, l.ledger, l.err = loadtest.Run(context.Background(), o)
	}()
	return l
}

// waitForMore waits until so many more requests are acknowledged.
func (l *load) waitForMore(t *testing.T, n int64) {
	t.Helper()
	n += l.acked.Load()
	hasEnded := func() bool {
		select {
		case <-l.ended: // it has failed
			return true
		default:
			return false
		}
	}
	require.Eventually(t, func() bool { return l.acked.Load() >= n || hasEnded() }, testPatience, time.Millisecond)
}

// verify ends the load when each of its requests has come to its end, and reads everything back.
func (l *load) verify(t *testing.T) {
	t.Helper()
	l.waitForMore(t, 16) // since the last restart, too
	close(l.enough)
	select {
	case <-l.ended:
	case <-time.After(testPatience):
		t.Fatal("the load does not end")
	}
	require.NoError(t, l.err)
	d, err := l.ledger.Verify(context.Background(), []string{"http://" + l.s.addr}, allKey)
	require.NoError(t, err)
	t.Log(d.String())
	require.True(t, d.OK(), "%s\n%s", d.String(), strings.Join(d.Samples, "\n"))
	require.Zero(t, l.report.Unexpected, l.report.UnexpectedSamples)
	require.Positive(t, d.Objects)
}

// bounds are so small, now and then, that segments, checkpoints, evictions and packing happen all the time.
func bounds(r *rand.Rand) []string {
	var flags []string
	pick := func(name string, values ...string) {
		if v := values[r.IntN(len(values))]; v != "" {
			flags = append(flags, name, v)
		}
	}
	pick("--segment-bytes", "", "1MiB", "4MiB")
	pick("--checkpoint-bytes", "", "1MiB", "8MiB")
	pick("--checkpoint-interval", "", "100ms", "1s")
	pick("--memory", "", "1MiB", "16MiB")
	pick("--workers", "", "1", "3")
	pick("--event-pack-after", "", "100ms")
	return flags
}

// F1: kill -9 under load, again and again. Nothing that was acknowledged is lost, no request is there by half.
func TestKillUnderLoad(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newSite(t)
	kills := testsize.Of(1000, 5, 4)
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) { o.Atomic, o.AtomicUsers = true, 10 })
	var slowest time.Duration
	for i := range kills {
		time.Sleep(time.Duration(50+r.IntN(600)) * time.Millisecond)
		p.kill()
		flags := bounds(r)
		p = startProcess(t, binary, s.args(flags...)...)
		if i%4 == 3 { // kill it while it recovers
			time.Sleep(time.Duration(r.IntN(80)) * time.Millisecond)
			p.kill()
			p = startProcess(t, binary, s.args(flags...)...)
		}
		slowest = max(slowest, p.waitReady(s.url("/readyz")))
	}
	l.verify(t)
	p.stop()
	t.Logf("%d kills, slowest start %v", kills, slowest)
}

// The same with Idempotency-Keys: requests without an answer are sent again, and every one of them has its effect
// exactly once.
func TestKillUnderLoadWithIdempotencyKeys(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newSite(t)
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) {
		o.IdempotencyKeys = true
		o.Body.EmailShare, o.Body.AliasShare = 0.1, 0.1
	})
	kills := testsize.Of(200, 3, 2)
	for range kills {
		time.Sleep(time.Duration(50+r.IntN(600)) * time.Millisecond)
		p.kill()
		p = s.start(t, bounds(r)...)
	}
	l.verify(t)
	require.Zero(t, l.ledger.UnknownRequests())
	p.stop()
}

// One Idempotency-Key over a kill, by hand.
func TestIdempotencyKeyOverKill(t *testing.T) {
	s := newSite(t)
	p := s.start(t)
	first := s.track(t, "ann", "Idempotency-Key", "k1")
	require.Equal(t, 201, first.status, first.body)
	require.Empty(t, first.header.Get("Idempotent-Replay"))
	for range 2 {
		p.kill()
		p = s.start(t)
		again := s.track(t, "ann", "Idempotency-Key", "k1")
		require.Equal(t, 201, again.status)
		require.Equal(t, first.body, again.body)
		require.Equal(t, "true", again.header.Get("Idempotent-Replay"))
		require.Equal(t, 1, s.events(t, "ann"))
		require.Equal(t, 422, s.track(t, "bob", "Idempotency-Key", "k1").status)
		require.Zero(t, s.events(t, "bob"))
	}
	require.Equal(t, 201, s.track(t, "ann", "Idempotency-Key", "k2").status)
	require.Equal(t, 2, s.events(t, "ann"))
	p.stop()
}

// F22: SIGTERM under load. What is under way is answered, nothing acknowledged is lost, the exit code is 0.
func TestStopUnderLoad(t *testing.T) {
	r := testseed.Rand(t)
	s := newSite(t)
	stops := testsize.Of(100, 3, 2)
	p := s.start(t)
	l := s.load(func(o *loadtest.Options) { o.Atomic, o.AtomicUsers = true, 10 })
	for range stops {
		time.Sleep(time.Duration(100+r.IntN(500)) * time.Millisecond)
		start := time.Now()
		p.stop()
		require.Less(t, time.Since(start), time.Minute, "drain takes 10 s at most")
		p = s.start(t)
	}
	l.verify(t)
	p.stop()
}

// F7: a real disk that fills up. Writes are refused while reads go on; when there is room again, they are taken.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m"); err != nil {
		t.Skipf("no file system of a given size without the right to mount: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	s := newSite(t, "--segment-bytes", "1MiB", "--checkpoint-bytes", "4MiB", "--min-free-bytes", "16MiB")
	s.dir = filepath.Join(dir, "data")
	p := s.start(t)
	require.Equal(t, 201, s.track(t, "ann").status)

	ballast := filepath.Join(dir, "ballast")
	for range 2 {
		fill(t, ballast, dir, 8<<20)
		var a reply
		require.Eventually(t, func() bool { a = s.track(t, "full"); return a.status != 201 }, testPatience, 50*time.Millisecond)
		require.Contains(t, []int{429, 503}, a.status, a.body)
		require.NotEmpty(t, a.header.Get("Retry-After"))
		full := s.events(t, "full")
		for range 20 {
			require.Equal(t, a.status, s.track(t, "full").status)
		}
		require.Equal(t, full, s.events(t, "full"), "a refused request has had an effect")
		require.Equal(t, 1, s.events(t, "ann"))
		ready, err := call(patient, "GET", s.url("/readyz"), "", "")
		require.NoError(t, err)
		require.Equal(t, 503, ready.status)
		require.True(t, p.isAlive())

		require.NoError(t, os.Remove(ballast))
		require.Eventually(t, func() bool { return s.track(t, "room").status == 201 }, testPatience, 50*time.Millisecond)
	}
	p.stop()
	fill(t, ballast, dir, 8<<20)
	p = startProcess(t, binary, s.args()...) // it starts on a full disk too
	require.Eventually(t, func() bool {
		a, err := call(patient, "GET", s.url("/livez"), "", "")
		return err == nil && a.status == 200
	}, testPatience, 50*time.Millisecond)
	require.Equal(t, 1, s.events(t, "ann"))
	require.Equal(t, 503, s.track(t, "full").status)
	p.stop()
}

// fill writes a file until only leave bytes are free.
func fill(t *testing.T, name, dir string, leave int64) {
	var st syscall.Statfs_t
	require.NoError(t, syscall.Statfs(dir, &st))
	require.NoError(t, os.WriteFile(name, make([]byte, max(0, int64(st.Bavail)*st.Bsize-leave)), 0o600))
}

// F7 where nothing may be mounted: the floor is above what the disk has.
func TestDiskBelowTheFloor(t *testing.T) {
	s := newSite(t)
	p := s.start(t)
	require.Equal(t, 201, s.track(t, "ann").status)
	p.stop()
	p = startProcess(t, binary, s.args("--min-free-bytes", "1000TB")...)
	require.Eventually(t, func() bool {
		a, err := call(patient, "GET", s.url("/readyz"), "", "")
		return err == nil && a.status == 503
	}, testPatience, 20*time.Millisecond)
	for range 3 {
		a := s.track(t, "ann")
		require.Equal(t, 503, a.status)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	require.Equal(t, 1, s.events(t, "ann"))
	p.stop()
	p = s.start(t)
	require.Equal(t, 201, s.track(t, "ann").status)
	require.Equal(t, 2, s.events(t, "ann"))
	p.stop()
}

// A line of strace: pid, time, then the file of a sync that begins, or the end of the process; and the result, unless
// it stands in a later line of the same pid.
var straceLine = regexp.MustCompile(`^(\d+) +(\d+\.\d+) (?:f(?:data)?sync\(\d+<([^>]*)>|(<\.\.\. f(?:data)?sync resumed>)|(\+\+\+ exited with \d+))(?:.*\) += (-?\d+)(.*))?`)

// F6: fsync fails with EIO, from the k-th of a thread on. No request is acknowledged that no good fsync of the log
// covers, and the server ends with code 3 and its reason; what it had acknowledged is there when the disk works again.
func TestSyncFails(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not on this machine")
	}
	r := testseed.Rand(t)
	runs := testsize.Of(100, 2, 1)
	tested := 0
	for run := range runs {
		s := newSite(t)
		s.start(t).stop() // so that the first start's own syncs are not the ones that fail
		k := 4 + r.IntN(60)
		if run == 0 { // one that comes to serve; a small k meets the start
			k += 40
		}
		trace := filepath.Join(t.TempDir(), "trace")
		p := startProcess(t, strace, append([]string{"-f", "-y", "-ttt", "-e", "signal=none", "-e", "trace=fsync,fdatasync",
			"-e", fmt.Sprintf("inject=fsync,fdatasync:error=EIO:when=%d+", k), "-o", trace, binary}, s.args("--checkpoint-interval", "200ms")...)...)
		acked := 0
		for start := time.Now(); p.isAlive() && time.Since(start) < testPatience; {
			a, err := call(patient, "POST", s.url("/users/track"), allKey, `{"events":[{"external_id":"ann","name":"e","time":"2026-01-31T09:30:00Z"}]}`)
			if err == nil && a.status == 201 {
				acked++
			} else if err == nil {
				require.Equal(t, 503, a.status, a.body)
			}
		}
		code := p.exit(testPatience)
		if text := p.log.String(); code == 1 && strings.Contains(text, "ptrace") {
			t.Skipf("strace may not trace here: %s", text)
		}
		require.Equal(t, exitDiskFailed, code, p.log.String())
		require.Contains(t, p.log.String(), "input/output error")
		goodSyncs, took := readTrace(t, trace)
		require.LessOrEqual(t, acked, goodSyncs, "run %d: more requests are acknowledged than syncs of the log have succeeded (the %d. of a thread fails)", run, k)
		t.Logf("run %d: syncs fail from the %d. of a thread on: %d requests acknowledged, %d good syncs of the log, end after %v", run, k, acked, goodSyncs, took)
		p = s.start(t)
		require.GreaterOrEqual(t, s.events(t, "ann"), acked)
		require.LessOrEqual(t, s.events(t, "ann"), acked+1)
		p.stop()
		tested += acked
	}
	require.True(t, tested > 0 || testing.Short())
}

// readTrace counts the syncs of the log that succeeded, and says how long after the first sync that failed the process
// ended.
func readTrace(t *testing.T, name string) (good int, took time.Duration) {
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	var first, last float64
	files := map[string]string{} // by pid: what its last sync is of
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := straceLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		var at float64
		_, err := fmt.Sscan(m[2], &at)
		require.NoError(t, err)
		if m[3] != "" {
			files[m[1]] = m[3]
		}
		switch {
		case m[5] != "":
			last = at
		case strings.Contains(m[7], "INJECTED") && first == 0:
			first = at
		case m[6] == "0" && strings.HasSuffix(files[m[1]], ".log"):
			good++
		}
	}
	require.NotZero(t, first, "no sync has failed")
	require.NotZero(t, last)
	return good, time.Duration((last - first) * float64(time.Second))
}
