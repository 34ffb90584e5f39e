package importer

import (
	"context"
	"slices"
	"time"

	"millrace/ingest/files"
)

// maxDeletions is how many users one request may delete.
const maxDeletions = 50

// laneQueue is how many requests wait in a lane while one is under way. The reader waits for the lane that is full
// first; meanwhile the other lanes need something to send.
const laneQueue = 3

// lane carries the rows of some users, one request after another.
type lane struct {
	queue chan *request
	open  *request      // belongs to the reader
	free  chan *request // requests that the sender gives back
	// job.mu guards the fields below.
	pending []files.Position // first rows of its unanswered requests
	since   time.Time        // when the unanswered request that is under way was first sent; zero: there is none
	// before is when an earlier run sent the first of what it may have sent without noting an answer; zero: there is no
	// such thing. A lane sends one request after another, so that ends with the first one that the server had not had.
	before time.Time
}

func (l *lane) newRequest(like *sizes) *request {
	select {
	case r := <-l.free:
		for k := range r.texts {
			r.texts[k] = r.texts[k][:0]
		}
		*r = request{texts: r.texts, rows: r.rows[:0], call: r.call}
		return r
	default:
		return like.newRequest()
	}
}

// sizes are the largest that requests of a file have had so far. Memory for a further one is taken at once: text that
// grows while rows are added would be copied several times, into memory that nobody has used yet.
type sizes struct {
	texts [texts]int
	rows  int
}

func (s *sizes) newRequest() *request {
	r := &request{rows: make([]sent, 0, s.rows)}
	for k, size := range s.texts {
		if size > 0 {
			r.texts[k] = make([]byte, 0, size+size/8)
		}
	}
	return r
}

func (s *sizes) note(r *request) {
	for k := range r.texts {
		s.texts[k] = max(s.texts[k], len(r.texts[k]))
	}
	s.rows = max(s.rows, len(r.rows))
}

