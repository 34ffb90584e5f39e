package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/wal/pause"
)

// carrier carries one stream out of one event log.
type carrier struct {
	o      *Options
	ws     *control.Workspace
	stream *document.Stream
	part   Part
	cancel context.CancelFunc
	ended  chan struct{}

	follower *eventlog.Follower // nil: start again from the stored cursor
	stored   []byte             // the cursor in its stored form
	chosen   *document.Stream   // what is carried: the stream, or its choice for the pending delivery
	to       destination        // of chosen; nil: not made yet
	pace     pace
	noticed  time.Time     // when something after the cursor was first noticed; zero: there is nothing
	rest     bool          // the last delivery has left something
	lags     bool          // the follower has not been at the end of the log yet, or not when it last read
	seat     chan struct{} // where the carrier has a seat; nil: it has none
	perEvent float64       // average bytes in the last delivery
	before   uint64        // up to here events had expired when the carrier began
	expired  uint64        // up to here expired events have been noted
	behind   time.Time     // since when the log has ended before the cursor; zero: it doesn't

	mu     sync.Mutex
	cursor cursor
	oldest time.Time // when the first undelivered event was accepted, or was noticed
	began  time.Time // when the attempt under way began; zero: there is none
	waits  bool      // for a seat
	err    error
	errAt  time.Time
}

func newCarrier(o *Options, ws *control.Workspace, s *document.Stream, p Part) *carrier {
	return &carrier{o: o, ws: ws, stream: s, part: p, ended: make(chan struct{}), before: p.Events.Expired()}
}

// open makes the destination ready.
func (k *carrier) open(ctx context.Context) error {
	if k.to == nil {
		k.to = newDestination(k.o, k.ws, k.chosen, k.part)
		k.pace = k.to.pace()
	}
	return k.to.open(ctx)
}

func (k *carrier) close() {
	if k.to != nil {
		k.to.close()
		k.to = nil
	}
}

// choose makes the carrier carry what the stream chooses now, or what it chose when the pending delivery began: the
// files of that delivery have their names, and some of them may exist.
func (k *carrier) choose(c *cursor) {
	next := k.stream
	if c.Pending > c.Position && len(c.Kinds) > 0 && !c.equals(choiceOf(k.stream)) {
		was := *k.stream
		was.Kinds, was.Names, was.Columns, was.Compression = c.Kinds, c.Names, c.Columns, c.Compression
		next = &was
	}
	if k.chosen != nil && next != k.chosen {
		k.close()
	}
	k.chosen = next
}

func (k *carrier) start(ctx context.Context) {
	ctx, k.cancel = context.WithCancel(ctx)
	go k.run(ctx)
}

func (k *carrier) end() { k.cancel() }

func (k *carrier) hasEnded() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

func (k *carrier) run(ctx context.Context) {
	defer close(k.ended)
	defer k.cancel()
	defer k.close()
	k.showCounters()
	failures := 0
	for {
		k.show(time.Now(), false)
		err := k.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		k.show(time.Time{}, false)
		wait := k.pace.interval
		if failures++; err == nil {
			failures = 0
			if k.rest {
				wait = 0
			}
		} else {
			wait = max(k.backoff(failures), later(err))
		}
		k.note(err)
		if pause.For(ctx, wait) != nil {
			return
		}
	}
}

// backoff returns how long to wait after a number of failures in a row. It varies by a quarter, so that streams don't
// retry all at once.
func (k *carrier) backoff(failures int) time.Duration {
	d := min(k.o.RetryAfter<<min(failures-1, 20), k.o.MaxRetryAfter)
	return time.Duration(float64(d) * (0.75 + rand.Float64()/2))
}

// show makes the status show since when an attempt is under way, and whether it waits for a seat.
func (k *carrier) show(began time.Time, waits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.began, k.waits = began, waits
}

// note keeps and logs the latest failure.
func (k *carrier) note(err error) {
	k.mu.Lock()
	had := k.err
	k.err = err
	if err != nil {
		k.errAt = time.Now()
	}
	k.mu.Unlock()
	if err == nil {
		if had != nil {
			k.o.Logger.Info("a stream has resumed", "workspace", k.ws.ID, "stream", k.stream.ID, "group", k.part.Group)
		}
		return
	}
	k.follower = nil
	if k.to != nil {
		k.to.close() // what it has buffered would take memory until the next try
	}
	k.counter("errors").Inc()
	if had == nil || had.Error() != err.Error() {
		k.o.Logger.Warn("a stream's delivery failed; trying again", "workspace", k.ws.ID, "stream", k.stream.ID,
			"group", k.part.Group, "error", err)
	}
}

