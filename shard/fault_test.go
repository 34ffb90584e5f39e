package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/stamp"
)

// client is a caller that sends one request after the other. Each request touches all of the client's users: there is
// one event for each user of the group, one for a user known by email and one for a user known by alias. Each fourth
// request moves the first user to another email and addresses an event by that email, which has to wait for the op
// before it. So n requests show as n events everywhere; when one user has fewer than another, a request was applied
// partially.
type client struct {
	name        string
	sent, acked atomic.Int64
}

const groupUsers = 4

func (c *client) user(i int) string { return fmt.Sprintf("%s-%d", c.name, i) }
func (c *client) email() string     { return c.name + "@example.com" }
func (c *client) alias() string {
	return string(op.AppendAliasKey(nil, []byte("device"), []byte(c.name)))
}
func (c *client) moved(n int64) string { return fmt.Sprintf("%s.%d@example.org", c.name, n/4%2) }

// request commits the next request.
func (c *client) request(e *Engine) error {
	n := c.sent.Add(1)
	b := e.NewBatch(1, 0)
	defer b.Release()
	for i := range groupUsers {
		addEvent(b, op.ExternalID, c.user(i), "e", 0)
	}
	addEvent(b, op.Email, c.email(), "e", 0)
	addEvent(b, op.Alias, c.alias(), "e", 0)
	if n%4 == 0 {
		addAttributes(b, op.ExternalID, c.user(0), op.Contact, attrField(op.AttrEmail, c.moved(n)))
		addEvent(b, op.Email, c.moved(n), "d", 0)
	}
	err := b.Commit()
	if err == nil {
		c.acked.Store(n)
	}
	return err
}

// check returns an error when the engine doesn't show the client's requests as it should. At least least of them were
// acknowledged, and most were sent.
func (c *client) check(e *Engine, least, most int64) error {
	n, err := countOf(e, op.ExternalID, c.user(0), "e")
	if err != nil {
		return err
	}
	if n < least || n > most {
		return fmt.Errorf("client %s: %d requests are there, %d were acknowledged, %d sent", c.name, n, least, most)
	}
	expect := func(id op.IDKind, key, name string, want int64) {
		got, readErr := countOf(e, id, key, name)
		if readErr != nil {
			err = readErr
		} else if got != want && err == nil {
			err = fmt.Errorf("client %s: request applied by half: %d of event %q at %q, %d at %q", c.name, got, name, key, want, c.user(0))
		}
	}
	for i := range groupUsers {
		expect(op.ExternalID, c.user(i), "e", n)
	}
	expect(op.Email, c.email(), "e", n)
	expect(op.Alias, c.alias(), "e", n)
	expect(op.ExternalID, c.user(0), "d", n/4)
	return err
}

// countOf is how often a user has had an event; 0 for a user who isn't there. An identifier must name one user at most.
func countOf(e *Engine, id op.IDKind, key, name string) (int64, error) {
	users, err := e.Find(1, id, []byte(key))
	if err != nil || len(users) == 0 {
		return 0, err
	}
	if len(users) > 1 {
		return 0, fmt.Errorf("%d users are called %q", len(users), key)
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int64(s.Count), nil
}

// settled waits until check succeeds, and otherwise returns the error of check. What a single record holds is there at
// once after a crash; its effects elsewhere come only after the start.
func settled(e *Engine, check func() error) (err error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err = check(); err == nil || time.Now().After(end) || e.Failed() != nil {
			return err
		}
	}
}

// --- F6: writes and syncs that fail ---

// faults makes the k-th write or sync of some files fail, and also all after it when the disk is gone for good.
type faults struct {
	at      int64  // 0: none
	of      string // ending of the files whose writes are counted; "": all
	forGood bool
	count   atomic.Int64
	hit     atomic.Pointer[errorfs.Op]
}

func (f *faults) MaybeError(o errorfs.Op) error {
	if o.Kind.ReadOrWrite() != errorfs.OpIsWrite || o.Kind == errorfs.OpLock || o.Kind == errorfs.OpFilePreallocate || o.Kind == errorfs.OpRemove ||
		f.of != "" && path.Ext(o.Path) != f.of {
		return nil
	}
	switch n := f.count.Add(1); {
	case f.at == 0 || n < f.at || n > f.at && !f.forGood:
		return nil
	case n == f.at:
		f.hit.Store(&o)
	}
	return errorfs.ErrInjected
}

func (f *faults) String() string {
	return fmt.Sprintf("fault at write %d of files %q, for good: %v", f.at, f.of, f.forGood)
}

