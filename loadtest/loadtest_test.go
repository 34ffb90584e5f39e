package loadtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/loadtest/body"
)

// small are options of a quick run that ends by its number of requests.
func small(s *server, requests int64) Options {
	return Options{Targets: []string{s.url}, Key: testKey, Requests: requests, Duration: time.Minute, Connections: 4, Pool: 8, Ledger: true,
		Body: body.Options{Seed: 5, Mix: body.Mix{10, 10, 10}, Users: 200, EmailShare: 0.1, AliasShare: 0.1}}
}

func atomically(s *server, requests int64) Options {
	o := small(s, requests)
	o.Atomic = true
	o.Body.EmailShare, o.Body.AliasShare = 0, 0
	return o
}

func run1(t *testing.T, o Options) (*Report, *Ledger) {
	t.Helper()
	report, ledger, err := Run(t.Context(), o)
	require.NoError(t, err)
	return report, ledger
}

func verify(t *testing.T, s *server, l *Ledger) Discrepancies {
	t.Helper()
	d, err := l.Verify(t.Context(), []string{s.url}, testKey)
	require.NoError(t, err)
	return d
}

func at(n int64, f fault) func(int64) fault {
	return func(i int64) fault {
		if i == n {
			return f
		}
		return none
	}
}

func every(n int64, f fault) func(int64) fault {
	return func(i int64) fault {
		if i%n == 0 {
			return f
		}
		return none
	}
}

func TestLedgerOfAServerThatKeepsEverything(t *testing.T) {
	f := func(name string, change func(*Options)) {
		t.Helper()
		s := newServer(t)
		o := small(s, 60)
		change(&o)
		report, ledger := run1(t, o)
		require.EqualValues(t, 60, report.Requests, name)
		require.EqualValues(t, map[string]int64{"201": 60}, report.Statuses, name)
		require.Zero(t, report.Unexpected, "%s: %v", name, report.UnexpectedSamples)
		require.EqualValues(t, report.Objects, ledger.head.Objects, name)
		d := verify(t, s, ledger)
		require.True(t, d.OK(), "%s: %v", name, d)
		require.Equal(t, len(ledger.accounts), d.Users, name)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.LessOrEqual(t, len(ledger.accounts), len(s.users), name) // users of refused objects are in neither
	}
	f("plain", func(o *Options) {})
	f("zipf", func(o *Options) { o.Body.Skew = body.Zipf })
	f("hot", func(o *Options) { o.Body.Skew = body.Hot })
	f("gzip", func(o *Options) { o.Gzip = true })
	f("refused objects", func(o *Options) { o.Body.ErrorShare = 0.3 })
	f("atomic", func(o *Options) { o.Atomic, o.Body.EmailShare, o.Body.AliasShare = true, 0, 0 })
	f("atomic, fewer users than objects", func(o *Options) { o.Atomic, o.AtomicUsers, o.Body.EmailShare, o.Body.AliasShare = true, 3, 0, 0 })
	f("open loop", func(o *Options) { o.Rate = 500 })
	f("events only", func(o *Options) { o.Body.Mix = body.Mix{0, 20, 0} })
	f("keys", func(o *Options) { o.IdempotencyKeys = true })
	f("more connections than users", func(o *Options) { o.Body.Users = 2 })
}

func TestVerifierSeesWhatIsWrong(t *testing.T) {
	f := func(fault fault, check func(d *Discrepancies)) {
		t.Helper()
		s := newServer(t)
		s.fault = at(17, fault)
		_, ledger := run1(t, small(s, 60))
		d := verify(t, s, ledger)
		require.False(t, d.OK())
		require.NotEmpty(t, d.Samples)
		check(&d)
	}
	// 20 events and purchases, 10 attribute objects; a later request may hide a lost attribute.
	f(loseAll, func(d *Discrepancies) { require.EqualValues(t, 20, d.Lost); require.Zero(t, d.Extra) })
	f(loseOne, func(d *Discrepancies) { require.EqualValues(t, 1, d.Lost); require.EqualValues(t, 1, d.Wrong) })
	f(storeTwice, func(d *Discrepancies) { require.EqualValues(t, 20, d.Extra); require.Zero(t, d.Lost) })
}

