package stream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
	"millrace/shard/eventlog"
)

// crowded is a disk that counts how many files are being written, with a pause to let others come in between.
type crowded struct {
	machine
	now, most *atomic.Int64
	rename    func(to string)
}

type crowdedFile struct {
	*os.File
	now *atomic.Int64
}

func (f crowdedFile) Close() error {
	f.now.Add(-1)
	return f.File.Close()
}

func (d crowded) Create(path string) (io.WriteCloser, error) {
	f, err := d.machine.Create(path)
	if err != nil {
		return nil, err
	}
	n := d.now.Add(1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); {
		most = d.most.Load()
	}
	time.Sleep(5 * time.Millisecond)
	return crowdedFile{f.(*os.File), d.now}, nil
}

func (d crowded) Rename(from, to string) error {
	d.rename(to)
	return d.machine.Rename(from, to)
}

// However many streams there are, few of them read and write files at once. Those whose files are on their way to where
// they are seen keep nobody waiting.
func TestFewWriteAtOnce(t *testing.T) {
	w := newWorld(t, 4<<10)
	const streams = 4 * seatsOfAKind
	var all []*document.Stream
	for i := range streams {
		all = append(all, w.create(document.Stream{ID: fmt.Sprint("s", i), Kinds: []string{"event"}, Format: "ndjson"}))
	}
	w.commit(w.ws.Number, 40, 20)
	w.pack()
	o := w.options()
	arrives := make(chan struct{})
	d := crowded{now: new(atomic.Int64), most: new(atomic.Int64)}
	d.rename = func(to string) {
		if !strings.Contains(to, "/s0/") {
			<-arrives
		}
	}
	o.disk, o.Interval, o.FileBytes = d, time.Millisecond, 1<<20
	m, err := New(o)
	require.NoError(t, err)
	defer m.Close()
	isDone := func(s *document.Stream) func() bool {
		return func() bool {
			v := m.Status("shop", s)
			return v.State == "running" && v.Events > 0 && v.LagEvents == 0
		}
	}
	require.Eventually(t, isDone(all[0]), time.Minute, time.Millisecond, "all others may hang")
	close(arrives)
	for _, s := range all {
		require.Eventually(t, isDone(s), time.Minute, time.Millisecond)
	}
	got, _ := w.written("s1")
	other, _ := w.written("s2")
	require.NotEmpty(t, got)
	require.Equal(t, got, other)
	require.LessOrEqual(t, d.most.Load(), int64(seatsOfAKind))
}

// A stream of messages has a seat while it sends what it had not come to yet, and none for what comes when it is at the
// end of the log, nor while it waits for the first answer of its destination.
func TestSeatsOfMessages(t *testing.T) {
	w, sink := newWorld(t, 4<<10), newSink(t)
	o := w.options()
	var taken [][2]int // seats, at each request
	sink.judge = func(int, []byte) int {
		taken = append(taken, [2]int{len(o.seats.messages), len(o.seats.failing)})
		return 200
	}
	k := newCarrier(&o, w.ws, w.hook("all", sink, func(s *document.Stream) { s.Destination.Batch = 5 }), o.Parts()[0])
	goOn := func(k *carrier, first, last [2]int) {
		t.Helper()
		w.commit(w.ws.Number, 5, 5)
		taken = nil
		k.carryOn(t)
		require.Equal(t, len(w.exported(eventlog.Query{})), len(sink.events(t)))
		require.Equal(t, [][2]int{first, last}, [][2]int{taken[0], taken[len(taken)-1]})
		require.Empty(t, o.seats.messages)
		require.Empty(t, o.seats.failing)
	}
	none, one := [2]int{}, [2]int{1, 0}
	goOn(k, none, one)
	goOn(k, none, none)
	k.note(errors.New("its destination has failed"))
	goOn(k, none, one)
	goOn(k, none, none)
	goOn(newCarrier(&o, w.ws, k.stream, o.Parts()[0]), none, one)

	for range seatsOfAKind {
		o.seats.messages <- struct{}{}
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	k = newCarrier(&o, w.ws, k.stream, o.Parts()[0])
	w.commit(w.ws.Number, 5, 5)
	require.ErrorIs(t, k.turn(late), context.Canceled, "a stream that waits for a seat can end")
}

// A delivery that does not end, as on a file system that hangs, shows in the state of its stream, and so does that
// others wait for it.
func TestHangingDelivery(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Kinds: []string{"event"}, Format: "ndjson"})
	w.commit(w.ws.Number, 4, 5)
	o := w.options()
	hangs, goesOn := make(chan struct{}), make(chan struct{})
	d := crowded{now: new(atomic.Int64), most: new(atomic.Int64)}
	d.rename = func(string) {
		hangs <- struct{}{}
		<-goesOn
	}
	o.disk = d
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	later := func(d time.Duration) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.began = k.began.Add(-d)
	}
	fileSystem, err := d.FileSystem(w.dir)
	require.NoError(t, err)
	for range seatsOfAKind {
		o.seats.in(fileSystem) <- struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		<-k.ended
	}()
	k.start(ctx)
	state := func() string {
		p := k.status()
		return stateOf(&p)
	}
	require.Eventually(t, func() bool { return k.status().Waits }, time.Minute, time.Millisecond)
	require.Equal(t, "running", state())
	later(slowAfter)
	require.Equal(t, "waiting", state())
	<-o.seats.in(fileSystem)
	<-hangs
	require.Equal(t, "running", state(), "it has waited, and begins now")
	later(slowAfter)
	require.Equal(t, "slow", state())
	require.GreaterOrEqual(t, k.status().AttemptSeconds, slowAfter.Seconds())
	k.mu.Lock()
	k.err = errors.New("it has failed before")
	k.mu.Unlock()
	require.Equal(t, "failing", state())
	close(goesOn)
	require.Eventually(t, func() bool { return state() == "running" && k.status().Events > 0 }, time.Minute, time.Millisecond)
}

