package durable

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

const (
	testMagic = "magictx3"
	stateSize = 20
	slotBytes = slotHead + stateSize + slotSum
)

func stateOf(v uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, v), "and the rest"...)
}

// hookFile calls before during a sync.
type hookFile struct {
	vfs.File
	before func()
}

func (f hookFile) SyncData() error { f.before(); return f.File.SyncData() }

// Whatever a loss of power makes of the writes since the last sync, the synced value is still known, and no value
// appears that was never written.
func TestSlotsTornWrites(t *testing.T) {
	rng := testseed.Rand(t)
	fs, path := vfs.NewMem(), "slots"
	s, err := CreateSlots(fs, path, testMagic, stateOf(0))
	require.NoError(t, err)
	read := func() []byte {
		b, err := fs.UnsafeGetFileDataBuffer(path)
		require.NoError(t, err)
		return append([]byte(nil), b...)
	}
	synced, syncedValue, value := read(), uint64(0), uint64(0)
	check := func() {
		torn := read()
		for slot := range SlotCount {
			b := torn[slot*SlotSpacing:][:slotBytes]
			if before := synced[slot*SlotSpacing:][:slotBytes]; string(b) != string(before) {
				copy(b[rng.IntN(slotBytes-1):], before[:1+rng.IntN(8)])
			}
		}
		lost := vfs.NewMem()
		require.NoError(t, ReplaceFileOn(lost, path, torn))
		_, state, err := OpenSlots(lost, path, testMagic, stateSize)
		require.NoError(t, err)
		got := binary.LittleEndian.Uint64(state)
		require.Equal(t, stateOf(got), state)
		require.GreaterOrEqual(t, got, syncedValue)
		require.LessOrEqual(t, got, value)
	}
	step := func() {
		value++
		require.NoError(t, s.Write(stateOf(value)))
		check()
	}
	var atSync []byte
	s.file = hookFile{s.file, func() { // while a sync runs
		atSync = read()
		for range rng.IntN(4) {
			step()
		}
	}}
	for value < 500 {
		step()
		if at := value; rng.IntN(3) == 0 {
			require.NoError(t, s.Sync())
			synced, syncedValue = atSync, at
		}
	}
}

// A process that is killed leaves its last writes in the page cache. The next process may not write over what is on
// disk before these writes are on disk, too.
func TestSlotsAfterAKill(t *testing.T) {
	fs, path := vfs.NewCrashableMem(), "slots"
	s, err := CreateSlots(fs, path, testMagic, stateOf(1))
	require.NoError(t, err)
	for v := uint64(2); v < 20; v++ {
		require.NoError(t, s.Write(stateOf(v)))
		require.NoError(t, s.Close())
		var state []byte
		s, state, err = OpenSlots(fs, path, testMagic, stateSize)
		require.NoError(t, err)
		require.Equal(t, stateOf(v), state)
		lost := fs.CrashClone(vfs.CrashCloneCfg{})
		_, state, err = OpenSlots(lost, path, testMagic, stateSize)
		require.NoError(t, err)
		require.Equal(t, stateOf(v), state, "it is on disk by now")
	}
}

func TestSlotsAreSettledAndRefused(t *testing.T) {
	fs, path := vfs.NewMem(), "slots"
	_, _, err := OpenSlots(fs, path, testMagic, stateSize)
	require.Error(t, err, "there are none")
	s, err := CreateSlots(fs, path, testMagic, stateOf(1))
	require.NoError(t, err)
	require.NoError(t, s.Settle(stateOf(7)))
	require.NoError(t, s.Sync())
	require.NoError(t, s.Close())
	text, err := fs.UnsafeGetFileDataBuffer(path)
	require.NoError(t, err)
	for slot := range SlotCount {
		state, _, ok := ReadSlot(text[slot*SlotSpacing:], testMagic, stateSize)
		require.True(t, ok)
		require.Equal(t, stateOf(7), state)
		for at := range slotBytes { // each byte counts
			changed := append([]byte(nil), text[slot*SlotSpacing:][:slotBytes]...)
			changed[at] ^= 1
			_, _, ok := ReadSlot(changed, testMagic, stateSize)
			require.False(t, ok, "byte %d", at)
		}
	}
	_, _, err = OpenSlots(fs, path, "magictx4", stateSize)
	require.ErrorContains(t, err, "format 3, this program has format 4")
	for slot := range SlotCount {
		text[slot*SlotSpacing+9] ^= 1
	}
	require.NoError(t, ReplaceFileOn(fs, path, text))
	_, _, err = OpenSlots(fs, path, testMagic, stateSize)
	require.ErrorIs(t, err, ErrNoSlot)
}