// runWithFaults runs clients against an engine on a disk that fails, and returns what was wrong.
func runWithFaults(t *testing.T, f *faults) error {
	disk := vfs.NewCrashableMem()
	var failures atomic.Int32
	o := testOptions(errorfs.Wrap(disk, f))
	o.Log.SegmentBytes = 32 << 10
	o.Log.MaxRecycled = -1 // errorfs does not look into a file that is written over
	o.OnFailure = func(error) { failures.Add(1) }
	clients := []*client{{name: "a"}, {name: "b"}}
	e, err := openEngine(o)
	if err == nil {
		err = useUntilFailed(e, clients)
		if err != nil {
			return err
		}
		lost := disk.CrashClone(vfs.CrashCloneCfg{}) // power is lost, at once
		testengine.Within(t, time.Minute, f.String()+": Close", func() { _ = e.Close() })
		if want := btoi(e.Failed() != nil); failures.Load() != want {
			return fmt.Errorf("OnFailure was called %d times, want %d", failures.Load(), want)
		}
		if err := reopen(lost, clients); err != nil {
			return fmt.Errorf("after a loss of power: %w", err)
		}
	} else if f.hit.Load() == nil {
		return err
	} else if err := reopen(disk.CrashClone(vfs.CrashCloneCfg{}), clients); err != nil {
		return fmt.Errorf("Open failed, and after a loss of power: %w", err)
	}
	if err := reopen(disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))}), clients); err != nil {
		return fmt.Errorf("on a disk that works again: %w", err)
	}
	return nil
}

func btoi(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// useUntilFailed sends requests, with checkpoints in between. From the first failure on, everything must fail.
func useUntilFailed(e *Engine, clients []*client) error {
	var failed error
	for i := range 40 {
		for _, c := range clients {
			switch err := c.request(e); {
			case err == nil && failed != nil:
				return fmt.Errorf("acknowledged after %w", failed)
			case err != nil && !errors.Is(err, replica.ErrFailed):
				return fmt.Errorf("Commit fails with another error than ErrFailed: %w", err)
			case err != nil:
				failed = err
			}
		}
		if i%10 == 9 {
			if err := e.Checkpoint(); err != nil && failed == nil {
				failed = err
			}
		}
	}
	if failed != nil && e.Failed() == nil {
		return fmt.Errorf("requests fail, the engine does not say so: %w", failed)
	}
	return nil
}

func reopen(fs vfs.FS, clients []*client) error {
	e, err := openEngine(testOptions(fs))
	if err != nil {
		return err
	}
	defer e.Close()
	for _, c := range clients {
		if err := settled(e, func() error { return c.check(e, c.acked.Load(), c.sent.Load()) }); err != nil {
			return err
		}
	}
	return nil
}

// F6: any write or sync of the log or of the store fails, once or for good. After the failure nothing is acknowledged,
// the failure is reported once, nothing hangs, and what was acknowledged is there when the disk works again.
func TestFaultEveryWriteFails(t *testing.T) {
	seed := testseed.Of(t)
	var none faults
	require.NoError(t, runWithFaults(t, &none))
	total := none.count.Load()
	require.Greater(t, total, int64(200))
	r := rand.New(rand.NewPCG(seed, 6))
	step := int64(1)
	if !testsize.Stress() {
		step = max(1, total/testsize.Short[int64](30, 8))
	}
	kinds := map[string]int{}
	run := func(f *faults) {
		testengine.Within(t, time.Minute, f.String(), func() {
			if err := runWithFaults(t, f); err != nil {
				t.Errorf("%v of %d (%+v): %v", f, total, f.hit.Load(), err)
			}
		})
		if hit := f.hit.Load(); hit != nil {
			kinds[path.Ext(hit.Path)]++
		}
	}
	for k := 1 + r.Int64N(step); k <= total && !t.Failed(); k += step {
		run(&faults{at: k, forGood: r.IntN(2) == 0})
	}
	for _, kind := range []string{".log", ".sst"} { // few of all writes are of tables
		run(&faults{at: 1, of: kind, forGood: r.IntN(2) == 0})
	}
	t.Logf("%d writes in a run; failed, by kind of file: %v", total, kinds)
	require.NotZero(t, kinds[".log"])
	require.NotZero(t, kinds[".sst"])
}

// A store that cannot be written ends the engine, whoever notices it. Nobody may be left waiting for a checkpoint that
// never comes.
func TestFaultStoreCannotBeWritten(t *testing.T) {
	for _, file := range []string{".sst", "MANIFEST"} {
		disk := vfs.NewCrashableMem()
		var broken atomic.Bool
		o := testOptions(errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.Contains(op.Path, file) {
				return errorfs.ErrInjected
			}
			return nil
		})))
		failed := make(chan error, 10)
		o.OnFailure = func(err error) { failed <- err }
		e, err := openEngine(o)
		require.NoError(t, err)
		c := &client{name: "a"}
		require.NoError(t, c.request(e))
		broken.Store(true)
		testengine.Within(t, time.Minute, file+" cannot be written: Checkpoint", func() {
			require.Error(t, e.Checkpoint())
			err = <-failed
		})
		require.ErrorIs(t, err, replica.ErrFailed)
		require.ErrorIs(t, c.request(e), replica.ErrFailed)
		require.ErrorIs(t, e.Ready(), replica.ErrFailed)
		testengine.Within(t, time.Minute, file+" cannot be written: Close", func() { require.ErrorIs(t, e.Close(), replica.ErrFailed) })
		require.Empty(t, failed)
		require.NoError(t, reopen(disk.CrashClone(vfs.CrashCloneCfg{}), []*client{c}))
	}
}

