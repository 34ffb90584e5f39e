// Package store keeps raft's state on disk: the log, the term and vote, and the high-water mark, which tells a log that
// has lost its end from one whose last write was torn.
package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"millrace/wal"
)

// Store is raft's log and its few words of memory (term and vote). It is hashicorp/raft-wal, with
//
//   - a checksum of each entry, which every read checks, and the HighWater, so that damaged and missing entries are
//     found;
//   - failures that are final: after a failed write nothing is written any more;
//   - deletions at the front only up to what the owner of the records has released (Release), whatever raft believes
//     its snapshots to hold;
//   - the term of the marker's index, even when that entry is gone. A follower whose log begins after its marker must
//     be able to say that it has that entry. Otherwise leader and follower would never find a common entry, nor a
//     snapshot that is newer;
//   - term and vote of a ballot in one write;
//   - the newest entries in memory, since each is read back once for each follower.
type Store struct {
	wal       *raftwal.WAL
	codec     *codec
	meta      *metadb.BoltMetaDB
	highWater *HighWater
	fail      func(error) error // reports a final failure, and returns it
	spacing   uint64            // distance of marks, in bytes
	cacheable int               // how many bytes of the newest entries stay in memory
	// Around is called before entries, or term and vote, are written, and the function that it returns after that. May
	// be nil.
	Around func(isEntries bool) (after func())

	mu     sync.Mutex // guards all fields below
	failed error
	marker entry  // the last entry of the snapshot
	all    uint64 // all entries up to this index may go: the state has been restored from elsewhere
	marks  []mark // by index
	bytes  uint64 // of all entries ever, counted from the first mark
	cache  []*raft.Log
	cached int
	voteIn uint64 // the term of a vote whose candidate is not written yet
}

type entry struct{ index, term uint64 }

// mark says how many bytes precede an entry.
type mark struct{ index, before uint64 }

const (
	entryBytes     = 28 // about what an entry takes besides its data
	maxMarkSpacing = 256 << 10
)

// metaName is the file with the library's list of segments.
const metaName = "wal-meta.db"

// Check returns an error when a directory has no log: the library would begin a new one, and delete what is there.
func Check(dir string) error {
	_, err := os.Stat(filepath.Join(dir, metaName))
	return err
}

// Open opens or creates the log in an existing directory. The caller checks that the log fits the marker.
func Open(
	dir string, segmentBytes int, keepBytes int64, cacheBytes int, logger hclog.Logger, w *HighWater,
	fail func(error) error,
) (*Store, error) {
	s := &Store{meta: &metadb.BoltMetaDB{}, codec: &codec{}, highWater: w, fail: fail,
		spacing: uint64(min(maxMarkSpacing, keepBytes/16)), cacheable: cacheBytes}
	err := repairTail(dir, s.meta)
	if err == nil {
		s.wal, err = raftwal.Open(dir, raftwal.WithMetaStore(s.meta), raftwal.WithSegmentSize(segmentBytes),
			raftwal.WithLogger(logger), raftwal.WithCodec(s.codec))
	}
	if err != nil {
		_ = s.meta.Close()
		return nil, err
	}
	if err := s.measure(dir); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// measure makes marks of the existing segments. They are approximate, since the newest segment has spare room at its
// end.
func (s *Store) measure(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		base, _, ok := strings.Cut(f.Name(), "-")
		var index uint64
		if _, err := fmt.Sscanf(base, "%d", &index); err != nil || !ok || filepath.Ext(f.Name()) != ".wal" {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return err
		}
		s.marks = append(s.marks, mark{index: index, before: uint64(info.Size())})
	}
	sort.Slice(s.marks, func(i, k int) bool { return s.marks[i].index < s.marks[k].index })
	for i := range s.marks { // from sizes to sums
		s.marks[i].before, s.bytes = s.bytes, s.bytes+s.marks[i].before
	}
	return nil
}

// Close closes the files, apart from the high-water mark.
func (s *Store) Close() error {
	return errors.Join(s.wal.Close(), s.meta.Close())
}

// broken returns the error that the store has failed with, or nil.
func (s *Store) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *Store) breakDown(err error) error {
	s.mu.Lock()
	if s.failed == nil {
		s.failed = err
	}
	s.mu.Unlock()
	return s.fail(err)
}

// FirstIndex is the index of the first entry, 0 when there is none.
func (s *Store) FirstIndex() (uint64, error) { return s.wal.FirstIndex() }

// LastIndex is the index of the last entry, 0 when there is none.
func (s *Store) LastIndex() (uint64, error) { return s.wal.LastIndex() }

// IsMonotonic says that indexes have no gaps, so that raft empties the log when it takes in a snapshot.
func (s *Store) IsMonotonic() bool { return true }