// mounted is a disk on which each stream's directory is a file system of its own, and those of some streams hang.
type mounted struct {
	machine
	hangs func(path string)
}

func (d mounted) Create(path string) (io.WriteCloser, error) {
	d.hangs(path)
	return d.machine.Create(path)
}

func (d mounted) FileSystem(dir string) (uint64, error) {
	return uint64(crc32.ChecksumIEEE([]byte(filepath.Dir(dir)))), nil
}

// carrying returns a function that starts the carrier of a stream, which has failed before unless failure is nil. At
// the end of the test goesOn is closed, and all carriers have ended.
func (w *world) carrying(t *testing.T, o *Options, failure error, goesOn chan struct{}) func(document.Stream) *carrier {
	ctx, cancel := context.WithCancel(context.Background())
	var all []*carrier
	t.Cleanup(func() {
		cancel()
		close(goesOn)
		for _, k := range all {
			<-k.ended
		}
	})
	return func(s document.Stream) *carrier {
		k := newCarrier(o, w.ws, w.create(s), o.Parts()[0])
		k.err = failure
		all = append(all, k)
		k.start(ctx)
		return k
	}
}

// File systems that hang keep no stream waiting that writes elsewhere, neither after a start nor after a failure. Which
// are known is bounded.
func TestHangingFileSystemsKeepNobodyWaiting(t *testing.T) {
	for name, failure := range map[string]error{"start": nil, "failure": errors.New("it has failed")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4<<10)
			w.commit(w.ws.Number, 20, 5)
			arrived, goesOn := make(chan struct{}), make(chan struct{})
			o := w.options()
			o.disk = mounted{hangs: func(path string) {
				if strings.Contains(path, "/hangs") {
					select {
					case arrived <- struct{}{}:
						<-goesOn
					case <-goesOn: // of its other file
					}
				}
			}}
			carry := w.carrying(t, &o, failure, goesOn)
			for i := range 2 * seatsOfAKind {
				carry(document.Stream{ID: fmt.Sprint("hangs", i), Format: "ndjson"})
				select {
				case <-arrived:
				case <-time.After(time.Minute):
					t.Fatal("it waits for the others")
				}
			}
			k := carry(document.Stream{ID: "healthy", Format: "ndjson"})
			want := int64(len(w.exported(eventlog.Query{})))
			require.Eventually(t, func() bool { return k.status().Events == want }, time.Minute, time.Millisecond)
			for i := range uint64(100) {
				o.seats.in(i)
			}
			require.Len(t, o.seats.files, 2*seatsOfAKind+1)
		})
	}
}

// Endpoints that hang keep no other stream waiting, neither after a start nor after a failure, however many they are.
func TestHangingEndpointsKeepNobodyWaiting(t *testing.T) {
	for name, failure := range map[string]error{"start": nil, "failure": errors.New("it was not to be reached")} {
		t.Run(name, func(t *testing.T) {
			w, healthy := newWorld(t, 4<<10), newSink(t)
			w.commit(w.ws.Number, 20, 5)
			arrived, goesOn := make(chan struct{}), make(chan struct{})
			hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				arrived <- struct{}{}
				<-goesOn
			}))
			t.Cleanup(hanging.Close) // once the carriers have ended
			o := w.options()
			carry := w.carrying(t, &o, failure, goesOn)
			to := func(id, url string) document.Stream {
				return document.Stream{ID: id, Destination: document.Destination{Type: document.DestinationHTTP, URL: url}}
			}
			for i := range seatsOfAKind {
				carry(to(fmt.Sprint("hangs", i), hanging.URL))
				<-arrived
			}
			k := carry(to("healthy", healthy.URL))
			want := int64(len(w.exported(eventlog.Query{})))
			require.Eventually(t, func() bool { return k.status().Events == want }, time.Minute, time.Millisecond)
		})
	}
}
