package quorum

import (
	"errors"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

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

// disk is the disk of a node: all of its groups write there.
type disk struct {
	mu      sync.Mutex // guards the next fields
	logs    map[*Log]struct{}
	hanging int       // number of writes that take too long
	tried   time.Time // when the disk was last tried

	looking     sync.Mutex // guards the fields below; held while a disk that hangs may not answer
	free, total uint64     // as of the time looked
	looked      time.Time
	unknown     error
}

func (d *disk) join(l *Log) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.logs == nil {
		d.logs = map[*Log]struct{}{}
	}
	d.logs[l] = struct{}{}
}

func (d *disk) leave(l *Log) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.logs, l)
}

// late adds more, 1 or -1, to the number of writes that take too long.
func (d *disk) late(more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.hanging > 0
	d.hanging += more
	after := d.hanging > 0
	if before == after {
		return
	}
	for l := range d.logs {
		go l.heedDisk()
	}
}

func (d *disk) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hanging > 0
}

// wantsTry reports whether the caller shall try the disk: one does, every so often.
func (d *disk) wantsTry(every time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.tried) < every {
		return false
	}
	d.tried = now
	return true
}

// space returns how much of the disk is free, and how large it is. All groups ask, so the answer may be half a
// keepInterval old.
func (d *disk) space(o *Options) (free, total uint64, err error) {
	d.looking.Lock()
	defer d.looking.Unlock()
	if now := time.Now(); now.Sub(d.looked) > keepInterval/2 {
		d.looked = now
		d.free, d.total, d.unknown = o.FreeSpace(o.Dir)
	}
	return d.free, d.total, d.unknown
}

// freeSpace is the default of Options.FreeSpace.
func freeSpace(dir string) (free, total uint64, err error) {
	var u unix.Statfs_t
	err = unix.Statfs(dir, &u)
	return u.Bavail * uint64(u.Bsize), u.Blocks * uint64(u.Bsize), err
}

// deadline watches the writes of one store, of which there is one at a time.
type deadline struct {
	disk    *disk         // told of a write that takes longer than timeout; nil: nobody is
	timeout time.Duration // not positive: there is none

	mu     sync.Mutex
	timer  *time.Timer
	begun  time.Time // when the current write began; zero: there is none
	isLate bool
}

// begin is called before a write, and end after it.
func (d *deadline) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = time.Now()
	switch {
	case d.disk == nil || d.timeout <= 0:
	case d.timer == nil:
		d.timer = time.AfterFunc(d.timeout, d.passed)
	default:
		d.timer.Reset(d.timeout)
	}
}

// taken returns how long the current write has taken so far; 0 when there is none.
func (d *deadline) taken() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun.IsZero() {
		return 0
	}
	return time.Since(d.begun)
}

func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = time.Time{}
	if d.timer != nil {
		d.timer.Stop()
	}
	if d.isLate {
		d.isLate = false
		d.disk.late(-1)
	}
}

// passed may run too late, when the next write is under way or there is none.
func (d *deadline) passed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun.IsZero() || d.isLate || time.Since(d.begun) < d.timeout {
		return
	}
	d.isLate = true
	d.disk.late(1)
}

// heedDisk stands down or up, as the current state of the disk demands.
func (l *Log) heedDisk() {
	l.heeding.Lock()
	defer l.heeding.Unlock()
	n := l.node.Load()
	switch hangs := l.host.disk.hangs(); {
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

// furthest returns the other voter that is known to have most of the log; 0 when there is none.
func (l *Log) furthest(n *instance) (best Node) {
	var most uint64
	for _, m := range l.members() {
		if m.Node == l.self || !m.Voter {
			continue
		}
		if c := n.trans.contact(m.Node); best == 0 || c.index > most {
			best, most = m.Node, c.index
		}
	}
	return best
}

// mute stops sending to the followers, or resumes it.
func (t *transport) mute(on bool) { t.muted.Store(on) }

// summon tells a node to stand for election at once, and the others to vote although they know a leader.
func (t *transport) summon(to Node) error {
	return t.TimeoutNow(to.id(), to.address(), t.summons(), &raft.TimeoutNowResponse{})
}

// stand does for this node what summon does for another one.
func (t *transport) stand() { t.tell(t.summons()) }

// stepDown makes a candidate of an earlier term a follower: raft is asked for a vote, which it refuses.
func (t *transport) stepDown(term uint64) {
	h := t.summons().RPCHeader
	// The candidate in this request claims an empty log, so raft refuses it.
	t.tell(&raft.RequestVoteRequest{RPCHeader: h, Candidate: h.Addr, Term: term, LeadershipTransfer: true})
}

// tell passes a request to this node's raft.
func (t *transport) tell(request any) {
	select {
	case t.rpcs <- raft.RPC{Command: request, RespChan: make(chan raft.RPCResponse, 1)}:
	default: // raft is busy; its own timers do the rest
	}
}

func (t *transport) summons() *raft.TimeoutNowRequest {
	id := []byte(t.host.Node().id())
	return &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id},
	}
}

var standDowns = metrics.NewCounter("millrace_quorum_disk_stand_downs_total")
