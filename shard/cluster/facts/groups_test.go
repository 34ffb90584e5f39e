package facts

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/wal/durable"
)

const testDir = "node"

// steps is a disk that reports each change before it is made. Directories are deleted file by file. Deletions within a
// directory are on disk at once, because crashes of MemFS bring back whatever was not synced.
type steps struct {
	vfs.FS
	before func() error
}

func (s steps) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	f, err := s.FS.Create(name, c)
	return stepsFile{f, s.before}, err
}

func (s steps) Rename(from, to string) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.FS.Rename(from, to)
}

func (s steps) MkdirAll(dir string, mode os.FileMode) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.FS.MkdirAll(dir, mode)
}

func (s steps) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	return stepsFile{f, s.before}, err
}

func (s steps) RemoveAll(name string) error {
	about, err := s.Stat(name)
	if err != nil {
		return nil
	}
	if about.IsDir() {
		names, err := s.List(name)
		if err != nil {
			return err
		}
		for _, inner := range names {
			if err := s.RemoveAll(s.PathJoin(name, inner)); err != nil {
				return err
			}
			if err := durable.SyncDir(s.FS, name); err != nil {
				return err
			}
		}
	}
	if err := s.before(); err != nil {
		return err
	}
	return s.Remove(name)
}

type stepsFile struct {
	vfs.File
	before func() error
}

func (f stepsFile) Sync() error {
	if err := f.before(); err != nil {
		return err
	}
	return f.File.Sync()
}

// fill makes, durably, what a replica has in its directory: two files that say which replica it is.
func fill(fs vfs.FS, group uint32, text string) error {
	dir := GroupDir(testDir, group)
	for _, name := range []string{"log", "state"} {
		sub := fs.PathJoin(dir, name)
		if err := fs.MkdirAll(sub, 0o700); err != nil {
			return err
		}
		if err := durable.ReplaceFileOn(fs, fs.PathJoin(sub, "is"), []byte(text)); err != nil {
			return err
		}
	}
	return durable.SyncDir(fs, dir)
}

// requireWhole checks that a directory of a replica has what fill has made, and nothing else.
func requireWhole(t *testing.T, fs vfs.FS, group uint32, text string) {
	t.Helper()
	names, err := fs.List(GroupDir(testDir, group))
	require.NoError(t, err)
	slices.Sort(names)
	require.Equal(t, []string{"log", "state"}, names)
	for _, name := range names {
		require.Equal(t, text, textOf(t, fs, fs.PathJoin(GroupDir(testDir, group), name, "is")))
	}
}

func textOf(t *testing.T, fs vfs.FS, path string) string {
	t.Helper()
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	return string(text)
}

// moveAwayAndBack moves a replica away and later makes it anew. A file has what the facts say: "none", or which replica
// there is. gone is called when the replica is away.
func moveAwayAndBack(fs vfs.FS, gone func()) error {
	say := func(text string) error {
		return durable.ReplaceFileOn(fs, fs.PathJoin(testDir, File), []byte(text))
	}
	if err := say("none"); err != nil {
		return err
	}
	if err := RemoveGroup(fs, testDir, 5); err != nil {
		return err
	}
	gone()
	if err := MakeGroup(fs, testDir, 5); err != nil {
		return err
	}
	if err := fill(fs, 5, "new"); err != nil {
		return err
	}
	return say("new")
}

func testDisk(t *testing.T) *vfs.MemFS {
	fs := vfs.NewCrashableMem()
	require.NoError(t, fs.MkdirAll(testDir, 0o700))
	require.NoError(t, durable.SyncDir(fs, ""))
	for _, group := range []uint32{5, 6} {
		require.NoError(t, MakeGroup(fs, testDir, group))
		require.NoError(t, fill(fs, group, "old"))
	}
	require.NoError(t, durable.ReplaceFileOn(fs, fs.PathJoin(testDir, File), []byte("old")))
	return fs
}

func keeper(here ...uint32) *Keeper {
	k := &Keeper{Plan: &Plan{Dir: testDir}}
	k.facts.Store(&Facts{Here: here})
	return k
}

// Whenever power is lost, after the next start either the replica that the facts know is there as a whole, or nothing
// of it is there. A replica that is being deleted does not have its name while a part of it is gone.
func TestReplicasComeAndGoWhole(t *testing.T) {
	seen := map[string]int{}
	for _, percent := range []int{0, 50, 100} {
		disk, step, isGone := testDisk(t), uint64(0), false
		check := func() error {
			step++
			lost := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(step, 1))})
			said := textOf(t, lost, lost.PathJoin(testDir, File))
			seen[said]++
			k := keeper(6)
			if said != "none" {
				k = keeper(5, 6)
			}
			if _, err := lost.Stat(GroupDir(testDir, 5)); err == nil && !isGone {
				requireWhole(t, lost, 5, "old")
			}
			for range 2 {
				_, err := k.SweepGroups(lost)
				require.NoError(t, err)
				names, err := lost.List(lost.PathJoin(testDir, GroupsDir))
				require.NoError(t, err)
				if slices.Sort(names); said == "none" {
					require.Equal(t, []string{"6"}, names, "step %d", step)
				} else {
					require.Equal(t, []string{"5", "6"}, names, "step %d", step)
					requireWhole(t, lost, 5, said)
				}
				requireWhole(t, lost, 6, "old")
			}
			return nil
		}
		require.NoError(t, moveAwayAndBack(steps{disk, check}, func() { isGone = true }))
		require.NoError(t, check())
	}
	require.Greater(t, seen["old"], 3)
	require.Greater(t, seen["none"], 20)
	require.Greater(t, seen["new"], 0)
}

// Whatever step of a removal fails, the node goes on, and the replica can be made in its place without a start in
// between.
func TestReplicaIsMadeAfterARemovalThatFailed(t *testing.T) {
	broken := errors.New("broken")
	for fail := 1; ; fail++ {
		disk, step := testDisk(t), 0
		err := RemoveGroup(steps{disk, func() error {
			if step++; step == fail {
				return broken
			}
			return nil
		}}, testDir, 5)
		if err == nil {
			require.Greater(t, fail, 5)
			return
		}
		require.ErrorIs(t, err, broken)
		require.NoError(t, MakeGroup(disk, testDir, 5))
		names, err := disk.List(GroupDir(testDir, 5))
		require.NoError(t, err)
		require.Empty(t, names, "step %d", fail)
		names, err = disk.List(disk.PathJoin(testDir, GroupsDir))
		require.NoError(t, err)
		require.Len(t, names, 2, "step %d", fail)
		requireWhole(t, disk, 6, "old")
	}
}
