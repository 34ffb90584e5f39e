package quorum

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/wal"
	"millrace/wal/durable"
	"millrace/wal/quorum/marker"
	"millrace/wal/quorum/store"
)

// A voter whose disk has lost what the voter had promised must not take part, neither with an empty log nor with a
// shorter one.
func TestOpenFindsDamage(t *testing.T) { simulated(t, testOpenFindsDamage) }

func testOpenFindsDamage(t *testing.T) {
	r := testseed.Rand(t)
	g := newGroup(t, 3, nil)
	g.agree(150)
	for _, m := range g.members {
		require.NoError(t, m.owner.checkpoint())
		require.NoError(t, m.log.mark())
	}
	g.trimAll()
	f := g.follower()
	segments := func() []string {
		files, err := filepath.Glob(filepath.Join(f.dir, "group", logDir, "*.wal"))
		require.NoError(t, err)
		slices.Sort(files)
		return files
	}
	newest := func() string { return segments()[len(segments())-1] }
	g.write(60)
	soon(t, "the newest segment has something to lose", func() bool {
		g.agree(1)
		b, err := os.ReadFile(newest())
		require.NoError(t, err)
		return len(bytes.TrimRight(b, "\x00")) > 1000
	})
	require.Greater(t, indexOf(f.log.FirstPosition()), uint64(firstBase+1))
	f.kill()
	sound := f.dir

	edit := func(path string, change func([]byte)) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		change(b)
		require.NoError(t, os.WriteFile(path, b, 0o644))
	}
	remove := func(path ...string) func() {
		return func() { require.NoError(t, os.RemoveAll(filepath.Join(append([]string{f.dir, "group"}, path...)...))) }
	}
	flip := func(name string) func() {
		return func() { edit(filepath.Join(f.dir, "group", name), func(b []byte) { b[r.IntN(len(b)-10)] ^= 1 }) }
	}
	for name, damage := range map[string]func(){
		"the newest segment has lost its end": func() {
			edit(newest(), func(b []byte) { clear(b[len(bytes.TrimRight(b, "\x00"))-50:]) })
		},
		"a frame in the newest segment is zero, and all behind it is lost": func() {
			edit(newest(), func(b []byte) { clear(b[32:64]) })
		},
		"the newest segment is gone": func() { require.NoError(t, os.Remove(newest())) },
		"an old segment is gone":     func() { require.NoError(t, os.Remove(segments()[0])) },
		"all segments are gone": func() {
			for _, s := range segments() {
				require.NoError(t, os.Remove(s))
			}
		},
		"the list of segments is gone": remove(logDir, "wal-meta.db"),
		"the log is gone":              remove(logDir),
		"the high-water mark is gone":  remove(store.HighWaterName),
		"the high-water mark is damaged": func() {
			edit(filepath.Join(f.dir, "group", store.HighWaterName), func(b []byte) {
				for slot := range durable.SlotCount {
					b[slot*durable.SlotSpacing+10]++
				}
			})
		},
		"the marker is gone":      remove(marker.Name),
		"the marker is damaged":   flip(marker.Name),
		"the identity is damaged": flip(identityName),
	} {
		f.dir = freeze(t, sound)
		damage()
		require.ErrorIs(t, f.tryStart(), wal.ErrCorrupt, name)
	}
	f.dir = sound
	f.start()
	g.same()

	// Each bit behind the marker counts.
	f.kill()
	for range 40 {
		f.dir = freeze(t, sound)
		edit(newest(), func(b []byte) { b[r.IntN(len(bytes.TrimRight(b, "\x00")))] ^= 1 << r.IntN(8) })
		if err := f.tryStart(); err != nil {
			require.ErrorIs(t, err, wal.ErrCorrupt)
			continue
		}
		g.same() // the damage was in a part that is not needed or does not count
		f.kill()
	}
	f.dir = sound
}
