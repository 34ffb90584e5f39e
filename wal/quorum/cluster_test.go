package quorum

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/wal"
	"millrace/wal/durable"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
	"millrace/wal/quorum/host/testnet"
)

// line is a record in the form in which an owner has it.
type line struct {
	Position uint64
	Text     string
}

// owner is what an engine is to a log: it applies records in order, checkpoints its state, and skips records that it
// has. An owner lives as long as the node's process.
type owner struct {
	path string // of the checkpoint
	log  *Log

	mu      sync.Mutex
	cond    sync.Cond
	lines   []line
	applied uint64
	gone    bool            // the process is
	live    []line          // handed back or replayed in this life, with those that were skipped
	mine    map[string]bool // appended here, true when handed back
	lost    map[string]bool
	leads   bool
	turns   []bool
	failure error
	again   map[uint64]string // skipped records, to be compared
	broken  []string
}

func newOwner(path string) *owner {
	o := &owner{path: path, mine: map[string]bool{}, lost: map[string]bool{}, again: map[uint64]string{}}
	o.cond.L = &o.mu
	return o
}

// image is the owner's checkpoint, and what it sends.
type image struct {
	Lines   []line
	Applied uint64
}

func (o *owner) load() error {
	b, err := os.ReadFile(o.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var i image
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&i); err != nil {
		return err
	}
	o.lines, o.applied = i.Lines, i.Applied
	return nil
}

func (o *owner) encode() []byte {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(image{Lines: o.lines, Applied: o.applied}); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// checkpoint keeps the state and lets the log go.
func (o *owner) checkpoint() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := durable.ReplaceFile(o.path, o.encode(), 0o644); err != nil {
		return err
	}
	return o.log.Trim(o.applied + 1)
}

func (o *owner) apply(position uint64, text string) {
	if n := len(o.live); n > 0 && o.live[n-1].Position >= position {
		o.broken = append(o.broken, fmt.Sprintf("%d after %d", position, o.live[n-1].Position))
	}
	o.live = append(o.live, line{position, text})
	if position <= o.applied {
		return
	}
	o.applied = position
	o.lines = append(o.lines, line{position, text})
	o.cond.Broadcast()
}

func (o *owner) onDurable(records []*wal.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return
	}
	for _, r := range records {
		text := string(r.Data[wal.HeaderBytes:])
		if r.Context != nil {
			if done, here := o.mine[text]; !here || done || r.Context != text {
				o.broken = append(o.broken, fmt.Sprintf("%q is handed back as mine, %v %v", text, here, done))
			}
			o.mine[text] = true
		}
		if r.Count != uint32(len(text)+1) {
			o.broken = append(o.broken, fmt.Sprintf("%q has count %d", text, r.Count))
		}
		o.apply(r.Position, text)
	}
}

func (o *owner) onLost(records []*wal.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range records {
		text := r.Context.(string)
		if o.mine[text] || o.lost[text] {
			o.broken = append(o.broken, fmt.Sprintf("%q is lost and handed back", text))
		}
		delete(o.mine, text)
		o.lost[text] = true
	}
	o.cond.Broadcast()
}

func (o *owner) turn(leads bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leads == leads {
		o.broken = append(o.broken, fmt.Sprintf("OnLead and OnFollow out of turn: %v again", leads))
	}
	o.leads = leads
	o.turns = append(o.turns, leads)
}

// Snapshot sends the state.
func (o *owner) Snapshot(_ context.Context, position uint64, w io.Writer) error {
	o.mu.Lock()
	b := o.encode()
	o.mu.Unlock()
	for len(b) > 0 { // in pieces
		n := min(len(b), 7777)
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Restore takes in a state.
func (o *owner) Restore(position uint64, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var i image
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&i); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return errors.New("the process is gone")
	}
	if i.Applied < o.applied && o.applied < position {
		o.broken = append(o.broken, fmt.Sprintf("the state goes back from %d to %d", o.applied, i.Applied))
	}
	o.lines, o.applied = i.Lines, max(i.Applied, position)
	o.live = nil
	o.cond.Broadcast()
	return durable.ReplaceFile(o.path, o.encode(), 0o644)
}

// texts are the texts of the records, in order.
func (o *owner) texts() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	texts := make([]string, 0, len(o.lines))
	for _, l := range o.lines {
		texts = append(texts, l.Text)
	}
	return texts
}

