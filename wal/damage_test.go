package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/wal/durable"
)

// image is the files of a log directory, which tests damage and open.
type image map[string][]byte

func takeImage(t testing.TB, fs *vfs.MemFS) image {
	t.Helper()
	names, err := fs.List(testDir)
	require.NoError(t, err)
	m := image{}
	for _, name := range names {
		if name == "LOCK" {
			continue
		}
		b, err := fs.UnsafeGetFileDataBuffer(fs.PathJoin(testDir, name))
		require.NoError(t, err)
		m[name] = append([]byte(nil), b...)
	}
	return m
}

// segments are the names of the segments, in order.
func (m image) segments() (names []string) {
	for i := 1; i < 100; i++ {
		if name := fmt.Sprintf("%06d.log", i); m[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func (m image) with(name string, data []byte) image {
	c := image{}
	for n, b := range m {
		c[n] = b
	}
	c[name] = data
	if data == nil {
		delete(c, name)
	}
	return c
}

func (m image) flip(name string, at int, mask byte) image {
	b := append([]byte(nil), m[name]...)
	b[at] ^= mask
	return m.with(name, b)
}

// errByReplay is wrapped when Open finds no fault with an image, and Replay does.
var errByReplay = errors.New("Open was fine, Replay not")

// onDisk puts the files on a disk of their own.
func (m image) onDisk() (*vfs.MemFS, error) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		return nil, err
	}
	for name, b := range m {
		f, err := fs.Create(fs.PathJoin(testDir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(append([]byte(nil), b...)); err != nil {
			return nil, err
		}
		_ = f.Close()
	}
	return fs, nil
}

// open opens an image and reads all of it back.
func (m image) open() (ids map[uint64]uint64, err error) {
	fs, err := m.onDisk()
	if err != nil {
		return nil, err
	}
	h, err := openHarness(fs, nil)
	if err != nil {
		return nil, err
	}
	ids, err = h.content()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errByReplay, err), h.Close())
	}
	return ids, h.Close()
}

func refused(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrMissing) }

// damageLog makes a log of two segments, with small and large records. The last segment is recycled, so its former
// content lies behind its end.
func damageLog(t testing.TB) (fs *vfs.MemFS, h *harness) {
	fs = vfs.NewMem()
	h = mustOpen(t, fs, func(o *Options) { o.SegmentBytes = 32 << 10 })
	one := func(n, size int) {
		for range n {
			h.fill(t, 1, size)
		}
	}
	one(35, 1000)
	require.NoError(t, h.Trim(33))
	one(4, 3000)
	one(48, 400)
	one(14, 120)
	require.Len(t, h.segments, 2)
	require.Equal(t, damageRecords, int(h.LastPosition()+1-h.FirstPosition()))
	require.Greater(t, h.segments[1].bytes, int64(30_000), "recycled")
	require.Less(t, h.liveEnd(t), int64(20_000))
	return fs, h
}

const damageRecords = 69

// F4 after a clean close: wherever a byte is damaged, either all records are there or the log is refused, by Open when
// the byte is in the last segment, else by Replay. There are never fewer records.
func TestFlipAfterClose(t *testing.T) {
	testsize.SkipSerial(t)
	fs, h := damageLog(t)
	require.NoError(t, h.Close())
	m := takeImage(t, fs)
	want, err := m.open()
	require.NoError(t, err)
	require.Len(t, want, damageRecords)
	sweep(t, h, m, want, testsize.Of(1, 9, 9))
}

// F4 after a kill: the same holds. The high-water mark is exact there, too, though not synced, and the end is not
// marked.
func TestFlipAfterKill(t *testing.T) {
	testsize.SkipSerial(t)
	fs, h := damageLog(t)
	m := takeImage(t, fs)
	want, err := m.open()
	require.NoError(t, err)
	require.Len(t, want, damageRecords)
	sweep(t, h, m, want, testsize.Of(3, 18, 18))
	require.NoError(t, h.Close())
}