// --- F7, F8, F9: disks that are full, slow or stalled ---

// gateFS makes syncs of the log wait.
type gateFS struct {
	vfs.FS
	gate *sync.RWMutex
	slow *atomic.Int64 // ns
}

type gateFile struct {
	vfs.File
	fs gateFS
}

func (fs gateFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return gateFile{f, fs}, nil
}

func (fs gateFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

func (fs gateFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	return fs.wrap(name, f, err)
}

func (f gateFile) wait() {
	time.Sleep(time.Duration(f.fs.slow.Load()))
	f.fs.gate.RLock()
	f.fs.gate.RUnlock() //nolint:staticcheck // a gate
}

func (f gateFile) Sync() error     { f.wait(); return f.File.Sync() }
func (f gateFile) SyncData() error { f.wait(); return f.File.SyncData() }

// F8, F9: the bytes under way are bounded, and requests beyond the bound are refused at once. While the disk hangs, the
// engine is not ready. When the disk is back, everything that was taken is acknowledged, and everything acknowledged is
// there.
func TestFaultSlowAndStalledDisk(t *testing.T) {
	fs := gateFS{vfs.NewMem(), new(sync.RWMutex), new(atomic.Int64)}
	o := testOptions(fs)
	o.MaxInflightBytes = 20_000
	o.Log.StallAfter = 20 * time.Millisecond
	e := openTest(t, o)
	fs.slow.Store(int64(2 * time.Millisecond))
	clients := make([]*client, 200)
	for i := range clients {
		clients[i] = &client{name: fmt.Sprint("c", i)}
	}
	require.NoError(t, clients[0].request(e))
	require.NoError(t, e.Ready())

	fs.gate.Lock()
	unlock := sync.OnceFunc(fs.gate.Unlock)
	t.Cleanup(unlock) // or Close would wait
	var busy, done sync.WaitGroup
	var refused atomic.Int64
	for _, c := range clients {
		busy.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			timer := time.AfterFunc(time.Second, busy.Done) // taken: it waits for the disk
			if err := c.request(e); errors.Is(err, replica.ErrBusy) {
				refused.Add(1)
				c.sent.Add(-1)
			} else if err != nil {
				t.Error(err)
			}
			if timer.Stop() {
				busy.Done()
			}
		}()
	}
	busy.Wait()
	taken := int64(len(clients)) - refused.Load()
	require.Positive(t, refused.Load(), "nothing is refused while the disk hangs")
	require.Greater(t, taken, int64(10))
	require.LessOrEqual(t, e.Coordinator.inflight.Load(), o.MaxInflightBytes)
	require.Eventually(t, func() bool { return e.Ready() != nil }, time.Minute, time.Millisecond)
	clients = append(clients, fillUp(t, e, &done)...)
	unlock()
	testengine.Within(t, time.Minute, "recovery", done.Wait)
	require.Eventually(t, func() bool { return e.Ready() == nil }, time.Minute, time.Millisecond)
	require.Zero(t, e.Coordinator.inflight.Load())
	for _, c := range clients {
		require.NoError(t, c.check(e, c.acked.Load(), c.acked.Load()))
		require.NoError(t, c.request(e))
	}
}

