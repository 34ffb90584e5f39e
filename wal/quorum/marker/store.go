package marker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"millrace/wal/durable"
	"millrace/wal/quorum/host"
	"millrace/wal/quorum/store"
)

// Store is raft's store of snapshots. Its methods are safe for concurrent use.
type Store struct {
	opts Options

	mu         sync.Mutex // guards all fields below
	cur        Marker
	marking    bool      // this node's own marker is being made
	installing bool      // the state of another node is being taken in
	incoming   *Marker   // the marker of that state
	from       host.Node // the node that has that state
	sending    map[uint64]int
}

// Options say what a Store belongs to. All are required.
type Options struct {
	Path string    // of the file
	Self host.Node // where other nodes get the state
	Log  *store.Store
	// HandedBack is the index of the last entry that was handed back.
	HandedBack func() uint64
	// Rejoin removes the end of the log from an entry on, since it contradicts the group's, and starts raft anew.
	Rejoin func(index uint64)
	// Fail is told that the file could not be written, and returns what that means.
	Fail func(error) error
}

// NewStore makes a Store with the marker that the file has, a zero one when there is none.
func NewStore(o Options, cur Marker) *Store {
	return &Store{opts: o, cur: cur, sending: map[uint64]int{}}
}

// List returns the marker.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.Index == 0 {
		return nil, nil
	}
	return []*raft.SnapshotMeta{s.cur.meta(s.cur.id())}, nil
}

// Create begins a marker: this node's own, when the state machine says so (Own), or one that comes from the leader.
func (s *Store) Create(
	_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &sink{s: s, m: Marker{Version: Version, Index: index, Term: term, Configuration: c,
		ConfigurationIndex: configurationIndex}}, nil
}

// Open returns what is sent to a node that lacks too much: a locator, with which that node fetches the state from this
// one. Until the locator is closed, the log keeps what the receiver will need afterwards. On the receiver, Open returns
// the locator for the state machine.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming != nil && id == incomingID(s.incoming) {
		return s.incoming.meta(id), io.NopCloser(bytes.NewReader(nil)), nil
	}
	if id != s.cur.id() {
		return nil, nil, fmt.Errorf("quorum: snapshot %s is superseded", id)
	}
	index := s.cur.Index
	s.sending[index]++
	return s.cur.meta(id), &locator{bytes.NewReader(newLocator(s.opts.Self)), sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sending[index]--; s.sending[index] == 0 {
			delete(s.sending, index)
		}
	})}, nil
}

func incomingID(m *Marker) string { return "from-leader-" + m.id() }

// InTransit returns the oldest marker that is being sent.
func (s *Store) InTransit() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.sending {
		if !ok || i < index {
			index, ok = i, true
		}
	}
	return index, ok
}

// Current returns the marker.
func (s *Store) Current() Marker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// Save replaces the current marker.
func (s *Store) Save(m Marker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Index < s.cur.Index {
		return fmt.Errorf("quorum: the marker stands at %d and does not go back to %d", s.cur.Index, m.Index)
	}
	if err := durable.ReplaceFile(s.opts.Path, durable.SealText(m), 0o644); err != nil {
		return s.opts.Fail(fmt.Errorf("write the marker: %w", err))
	}
	s.cur = m
	return nil
}

// Mark makes a marker of what has been handed back, by a snapshot of raft.
func (s *Store) Mark(snapshot func() error) error {
	s.mu.Lock()
	if s.installing || s.marking {
		s.mu.Unlock()
		return errors.New("quorum: another snapshot is under way")
	}
	s.marking = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.marking = false
		s.mu.Unlock()
	}()
	return snapshot()
}

// Incoming returns the marker of a state that is being taken in, and the node that has that state; nil when there is
// none. The caller puts the state in place, saves the marker, and then, or after a failure, calls Done.
func (s *Store) Incoming() (m *Marker, from host.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incoming, s.from
}

// Done ends the taking in of a state.
func (s *Store) Done() {
	s.mu.Lock()
	s.installing, s.incoming = false, nil
	s.mu.Unlock()
}

// admit judges a snapshot that the leader wants this node to take in. Raft would take any. When a message comes late,
// it would go back to before what was handed back. It would also keep the end of a log that contradicts the snapshot,
// take that end for entries that it has, and then neither accept the leader's next entries nor vote as it should. Raft
// calls admit from its main goroutine, so nothing changes meanwhile.
func (s *Store) admit(m *Marker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marking || s.installing {
		return errors.New("quorum: another snapshot is under way; try again")
	}
	last, err := s.opts.Log.LastIndex()
	if err != nil {
		return err
	}
	passed := s.opts.HandedBack()
	switch {
	case m.Is(&s.cur) && last <= m.Index && passed == m.Index: // the leader did not hear that it is done
	case m.Index <= passed:
		return fmt.Errorf("quorum: a snapshot at %d is late: %d is handed back", m.Index, passed)
	case last >= m.Index:
		var e raft.Log
		if err := s.opts.Log.GetLog(m.Index, &e); err != nil {
			return err
		}
		if e.Term == m.Term {
			return fmt.Errorf("quorum: a snapshot at %d is late: the log has that entry", m.Index)
		}
		go s.opts.Rejoin(m.Index)
		return fmt.Errorf("quorum: the log contradicts the snapshot at %d; its end is removed first", m.Index)
	}
	s.installing = true
	return nil
}

// sink takes a marker from raft.
type sink struct {
	s      *Store
	m      Marker
	own    bool
	got    []byte
	begun  bool
	closed bool
}

// Own says that what Create has begun is this node's own marker.
func Own(s raft.SnapshotSink) { s.(*sink).own = true }

// ID names the marker once it is complete.
func (k *sink) ID() string {
	if k.own {
		return k.m.id()
	}
	return incomingID(&k.m)
}

// Write takes the leader's locator. The first Write decides whether the state is taken in at all.
func (k *sink) Write(p []byte) (int, error) {
	if !k.begun {
		if err := k.s.admit(&k.m); err != nil {
			return 0, err
		}
		k.begun = true
	}
	k.got = append(k.got, p[:min(len(p), snapshotBytes-len(k.got))]...)
	return len(p), nil
}

// Close completes the marker. This node's own marker is then durable; one from the leader is durable only after the
// state has been restored.
func (k *sink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if k.own {
		if err := k.s.Save(k.m); err != nil {
			return err
		}
		k.s.opts.Log.SetMarker(k.m.Index, k.m.Term, false)
		return nil
	}
	from, err := parseLocator(k.got)
	if err != nil {
		k.s.Done()
		return err
	}
	k.s.mu.Lock()
	k.s.incoming, k.s.from = &k.m, from
	k.s.mu.Unlock()
	return nil
}

// Cancel drops the marker.
func (k *sink) Cancel() error {
	if k.begun && !k.closed {
		k.s.Done()
	}
	k.closed = true
	return nil
}
