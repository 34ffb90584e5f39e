package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Options of sequences.
type Options struct {
	Client *Client
	Setup  *Setup
	Areas  Areas
	Keyed  bool // every request of /users/track has an Idempotency-Key
	// InParts says that each of several nodes does its part of a request. Then some parts of a request of unknown
	// outcome may be done and others not, and any of the users whom a request changes may count as the one who was
	// updated last.
	InParts bool
	// Sent counts requests that may change something, Reads those that don't, Unknowns the attempts without an answer.
	Sent, Reads, Unknowns *atomic.Int64
	// Enough, when it returns true, ends a sequence early.
	Enough func() bool
	// Patience is how long the server may be away, and merges may take.
	Patience time.Duration
}

// Sequence is a series of requests about one population, sent one after the other, each of them judged.
type Sequence struct {
	Options
	pop      *Population
	states   []*State // what may be: never empty until there is a difference
	requests []*Request
	ended    bool
}

// NewSequence begins a sequence about a new population.
func NewSequence(o Options, pop *Population) *Sequence {
	return &Sequence{Options: o, pop: pop, states: []*State{New(o.Setup)}}
}

// Difference is what the server did other than the contract demands.
type Difference struct {
	Requests []*Request
	Text     string
	Short    []*Request // what Shrink has made of them; nil: it did not happen again
	ShortHas string
}

func (d *Difference) String() string {
	var b strings.Builder
	list, text := d.Requests, d.Text
	if d.Short != nil {
		list, text = d.Short, d.ShortHas
	}
	for _, r := range list {
		b.WriteString(r.String() + "\n")
	}
	if d.Short == nil {
		b.WriteString("(sent again alone, they are answered as they should be)\n")
	}
	return b.String() + "DIFFERENCE " + text
}

// Run sends random requests.
func (q *Sequence) Run(r *rand.Rand, steps int) *Difference {
	g := &generator{rand: r, areas: q.Areas, setup: q.Setup, pop: q.pop, keys: q.Keyed}
	for step := 1; step <= steps && !q.ended && !q.Enough(); step++ {
		request := g.next(q.states[0], step)
		if d := q.write(request); d != "" {
			return q.difference(d)
		}
		q.states = distinctStates(q.states)
		q.ended = q.ended || len(q.states) > maxStates
		if !q.ended && (step == steps || r.IntN(4) == 0) {
			if d := q.check(g.reads(q.states[0], step == steps || r.IntN(8) == 0), 0); d != "" {
				return q.difference(d)
			}
		}
	}
	return nil
}

func (q *Sequence) difference(text string) *Difference {
	return &Difference{Requests: q.requests, Text: text}
}

// svc returns the svc_id of the user who was born then. For an unknown user it is one that nobody has.
func (q *Sequence) svc(birth string) string {
	for i := range q.states[0].users {
		if u := &q.states[0].users[i]; u.birth == birth && u.svc != "" {
			return u.svc
		}
	}
	return "0123456789abcdef01234567"
}

// write sends a request that may change something, and judges its answer.
func (q *Sequence) write(r *Request) string {
	q.requests = append(q.requests, r)
	q.Sent.Add(1)
	w := q.pop.wire(r, q.svc)
	reply, lost := q.attempt(w, w.IdempotencyKey != "")
	if lost > 0 {
		r.Note = strings.TrimSpace(fmt.Sprintf("%s %d× without an answer", r.Note, lost))
		q.Unknowns.Add(int64(lost))
	}
	if reply == nil && lost == 0 {
		return "the server does not come back"
	}
	if reply == nil {
		return q.branch(r, w)
	}
	return q.advance(r, w, reply, lost > 0)
}

// attempt sends until there is an answer; after an unknown outcome it sends again only when that is safe. It also
// returns how many attempts had an unknown outcome.
func (q *Sequence) attempt(w *Wire, isSafe bool) (reply *Reply, lost int) {
	for start := time.Now(); time.Since(start) < q.Patience; time.Sleep(5 * time.Millisecond) {
		r, outcome := q.Client.send(w)
		switch outcome {
		case answered:
			return &r, lost
		case unknown:
			lost++
			if !isSafe {
				return nil, lost
			}
		}
	}
	return nil, 0
}

