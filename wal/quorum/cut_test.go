package quorum

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// logOnDisk is a store that is closed and opened again.
type logOnDisk struct {
	t   *testing.T
	dir string
	*store
}

func openLogOnDisk(t *testing.T) *logOnDisk {
	d := &logOnDisk{t: t, dir: t.TempDir()}
	w, err := createWitness(filepath.Join(d.dir, witnessName), 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.file.Close() })
	d.open(w)
	t.Cleanup(func() { _ = d.close() })
	return d
}

func (d *logOnDisk) open(w *witness) {
	var err error
	d.store, err = openStore(d.dir, 64<<10, 1<<20, hclog.NewNullLogger(), w, func(err error) error { return err })
	require.NoError(d.t, err)
}

func (d *logOnDisk) reopen() {
	d.t.Helper()
	w := d.witness
	require.NoError(d.t, d.close())
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

// What stays when the end of the log is deleted can be read, also by the next process, and the log goes on from there.
func TestEndIsCut(t *testing.T) {
	r := testseed.Rand(t)
	d := openLogOnDisk(t)
	want := d.append(nil, 1, 10, r)
	for term := uint64(2); term < 30; term++ {
		cut := 1 + r.IntN(len(want)-1)
		if r.IntN(3) > 0 { // mostly the newest entries
			cut = max(1, len(want)-1-r.IntN(10))
		}
		require.NoError(t, d.cutEnd(want[cut].Index))
		want = want[:cut:cut]
		if r.IntN(2) == 0 {
			d.reopen()
		}
		d.check(want)
		want = d.append(want, term, 1+r.IntN(40), r)
		if r.IntN(3) == 0 && len(want) > 20 { // the front goes, too
			require.NoError(t, d.cutFront(want[9].Index))
			want = want[10:]
		}
		if r.IntN(2) == 0 {
			d.reopen()
		}
		d.check(want)
	}
}

// Wherever a crash ends it, the next start deletes the end, and that alone.
func TestEndIsCutAfterCrash(t *testing.T) {
	r := testseed.Rand(t)
	for _, steps := range []int{1, 2, 3} {
		d := openLogOnDisk(t)
		want := d.append(nil, 1, 100, r) // several segments
		last := want[99].Index
		from := last - 4
		require.NoError(t, d.witness.lower(last-2))
		require.NoError(t, d.writeCut(want[from-1:98]))
		if steps > 1 {
			require.NoError(t, d.wal.DeleteRange(from, last))
		}
		if steps > 2 {
			require.NoError(t, d.wal.StoreLogs([]*raft.Log{sealLog(want[from-1]), sealLog(want[from]), sealLog(want[from+1])}))
		}
		d.reopen()
		d.check(want[:98])
		d.check(d.append(want[:98:98], 2, 10, r))
		d.reopen()
		_, err := d.LastIndex()
		require.NoError(t, err)
	}
}
