package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"millrace/loadtest/testsize"
)

// disk is a real file system in a file, whose power can be cut: what was not synced is lost then, and what was is
// there.
type disk struct {
	image string
	dir   string // where it is mounted
}

// threeDisks are for a cluster of three; nil when they can't be made here, and then nothing happens to disks.
func threeDisks(t *testing.T) (disks []*disk) {
	for range 3 {
		d, err := newDisk(t)
		if err != nil {
			t.Logf("no file systems in files, so nothing happens to disks: %v", err)
			return nil
		}
		disks = append(disks, d)
	}
	return disks
}

const diskBytes = 8 << 30 // most of it is a hole

// newDisk makes and mounts one. An error says that it can't be done here; nothing is left behind then.
func newDisk(t *testing.T) (*disk, error) {
	d := &disk{image: filepath.Join(t.TempDir(), "image"), dir: t.TempDir()}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, diskBytes); err != nil {
		return nil, err
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", "-N", "16384", d.image); err != nil {
		return nil, err
	}
	if err := d.mount(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, d.unmount()) })
	return d, nil
}

func (d *disk) mount() error   { return command("mount", "-o", "loop", d.image, d.dir) }
func (d *disk) unmount() error { return syscall.Unmount(d.dir, 0) }

func command(name string, args ...string) error {
	if text, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(text))
	}
	return nil
}

// cutPower: from now on nothing reaches the disk, and the file system does not write its journal out.
func (d *disk) cutPower(t *testing.T) {
	t.Helper()
	const shutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	f, err := os.Open(d.dir)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(f.Fd()), shutdown, noLogFlush))
}

// restorePower mounts the disk again, as the next start of the machine does. Nobody has a file of it open.
func (d *disk) restorePower(t *testing.T) {
	t.Helper()
	require.NoError(t, d.unmount())
	require.NoError(t, d.mount())
}

// freeze lets all writes wait, as a disk that hangs, until thaw.
func (d *disk) freeze() error { return d.control(0xc0045877) } // FIFREEZE
func (d *disk) thaw() error   { return d.control(0xc0045878) } // FITHAW

func (d *disk) control(request uint) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), request, 0)
}

// The disk of the tests loses what it has to lose, and no more.
func TestPowerOfDisk(t *testing.T) {
	d, err := newDisk(t)
	if err != nil {
		t.Skipf("no file systems in files here: %v", err)
	}
	lost := false
	for n := 0; n < 10 && !lost; n++ { // the kernel may write at any time
		name := filepath.Join(d.dir, fmt.Sprint(n))
		f, err := os.Create(name)
		require.NoError(t, err)
		_, err = f.WriteString("synced")
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		_, err = f.WriteString(" and not")
		require.NoError(t, err)
		d.cutPower(t)
		require.Error(t, f.Sync())
		f.Close()
		d.restorePower(t)
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, []string{"synced", "synced and not"}, string(text))
		lost = string(text) == "synced"
	}
	require.True(t, lost, "a power cut loses nothing")
}

// fill leaves no room on the disk.
func (d *disk) fill(t *testing.T) {
	t.Helper()
	f, err := os.Create(filepath.Join(d.dir, "filler"))
	require.NoError(t, err)
	defer f.Close()
	var end int64
	for size := int64(diskBytes); size > 0; { // the kernel takes no more than fits
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); err {
		case nil:
			end += size
		case unix.ENOSPC:
			size /= 2
		default:
			require.NoError(t, err)
		}
	}
}

// A server that finds no room at its start ends as one does that loses it while it runs.
func TestStartOnAFullDisk(t *testing.T) {
	testsize.SkipSerial(t)
	d, err := newDisk(t)
	if err != nil {
		t.Skipf("no file systems in files here: %v", err)
	}
	s := newSite(t)
	s.dir = filepath.Join(d.dir, "data")
	require.NoError(t, os.Mkdir(s.dir, 0o700))
	d.fill(t)
	p := startProcess(t, binary, s.args()...)
	require.Equal(t, exitDiskFailed, p.exit(testPatience), p.log.String())
	require.Regexp(t, `\nmillrace: the disk has failed or is full: .*no space left on device\n$`, "\n"+p.log.String())
	require.NoError(t, os.Remove(filepath.Join(d.dir, "filler")))
	s.start(t).stop()

	require.ErrorIs(t, withExitCode(syscall.EROFS), syscall.EROFS)
	require.NotErrorAs(t, withExitCode(syscall.ENOENT), new(exitError))
}

// A server whose data directory is gone when it stops ends with the exit code for that, and says so in a few lines.
func TestStopWithoutItsDirectory(t *testing.T) {
	s := newSite(t)
	p := s.start(t)
	require.Equal(t, 201, s.track(t, "ann").status)
	require.NoError(t, os.RemoveAll(s.dir))
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitDiskFailed, p.exit(testPatience), p.log.String())
	require.Contains(t, p.log.String(), "no such file or directory")
	require.Less(t, len(p.log.String()), 64<<10)
}