// advance takes those states on that would have answered like this.
func (q *Sequence) advance(r *Request, w *Wire, reply *Reply, wasLost bool) string {
	var next []*State
	var text string
	isOpen := false // who was updated last
	for _, s := range q.states {
		answer, ends := q.do(s, r, w)
		isOpen = isOpen || len(ends) > 1
		d := answer.differs(w.Path, *reply, q.Areas)
		if d != "" && wasLost && reply.Replay && !answer.Replay && len(answer.Unmet) > 0 {
			// A server that ended before it knew what became of the operators has kept an answer that doesn't say so
			// (docs/decisions/2026-11-22-warnings-of-operators.md).
			answer.Unmet = nil
			if answer.differs(w.Path, *reply, q.Areas) == "" {
				d = ""
				for _, end := range ends {
					end.keep(w, answer)
				}
			}
		}
		if d == "" && reply.Replay && !answer.Replay && !wasLost && !q.InParts { // a node may have tried twice itself
			d = "Idempotent-Replay with the first answer"
		}
		if d == "" {
			next = append(next, ends...)
		} else if text == "" {
			text = d
		}
	}
	if len(next) == 0 {
		return text
	}
	q.states = next
	switch {
	case w.Path == "/users/merge": // it is done soon after
		return q.check(q.allReads(), q.Patience)
	case isOpen:
		return q.check(addressReads(), q.Patience)
	}
	return ""
}

// do returns the answer to a request, and the states that it may lead to.
func (q *Sequence) do(s *State, r *Request, w *Wire) (answer Answer, all []*State) {
	answer, ends := s.do(r.Step, w)
	isNaming := strings.HasPrefix(w.Path, "/users/") && w.Path != "/users/track"
	if !isNaming && !q.InParts {
		return answer, ends
	}
	for _, e := range ends {
		all = append(all, e.orders(s.clock)...)
	}
	return answer, all
}

// branch follows both outcomes of a request: done or not. The sequence ends where a state remains in which the request
// was not done, since it may still be done later.
func (q *Sequence) branch(r *Request, w *Wire) string {
	var next []*State
	for _, s := range q.states {
		_, ends := q.do(s, r, w)
		next = append(next, ends...)
		undone := s.clone()
		undone.undone = true
		next = append(next, undone)
	}
	q.states = next
	d := q.check(q.allReads(), q.Patience)
	if d != "" && q.mayBeDoneInPart(w) {
		q.ended = true
		return ""
	}
	q.ended = slices.ContainsFunc(q.states, func(s *State) bool { return s.undone })
	return d
}

// mayBeDoneInPart says whether some elements of a request of unknown outcome may be done and others not (docs/http.md).
// One node does most requests as a whole, but not those that list aliases and external ids.
func (q *Sequence) mayBeDoneInPart(w *Wire) bool {
	listed := strings.HasPrefix(w.Path, "/users/alias/") || strings.HasPrefix(w.Path, "/users/external_ids/") ||
		w.Path == "/users/identify"
	return leaves(w.Body) > 1 && (q.InParts || listed)
}

// leaves counts the elements in the lists of a body; where an element has lists itself, their elements count in its
// place.
func leaves(body map[string]any) (n int) {
	for _, member := range body {
		list, _ := member.([]any)
		for _, element := range list {
			o, _ := element.(map[string]any)
			n += max(leaves(o), 1)
		}
	}
	return n
}

// check reads, and keeps the states that explain all that is read. While it has patience it reads again, since merges
// are done a while after their answer.
func (q *Sequence) check(reads []*Request, patience time.Duration) (text string) {
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := make([]*State, len(q.states))
		for i, s := range q.states {
			left[i] = s.clone()
		}
		if text = q.readAll(reads, &left); text == "" {
			q.states = left
			return ""
		}
		if time.Since(start) >= patience {
			return text
		}
		time.Sleep(pause)
	}
}

func (q *Sequence) readAll(reads []*Request, left *[]*State) string {
	for _, r := range reads {
		w := q.pop.wire(r, q.svc)
		reply, _ := q.attempt(w, true)
		q.Reads.Add(1)
		if reply == nil {
			return "the server does not come back"
		}
		var next []*State
		text := ""
		for _, s := range *left {
			d := s.read(w, *reply, q.Areas)
			if d == "" {
				next = append(next, s)
			} else if len(*left) == 1 || !strings.Contains(text, d) {
				text += "\n  " + d
			}
		}
		if len(next) == 0 {
			return "after " + r.String() + text
		}
		*left = next
	}
	return ""
}

func (q *Sequence) allReads() []*Request {
	g := &generator{rand: rand.New(rand.NewPCG(1, 1)), areas: q.Areas, setup: q.Setup, pop: q.pop}
	return g.reads(q.states[0], true)
}