func TestVerifierSeesALostAttribute(t *testing.T) {
	f := func(users int, fault fault) {
		t.Helper()
		s := newServer(t)
		o := small(s, 4)
		o.Connections, o.Body.Mix, o.Body.Users, o.Body.EmailShare, o.Body.AliasShare = 1, body.Mix{10, 0, 0}, users, 0, 0
		s.fault = at(4, fault)
		_, ledger := run1(t, o)
		d := verify(t, s, ledger)
		require.EqualValues(t, 1, d.Wrong)
		require.Zero(t, d.Lost+d.Extra)
	}
	f(1_000_000, loseOne) // never there
	f(1, loseAll)         // an older value
}

func TestRequestsWithoutAnAnswerMayBeThereOrNot(t *testing.T) {
	for _, f := range []fault{cutBefore, cutAfter, cutLater, failBefore, failAfter} {
		s := newServer(t)
		s.fault = every(9, f)
		report, ledger := run1(t, small(s, 60))
		require.EqualValues(t, 6, report.UnknownRequests, "fault %d", f)
		require.Equal(t, 6, ledger.UnknownRequests())
		d := verify(t, s, ledger)
		require.True(t, d.OK(), "fault %d: %v %v", f, d, d.Samples)
		if f == failBefore || f == failAfter {
			require.EqualValues(t, 6, report.Statuses["500"])
		} else {
			require.EqualValues(t, 6, report.Cut)
		}
	}
}

func TestUnknownIsNotALicenceToLose(t *testing.T) {
	s := newServer(t)
	s.fault = func(n int64) fault {
		switch {
		case n%9 == 0:
			return cutBefore
		case n == 20:
			return loseAll
		}
		return none
	}
	_, ledger := run1(t, small(s, 60))
	d := verify(t, s, ledger)
	require.False(t, d.OK())
	require.EqualValues(t, 20, d.Lost)
}

func TestAtomicVerifierSeesHalves(t *testing.T) {
	s := newServer(t)
	s.fault = every(11, cutHalf)
	_, ledger := run1(t, atomically(s, 60))
	require.Equal(t, 5, ledger.UnknownRequests())
	ledger.settling = 200 * time.Millisecond
	d := verify(t, s, ledger)
	require.EqualValues(t, 5, d.Halves, "%v", d.Samples)
	require.Zero(t, d.Lost+d.Extra+d.Wrong)
}

func TestAtomicVerifierPassesWholeRequests(t *testing.T) {
	for _, f := range []fault{cutBefore, cutAfter, cutLater, failBefore, failAfter} {
		s := newServer(t)
		s.fault = every(11, f)
		_, ledger := run1(t, atomically(s, 60))
		require.Equal(t, 5, ledger.UnknownRequests())
		d := verify(t, s, ledger)
		require.True(t, d.OK(), "fault %d: %v %v", f, d, d.Samples)
	}
}

func TestAtomicVerifierSeesALostRequest(t *testing.T) {
	s := newServer(t)
	s.fault = at(30, loseAll)
	_, ledger := run1(t, atomically(s, 60))
	d := verify(t, s, ledger)
	require.EqualValues(t, 20, d.Lost)
}

func TestIdempotencyKeysLeaveNothingUnknown(t *testing.T) {
	s := newServer(t)
	s.fault = func(n int64) fault { return []fault{none, cutBefore, none, cutAfter, failAfter}[n%5] }
	o := small(s, 60)
	o.IdempotencyKeys = true
	report, ledger := run1(t, o)
	require.Zero(t, report.UnknownRequests)
	require.EqualValues(t, 60*30, ledger.head.Objects)
	d := verify(t, s, ledger)
	require.True(t, d.OK(), "%v %v", d, d.Samples)
}

// A run that has enough begins no more requests, and sends those again that have no answer yet.
func TestEnough(t *testing.T) {
	s := newServer(t)
	enough := make(chan struct{})
	s.fault = func(n int64) fault {
		if n == 30 {
			close(enough)
		}
		if n >= 30 && n < 38 {
			return cutBefore
		}
		return none
	}
	o := small(s, 10_000)
	o.IdempotencyKeys, o.SurviveRestarts, o.Enough = true, true, enough
	report, ledger := run1(t, o)
	require.Zero(t, report.UnknownRequests)
	require.EqualValues(t, report.Acked, s.requests.Load()-8)
	require.LessOrEqual(t, report.Acked, int64(30+o.Connections))
	d := verify(t, s, ledger)
	require.True(t, d.OK(), "%v %v", d, d.Samples)
}