// GetLog reads an entry. Damage is final.
func (s *Store) GetLog(index uint64, log *raft.Log) error {
	s.mu.Lock()
	if n := len(s.cache); n > 0 && index >= s.cache[0].Index && index <= s.cache[n-1].Index {
		*log = *s.cache[index-s.cache[0].Index]
		s.mu.Unlock()
		return nil
	}
	marker := s.marker
	s.mu.Unlock()
	err := s.read(index, log)
	switch {
	case err == nil, errors.Is(err, raftwal.ErrClosed):
		return err
	case errors.Is(err, raft.ErrLogNotFound):
		if index == marker.index && index > 1 {
			*log = raft.Log{Index: marker.index, Term: marker.term, Type: raft.LogNoop}
			return nil
		}
		return raft.ErrLogNotFound // unwrapped, because raft compares with ==
	}
	return s.breakDown(fmt.Errorf("read entry %d: %w", index, err))
}

// StoreLog writes an entry.
func (s *Store) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs writes entries durably.
func (s *Store) StoreLogs(logs []*raft.Log) error {
	if err := s.broken(); err != nil {
		return err
	}
	if len(logs) == 0 {
		return nil
	}
	last := logs[len(logs)-1].Index
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		sealed[i] = sealLog(l)
	}
	if s.Around != nil {
		defer s.Around(true)()
	}
	err := s.wal.StoreLogs(sealed)
	s.codec.written()
	if err == nil {
		err = s.highWater.advance(last)
	}
	if err != nil {
		return s.breakDown(fmt.Errorf("write the entries %d to %d: %w", logs[0].Index, last, err))
	}
	s.remember(logs)
	return nil
}

func (s *Store) remember(logs []*raft.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.cache); n > 0 && s.cache[n-1].Index+1 != logs[0].Index {
		s.forgetCache()
	}
	for _, l := range logs {
		size := len(l.Data) + entryBytes
		if n := len(s.marks); n == 0 || s.bytes-s.marks[n-1].before >= s.spacing {
			s.marks = append(s.marks, mark{index: l.Index, before: s.bytes})
		}
		s.bytes += uint64(size)
		s.cache = append(s.cache, l)
		s.cached += size
	}
	drop := 0
	for s.cached > s.cacheable && drop < len(s.cache) {
		s.cached -= len(s.cache[drop].Data) + entryBytes
		drop++
	}
	if drop > 0 {
		clear(s.cache[:drop])
		s.cache = s.cache[drop:]
	}
}

func (s *Store) forgetCache() { s.cache, s.cached = nil, 0 }

// DeleteRange lets raft delete the end of the log, which the group has not accepted, and the whole log after a restored
// snapshot. Other deletions at the front are up to the owner, and happen in Release.
func (s *Store) DeleteRange(from, to uint64) error {
	s.mu.Lock()
	marker, all := s.marker.index, s.all
	s.mu.Unlock()
	if to <= marker {
		return s.CutFront(min(to, all))
	}
	if from <= marker {
		return fmt.Errorf("BUG: quorum: deletion of the entries %d to %d, across the snapshot at %d", from, to, marker)
	}
	return s.CutEnd(from)
}

// CutFront deletes the entries up to index.
func (s *Store) CutFront(index uint64) error {
	if err := s.broken(); err != nil {
		return err
	}
	first, err := s.wal.FirstIndex()
	if err != nil || first == 0 || index < first {
		return err
	}
	if err := s.wal.DeleteRange(first, index); err != nil {
		return s.breakDown(fmt.Errorf("delete the entries %d to %d: %w", first, index, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetCache()
	keep := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index > index+1 })
	s.marks = s.marks[max(keep-1, 0):]
	return nil
}

// CutEnd deletes the entries from index on. The high-water mark is lowered first: if the process ends in between, the
// log has more than the mark says.
func (s *Store) CutEnd(index uint64) error {
	if err := s.broken(); err != nil {
		return err
	}
	last, err := s.wal.LastIndex()
	if err != nil || index > last {
		return err
	}
	if err := s.highWater.lower(index - 1); err != nil {
		return s.breakDown(fmt.Errorf("write the high-water mark: %w", err))
	}
	if err := s.wal.DeleteRange(index, last); err != nil {
		return s.breakDown(fmt.Errorf("delete the entries %d to %d: %w", index, last, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetCache()
	s.bytes = s.beforeLocked(index)
	keep := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index >= index })
	s.marks = s.marks[:keep]
	return nil
}

// SetMarker says with which entry the snapshot ends. restored says that the state came from elsewhere, and that no
// entry up to the marker is needed.
func (s *Store) SetMarker(index, term uint64, restored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marker = entry{index, term}
	if restored {
		s.all = index
	}
}

// Release deletes entries up to index, as far as the snapshot covers them.
func (s *Store) Release(index uint64) error {
	s.mu.Lock()
	index = min(index, s.marker.index)
	s.mu.Unlock()
	return s.CutFront(index)
}

// SizeBefore is about how many bytes of the log precede an entry.
func (s *Store) SizeBefore(index uint64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 {
		return 0
	}
	return int64(s.beforeLocked(index) - s.marks[0].before)
}

func (s *Store) beforeLocked(index uint64) uint64 {
	i := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index >= index })
	switch {
	case i < len(s.marks):
		return s.marks[i].before
	default:
		return s.bytes
	}
}