// fillUp sends requests until one is refused; a request that was refused before may have been larger than the room that
// is left. The requests that were taken are done when the disk is back.
func fillUp(t *testing.T, e *Engine, done *sync.WaitGroup) (taken []*client) {
	for len(taken) < 10 {
		c, answered := &client{name: fmt.Sprint("x", len(taken))}, make(chan error, 1)
		done.Go(func() { answered <- c.request(e) })
		select {
		case err := <-answered:
			require.ErrorIs(t, err, replica.ErrBusy)
			return taken
		case <-time.After(time.Second): // it waits for the disk
			taken = append(taken, c)
		}
	}
	t.Fatal("nothing is refused any more")
	return nil
}

// F7: while the disk is full, writes are refused and nothing else, and this ends by itself when there is room.
func TestFaultFullDisk(t *testing.T) {
	fs := vfs.NewMem()
	usage := func(available uint64) {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: available, TotalBytes: 100 << 30})
	}
	usage(50 << 30)
	o := testOptions(fs)
	o.Log.MinFreeBytes, o.Log.MinFreePercent = 0, 0 // the defaults
	e := openTest(t, o)
	c := &client{name: "a"}
	require.NoError(t, c.request(e))
	usage(1 << 30)
	require.Eventually(t, func() bool { return errors.Is(e.Ready(), replica.ErrDiskFull) }, time.Minute, time.Millisecond)
	for range 10 {
		require.ErrorIs(t, c.request(e), replica.ErrDiskFull)
	}
	require.NoError(t, c.check(e, 1, 1))
	require.NoError(t, e.Checkpoint(), "what is dirty must still get out of memory")
	require.NoError(t, e.Close())
	e = openTest(t, o) // no restart loop
	require.NoError(t, c.check(e, 1, 1))
	usage(50 << 30)
	require.Eventually(t, func() bool { return e.Ready() == nil }, time.Minute, time.Millisecond)
	c.sent.Store(1)
	require.NoError(t, c.request(e))
	require.NoError(t, c.check(e, 2, 2))
}

// --- F11: clocks that jump ---

// F11: whatever the clock does within the bound, the stamps of a profile rise, also over restarts and crashes, so that
// what came later counts as later.
func TestFaultClockJumps(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	var clock atomic.Int64
	clock.Store(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	fs := vfs.NewCrashableMem()
	options := func() replica.EngineOptions {
		o := testOptions(fs)
		o.Clock = &stamp.Clock{Now: func() time.Time { return time.UnixMicro(clock.Load()) }, MaxOffset: 60 * time.Hour}
		return o
	}
	e := openTest(t, options())
	updated := func(key string) int64 {
		users, err := e.Find(1, op.ExternalID, []byte(key))
		require.NoError(t, err)
		require.Len(t, users, 1)
		return profile.Updated(users[0].Blob)
	}
	state := func(key string) string {
		users, err := e.Find(1, op.ExternalID, []byte(key))
		require.NoError(t, err)
		v, _ := profile.Attr(users[0].Blob, op.AttrEmailSubscribe)
		return string(v.Bytes())
	}
	var last int64
	for step := range 60 {
		b := e.NewBatch(1, 0)
		want := []string{"subscribed", "unsubscribed", "opted_in"}[step%3]
		for i := range 3 {
			addAttributes(b, op.ExternalID, fmt.Sprint("u", i), op.Contact,
				attrField(op.AttrEmail, fmt.Sprintf("u%d@example.com", i)), attrField(op.AttrEmailSubscribe, want))
		}
		addEvent(b, op.ExternalID, "u3", "e", 0)
		require.NoError(t, b.Commit())
		b.Release()
		for i := range 4 { // the last two run in the order of the request's arrays
			at := updated(fmt.Sprint("u", i))
			require.Greater(t, at, last, "step %d: user %d was changed later, and its stamp is not", step, i)
			last = at
		}
		for i := range 3 {
			require.Equal(t, want, state(fmt.Sprint("u", i)), "step %d: a state that was set later has no effect", step)
		}
		clock.Add([]int64{0, 1, 1000, -1, -3600e6, 3600e6, -1e6}[r.IntN(7)])
		switch r.IntN(6) {
		case 0:
			require.NoError(t, e.Close())
			e = openTest(t, options())
		case 1:
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
			e = openTest(t, options())
		case 2:
			require.NoError(t, e.Checkpoint())
		}
	}
	require.Equal(t, 60, eventCount(t, e, op.ExternalID, "u3", "e"))
}
