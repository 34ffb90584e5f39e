// Package history records what concurrent clients asked of a server and what they were told. It judges whether there is
// one order of all requests, each taking effect at one moment between its call and its return, that explains every
// answer: linearizability, decided by porcupine. Only tests import it.
//
// A history is cut into families. No request touches two families, so each family is judged by itself, and it stays so
// small (some dozens of requests, few of unknown outcome) that judging takes milliseconds. There are two models: Names,
// of a family of users who get aliases and external ids, are tracked and merged; and Register, of a value that is set
// and read.
//
// A request that was refused with "nothing was done" is left out of the history: if it has an effect all the same, that
// shows as an effect that no request has caused. A request whose outcome is unknown (no answer, or an answer that says
// so) may take effect at any time after its call, or never.
package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Never is the return of a request whose outcome is unknown.
const Never = math.MaxInt64

// Entry is one request and its answer. Times are nanoseconds since the beginning of the history.
type Entry struct {
	Client int
	Node   int // that was asked; 0: the only one
	Call   int64
	Return int64 // Never: the outcome is unknown, and Answer means nothing
	Effect int64 // for what goes on after the answer (Merge): when it was over at the latest; 0: at Return
	Op     Op
	Answer Answer
}

// Known is whether there was an answer.
func (e *Entry) Known() bool { return e.Return != Never }

func (e *Entry) String() string {
	end, answer := "?", "unknown"
	if e.Known() {
		end, answer = stamp(e.Return), e.Answer.String()
	}
	text := fmt.Sprintf("%9s..%-9s client %d node %d: %s -> %s", stamp(e.Call), end, e.Client, e.Node, e.Op, answer)
	if e.Effect != 0 && e.Effect != Never {
		text += " (over at " + stamp(e.Effect) + ")"
	}
	return text
}

func stamp(nanos int64) string { return fmt.Sprintf("%.3fms", float64(nanos)/1e6) }

// Recorder collects the entries of one family from concurrent clients.
type Recorder struct {
	Began time.Time // the same for all families of a history

	mu      sync.Mutex
	entries []Entry
	sent    int
	unknown int
}

// Outcome is how a request ended.
type Outcome uint8

const (
	Answered Outcome = iota
	Undone           // certainly without effect: never sent, or refused
	Unknown
)

// Do lets f make the request, and records its result. A read without an answer is left out, since it tells nothing.
func (r *Recorder) Do(client, node int, op Op, f func() (Answer, Outcome)) Outcome {
	e := Entry{Client: client, Node: node, Op: op, Call: r.now()}
	answer, outcome := f()
	e.Answer, e.Return = answer, r.now()
	if outcome == Unknown {
		e.Return = Never
	}
	if op.Kind == Merge {
		e.Effect = Never // until Settled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	if outcome == Answered || outcome == Unknown && !op.reads() {
		r.entries = append(r.entries, e)
	}
	if outcome == Unknown && !op.reads() {
		r.unknown++
	}
	return outcome
}

func (r *Recorder) now() int64 { return int64(time.Since(r.Began)) }

// Sent is how many requests there were, Recorded how many of them are in the history, Unknowns how many of those
// recorded may or may not have had an effect.
func (r *Recorder) Sent() int { return r.locked(func() int { return r.sent }) }

// Recorded is described at Sent.
func (r *Recorder) Recorded() int { return r.locked(func() int { return len(r.entries) }) }

// Unknowns is described at Sent.
func (r *Recorder) Unknowns() int { return r.locked(func() int { return r.unknown }) }

func (r *Recorder) locked(f func() int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f()
}

// Settled says that all that was answered is over by now, including merges that were only queued.
func (r *Recorder) Settled() {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.entries {
		if e := &r.entries[i]; e.Known() && e.Effect == Never {
			e.Effect = now
		}
	}
}

// Entries returns the recorded entries, in the order of their calls.
func (r *Recorder) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := slices.Clone(r.entries)
	slices.SortStableFunc(entries, func(a, b Entry) int { return int(a.Call - b.Call) })
	return entries
}

// Verdict is the judgement on one family.
type Verdict uint8

const (
	Linearizable Verdict = iota
	Illegal              // no order explains the answers
	Undecided            // not within the time
)

// Model judges a family.
type Model interface {
	// steps lists the moments at which an entry takes effect: several when the entry is not one atomic change.
	steps(number int, e *Entry) []step
	porcupine() porcupine.Model
}

// step is a part of an entry that happens at one moment, between call and end.
type step struct {
	entry  *Entry
	number int // of the entry, from 1
	part   uint8
	end    int64
}

// Check judges the entries of one family.
func Check(m Model, entries []Entry, limit time.Duration) Verdict {
	var operations []porcupine.Operation
	for i := range entries {
		e := &entries[i]
		for _, s := range m.steps(i+1, e) {
			operations = append(operations,
				porcupine.Operation{ClientId: e.Client, Input: s, Call: e.Call, Output: e.Answer, Return: s.end})
		}
	}
	switch porcupine.CheckOperationsTimeout(m.porcupine(), operations, limit) {
	case porcupine.Ok:
		return Linearizable
	case porcupine.Illegal:
		return Illegal
	}
	return Undecided
}

// Shortest cuts an illegal history down to the shortest beginning that is illegal, which is where to look for the
// fault: the last entry is the first answer that nothing explains. Entries are in the order of their calls.
func Shortest(m Model, entries []Entry, limit time.Duration) []Entry {
	returns := []int64{}
	for i := range entries {
		if entries[i].Known() {
			returns = append(returns, entries[i].Return)
		}
	}
	slices.Sort(returns)
	at, _ := slices.BinarySearchFunc(returns, true, func(end int64, _ bool) int {
		if Check(m, upTo(entries, end), limit) == Illegal {
			return 1
		}
		return -1
	})
	if at == len(returns) {
		return entries
	}
	return upTo(entries, returns[at])
}

// upTo is the history as it was known at a time: requests that were not answered by then have an unknown outcome.
func upTo(entries []Entry, end int64) []Entry {
	var cut []Entry
	for _, e := range entries {
		if e.Call > end || e.Return > end && e.Op.reads() {
			continue
		}
		if e.Return > end {
			e.Return = Never
		}
		if e.Effect > end {
			e.Effect = Never
		}
		cut = append(cut, e)
	}
	return cut
}

// Text writes entries as lines.
func Text(entries []Entry) string {
	var b strings.Builder
	for i := range entries {
		fmt.Fprintf(&b, "%3d %s\n", i+1, entries[i].String())
	}
	return b.String()
}