func (o *owner) all() []line {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.lines)
}

// member is a node of one group.
type member struct {
	t       testing.TB
	net     network
	node    Node
	dir     string
	host    *host.Host
	log     *Log
	owner   *owner
	options func(*Options)
	tls     *tls.Config
}

// group is a cluster of one group on loopback.
type group struct {
	t       testing.TB
	net     network
	members map[Node]*member
	names   int
	unknown map[string]bool // records that were lost
}

// quick are settings with which elections don't make tests slow. Its KeepBytes lets the log go early.
func quick(o *Options) {
	o.HeartbeatTimeout, o.LeaseTimeout, o.CommitTimeout = 500*time.Millisecond, 400*time.Millisecond, 50*time.Millisecond
	o.KeepBytes, o.SegmentBytes, o.MaxEntryBytes = 1<<10, 8<<10, 700
	o.MinFreeBytes, o.MinFreePercent, o.DiskTimeout = -1, -1, -1
}

const testCluster = "test-cluster"

// newGroup starts n nodes that make a group.
func newGroup(t testing.TB, n int, options func(*Options)) *group {
	g := emptyGroup(t)
	var voters []Node
	for i := 1; i <= n; i++ {
		voters = append(voters, Node(i))
	}
	for _, v := range voters {
		m := g.add(v, func(o *Options) {
			o.Voters = voters
			if options != nil {
				options(o)
			}
		})
		m.start()
	}
	return g
}

func emptyGroup(t testing.TB) *group {
	return &group{t: t, net: network{testnet.New[Node]()}, members: map[Node]*member{}, unknown: map[string]bool{}}
}

// add makes a node that is not started.
func (g *group) add(n Node, options func(*Options)) *member {
	m := &member{t: g.t, net: g.net, node: n, dir: g.t.TempDir(), options: options}
	g.members[n] = m
	g.t.Cleanup(m.stop)
	return m
}