// cleanGone removes what a stream that is gone has left unfinished on this node.
func cleanGone(o *Options, ws *control.Workspace, s *document.Stream) {
	if to := s.Destination.Type; to != document.DestinationDirectory && to != document.DestinationS3 {
		return
	}
	none := func(string) bool { return false }
	if err := newFiles(o, ws, s, Part{}).clean(none); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Logger.Warn("can't remove unfinished files of a deleted stream", "workspace", ws.ID, "stream", s.ID,
			"error", err)
	}
}

// turn does what is due.
func (k *carrier) turn(ctx context.Context) error {
	k.rest = false
	if k.follower == nil {
		if err := k.load(ctx); err != nil {
			return err
		}
	}
	k.noteExpired(k.part.Events.Expired())
	isPending := k.cursor.Pending > k.cursor.Position
	if !isPending {
		if err := k.ahead(); err != nil {
			return err
		}
		if !k.due() {
			return nil
		}
	}
	if err := k.sit(ctx); err != nil {
		return err
	}
	defer k.stand()
	if isPending {
		return k.resume(ctx)
	}
	return k.next(ctx)
}

// sit waits for a seat, unless the carrier needs none. One that has to wait has nothing in memory meanwhile.
func (k *carrier) sit(ctx context.Context) error {
	seats := k.o.seats.messages
	switch to, writesFiles := k.to.(*files); {
	case writesFiles:
		fileSystem, err := k.o.disk.FileSystem(to.spool) // which does not return while that hangs
		if err != nil {
			return err
		}
		seats = k.o.seats.in(fileSystem)
	case !k.lags:
		return nil
	case k.err != nil:
		seats = k.o.seats.failing
	}
	select {
	case seats <- struct{}{}:
	default:
		k.letGo()
		k.show(time.Now(), true)
		select {
		case seats <- struct{}{}:
			k.show(time.Now(), false)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.seat = seats
	return nil
}

// stand gives back the seat, if the carrier has one. What was read ahead stays only when it is about to be wanted.
func (k *carrier) stand() {
	if k.seat == nil {
		return
	}
	if k.follower != nil && (!k.lags || k.to.notes() || !k.to.answers()) {
		k.letGo()
	}
	<-k.seat
	k.seat = nil
}

// letGo lets go of what was read ahead, and of the memory that the destination keeps for its next delivery.
func (k *carrier) letGo() {
	k.follower.LetGo()
	k.to.letGo()
}

// load reads the stored cursor. If the cluster was made of a server that was alone, a group continues where that
// server's stream was: events have kept their places.
func (k *carrier) load(ctx context.Context) error {
	c := cursor{}
	for _, group := range []string{k.part.Group, ""} {
		doc := k.o.Control.StreamCursor(k.ws.ID, k.stream.ID, group)
		if group == k.part.Group {
			k.stored = doc
		}
		if doc == nil {
			continue
		}
		if err := json.Unmarshal(doc, &c); err != nil {
			return fmt.Errorf("the cursor can't be read: %w", err)
		}
		if group != k.part.Group {
			c = cursor{StartedAt: c.StartedAt, Position: c.Position}
		}
		break
	}
	if c.StartedAt != k.stream.StartedAt {
		c = cursor{StartedAt: k.stream.StartedAt}
	}
	since, err := k.stream.Since()
	if err != nil {
		return err
	}
	k.mu.Lock()
	c.ExpiredAt = max(c.ExpiredAt, k.cursor.ExpiredAt)
	k.cursor = c
	k.mu.Unlock()
	if k.noticed.IsZero() { // so that the waiting time is known even while the destination doesn't open
		k.notice(k.part.Events.Waits(c.Position, k.ws.Number, since))
	}
	k.choose(&c)
	if err := k.open(ctx); err != nil {
		return err
	}
	k.rest, k.lags = true, true // what is there is due
	k.follower = k.part.Events.Follow(c.Position,
		eventlog.Query{Workspace: k.ws.Number, Kinds: kindsOf(k.chosen), Names: k.chosen.Names,
			Fields: len(k.chosen.Columns) > 0}, since)
	if k.to.looksUp() {
		k.follower.Ahead = k.o.Users.Touch
	}
	return nil
}

// due reports whether there is enough for a file, or something has waited long enough.
func (k *carrier) due() bool {
	c := &k.cursor
	applied := k.part.Events.Applied()
	if applied <= c.Position {
		k.notice(time.Time{})
		return false
	}
	if k.noticed.IsZero() {
		k.notice(k.o.Now())
	}
	return k.rest || k.o.Now().Sub(k.noticed) >= k.pace.after ||
		k.perEvent > 0 && k.perEvent*float64(k.waiting(c.Position)) >= float64(k.pace.bytes)
}

// waiting is about how many events wait behind a position.
func (k *carrier) waiting(position uint64) int64 {
	since, _ := k.stream.Since() // which load has read without an error
	return k.part.Events.Behind(position, k.ws.Number, since)
}

// notice records since when there has been something undelivered.
func (k *carrier) notice(at time.Time) {
	k.noticed = at
	k.mu.Lock()
	defer k.mu.Unlock()
	k.oldest = at
}

// next delivers what there is, up to the size of a delivery.
func (k *carrier) next(ctx context.Context) error {
	d := k.to.begin(false)
	defer d.abort()
	through, t, full, err := k.read(ctx, d, math.MaxUint64, false)
	if err != nil {
		return errors.Join(err, k.keep(d))
	}
	k.rest, k.lags = full, full
	if t.events == 0 {
		return k.skip(through)
	}
	c := k.cursor
	c.Pending = through
	if k.to.notes() {
		c.choice = choiceOf(k.chosen)
		if err := k.move(c); err != nil {
			return err
		}
	}
	return k.deliver(ctx, d, c, t)
}

// resume repeats a delivery that was begun before: it has the same positions, so the same files.
func (k *carrier) resume(ctx context.Context) error {
	d := k.to.begin(true)
	defer d.abort()
	through, t, _, err := k.read(ctx, d, k.cursor.Pending, true)
	if err != nil {
		return err
	}
	if through < k.cursor.Pending {
		return fmt.Errorf("the log ends at position %d, before %d, where it was when the stream was here last", through,
			k.cursor.Pending)
	}
	k.rest = true
	if err := k.deliver(ctx, d, k.cursor, t); err != nil {
		return err
	}
	if k.chosen != k.stream {
		k.follower = nil
	}
	return nil
}

// read writes the events after the cursor into a delivery. full says that it ended before everything was written.
func (k *carrier) read(
	ctx context.Context, d delivery, to uint64, again bool,
) (through uint64, t tally, full bool, err error) {
	last, most := uint64(0), k.pace.bytes
	if k.seat != nil && k.to.answers() {
		most = cmp.Or(k.pace.behind, most)
	}
	through, err = k.follower.Read(ctx, to, func(e *event.Event) error {
		if e.Position != last {
			if full = !again && t.events > 0 && (t.size >= most || d.ends(e)); full {
				return eventlog.Stop
			}
			last = e.Position
		}
		if t.events == 0 {
			k.mu.Lock()
			k.oldest = e.AcceptedAt
			k.mu.Unlock()
		}
		t.add(e)
		return d.write(ctx, e)
	})
	k.noteExpired(k.follower.Missed())
	return through, t, full, err
}

// deliver brings a delivery to its destination, and moves the cursor to the delivery's end.
func (k *carrier) deliver(ctx context.Context, d delivery, c cursor, t tally) error {
	if err := d.finish(); err != nil {
		return err
	}
	if k.to.notes() || !k.to.answers() {
		k.stand() // what is sent now takes long, and little memory
	}
	if err := d.confirm(ctx, c.Position+1, c.Pending); err != nil {
		return errors.Join(err, k.keep(d))
	}
	c.Position, c.Pending, c.choice = c.Pending, 0, choice{}
	if err := k.advance(d, c, t); err != nil {
		return err
	}
	if t.events > 0 {
		k.perEvent = float64(t.size) / float64(t.events)
	}
	k.notice(time.Time{})
	return nil
}

// keep moves the cursor past the part of a delivery that is there for good, although the rest has failed.
func (k *carrier) keep(d delivery) error {
	through, t := d.confirmed()
	c := k.cursor
	if through <= c.Position {
		return nil
	}
	c.Position = through
	return k.advance(d, c, t)
}

// advance stores a cursor that is past what is there for good, and counts that.
func (k *carrier) advance(d delivery, c cursor, t tally) error {
	done := d.sent()
	c.Events += t.events
	c.Files += done.files
	c.Bytes += done.bytes
	c.Refused += done.refused
	c.LastEventAt = max(c.LastEventAt, t.newest)
	if err := k.move(c); err != nil {
		return err
	}
	k.counter("events").Add(int(t.events))
	k.counter("files").Add(int(done.files))
	k.counter("bytes").Add(int(done.bytes))
	k.counter("refused").Add(int(done.refused))
	return nil
}

// skip moves past positions without events for the stream. That is stored only now and then, since the cursor itself is
// in the log that is read.
func (k *carrier) skip(through uint64) error {
	c := k.cursor
	stored := cursor{}
	_ = json.Unmarshal(k.stored, &stored) // load has already read it
	c.Position = through
	k.notice(time.Time{})
	if through-min(stored.Position, through) >= skipPositions {
		return k.move(c)
	}
	k.mu.Lock()
	k.cursor = c
	k.mu.Unlock()
	return nil
}

// skipPositions is how many positions without events for a stream may be read again after a restart.
const skipPositions = 1 << 16

// move stores the cursor.
func (k *carrier) move(c cursor) error {
	c.MovedAt = time.Now().UnixMilli()
	doc, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if k.part.Gate != nil && !k.part.Gate.Pass() {
		return errors.New("store the cursor: this node doesn't lead the group any more")
	}
	if err := k.o.Control.MoveStream(k.ws.ID, k.stream.ID, k.part.Group, k.stored, doc); err != nil {
		return fmt.Errorf("store the cursor: %w", err)
	}
	k.stored = doc
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cursor = c
	return nil
}

// noteExpired records that events up to a position have expired before they were delivered. A stream that has delivered
// nothing does not miss events that were gone before.
func (k *carrier) noteExpired(expired uint64) {
	known := max(k.cursor.Position, k.expired)
	if k.cursor.Position == 0 {
		known = max(known, k.before)
	}
	if expired <= known {
		return
	}
	k.counter("gaps").Inc()
	k.o.Logger.Error("events have expired before a stream could deliver them", "workspace", k.ws.ID,
		"stream", k.stream.ID, "group", k.part.Group,
		"from", known+1, "to", expired)
	k.expired = expired
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cursor.ExpiredAt = time.Now().UnixMilli()
}

// aheadPatience is how long a log may end before the cursor: a new leader may still have to apply what its predecessor
// has applied.
const aheadPatience = time.Minute

// ahead returns an error if the log stays behind the cursor. It is then an older log, from a backup, and the events
// that it gets up to the cursor are others than those that were delivered. Growing beyond the cursor does not repair
// that.
func (k *carrier) ahead() error {
	applied := k.part.Events.Applied()
	switch {
	case !k.behind.IsZero() && time.Since(k.behind) >= aheadPatience:
		return fmt.Errorf("the stream was at position %d, where the log had not come: it is that of a backup. "+
			"millrace streams rewind has the stream begin anew", k.cursor.Position)
	case applied >= k.cursor.Position:
		k.behind = time.Time{}
	case k.behind.IsZero():
		k.behind = time.Now()
	}
	return nil
}

func (k *carrier) status() answers.StreamPart {
	k.mu.Lock()
	p, position := describe(k.part.Group, &k.cursor), k.cursor.Position
	p.Here = true
	oldest := k.oldest
	if !k.began.IsZero() {
		p.AttemptSeconds, p.Waits = seconds(time.Since(k.began)), k.waits
	}
	if k.err != nil {
		p.Error, p.ErrorAt = k.err.Error(), timeOf(k.errAt, 1)
	}
	k.mu.Unlock()
	if !oldest.IsZero() { // waiting may read the log: a disk that hangs must not hold up the carrier, too
		p.LagSeconds, p.LagEvents = seconds(k.o.Now().Sub(oldest)), k.waiting(position)
	}
	return p
}

// task is the task of one carrier.
type task struct {
	workspace, stream, group string
}

// labels returns the labels of a stream's metrics. A workspace and a stream have no characters that would need quoting.
func (t task) labels() string { return fmt.Sprintf(`{workspace=%q,stream=%q}`, t.workspace, t.stream) }

// counters are the names of what is counted of each stream.
var counters = map[string]string{
	"events": "millrace_stream_events_total", "files": "millrace_stream_files_total",
	"bytes":  "millrace_stream_bytes_total",
	"errors": "millrace_stream_errors_total", "gaps": "millrace_stream_gaps_total",
	"refused": "millrace_stream_refused_total",
}

// counter counts what a stream does on this node.
func (k *carrier) counter(what string) *metrics.Counter {
	return metrics.GetOrCreateCounter(counters[what] + task{k.ws.ID, k.stream.ID, ""}.labels())
}

// showCounters makes all counters exist: an alert that one rises doesn't see a counter that begins at 1.
func (k *carrier) showCounters() {
	for what := range counters {
		k.counter(what)
	}
}