// F4 after a loss of power: the high-water mark is old, but each record testifies for the records that were durable
// when it was written. So only the last group can be lost without a trace, and only by damage and a loss of power
// within HighWaterInterval.
func TestFlipBehindHighWaterMark(t *testing.T) {
	testsize.SkipSerial(t)
	fs, h := damageLog(t)
	m := takeImage(t, fs)
	require.NoError(t, h.Close())
	m[highWaterName] = oldHighWater(h, 1)
	want, err := m.open()
	require.NoError(t, err)
	require.Len(t, want, damageRecords)
	name := m.segments()[1]
	var silent, refusals int
	for at := 0; at < len(m[name]); at += 41 {
		got, err := m.flip(name, at, 0x10).open()
		if err != nil {
			require.True(t, refused(err), "flip at %d: %v", at, err)
			refusals++
			continue
		}
		if len(got) < len(want) {
			silent++
			require.GreaterOrEqual(t, len(got), len(want)-2, "flip at %d of %d", at, len(m[name]))
		}
	}
	t.Logf("%d refused, %d lost the last group", refusals, silent)
	require.Greater(t, refusals, 50)
	require.Less(t, silent, 10)
}

// oldHighWater is a high-water mark that was last written when acked was acknowledged.
func oldHighWater(h *harness, acked uint64) []byte {
	state := highWaterState{acked: acked, segment: h.segments[0].num, first: h.segments[0].first, salt: h.salt}
	b := durable.SlotsText(highWaterMagic, state.append(nil))
	clear(b[durable.SlotSpacing:]) // the others are of no use
	return b
}

// ends are the offsets at which the records of the last segment end.
func (h *harness) ends(t testing.TB) (ends []int64) {
	r, err := h.openSegment(h.segments[len(h.segments)-1].path, 0)
	require.NoError(t, err)
	defer r.close()
	for {
		_, _, err := r.next()
		ends = append(ends, r.offset)
		if err != nil {
			return ends[1:]
		}
	}
}

func (h *harness) liveEnd(t testing.TB) int64 {
	ends := h.ends(t)
	return ends[len(ends)-1]
}

func sweep(t *testing.T, h *harness, m image, want map[uint64]uint64, every int) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var harmless, refusals int
	for _, name := range append(m.segments(), highWaterName) {
		end := len(m[name])
		liveEnd := end // where the last segment ends logically
		isLast := name == highWaterName || strings.HasSuffix(h.segments[len(h.segments)-1].path, name)
		if isLast && name != highWaterName {
			liveEnd = int(h.liveEnd(t)) + chunkHeaderBytes
		}
		for at := 0; at < end; at++ {
			// Every byte is damaged at the end of the log, and in the high-water mark outside of padding; elsewhere,
			// samples.
			if inMark := name == highWaterName; inMark && at%durable.SlotSpacing > 16+highWaterBytes+4 && at%997 != 0 ||
				!inMark && at < liveEnd-2500 && rng.IntN(17) != 0 || !inMark && at > liveEnd && rng.IntN(31) != 0 {
				continue
			}
			if rng.IntN(every) != 0 {
				continue
			}
			mask := byte(1 << rng.IntN(8))
			if rng.IntN(4) == 0 {
				mask = byte(1 + rng.IntN(255))
			}
			got, err := m.flip(name, at, mask).open()
			switch {
			case err == nil:
				harmless++
				if len(got) != len(want) {
					t.Fatalf("seed %d: %s[%d] ^= %#x: %d records instead of %d, silently", seed, name, at, mask, len(got), len(want))
				}
				require.Equal(t, want, got)
			case refused(err):
				refusals++
				require.False(t, isLast && errors.Is(err, errByReplay), "%s[%d] ^= %#x: %v", name, at, mask, err)
			default:
				t.Fatalf("seed %d: %s[%d] ^= %#x: neither fine nor refused: %v", seed, name, at, mask, err)
			}
		}
	}
	t.Logf("%d refused, %d harmless", refusals, harmless)
	require.Greater(t, refusals, harmless)
}

