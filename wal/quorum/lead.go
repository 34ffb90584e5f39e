package quorum

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"

	"millrace/wal"
)

// instance is a running raft. It is replaced only when the end of the log had to be removed (rejoin), or when raft has
// stopped taking entries (renew).
type instance struct {
	raft   *raft.Raft
	trans  *transport
	notify chan bool // raft reports its leadership here
	seen   chan raft.Observation
	done   chan struct{} // closed when the instance is shut down
	left   sync.Once     // leave may be called again, when no other instance could take this one's place
}

// leadership carries raft's reports to the owner, in order.
type leadership struct {
	mu     sync.Mutex
	events []leadEvent
	wake   chan struct{}
}

type leadEvent struct {
	leads bool
	epoch uint64
}

// listen takes raft's reports at once, because raft waits until they are taken.
func (l *Log) listen(n *instance) {
	for {
		select {
		case leads := <-n.notify:
			l.pace(n, leads)
			l.notice(leads)
		case o := <-n.seen:
			if leader, ok := o.Data.(raft.LeaderObservation); ok && leader.LeaderID != "" {
				l.opts.Logger.Info("the group has a leader", "group", l.opts.Group, "leader", nodeOf(leader.LeaderID),
					"term", n.raft.CurrentTerm())
				l.metrics.leaderChanges.Inc()
			}
		case <-n.done:
			l.notice(false)
			return
		}
	}
}

// leaderPace is the factor by which a leader's timers are slower. Raft sends heartbeats after a tenth to two tenths of
// HeartbeatTimeout, which a leader uses for nothing else. In an idle cluster of many groups, heartbeats are most of the
// work. At half the rate, a follower still hears of its leader twice within its shortest timeout
// (docs/decisions/2026-11-23-heartbeats.md).
const leaderPace = 2

func (l *Log) pace(n *instance, leads bool) {
	c := n.raft.ReloadableConfig()
	c.HeartbeatTimeout, c.ElectionTimeout = l.timeouts()
	if leads {
		c.HeartbeatTimeout, c.ElectionTimeout = leaderPace*c.HeartbeatTimeout, leaderPace*c.ElectionTimeout
	}
	if err := n.raft.ReloadConfig(c); err != nil {
		panic(fmt.Sprintf("BUG: quorum: raft refuses a timeout of %v: %v", c.HeartbeatTimeout, err))
	}
}

func (l *Log) notice(leads bool) {
	l.mu.Lock()
	l.epoch++
	if !leads {
		l.endReign()
	}
	e := leadEvent{leads: leads, epoch: l.epoch}
	l.mu.Unlock()
	l.leadership.mu.Lock()
	l.leadership.events = append(l.leadership.events, e)
	l.leadership.mu.Unlock()
	select {
	case l.leadership.wake <- struct{}{}:
	default:
	}
}

// tellOwner calls OnLead and OnFollow alternately.
func (l *Log) tellOwner() {
	led := false
	for {
		e, ok := l.nextEvent()
		switch {
		case !ok:
			if led {
				l.opts.OnFollow()
			}
			return
		case e.leads && !led && l.caughtUp(e):
			l.opts.Logger.Info("this node leads the group", "group", l.opts.Group,
				"term", l.node.Load().raft.CurrentTerm())
			led = true
			l.opts.OnLead()
		case !e.leads && led:
			l.opts.Logger.Info("this node no longer leads the group", "group", l.opts.Group,
				"term", l.node.Load().raft.CurrentTerm())
			led = false
			l.opts.OnFollow()
		}
	}
}

func (l *Log) nextEvent() (e leadEvent, ok bool) {
	for {
		l.leadership.mu.Lock()
		if len(l.leadership.events) > 0 {
			e, l.leadership.events = l.leadership.events[0], l.leadership.events[1:]
			l.leadership.mu.Unlock()
			return e, true
		}
		l.leadership.mu.Unlock()
		select {
		case <-l.leadership.wake:
		case <-l.stop:
			return e, false
		}
	}
}