func TestThrottledWaitsAsLongAsToldAndSendsAgain(t *testing.T) {
	s := newServer(t)
	s.fault = at(3, throttle)
	o := small(s, 6)
	o.Connections = 1
	report, ledger := run1(t, o)
	require.EqualValues(t, map[string]int64{"201": 6, "429": 1}, report.Statuses)
	require.EqualValues(t, 1, report.Rejected.Count)
	require.GreaterOrEqual(t, s.afterLimit[0].Sub(s.throttled[0]), time.Second)
	d := verify(t, s, ledger)
	require.True(t, d.OK(), "%v", d)
	require.Zero(t, ledger.UnknownRequests())
}

func TestOpenLoopDropsThrottledRequests(t *testing.T) {
	s := newServer(t)
	s.fault = every(2, throttle)
	o := small(s, 20)
	o.Rate = 400
	report, ledger := run1(t, o)
	require.EqualValues(t, map[string]int64{"201": 10, "429": 10}, report.Statuses)
	d := verify(t, s, ledger)
	require.True(t, d.OK(), "%v", d)
}

// A 503 that says that nothing was done is a refusal for now; one that leaves it open is not.
func TestTurnedAwayIsNotUnknown(t *testing.T) {
	run := func(rate float64, keys bool, faults map[int64]fault) *Report {
		s := newServer(t)
		s.fault = func(n int64) fault { return faults[n] }
		o := small(s, 6)
		o.Connections, o.Rate, o.IdempotencyKeys = 1, rate, keys
		report, ledger := run1(t, o)
		require.EqualValues(t, report.UnknownRequests, ledger.UnknownRequests())
		d := verify(t, s, ledger)
		require.True(t, d.OK(), "%v", d)
		return report
	}
	report := run(0, false, map[int64]fault{3: turnAway, 4: turnAway, 6: leaveOpen})
	require.EqualValues(t, map[string]int64{"201": 5, "503": 3}, report.Statuses)
	require.EqualValues(t, 2, report.TurnedAway)
	require.EqualValues(t, 1, report.UnknownRequests)

	report = run(400, false, map[int64]fault{3: turnAway}) // an open loop doesn't wait
	require.EqualValues(t, map[string]int64{"201": 5, "503": 1}, report.Statuses)
	require.Zero(t, report.UnknownRequests)

	report = run(400, true, map[int64]fault{3: cutBefore, 4: turnAway}) // the first attempt may have been done
	require.EqualValues(t, 1, report.TurnedAway)
	require.EqualValues(t, 1, report.UnknownRequests)
}

func TestOpenLoopShowsAStall(t *testing.T) {
	f := func(rate float64) *Report {
		s := newServer(t)
		s.fault = at(20, stall)
		o := small(s, 200)
		o.Ledger, o.Rate, o.Connections = false, rate, 1
		report, _ := run1(t, o)
		require.EqualValues(t, 200, report.Acked)
		return report
	}
	// One request takes 500 ms and, at 200 a second, up to a hundred should have been sent meanwhile: half of all are
	// late. A closed loop does not send them, and so does not see it but in its maximum.
	open, closed := f(200), f(0)
	require.Greater(t, open.Latency.P99, 400.0)
	require.Greater(t, open.Latency.P90, 200.0)
	require.Greater(t, open.Latency.P90, closed.Latency.P90)
	require.Greater(t, closed.Latency.Max, 400.0)
}

func TestOpenLoopCountsMissedSends(t *testing.T) {
	s := newServer(t)
	s.fault = at(5, stall)
	o := small(s, 300)
	o.Ledger, o.Rate, o.Connections, o.Backlog = false, 400, 1, 10
	report, _ := run1(t, o)
	require.Greater(t, report.MissedSends, int64(50))
	require.EqualValues(t, 300, report.Requests+report.MissedSends)
	require.EqualValues(t, s.requests.Load(), report.Requests)
}