// IndexAt returns an entry that has at most the given number of bytes of the log before it, and about the last such
// entry.
func (s *Store) IndexAt(bytes int64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 || bytes < 0 {
		return 0
	}
	i := sort.Search(len(s.marks), func(i int) bool { return int64(s.marks[i].before-s.marks[0].before) > bytes })
	return s.marks[max(i-1, 0)].index
}

// Size is about how many bytes the log has.
func (s *Store) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 {
		return 0
	}
	return int64(s.bytes - s.marks[0].before)
}

// Raft writes a vote in two steps: the term, then the candidate. After a crash in between, it would take the candidate
// of an earlier term for that of the current one.
var keyVoteTerm, keyVoteCandidate, keyVote = []byte("LastVoteTerm"), []byte("LastVoteCand"), []byte("Vote")

// Set stores a value durably.
func (s *Store) Set(key, value []byte) error {
	if string(key) == string(keyVoteCandidate) {
		s.mu.Lock()
		term := s.voteIn
		s.mu.Unlock()
		key, value = keyVote, append(binary.LittleEndian.AppendUint64(nil, term), value...)
	}
	if err := s.broken(); err != nil {
		return err
	}
	if s.Around != nil {
		defer s.Around(false)()
	}
	if err := s.wal.Set(key, value); err != nil {
		return s.breakDown(fmt.Errorf("write %s: %w", key, err))
	}
	return nil
}

// Get reads a value; it is empty when there is none.
func (s *Store) Get(key []byte) ([]byte, error) {
	if string(key) != string(keyVoteCandidate) {
		return s.wal.Get(key)
	}
	_, candidate, err := s.vote()
	return candidate, err
}

// SetUint64 stores a number durably; it stores the term of a vote only together with its candidate.
func (s *Store) SetUint64(key []byte, value uint64) error {
	if string(key) == string(keyVoteTerm) {
		s.mu.Lock()
		s.voteIn = value
		s.mu.Unlock()
		return nil
	}
	return s.Set(key, binary.LittleEndian.AppendUint64(nil, value))
}

// GetUint64 reads a number; it is 0 when there is none.
func (s *Store) GetUint64(key []byte) (uint64, error) {
	if string(key) != string(keyVoteTerm) {
		return s.wal.GetUint64(key)
	}
	term, _, err := s.vote()
	return term, err
}

func (s *Store) vote() (term uint64, candidate []byte, err error) {
	b, err := s.wal.Get(keyVote)
	if err != nil || len(b) < 8 {
		return 0, nil, err
	}
	return binary.LittleEndian.Uint64(b), b[8:], nil
}

// sealLog gives an entry a checksum, placed after its extensions. The library itself checks only what it wrote last
// before a crash, and nothing that it reads later.
func sealLog(l *raft.Log) *raft.Log {
	sealed := *l
	sealed.Extensions = binary.LittleEndian.AppendUint32(l.Extensions[:len(l.Extensions):len(l.Extensions)],
		checksum(l))
	return &sealed
}

// openLog checks an entry and removes its checksum.
func openLog(l *raft.Log) error {
	n := len(l.Extensions) - 4
	if n < 0 {
		return fmt.Errorf("%w: entry %d has no checksum", wal.ErrCorrupt, l.Index)
	}
	sum := binary.LittleEndian.Uint32(l.Extensions[n:])
	if l.Extensions = l.Extensions[:n:n]; n == 0 {
		l.Extensions = nil
	}
	if sum != checksum(l) {
		return fmt.Errorf("%w: entry %d fails its checksum", wal.ErrCorrupt, l.Index)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(l *raft.Log) uint32 {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[0:], l.Index)
	binary.LittleEndian.PutUint64(b[8:], l.Term)
	b[16] = byte(l.Type)
	sum := crc32.Checksum(b[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, l.Extensions)
}

// read reads an entry from the disk and checks it. The library's decoder may panic on damaged data.
func (s *Store) read(index uint64, log *raft.Log) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: entry %d: %v", wal.ErrCorrupt, index, r)
		}
	}()
	if err := s.wal.GetLog(index, log); err != nil {
		return err
	}
	if log.Index != index {
		return fmt.Errorf("%w: entry %d is at the place of %d", wal.ErrCorrupt, log.Index, index)
	}
	return openLog(log)
}

// Logs is the store as raft sees it. Where raft would panic because of an error that is final and already reported, its
// goroutine ends instead.
type Logs struct{ *Store }

// GetLog reads an entry.
func (s Logs) GetLog(index uint64, log *raft.Log) error {
	err := s.Store.GetLog(index, log)
	if err != nil && s.broken() != nil {
		runtime.Goexit()
	}
	return err
}

// SetUint64 stores a number.
func (s Logs) SetUint64(key []byte, value uint64) error {
	err := s.Store.SetUint64(key, value)
	if err != nil && s.broken() != nil {
		runtime.Goexit()
	}
	return err
}