// flushLane gives the open request of a lane to its sender.
func (j *job) flushLane(ctx context.Context, l *lane) error {
	j.sizes.note(l.open)
	select {
	case l.queue <- l.open:
		l.open = nil
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// request is a run of a lane's rows.
type request struct {
	// texts are the objects of each kind, by its number, followed by the rows that aren't sent. Each text has a comma
	// after it: what is sent consists of a few long runs, in whatever order kinds come.
	texts       [texts][]byte
	bytes       int // size of all texts, without commas
	rows        []sent
	call        call      // belongs to its sender
	counts      [4]int    // by the number of the kind
	ofUsers     [64]uint8 // objects by the group of their users
	faults      int
	leftOut     bool   // a row has a cell that isn't in its object
	identifiers string // for deletions
	// conditional says that one of the rows is conditional.
	conditional bool
}

// sent is a row that is under way. It has 64 bytes, a cache line: by the time rows are sent, the reader has long left
// them.
type sent struct {
	row, line   int64
	from, to    int // in the text of its kind
	user        uint64
	fault       string // if not empty, the row isn't sent
	kind        uint8  // index in files.Kinds
	conditional bool   // it takes effect only if its user exists
	leftOut     bool   // it has a cell that isn't in its object
}

// deletions is the number of that kind, after those of /users/track in the order in which they take effect.
const deletions = 3

// faulty is the number of the text of rows that aren't sent, and texts is how many texts there are.
const (
	faulty = deletions + 1
	texts  = faulty + 1
)

// kindNumber is the index in files.Kinds, or 255 for other kinds, which faulty rows may have.
func kindNumber(k files.Kind) uint8 { return uint8(slices.Index(files.Kinds, k)) }

// takes reports whether a row may go with the rows of the request. There must be no more than the server takes at once.
// And it must not matter that the row would overtake another row of its user, since a request has attributes first,
// then events, then purchases. It matters when one of the two takes effect only if the user exists. Otherwise rows of
// several kinds change different parts of the user.
func (r *request) takes(o *files.Object, isFaulty bool, s *state) bool {
	if isFaulty {
		return len(r.rows) < s.mostRows()
	}
	n := kindNumber(o.Kind)
	switch {
	case r.bytes+len(o.Text) > s.RequestBytes:
		return false
	case o.Kind == files.Deletions:
		return r.takesDeletion(o, min(s.Objects, maxDeletions))
	case r.counts[deletions] > 0 || r.isFull(n, o.User, s):
		return false
	}
	if slices.Max(r.counts[n+1:]) == 0 {
		return true
	}
	if !o.IsConditional && !r.conditional {
		return true
	}
	return !slices.ContainsFunc(r.rows, func(other sent) bool {
		return other.user == o.User && other.kind > n && other.fault == "" && (o.IsConditional || other.conditional)
	})
}

// maxBulk is how many objects a request to /users/track/bulk may have, and maxOfUser how many of them for one user.
const maxBulk, maxOfUser = 1000, 100

func (one *state) mostRows() int {
	if one.Bulk {
		return maxBulk
	}
	return 3 * one.Objects
}

// isFull reports whether the request has as many objects as it may before one more of a kind and a user.
func (r *request) isFull(kind uint8, user uint64, s *state) bool {
	if s.Bulk {
		return len(r.rows) >= maxBulk || r.ofUsers[groupOf(user)] == maxOfUser
	}
	return r.counts[kind] == s.Objects
}

// groupOf divides users into groups, whose rows are counted in place of each user's: no user has more rows than the
// group. The lower bits are the same in all rows of a lane.
func groupOf(user uint64) uint8 { return uint8(user >> 58) }

func (r *request) takesDeletion(o *files.Object, most int) bool {
	if r.counts[deletions] == 0 {
		return len(r.rows) == r.faults
	}
	return r.counts[deletions] < most && r.identifiers == o.Identifiers
}

func (r *request) add(row *files.Row, o *files.Object, fault string) {
	one := sent{row: row.Row, line: row.Line, kind: kindNumber(o.Kind), user: o.User, fault: fault}
	text := o.Text
	if fault != "" {
		text = row.Source()
		r.faults++
	} else {
		r.identifiers = o.Identifiers
		r.counts[one.kind]++
		r.ofUsers[groupOf(o.User)]++
		one.conditional, one.leftOut = o.IsConditional, row.LeftOut
		r.leftOut = r.leftOut || one.leftOut
		r.conditional = r.conditional || one.conditional
	}
	all := &r.texts[one.text()]
	one.from, one.to = len(*all), len(*all)+len(text)
	*all = append(append(*all, text...), ',')
	r.bytes += len(text)
	r.rows = append(r.rows, one)
}

// text returns the number of the text that has the row.
func (s *sent) text() uint8 {
	if s.fault != "" {
		return faulty
	}
	return s.kind
}

// work sends the requests of a lane, until there are no more or the context ends.
func (j *job) work(ctx context.Context, cancel context.CancelCauseFunc, n int) {
	l := &j.lanes[n]
	for r := range l.queue {
		if ctx.Err() != nil {
			continue
		}
		j.sends(l)
		o := outcome{request: r}
		rows := r.rows
		if r.faults > 0 {
			rows = slices.DeleteFunc(slices.Clone(rows), func(s sent) bool { return s.fault != "" })
		}
		if err := j.deliver(ctx, n, rows, &o); err != nil {
			cancel(err)
			continue
		}
		if err := j.ack(n, &o); err != nil {
			cancel(err)
			continue
		}
		select {
		case l.free <- r:
		default:
		}
	}
}

// sends records that a lane has a request under way from now on.
func (j *job) sends(l *lane) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l.since = time.Now().UTC()
}

// ack records that a request is answered.
func (j *job) ack(n int, o *outcome) error {
	rows := o.request.rows
	if o.request.faults > 0 {
		for _, s := range rows {
			if s.fault != "" {
				o.refuse(s, s.fault)
			}
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.refused.append(o); err != nil {
		return err
	}
	l := &j.lanes[n]
	l.pending, l.since = append(l.pending[:0], l.pending[1:]...), time.Time{}
	if o.isNew {
		l.before = time.Time{}
	}
	j.state.Acked[n] = rows[len(rows)-1].row
	o.counts.Rows = int64(len(rows))
	o.counts.Refused = int64(len(o.refusals))
	o.counts.Taken = o.counts.Rows - o.counts.Refused
	o.counts.Warned = o.warned()
	j.state.Counts.add(o.counts)
	j.dirty = true
	j.bar.add(len(rows))
	return nil
}
