package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/durable"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/marker"
	"millrace/wal/quorum/store"
)

// Open opens the log, or creates it, and serves nothing yet: the caller replays (Replay), then calls Start. Errors:
// wal.ErrCorrupt when something is damaged or missing, or an error of the file system.
func Open(o Options) (*Log, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l := &Log{
		opts: o, host: o.Host, self: o.Host.Node(), proposer: rand.Uint64(),
		room: wal.Room{Floor: wal.Floor{MinFreeBytes: o.MinFreeBytes, MinFreePercent: o.MinFreePercent},
			Logger: o.Logger.With("group", o.Group)},
		proposed: make(chan struct{}), stop: make(chan struct{}),
		leadership: leadership{wake: make(chan struct{}, 1)},
	}
	l.wake.L = &l.mu
	l.queue.flying = map[uint64]*proposal{}
	l.machine = &machine{l: l}
	if err := l.open(); err != nil {
		l.release()
		return nil, fmt.Errorf("open the log of group %d in %q: %w", o.Group, o.Dir, err)
	}
	return l, nil
}

// Seed creates the log of a new group whose state was made elsewhere, imported or restored from a backup, before there
// is a node that could open it. base is the last position of that state. The group has one voter, node, which adds
// others later. Seed returns the position after which the log begins, which is base or above; the state must then claim
// to have everything up to there. The log is on disk when Seed returns. dir must not have a log.
func Seed(dir string, group uint32, node Node, base uint64, logger *slog.Logger) (begin uint64, err error) {
	if _, err := os.Stat(filepath.Join(dir, identityName)); err == nil {
		return 0, fmt.Errorf("%q has a log already", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	// There is a state even if no position was ever given out for it.
	l := &Log{opts: Options{Group: group, Dir: dir, Voters: []Node{node}, Base: max(base, 1), Disk: new(disk.Disk),
		Logger: logger},
		self: node}
	l.opts.EnsureDefaults()
	defer l.release()
	if err := l.open(); err != nil {
		return 0, fmt.Errorf("make the log of group %d in %q: %w", group, dir, err)
	}
	return endOf(l.identity.Base), errors.Join(durable.SyncDir(nil, l.path(logDir)), durable.SyncDir(nil, dir))
}

func (l *Log) path(name string) string { return filepath.Join(l.opts.Dir, name) }

func (l *Log) open() (err error) {
	if err := wal.MakeDir(nil, l.opts.Dir); err != nil {
		return err
	}
	if l.lock, err = durable.Lock(l.path("LOCK")); err != nil {
		return err
	}
	b, err := os.ReadFile(l.path(identityName))
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.opts.MustExist:
		err = corrupt("%w", err)
	case errors.Is(err, fs.ErrNotExist):
		err = l.create()
	case err == nil:
		err = l.reopen(b)
	}
	if err != nil {
		return err
	}
	l.newcomer.is.Store(l.identity.Newcomer)
	m := l.markers.Current()
	l.store.SetMarker(m.Index, m.Term, false)
	if err := l.findLast(); err != nil {
		return err
	}
	l.pass(l.marked())
	return nil
}

// create makes a new log. It removes what a crash has left of an earlier attempt: nobody has heard of such a log before
// the file GROUP exists.
func (l *Log) create() (err error) {
	if err := os.RemoveAll(l.path(logDir)); err != nil {
		return err
	}
	if err := wal.MakeDir(nil, l.path(logDir)); err != nil {
		return err
	}
	id := identity{Version: identityVersion, Group: l.opts.Group, Node: l.self, Newcomer: len(l.opts.Voters) == 0}
	var m marker.Marker
	if len(l.opts.Voters) > 0 {
		id.Base = firstBase
		if l.opts.Base > 0 {
			id.Base = max(indexOf(l.opts.Base)+1, firstBase+1)
		}
		m = marker.Marker{Version: marker.Version, Index: id.Base, Term: 1, ConfigurationIndex: id.Base}
		for _, n := range l.opts.Voters {
			m.Configuration.Servers = append(m.Configuration.Servers, raft.Server{ID: idOf(n), Address: addressOf(n)})
		}
	}
	if l.highWater, err = store.CreateHighWater(l.path(store.HighWaterName), m.Index); err != nil {
		return err
	}
	if err := l.openStore(); err != nil {
		return err
	}
	l.openMarkers(marker.Marker{})
	// A group begins as if it had a snapshot of what was before it: of nothing, or of the state that was made
	// elsewhere.
	if m.Index > 0 {
		if err := l.store.SetUint64([]byte("CurrentTerm"), m.Term); err != nil {
			return err
		}
		if err := l.markers.Save(m); err != nil {
			return err
		}
	} else if err := os.Remove(l.path(marker.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.identity = id
	return durable.ReplaceFile(l.path(identityName), durable.SealText(id), 0o644)
}

func (l *Log) openStore() (err error) {
	l.store, err = store.Open(l.path(logDir), l.opts.SegmentBytes, l.opts.KeepBytes, l.opts.CacheBytes,
		newLogger(l.opts.Logger), l.highWater, l.fail)
	if err != nil {
		return err
	}
	l.writing, l.trying = l.opts.Disk.Watch(l.opts.DiskTimeout), l.opts.Disk.Watch(l.opts.DiskTimeout)
	l.store.Around = func(isEntries bool) (after func()) {
		l.writing.Begin()
		if isEntries && l.opts.hooks.write != nil {
			l.opts.hooks.write()
		}
		return l.writing.End
	}
	return nil
}

func (l *Log) openMarkers(cur marker.Marker) {
	l.markers = marker.NewStore(marker.Options{Path: l.path(marker.Name), Self: l.self, Log: l.store,
		HandedBack: l.passed.index.Load, Rejoin: l.rejoin, Fail: l.fail}, cur)
}

// reopen opens an existing log, and refuses one that has less than this node has promised.
func (l *Log) reopen(b []byte) (err error) {
	if err := durable.UnsealText(b, &l.identity); err != nil {
		return corrupt("file %s: %w", identityName, err)
	}
	switch id := l.identity; {
	case id.Version != identityVersion:
		return fmt.Errorf("it has format %d, and this program knows %d", id.Version, identityVersion)
	case id.Group != l.opts.Group || id.Node != l.self:
		return fmt.Errorf("it is that of group %d on node %d", id.Group, id.Node)
	}
	if err := store.Check(l.path(logDir)); err != nil {
		return unreadable(err)
	}
	if l.highWater, err = store.OpenHighWater(l.path(store.HighWaterName)); err != nil {
		return unreadable(err)
	}
	m, err := marker.Read(l.path(marker.Name))
	if err != nil {
		return err
	}
	if err := l.openStore(); err != nil {
		return unreadable(err)
	}
	l.openMarkers(m)
	return l.check()
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", wal.ErrCorrupt, fmt.Errorf(format, args...))
}

// unreadable is the error for a part of the log that can't be read. It is damaged, unless another version has written
// it, or the system doesn't let this process open it: who takes such a log for damaged gives up one that is sound.
func unreadable(err error) error {
	for _, sound := range []error{durable.ErrFormat, syscall.EMFILE, syscall.ENFILE, fs.ErrPermission} {
		if errors.Is(err, sound) {
			return err
		}
	}
	return corrupt("%w", err)
}

// check compares marker, log and high-water mark. It finishes what a crash during a restore has left unfinished.
func (l *Log) check() error {
	m := l.markers.Current()
	first, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.store.LastIndex()
	if err != nil {
		return err
	}
	if promised := l.highWater.Index(); max(last, m.Index) < promised {
		return corrupt("the log ends at entry %d, the snapshot at %d, and there were entries up to %d", last, m.Index,
			promised)
	}
	if first > m.Index+1 {
		return corrupt("the log begins at entry %d, behind the snapshot at %d", first, m.Index)
	}
	if last > 0 && last < m.Index {
		if !m.Restored {
			return corrupt("the log ends at entry %d, before the marker at %d", last, m.Index)
		}
		return l.store.CutFront(last) // the process ended before it could do that
	}
	for i := m.Index + 1; i <= last; i++ { // raft will read all of them, and panic on a bad one
		if err := l.store.GetLog(i, new(raft.Log)); err != nil {
			return corrupt("%w", err)
		}
	}
	return nil
}

// findLast finds the last record that Replay gives, so that DurablePosition is the position of a record. When there is
// no such record, but a state stands for what came before the log, DurablePosition is the end of that state: a barrier
// must not tell a node that lacks the state that it has everything.
func (l *Log) findLast() error {
	m := l.markers.Current()
	first, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	for i := m.Index; first > 0 && i >= first; i-- {
		n, err := l.recordsOf(i)
		if err != nil {
			return corrupt("%w", err)
		}
		if n > 0 {
			l.passed.position.Store(position(i, n-1))
			return nil
		}
	}
	if m.Index > firstBase || m.Restored {
		l.passed.position.Store(endOf(m.Index))
	}
	return nil
}

func (l *Log) recordsOf(index uint64) (int, error) {
	var e raft.Log
	if err := l.store.GetLog(index, &e); err != nil || e.Type != raft.LogCommand {
		return 0, err
	}
	h, err := openEntry(e.Data)
	return h.records, err
}
