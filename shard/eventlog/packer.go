package eventlog

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/stretch"
	"millrace/shard/identity"
	"millrace/wal/pause"
)

// packer is what the worker needs to pack. It is used under Log.work.
type packer struct {
	stretch   stretch.Stretch
	writer    *blocks.Writer // lent, as the memory of stretch's rows is (borrow)
	groupRows int
	hasher    *identity.Hasher
	pace      pace
	// recordBytes and eventBytes are the recent averages of a record's size and of how much its events count for
	// (Stretch.Size).
	recordBytes, eventBytes average
	looked                  uint64 // how many positions these are of; those of a sample are of all there were
	oldestAt                uint64 // position of the record
	oldest                  int64  // stamp of the record at oldestAt
	rewritten               time.Time
	rewriting               uint64       // blocks are being rewritten for deletions up to here; 0: for none
	deletedBefore           atomic.Int64 // what the deletions took when rewriting began, and then what was left behind
}

// borrow gives the packer the memory that packing takes, several times that of the events: with the turn, that of the
// share. giveBack ends that; without the turn it lets the memory go. Between the two, a log has nothing of its own that
// grows with the events.
func (p *packer) borrow(s *Share, hasTurn bool) {
	if hasTurn {
		p.stretch.Rows, p.writer = s.rows, s.writer
		s.rows, s.writer = blocks.Rows{}, nil
	}
	if p.writer == nil {
		p.writer = blocks.NewWriter()
	}
	p.writer.Hasher, p.writer.Rest, p.writer.GroupRows = p.hasher, p.pace.rest, p.groupRows
}

func (p *packer) giveBack(s *Share, hasTurn bool) {
	p.stretch.LetGo()
	p.writer.Hasher, p.writer.Rest = nil, nil
	if hasTurn {
		s.rows, s.writer = p.stretch.Rows, p.writer
	}
	p.stretch.Rows, p.writer = blocks.Rows{}, nil
}

// look takes the averages of so many positions.
func (p *packer) look(positions uint64, v volume) {
	p.looked = positions
	p.recordBytes.set(float64(v.records) / float64(positions))
	p.eventBytes.set(max(float64(v.events), 1) / float64(positions))
}

// volume is how much a part of the log has: the size of its records, and what its events count for, about.
type volume struct{ records, events int64 }

func (v *volume) add(o volume) { v.records, v.events = v.records+o.records, v.events+o.events }

// average is a number that other goroutines may read.
type average struct{ bits atomic.Uint64 }

func (a *average) load() float64 { return math.Float64frombits(a.bits.Load()) }

func (a *average) set(v float64) { a.bits.Store(math.Float64bits(v)) }

// pace keeps the worker to its share of a core: rest is called throughout the work and sleeps in proportion.
type pace struct {
	duty  float64 // 1: don't sleep
	stop  context.Context
	began time.Time
}

// minWork is how long the worker works before it sleeps.
const minWork = 5 * time.Millisecond

func (p *pace) begin(stop context.Context, duty float64) {
	p.stop, p.duty, p.began = stop, duty, time.Now()
}

func (p *pace) rest() error {
	if err := p.stop.Err(); err != nil {
		return errClosed
	}
	worked := time.Since(p.began)
	if p.duty == 1 || worked < minWork {
		return nil
	}
	workSeconds.Add(worked.Seconds())
	if pause.For(p.stop, time.Duration(float64(worked)*(1-p.duty)/p.duty)) != nil {
		return errClosed
	}
	p.began = time.Now()
	return nil
}

// end counts the work since the last sleep.
func (p *pace) end() { workSeconds.Add(time.Since(p.began).Seconds()) }

var workSeconds = metrics.NewFloatCounter("millrace_eventlog_work_seconds_total")