// F3 and F4: the last segment is cut off at every byte where a record ends or begins, and at a share of the others. With
// a current high-water mark, a cut into the records is refused. With an old one, as after a loss of power, the records
// that are whole before the cut are there, and nothing else.
func TestTruncate(t *testing.T) {
	testsize.SkipSerial(t)
	fs, h := damageLog(t)
	ends := h.ends(t) // of the records in the last segment
	last := h.segments[len(h.segments)-1]
	require.NoError(t, h.Close())
	m := takeImage(t, fs)
	name := m.segments()[1]
	require.True(t, strings.HasSuffix(last.path, name))
	before := damageRecords - len(ends)
	r, share := testseed.Rand(t), testsize.Of(1, 12, 12)
	for cut := len(m[name]); cut >= 0; cut-- {
		if live := int(ends[len(ends)-1]); cut > live+200 && cut%97 != 0 {
			continue
		}
		isEdge := func(end int64) bool { return max(end-int64(cut), int64(cut)-end) <= chunkHeaderBytes }
		if !slices.ContainsFunc(ends, isEdge) && r.IntN(share) != 0 {
			continue
		}
		whole := before
		for _, end := range ends {
			if end <= int64(cut) {
				whole++
			}
		}
		c := m.with(name, m[name][:cut])
		got, err := c.open()
		if whole == damageRecords {
			require.NoError(t, err, "cut at %d", cut)
			require.Len(t, got, damageRecords)
		} else {
			require.True(t, refused(err), "cut at %d: %v", cut, err)
		}
		torn := tornRecordsTotal.Get()
		c[highWaterName] = oldHighWater(h, 3)
		got, err = c.open()
		require.NoError(t, err, "cut at %d", cut)
		require.Len(t, got, whole, "cut at %d", cut)
		if whole < damageRecords && int64(cut) >= ends[max(whole-before-1, 0)]+chunkHeaderBytes && whole > before {
			require.Greater(t, tornRecordsTotal.Get(), torn, "cut at %d: a torn tail is counted", cut)
		}
	}
}

// A log with a whole file gone, or empty, is refused.
func TestMissingFiles(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	for range 15 { // so that no group is larger than a part of a segment
		h.fill(t, 10, 2000)
	}
	require.NoError(t, h.Close())
	m := takeImage(t, fs)
	names := m.segments()
	require.Greater(t, len(names), 3)
	for _, name := range append(names, highWaterName) {
		_, err := m.with(name, nil).open()
		require.True(t, refused(err), "%s: %v", name, err)
		_, err = m.with(name, []byte{}).open()
		require.True(t, refused(err), "%s: %v", name, err)
	}
	_, err := image{highWaterName: m[highWaterName]}.open()
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "the log ends at position 0, in an empty log, but 150 was acknowledged")
	last := names[len(names)-1]
	_, err = m.flip(last, int(h.liveEnd(t))-1, 1).open() // the last record; of an earlier one a later one would testify
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "but 150 was acknowledged")
	_, err = m.with(names[1], m[names[2]]).open()
	require.True(t, refused(err))
	ids, err := image{}.open()
	require.NoError(t, err)
	require.Empty(t, ids)
}

// A record that is wrong inside intact chunks was wrong before it was written. It is refused, and not taken for a torn
// tail.
func TestRecordChecksum(t *testing.T) {
	r := newRecord(5, 100)
	sealPayload(r.Data)
	const secret = salt(42)
	sealHeader(r.Data, 12, 3, 10, secret)
	h, payload, err := openRecord(r.Data, secret)
	require.NoError(t, err)
	require.Equal(t, header{position: 12, count: 3, lag: 2}, h)
	require.EqualValues(t, 10, h.durable())
	require.Equal(t, r.Data[HeaderBytes:], payload)
	for i := range r.Data {
		r.Data[i] ^= 4
		_, _, err := openRecord(r.Data, secret)
		require.ErrorIs(t, err, ErrCorrupt, i)
		r.Data[i] ^= 4
	}
	_, _, err = openRecord(r.Data, secret+1)
	require.ErrorIs(t, err, ErrCorrupt, "another log's")
	for n := range len(r.Data) {
		_, _, err := openRecord(r.Data[:n], secret)
		require.ErrorIs(t, err, ErrCorrupt, n)
	}
}