func TestSurvivesARestart(t *testing.T) {
	unsent := int64(0)
	for tries := 0; unsent == 0 && tries < 20; tries++ { // on a machine that has other work, nobody may try in so short a time
		s := newServer(t)
		o := small(s, 400)
		o.SurviveRestarts = true
		address := s.listener.Addr().String()
		s.fault = func(n int64) fault {
			if n == 100 {
				go func() {
					s.stop()
					time.Sleep(300 * time.Millisecond)
					s.start(address)
				}()
			}
			return none
		}
		report, ledger := run1(t, o)
		unsent = report.Unsent
		require.GreaterOrEqual(t, s.requests.Load(), int64(400)-report.UnknownRequests)
		d := verify(t, s, ledger)
		require.True(t, d.OK(), "%v %v", d, d.Samples)
	}
	require.NotZero(t, unsent)
}

func TestGivesUpWithoutAServer(t *testing.T) {
	s := newServer(t)
	s.stop()
	report, ledger, err := Run(t.Context(), small(s, 60))
	require.ErrorContains(t, err, "failures in a row")
	require.Zero(t, report.Requests)
	require.Zero(t, ledger.UnknownRequests())
}

func TestStopsWhenTheKeyIsWrong(t *testing.T) {
	s := newServer(t)
	o := small(s, 60)
	o.Key = "other"
	_, _, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "401")
	_, ledger := run1(t, small(s, 5))
	_, err = ledger.Verify(t.Context(), []string{s.url}, "other")
	require.ErrorContains(t, err, "401")
}

func TestEndsWithItsContextAndItsDuration(t *testing.T) {
	s := newServer(t)
	o := small(s, 0)
	ctx, cancel := context.WithCancel(t.Context())
	s.fault = func(n int64) fault {
		if n == 50 {
			cancel()
		}
		return none
	}
	_, ledger, err := Run(ctx, o)
	require.NoError(t, err)
	d := verify(t, s, ledger)
	require.True(t, d.OK())

	o.Duration, o.Warmup = 100*time.Millisecond, 100*time.Millisecond
	s.fault = every(1<<40, none)
	s.requests.Store(0)
	report, _ := run1(t, o)
	require.NotZero(t, report.Requests)
	require.Less(t, report.Requests, s.requests.Load(), "the warm-up is not counted")
}

func TestDifferencesFromTheBodiesAreReported(t *testing.T) {
	s := newServer(t)
	s.fault = at(10, acceptEverything)
	o := small(s, 30)
	o.Body.ErrorShare = 0.3
	report, _ := run1(t, o)
	require.NotZero(t, report.Unexpected)
	require.Contains(t, report.UnexpectedSamples[0], "refused is false")
	require.NotZero(t, report.ErrorEntries)
	require.NotEmpty(t, report.ErrorTexts)
}

func TestWithoutALedgerAllUsersOccur(t *testing.T) {
	s := newServer(t)
	o := small(s, 60)
	o.Ledger, o.Body.EmailShare, o.Body.AliasShare, o.Pool = false, 0, 0, 1
	_, ledger := run1(t, o)
	require.Nil(t, ledger)
	require.Greater(t, len(s.users), 190, "of 200, from few bodies")
}

func TestGzipAndCorpus(t *testing.T) {
	s := newServer(t)
	o := small(s, 20)
	o.Ledger, o.Gzip = false, true
	report, _ := run1(t, o)
	require.Equal(t, map[string]int{"gzip": 20}, s.encodings)
	require.EqualValues(t, 20*30, report.Objects)

	s = newServer(t)
	o = small(s, 20)
	o.Ledger, o.Connections = false, 1
	o.Corpus = [][]byte{[]byte(`{"events":[{"external_id":"a","name":"b","time":"2026-11-01T00:00:00Z"}]}`), []byte(`{"events":[{}]}`)}
	report, _ = run1(t, o)
	require.EqualValues(t, map[string]int64{"201": 10, "400": 10}, report.Statuses)
	require.EqualValues(t, 10, report.Objects)
	require.EqualValues(t, 10, report.ErrorEntries)
	require.Zero(t, report.Unexpected)
}