// caughtUp waits until all records of earlier leaders are handed back, which a barrier in the new term shows. Then it
// opens Append.
func (l *Log) caughtUp(e leadEvent) bool {
	n := l.node.Load()
	term := n.raft.CurrentTerm()
	index, err := l.barrier(n)
	if err != nil || n.raft.CurrentTerm() != term {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != e.epoch || l.failure != nil {
		return false
	}
	l.leads, l.reign = true, newReign(term, index)
	return true
}

// barrier returns the index of an entry that raft makes when it leads: everything before it is handed back. During a
// transfer of the leadership, and for a moment after one that has failed, raft refuses entries; barrier waits for the
// end of that. A raft that goes on refusing them is replaced.
func (l *Log) barrier(n *instance) (index uint64, err error) {
	for begun := time.Now(); ; {
		var f raft.Future
		err := l.await(n, func() raft.Future {
			f = n.raft.Barrier(0)
			return f
		})
		switch {
		case err == nil:
			index := f.(raft.IndexFuture).Index()
			l.passBarrier(index)
			return index, nil
		case !errors.Is(err, raft.ErrLeadershipTransferInProgress):
			return 0, err
		case time.Since(begun) > stuckAfter:
			go l.renew(n)
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
}

// stuckAfter is how long raft may refuse entries once a transfer of the leadership has ended. It is over with its last
// call to the other node, which takes summonTimeout at most. But when the leadership is lost meanwhile, raft can wait
// for the goroutine that sent entries to that node and has ended, and never says that the transfer is over.
const stuckAfter = 5 * time.Second

// await returns the error of what is asked of the instance's raft, or wal.ErrClosed: raft may end without an answer.
func (l *Log) await(n *instance, ask func() raft.Future) error {
	select {
	case <-l.stop:
		return wal.ErrClosed
	default:
	}
	done := make(chan error, 1)
	go func() {
		f := ask()
		n.endWith(f)
		done <- f.Error()
	}()
	select {
	case err := <-done:
		return err
	case <-n.done:
	case <-l.stop:
	}
	return wal.ErrClosed
}

// endWith ends the wait for a future when the instance is shut down, if not before. Raft has a channel for that in each
// future, but sets that of few, and drops entries that are still on their way through it then.
func (n *instance) endWith(f raft.Future) {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer { // else it has ended
		if at := v.Elem().FieldByName("ShutdownCh"); at.IsValid() {
			at.Set(reflect.ValueOf(n.done))
		}
	}
}

// A disk that hangs reports no error. Raft waits for the disk while its heartbeats go on, so a leader whose disk hangs
// would lead for ever and do nothing. Each write therefore has DiskTimeout. When one takes longer, all groups that this
// node leads stand down:
//
//   - they tell the owner that this node does not lead (OnFollow), and refuse waiting barriers; records that are under
//     way may or may not end up in the log;
//   - they send nothing to their followers any more, which makes the followers choose another leader;
//   - and they tell the voter with most of the log to stand for election at once.
//
// Once the disk goes on, raft itself finds that there is another leader, or that it has not heard of its followers for
// too long. If this node still leads, the owner is told.

// errDiskHangs is why requests to followers and waiting barriers fail while the disk hangs.
var errDiskHangs = errors.New("quorum: the disk hangs")

// heedDisk stands down or up, as the current state of the disk demands.
func (l *Log) heedDisk() {
	l.heeding.Lock()
	defer l.heeding.Unlock()
	n := l.node.Load()
	switch hangs := l.opts.Disk.Hangs(); {
	case n == nil || hangs == l.stoodDown.Load():
	case hangs:
		l.standDown(n)
	default:
		l.standUp(n)
	}
}

// standDown gives up the leadership, although raft still waits for the disk.
func (l *Log) standDown(n *instance) {
	best := l.furthest(n)
	if n.raft.State() != raft.Leader || best == 0 { // not the leader, or nobody else can lead
		return
	}
	l.stoodDown.Store(true)
	standDowns.Inc()
	l.opts.Logger.Error("the disk hangs; this node gives up the leadership", "group", l.opts.Group, "to", best)
	n.trans.mute(true)
	l.notice(false)
	if err := n.trans.summon(best); err != nil {
		l.opts.Logger.Warn("a node could not be asked to lead instead; it will notice by itself", "group",
			l.opts.Group, "node", best, "error", err)
	}
}

// standUp undoes standDown when the disk goes on.
func (l *Log) standUp(n *instance) {
	l.stoodDown.Store(false)
	n.trans.mute(false)
	if n.raft.State() == raft.Leader { // nobody has taken over, or raft doesn't know it yet
		l.notice(true)
	}
}

// furthest returns the other voter that is known to have most of the log, of those that answer, if any does; 0 when
// there is none.
func (l *Log) furthest(n *instance) (best Node) {
	var most contact
	for _, m := range l.members() {
		if m.Node == l.self || !m.Voter {
			continue
		}
		c := n.trans.contact(m.Node)
		answers, did := c.within(l.opts.ElectionTimeout), most.within(l.opts.ElectionTimeout)
		if best == 0 || answers && !did || answers == did && c.index > most.index {
			best, most = m.Node, c
		}
	}
	return best
}

// mute stops sending to the followers, or resumes it.
func (t *transport) mute(on bool) { t.muted.Store(on) }

// summon tells a node to stand for election at once, and the others to vote although they know a leader.
func (t *transport) summon(to Node) error {
	return t.TimeoutNow(idOf(to), addressOf(to), t.summons(), &raft.TimeoutNowResponse{})
}

// stand does for this node what summon does for another one.
func (t *transport) stand() { t.tell(t.summons()) }

// dismissal makes a candidate of an earlier term a follower: raft is asked for a vote, which it refuses, because the
// candidate in this request claims an empty log.
func (t *transport) dismissal(term uint64) *raft.RequestVoteRequest {
	h := t.summons().RPCHeader
	return &raft.RequestVoteRequest{RPCHeader: h, Candidate: h.Addr, Term: term, LeadershipTransfer: true}
}

// tell passes a request to this node's raft.
func (t *transport) tell(request any) {
	select {
	case t.rpcs <- own(request):
	default: // raft is busy; its own timers do the rest
	}
}

// own is a request of this node to its raft, whose answer nobody reads.
func own(request any) raft.RPC {
	return raft.RPC{Command: request, RespChan: make(chan raft.RPCResponse, 1)}
}

func (t *transport) summons() *raft.TimeoutNowRequest {
	id := []byte(idOf(t.host.Node()))
	return &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id},
	}
}

var standDowns = metrics.NewCounter("millrace_quorum_disk_stand_downs_total")
