package wal

import (
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// copyImage copies the files of an image, in order, into a file system of its own.
func copyImage(files []File) (*vfs.MemFS, error) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		return nil, err
	}
	for _, file := range files {
		r, err := file.Open()
		if err != nil {
			return nil, err
		}
		w, err := fs.Create(fs.PathJoin(testDir, file.Name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(w, r)
		if err != nil {
			return nil, err
		}
		if n != file.Size {
			return nil, fmt.Errorf("%s has %d bytes, not %d", file.Name, n, file.Size)
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
	}
	return fs, nil
}

// isLogOf opens a copied image and returns an error unless the image begins at from or earlier, ends exactly at to, has
// what was written, and takes further records.
func isLogOf(fs *vfs.MemFS, from, to uint64) error {
	h, err := openHarness(fs, nil)
	if err != nil {
		return err
	}
	defer h.Close()
	ids, err := h.content()
	if err != nil {
		return err
	}
	if h.FirstPosition() > from || h.LastPosition() != to {
		return fmt.Errorf("the image has %d to %d instead of %d to %d", h.FirstPosition(), h.LastPosition(), from, to)
	}
	for position, id := range ids {
		if id != position-1+1000 {
			return fmt.Errorf("id %d at position %d", id, position)
		}
	}
	r := newRecord(h.LastPosition()+1000, 100)
	if err := h.Append(r); err != nil {
		return err
	}
	if !h.waitAcked(to + 1) {
		return fmt.Errorf("nothing is acknowledged behind %d", to)
	}
	return nil
}

// An image of any stretch of a log is a log, also when segments are without records, torn, or written to.
func TestImage(t *testing.T) {
	fs := vfs.NewMem()
	small := func(o *Options) { o.SegmentBytes = 32 << 10 }
	h := mustOpen(t, fs, small)
	for range 3 {
		h.fill(t, 20, 3000)
		require.NoError(t, h.Close())
		h = mustOpen(t, fs, small)
	}
	h.fill(t, 7, 3000)
	last := h.LastPosition()
	require.Equal(t, uint64(67), last)
	for to := uint64(0); to <= last; to++ {
		for _, from := range []uint64{1, to/2 + 1, max(to, 1), to + 1} {
			h.Hold("image", 0)
			files, err := h.Image("image", from, to)
			require.NoError(t, err)
			clone, err := copyImage(files)
			require.NoError(t, err)
			require.NoError(t, isLogOf(clone, from, to), "%d to %d", from, to)
			h.Hold("image", math.MaxUint64)
		}
	}
	_, err := h.Image("image", 1, last+1)
	require.ErrorContains(t, err, "durable to 67")
	_, err = h.Image("image", 9, 7)
	require.Error(t, err)
	require.NoError(t, h.Trim(30))
	_, err = h.Image("image", 1, last)
	require.ErrorIs(t, err, ErrMissing)
	require.NoError(t, h.Close())
}

// Damage in a segment is found before the segment's bytes are given out.
func TestImageOfDamage(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, func(o *Options) { o.SegmentBytes = 32 << 10 })
	h.fill(t, 60, 3000)
	h.Hold("image", 0)
	files, err := h.Image("image", 1, 60)
	require.NoError(t, err)
	flip(t, fs, fs.PathJoin(testDir, files[2].Name))
	_, err = copyImage(files)
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, h.Close())
}

// Images are taken while records are appended and segments are trimmed and written over. Segments that an image holds
// stay; those that were read are let go.
func TestImageBesideAppendAndTrim(t *testing.T) {
	rng := testseed.Rand(t)
	h := mustOpen(t, vfs.NewMem(), func(o *Options) { o.SegmentBytes = 64 << 10; o.MaxRecycled = 2 })
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		for !done.Load() {
			h.fill(t, 10, 500+int(h.LastPosition()%3000))
		}
	})
	wg.Go(func() {
		for !done.Load() {
			if err := h.Trim(max(h.DurablePosition(), 60) - 50); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 25 {
		h.Hold("image", 0)
		first := h.FirstPosition()
		to := h.DurablePosition()
		from := first + rng.Uint64N(to+2-first)
		files, err := h.Image("image", from, to)
		require.NoError(t, err)
		require.True(t, h.waitAcked(to+100)) // enough for the segments to be written over, were they not held
		clone, err := copyImage(files)
		require.NoError(t, err, "%d to %d", from, to)
		require.NoError(t, isLogOf(clone, from, to))
		require.NoError(t, h.Trim(to+1))
		require.Greater(t, h.FirstPosition()+200, to, "what was read is let go")
		h.Hold("image", math.MaxUint64)
	}
	done.Store(true)
	wg.Wait()
	require.NoError(t, h.Close())
}