func TestLedgerFile(t *testing.T) {
	s := newServer(t)
	s.fault = every(11, cutHalf)
	_, ledger := run1(t, atomically(s, 60))
	ledger.settling = 0
	path := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, ledger.WriteFile(path))
	read, err := readLedger(path)
	require.NoError(t, err)
	require.Equal(t, ledger.head.Objects, read.head.Objects)
	read.settling = 0
	want, got := verify(t, s, ledger), verify(t, s, read)
	slices.Sort(want.Samples)
	slices.Sort(got.Samples)
	require.Equal(t, want, got)

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, bad := range []string{"", `{"format":"other"}`, string(whole[:len(whole)*2/3]), strings.Replace(string(whole), `"a":[`, `"a":[1,`, 1)} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := readLedger(path)
		require.Error(t, err, "%.60s", bad)
	}
}

// Two doors of one server: a connection takes them in turn, and so does reading back; one that is closed keeps nothing
// from being done.
func TestTargetsTakeTurns(t *testing.T) {
	s := newServer(t)
	var second atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	door := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) { second.Add(1); s.handle(ctx) }, CloseOnShutdown: true, Logger: quiet{}}
	go door.Serve(listener)
	o := small(s, 60)
	o.Targets, o.SurviveRestarts = append(o.Targets, "http://"+listener.Addr().String()), true
	report, ledger := run1(t, o)
	require.EqualValues(t, 60, report.Acked)
	require.InDelta(t, 30, second.Load(), 4)

	before := second.Load()
	d, err := ledger.Verify(t.Context(), o.Targets, testKey)
	require.NoError(t, err)
	require.True(t, d.OK(), "%v", d)
	require.Greater(t, second.Load(), before)

	require.NoError(t, door.Shutdown())
	listener.Close() // which Shutdown leaves open when Serve had not begun
	o.Body.Prefix = "second"
	report, ledger = run1(t, o)
	require.EqualValues(t, 60, report.Acked+report.UnknownRequests)
	require.Positive(t, report.Unsent)
	d, err = ledger.Verify(t.Context(), o.Targets, testKey)
	require.NoError(t, err)
	require.True(t, d.OK(), "%v", d)
}

func TestTargetMustBeThisMachine(t *testing.T) {
	f := func(target string, remote, want bool) {
		t.Helper()
		_, err := parseTarget(target, remote)
		require.Equal(t, want, err == nil, "%v", err)
	}
	f("http://127.0.0.1:8080", false, true)
	f("http://localhost:8080/", false, true)
	f("https://[::1]:8443", false, true)
	f("http://127.9.9.9", false, true)
	f("http://10.0.0.1:8080", false, false)
	f("http://10.0.0.1:8080", true, true)
	f("http://localhost.example.com", false, false)
	f("http://0.0.0.0:80", false, false)
	f("http://user:pass@127.0.0.1", false, false)
	f("ftp://127.0.0.1", true, false)
	f("127.0.0.1:8080", true, false)
	f("http://", true, false)
}

func TestOptionsRefuse(t *testing.T) {
	s := newServer(t)
	for i, change := range []func(*Options){
		func(o *Options) { o.Key = "" },
		func(o *Options) { o.Connections = -1 },
		func(o *Options) { o.Rate = -1 },
		func(o *Options) { o.Corpus = [][]byte{nil} },
		func(o *Options) { o.Body.JoinEmails = true },
		func(o *Options) { o.Atomic = true }, // with emails
		func(o *Options) { o.Body.Currencies = []string{"USD", "EUR"} },
		func(o *Options) { o.Body.Mix[0] = 76 },
	} {
		o := small(s, 1)
		change(&o)
		_, _, err := Run(t.Context(), o)
		require.Error(t, err, "case %d", i)
	}
}

// command parses flags as cmd does.
func command(t *testing.T, args ...string) *Command {
	t.Helper()
	var c Command
	p, err := kong.New(&c, kong.Exit(func(int) { t.Fatal("exit") }))
	require.NoError(t, err)
	_, err = p.Parse(args)
	require.NoError(t, err)
	return &c
}

