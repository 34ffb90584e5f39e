package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/wal/durable"
)

// logOnDisk is a store that is closed and opened again.
type logOnDisk struct {
	t   *testing.T
	dir string
	*Store
}

func openLogOnDisk(t *testing.T) *logOnDisk {
	d := &logOnDisk{t: t, dir: t.TempDir()}
	w, err := CreateHighWater(filepath.Join(d.dir, HighWaterName), 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	d.open(w)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func (d *logOnDisk) open(w *HighWater) {
	var err error
	d.Store, err = Open(d.dir, 64<<10, 1<<20, 4<<20, hclog.NewNullLogger(), w, func(err error) error { return err })
	require.NoError(d.t, err)
}

func (d *logOnDisk) reopen() {
	d.t.Helper()
	w := d.highWater
	require.NoError(d.t, d.Close())
	d.open(w)
}

// append writes entries and adds them to want.
func (d *logOnDisk) append(want []*raft.Log, term uint64, n int, r *rand.Rand) []*raft.Log {
	next := uint64(1)
	if len(want) > 0 {
		next = want[len(want)-1].Index + 1
	}
	var logs []*raft.Log
	for i := range n {
		l := &raft.Log{Index: next + uint64(i), Term: term, AppendedAt: time.Unix(int64(term), 5), Data: []byte(fmt.Sprint(term, " ", i, strings.Repeat("x", r.IntN(3000))))}
		if i%3 == 0 {
			l.Extensions, l.AppendedAt = []byte{1, 2}, time.Time{}
		}
		logs = append(logs, l)
	}
	require.NoError(d.t, d.StoreLogs(logs))
	return append(want, logs...)
}

func (d *logOnDisk) check(want []*raft.Log) {
	d.t.Helper()
	last, err := d.LastIndex()
	require.NoError(d.t, err)
	require.Equal(d.t, want[len(want)-1].Index, last)
	for _, l := range want {
		var got raft.Log
		require.NoError(d.t, d.GetLog(l.Index, &got))
		require.Equal(d.t, l.Data, got.Data)
		require.Equal(d.t, l.Term, got.Term)
		require.Equal(d.t, l.Extensions, got.Extensions)
		require.True(d.t, l.AppendedAt.Equal(got.AppendedAt))
	}
}

// When the end of the log is deleted, the entries that stay can be read, also by the next process, and the log goes on
// from there.
func TestEndIsCut(t *testing.T) {
	r := testseed.Rand(t)
	d := openLogOnDisk(t)
	want := d.append(nil, 1, 10, r)
	for term := uint64(2); term < 30; term++ {
		cut := 1 + r.IntN(len(want)-1)
		if r.IntN(3) > 0 { // mostly the newest entries
			cut = max(1, len(want)-1-r.IntN(10))
		}
		require.NoError(t, d.CutEnd(want[cut].Index))
		want = want[:cut:cut]
		if r.IntN(2) == 0 {
			d.reopen()
		}
		d.check(want)
		want = d.append(want, term, 1+r.IntN(40), r)
		if r.IntN(3) == 0 && len(want) > 20 { // the front goes, too
			require.NoError(t, d.CutFront(want[9].Index))
			want = want[10:]
		}
		if r.IntN(2) == 0 {
			d.reopen()
		}
		d.check(want)
	}
}

// A crash may come when the newest segment has its index at its end, or only a part of it, and the list of segments
// does not know that yet. The next process has all entries that were written, and goes on.
func TestCrashWhileSegmentIsSealed(t *testing.T) {
	r := testseed.Rand(t)
	segments := func(d *logOnDisk) []string {
		names, err := filepath.Glob(filepath.Join(d.dir, "*.wal"))
		require.NoError(t, err)
		return names
	}
	for _, torn := range []bool{false, true} {
		for _, trimmed := range []bool{false, true} {
			d := openLogOnDisk(t)
			want := d.append(nil, 1, 3, r)
			if trimmed {
				require.NoError(t, d.CutFront(want[0].Index))
				want = want[1:]
			}
			var list []byte
			before := want
			for len(segments(d)) < 2 {
				var err error
				list, err = os.ReadFile(filepath.Join(d.dir, metaName))
				require.NoError(t, err)
				before = want
				want = d.append(want, 1, 1, r)
				require.NoError(t, d.wal.DeleteRange(1<<60, 1<<60)) // waits for a segment that is being sealed
			}
			w := d.highWater
			require.NoError(t, d.Close())
			require.NoError(t, os.WriteFile(filepath.Join(d.dir, metaName), list, 0o644))
			require.NoError(t, os.Remove(segments(d)[1]))
			if torn { // the last write has lost its end, with a part of the index
				text, err := os.ReadFile(segments(d)[0])
				require.NoError(t, err)
				end := len(bytes.TrimRight(text, "\x00"))
				clear(text[end-16:])
				require.NoError(t, os.WriteFile(segments(d)[0], text, 0o644))
				want = before
			}
			d.open(w)
			d.check(want)
			for range 3 {
				want = d.append(want, 2, 20, r)
				d.reopen()
				d.check(want)
			}
		}
	}
}

// Damage is found when it is read and is final.
func TestDamagedEntry(t *testing.T) {
	r := testseed.Rand(t)
	for i := range 40 {
		d := openLogOnDisk(t)
		want := d.append(nil, 1, 60, r)
		files, err := filepath.Glob(filepath.Join(d.dir, "*.wal"))
		require.NoError(t, err)
		text, err := os.ReadFile(files[0])
		require.NoError(t, err)
		f, err := os.OpenFile(files[0], os.O_RDWR, 0)
		require.NoError(t, err)
		at := 100 + r.IntN(len(bytes.TrimRight(text, "\x00"))-100)
		_, err = f.WriteAt([]byte{text[at] ^ 1<<r.IntN(8)}, int64(at))
		require.NoError(t, errors.Join(err, f.Close()))
		d.forgetCache()
		damaged := 0
		for _, l := range want {
			var got raft.Log
			if err := d.GetLog(l.Index, &got); err != nil {
				damaged++
				continue
			}
			require.Equal(t, l.Data, got.Data, "round %d, byte %d", i, at)
			require.Equal(t, l.Term, got.Term, "round %d, byte %d", i, at)
		}
		if damaged > 0 {
			require.Error(t, d.broken())
			require.Error(t, d.StoreLogs([]*raft.Log{{Index: 61, Term: 1}}))
			require.Error(t, d.SetUint64([]byte("CurrentTerm"), 2))
			require.Error(t, d.CutEnd(60))
		}
	}
}

// Term and candidate of a vote are on disk together or not at all.
func TestVote(t *testing.T) {
	d := openLogOnDisk(t)
	vote := func() (uint64, string) {
		term, err := d.GetUint64(keyVoteTerm)
		require.NoError(t, err)
		candidate, err := d.Get(keyVoteCandidate)
		require.NoError(t, err)
		return term, string(candidate)
	}
	term, candidate := vote()
	require.Zero(t, term)
	require.Empty(t, candidate)
	require.NoError(t, d.SetUint64(keyVoteTerm, 4))
	require.NoError(t, d.Set(keyVoteCandidate, []byte("2")))
	d.reopen()
	term, candidate = vote()
	require.EqualValues(t, 4, term)
	require.Equal(t, "2", candidate)
	require.NoError(t, d.SetUint64(keyVoteTerm, 5))
	d.reopen() // a crash before the candidate
	term, candidate = vote()
	require.EqualValues(t, 4, term)
	require.Equal(t, "2", candidate)
	require.NoError(t, d.SetUint64([]byte("CurrentTerm"), 9))
	d.reopen()
	current, err := d.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.EqualValues(t, 9, current)
}

func TestHighWaterMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), HighWaterName)
	w, err := CreateHighWater(path, 5)
	require.NoError(t, err)
	reopen := func(want uint64) {
		t.Helper()
		require.NoError(t, w.Close())
		w, err = OpenHighWater(path)
		require.NoError(t, err)
		require.Equal(t, want, w.index)
	}
	reopen(5)
	require.NoError(t, w.advance(7))
	require.NoError(t, w.advance(6))
	reopen(7)
	require.NoError(t, w.advance(9))
	require.NoError(t, w.Settle())
	require.NoError(t, w.Settle())
	reopen(9)
	require.NoError(t, w.lower(3))
	require.NoError(t, w.lower(8))
	reopen(3)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for slot := range durable.SlotCount {
		text[slot*durable.SlotSpacing+7] = '1'
	}
	require.NoError(t, os.WriteFile(path, text, 0o644))
	_, err = OpenHighWater(path)
	require.ErrorContains(t, err, "format 1, this program has format 2")
	clear(text)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	_, err = OpenHighWater(path)
	require.Error(t, err)
}

// The newest entries are kept in memory, as many as there is room for; others are read from the disk.
func TestCacheIsBounded(t *testing.T) {
	d := openLogOnDisk(t)
	d.cacheable = 10_000
	for i := uint64(1); i <= 100; i++ {
		require.NoError(t, d.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, 1000)}}))
		require.LessOrEqual(t, d.cached, 10_000)
	}
	require.Len(t, d.cache, 9)
	for i := uint64(1); i <= 100; i++ {
		var got raft.Log
		require.NoError(t, d.GetLog(i, &got))
		require.Equal(t, byte(i), got.Data[0])
	}
}