func testLogger(t testing.TB) *slog.Logger {
	level := slog.LevelError + 1
	if os.Getenv("MILLRACE_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("test", t.Name())
}

func (m *member) start() {
	m.t.Helper()
	require.NoError(m.t, m.tryStart())
}

func (m *member) tryStart() error {
	if err := m.open(); err != nil {
		return err
	}
	return m.log.Start()
}

// open does everything but Start.
func (m *member) open() (err error) {
	m.host, err = host.Listen(host.Options{Node: m.node, TLS: m.tls, Resolve: m.net.resolve, Logger: testLogger(m.t), Sockets: m.net.sockets(m.node)})
	if err != nil {
		return err
	}
	m.host.SetCluster(testCluster)
	m.owner = newOwner(filepath.Join(m.dir, "CHECKPOINT"))
	o := Options{Host: m.host, Disk: new(disk.Disk), Group: 7, Dir: filepath.Join(m.dir, "group"), State: m.owner, OnDurable: m.owner.onDurable, OnLost: m.owner.onLost,
		OnLead: func() { m.owner.turn(true) }, OnFollow: func() { m.owner.turn(false) }, Logger: testLogger(m.t).With("node", m.node),
		OnFailure: func(err error) {
			m.owner.mu.Lock()
			m.owner.failure = err
			m.owner.mu.Unlock()
		}}
	quick(&o)
	if m.options != nil {
		m.options(&o)
	}
	if err := m.owner.load(); err != nil {
		return err
	}
	if m.log, err = Open(o); err != nil {
		_ = m.host.Close()
		m.log = nil
		return err
	}
	m.owner.log = m.log
	from := m.owner.applied + 1
	if m.owner.applied == 0 {
		from = 0
	}
	return m.log.Replay(from, func(position uint64, count uint32, payload []byte) error {
		m.owner.mu.Lock()
		defer m.owner.mu.Unlock()
		m.owner.apply(position, string(payload))
		return nil
	})
}

// stop ends the node in order.
func (m *member) stop() {
	if m.log == nil {
		return
	}
	_ = m.log.Close()
	_ = m.host.Close()
	m.log = nil
}

// kill ends the node so that it looks like a crash to the others. Its connections end first, and its owner keeps
// nothing of what the node does from then on.
func (m *member) kill() {
	m.owner.mu.Lock()
	m.owner.gone = true
	m.owner.mu.Unlock()
	_ = m.host.Close()
	_ = m.log.Close()
	m.log = nil
}

func (m *member) append(text string) error {
	return m.appendRecord(text, false)
}

func (m *member) appendRecord(text string, urgent bool) error {
	m.owner.mu.Lock()
	m.owner.mine[text] = false
	m.owner.mu.Unlock()
	r := &wal.Record{Data: append(make([]byte, wal.HeaderBytes), text...), Count: uint32(len(text) + 1), Context: text, Urgent: urgent}
	err := m.log.Append(r)
	if err != nil {
		m.owner.mu.Lock()
		delete(m.owner.mine, text)
		m.owner.mu.Unlock()
	}
	return err
}

func (m *member) handedBack(text string) bool {
	m.owner.mu.Lock()
	defer m.owner.mu.Unlock()
	return m.owner.mine[text]
}

func (m *member) isLost(text string) bool {
	m.owner.mu.Lock()
	defer m.owner.mu.Unlock()
	return m.owner.lost[text]
}

// soon polls, with a deadline that only a fault reaches.
func soon(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); {
		if time.Now().After(deadline) {
			var all strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
			t.Fatalf("%s\nit never came: %s", all.String(), what) // the end of a long output is what is read
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// lookOn waits while nothing should happen, for hundreds of the times after which a node would stand for election. Each
// heartbeat of that time takes CPU, though the clock doesn't.
func lookOn() { time.Sleep(testsize.Of(time.Hour, 10*time.Minute, 10*time.Minute)) }

// leader waits for a leader among the nodes that are up.
func (g *group) leader(but ...Node) *member {
	g.t.Helper()
	var leader *member
	soon(g.t, "a leader", func() bool {
		for _, m := range g.members {
			if m.log != nil && m.log.Leads() && !slices.Contains(but, m.node) {
				leader = m
				return true
			}
		}
		return false
	})
	return leader
}

func (g *group) follower(but ...Node) *member {
	g.t.Helper()
	leader := g.leader()
	for n := Node(1); int(n) <= len(g.members); n++ {
		if m := g.members[n]; m != nil && m.log != nil && m != leader && !slices.Contains(but, n) {
			return m
		}
	}
	g.t.Fatal("no follower")
	return nil
}

// write appends records at the leader, whichever node that is, until n are acknowledged, and returns these. For records
// that were lost on the way (the machine is busy, and another node leads), nobody knows whether they are in the log.
func (g *group) write(n int) (texts []string) {
	g.t.Helper()
	for len(texts) < n {
		m := g.leader()
		var taken []string
		for range n - len(texts) {
			text := g.text()
			if m.append(text) != nil {
				break
			}
			taken = append(taken, text)
		}
		for _, text := range taken {
			soon(g.t, text, func() bool { return m.handedBack(text) || m.isLost(text) })
			if m.isLost(text) {
				g.unknown[text] = true
			} else {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

func (g *group) text() string {
	g.names++
	return fmt.Sprintf("record %d %s", g.names, bytes.Repeat([]byte{'x'}, rand.IntN(300)))
}

// texts are the texts of the records that the leader has, without those that were lost.
func (g *group) texts() []string {
	g.t.Helper()
	return slices.DeleteFunc(g.leader().owner.texts(), func(text string) bool { return g.unknown[text] })
}

// same waits until all nodes have the same records as the leader, at the same positions.
func (g *group) same(nodes ...Node) []line {
	g.t.Helper()
	want := g.leader().owner.all()
	for n, m := range g.members {
		if m.log == nil || len(nodes) > 0 && !slices.Contains(nodes, n) {
			continue
		}
		soon(g.t, fmt.Sprintf("node %d has all %d records", n, len(want)), func() bool { return len(m.owner.all()) >= len(want) })
		require.Equal(g.t, want, m.owner.all()[:len(want)], "node %d", n)
	}
	g.whole()
	return want
}

// agree commits n records and waits until all nodes that run have them.
func (g *group) agree(n int) {
	g.t.Helper()
	g.write(n)
	g.same()
}

// whole requires that no owner has seen anything that must not happen.
func (g *group) whole() {
	g.t.Helper()
	for n, m := range g.members {
		if m.owner == nil {
			continue
		}
		m.owner.mu.Lock()
		require.Empty(g.t, m.owner.broken, "node %d", n)
		m.owner.mu.Unlock()
	}
}