func TestCommand(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	path, ledger := filepath.Join(dir, "report.json"), filepath.Join(dir, "ledger")
	flags := []string{"--target", s.url, "--key", testKey, "--requests=40", "--connections=2", "--objects=30", "--users=100"}
	var out bytes.Buffer
	require.NoError(t, command(t, append(flags, "--verify", "--json", path, "--ledger", ledger)...).Run(t.Context(), &out))
	for _, want := range []string{"requests     40", "p99.9", "status 201", "all there"} {
		require.Contains(t, out.String(), want)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(text), testKey)
	var report Report
	require.NoError(t, json.Unmarshal(text, &report))
	require.EqualValues(t, 40, report.Latency.Count)
	require.EqualValues(t, 1, report.Options.Body.Seed)
	require.Equal(t, body.Mix{10, 10, 10}, report.Options.Body.Mix)
	require.True(t, report.Verification.OK())

	check := []string{"--target", s.url, "--key", testKey, "--verify-only", "--ledger", ledger}
	out.Reset()
	require.NoError(t, command(t, check...).Run(t.Context(), &out))
	require.Contains(t, out.String(), "all there")
	s.mu.Lock()
	clear(s.users)
	s.mu.Unlock()
	out.Reset()
	require.ErrorIs(t, command(t, check...).Run(t.Context(), &out), ErrNotAsAcknowledged)
	require.Contains(t, out.String(), "NOT AS ACKNOWLEDGED")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.onExport = cancel // it is interrupted, and has read enough
	err = command(t, check...).Run(ctx, &out)
	s.onExport = nil
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrNotAsAcknowledged)
	out.Reset()
	require.ErrorContains(t, command(t, append(check, "--key=other")...).Run(t.Context(), &out), "401")
	require.Contains(t, out.String(), "NOT ALL READ BACK: 0 users")

	out.Reset()
	require.NoError(t, command(t, append(flags, "--json", "-", "--mix=events", "--objects=0")...).Run(t.Context(), &out))
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	require.Equal(t, body.Mix{0, 75, 0}, report.Options.Body.Mix)

	for _, more := range [][]string{{"--mix=events", "--objects=225"}, {"--verify-only"}, {"--target=http://10.1.2.3"}, {"--corpus=" + path + ".no"}} {
		require.Error(t, command(t, append(flags, more...)...).Run(t.Context(), &out), fmt.Sprint(more))
	}
}

// A run that was ended before it could verify, and one that reached nobody, are no success.
func TestCommandsThatProveNothing(t *testing.T) {
	s := newServer(t)
	flags := []string{"--target", s.url, "--key", testKey, "--connections=2", "--objects=30", "--users=100"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.fault = func(int64) fault { cancel(); return none }
	var out bytes.Buffer
	require.ErrorIs(t, command(t, append(flags, "--verify")...).Run(ctx, &out), errNotVerified)
	require.Contains(t, out.String(), "status 201")

	s.stop()
	require.ErrorIs(t, command(t, append(flags, "--duration=1s")...).Run(t.Context(), &out), errNotAnswered)
	require.Contains(t, out.String(), "attempts without a connection")
}

// TestTheLoopDoesNotAllocate compares a short and a long run against a server that only answers, and doesn't allocate
// either.
func TestTheLoopDoesNotAllocate(t *testing.T) {
	answer := []byte(`{"attributes_processed":10,"events_processed":10,"purchases_processed":10,"message":"success"}`)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	answering := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(201); ctx.SetBody(answer) }}
	go answering.Serve(listener)
	defer listener.Close()
	allocations := func(requests int64, change func(*Options)) uint64 {
		o := small(&server{url: "http://" + listener.Addr().String()}, requests)
		o.Connections = 2
		change(&o)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		report, _ := run1(t, o)
		runtime.ReadMemStats(&after)
		require.Equal(t, requests, report.Acked)
		require.Zero(t, report.Unexpected)
		return after.Mallocs - before.Mallocs
	}
	f := func(name string, change func(*Options)) {
		t.Helper()
		few, many := allocations(200, change), allocations(2200, change)
		// A request has 30 objects; what is left is the pools of fasthttp, which lose things under the race detector.
		require.Less(t, float64(many)-float64(few), 2000*3.0, name)
	}
	f("plain", func(o *Options) { o.Ledger = false })
	f("ledger", func(o *Options) {})
	f("gzip ledger", func(o *Options) { o.Gzip = true })
	f("keys", func(o *Options) { o.IdempotencyKeys = true })
}
