package quorum

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/wal"
)

func randomRecords(r *rand.Rand) (records []*wal.Record) {
	for range r.IntN(20) {
		data := make([]byte, wal.HeaderBytes+r.IntN(100))
		for i := range data {
			data[i] = byte(r.IntN(256))
		}
		records = append(records, &wal.Record{Data: data, Count: 1 + r.Uint32N(1000)})
	}
	return records
}

func recordsOf(index uint64, data []byte) ([]*wal.Record, error) {
	h, err := openEntry(data)
	if err != nil {
		return nil, err
	}
	return h.appendRecords(nil, index, data)
}

func TestEntry(t *testing.T) {
	r := testseed.Rand(t)
	for range 300 {
		records := randomRecords(r)
		b := encodeEntry(r.Uint64(), r.Uint64(), records)
		size := entryHeaderBytes
		for _, record := range records {
			size += entrySize(record)
		}
		require.Len(t, b, size)
		got, err := recordsOf(77, b)
		require.NoError(t, err)
		require.Len(t, got, len(records))
		for i, record := range got {
			require.Equal(t, records[i].Data[wal.HeaderBytes:], record.Data[wal.HeaderBytes:])
			require.Equal(t, records[i].Count, record.Count)
			require.Equal(t, position(77, i), record.Position)
			require.Equal(t, len(record.Data), cap(record.Data), "to append to one must not write to the next")
			require.Nil(t, record.Context)
		}
	}
}

func TestDamagedEntryIsRefused(t *testing.T) {
	r := testseed.Rand(t)
	for range 300 {
		b := encodeEntry(1, 2, randomRecords(r))
		damaged := bytes.Clone(b)
		damaged[r.IntN(len(b))] ^= 1 << r.IntN(8)
		for _, bad := range [][]byte{damaged, b[:r.IntN(len(b))], append(bytes.Clone(b), 0)} {
			_, err := recordsOf(1, bad)
			require.ErrorIs(t, err, wal.ErrCorrupt)
		}
	}
}

func FuzzEntry(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		f.Add(encodeEntry(1, 2, randomRecords(r))[8:])
	}
	f.Fuzz(func(t *testing.T, rest []byte) {
		b := sealEntry(append([]byte{entryVersion, 0, 0, 0, 0, 0, 0, 0}, rest...))
		records, err := recordsOf(5, b)
		if err != nil {
			require.ErrorIs(t, err, wal.ErrCorrupt)
			return
		}
		h, err := openEntry(b)
		require.NoError(t, err)
		require.Len(t, records, h.records)
		require.Equal(t, encodeEntry(h.proposer, h.sequence, records), b)
	})
}

// An entry of a later format is sound, and its error says which format it has.
func TestEntryOfALaterFormat(t *testing.T) {
	b := encodeEntry(1, 2, randomRecords(testseed.Rand(t)))
	b[0] = entryVersion + 1
	_, err := openEntry(b)
	require.ErrorIs(t, err, wal.ErrCorrupt)
	require.EqualError(t, err, "the log has an entry of format 2, and this program reads format 1: start the program that wrote it")
	b[len(b)-1]++
	_, err = openEntry(b)
	require.ErrorContains(t, err, "aren't an entry of format 1")
}
