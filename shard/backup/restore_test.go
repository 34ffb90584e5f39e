package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
)

// someArchive is a small backup and what it shows.
func someArchive(t *testing.T) ([]byte, []moment) {
	n := mustOpen(t, vfs.NewMem(), "data")
	c := &client{name: "c"}
	for range 200 {
		require.NoError(t, c.request(n))
	}
	require.NoError(t, n.e.Checkpoint())
	require.NoError(t, n.l.Pack())
	archive := n.take(t)
	require.NoError(t, n.close())
	return archive, []moment{{c, 200, 200, 40}}
}

// refuses requires that Verify and Restore refuse an archive, and that nothing is left in the directory.
func refuses(t *testing.T, archive []byte, what string) error {
	t.Helper()
	_, err := Verify(context.Background(), bytes.NewReader(archive))
	require.Error(t, err, what)
	fs := vfs.NewMem()
	_, restoreErr := Restore(context.Background(), fs, "data", bytes.NewReader(archive))
	require.Error(t, restoreErr, what)
	require.Equal(t, err.Error(), restoreErr.Error(), what)
	_, statErr := fs.Stat("data")
	require.True(t, oserror.IsNotExist(statErr), "%s: %v", what, statErr)
	return err
}

func unpacked(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	fs := vfs.NewMem()
	_, err := Restore(context.Background(), fs, "data", bytes.NewReader(archive))
	require.NoError(t, err)
	return contents(t, fs, "data")
}

// An archive in which any byte was changed is refused, and nothing is left behind.
func TestFlips(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	plain, _ := someArchive(t)
	_, err := Verify(context.Background(), bytes.NewReader(plain))
	require.NoError(t, err)
	want := unpacked(t, plain)
	t.Logf("%d bytes, %d files", len(plain), len(want))
	named := 0
	flips := testsize.Of(len(plain), 80, 80)
	for k := range flips {
		at := k*len(plain)/flips + r.IntN(max(1, len(plain)/flips))
		damaged := bytes.Clone(plain)
		damaged[at] ^= 1 << r.IntN(8)
		err := refuses(t, damaged, fmt.Sprintf("byte %d", at))
		require.True(t, errors.Is(err, ErrArchive) || errors.Is(err, ErrFormat), "byte %d: %v", at, err)
		if strings.Contains(err.Error(), `"`) {
			named++
		}
	}
	require.Greater(t, named, flips/2, "the message names the file")
	for _, at := range []int{len(plain) - 1, len(plain) - 513, 600} { // the end, padding
		damaged := bytes.Clone(plain)
		damaged[at]++
		refuses(t, damaged, fmt.Sprintf("byte %d", at))
	}
	// In a compressed archive some bits mean nothing, such as those for the size of the decoder's window. Then
	// everything is there all the same.
	small := compressed(t, plain)
	harmless := 0
	for k := range flips {
		at := k * min(len(small), len(plain)) / flips
		damaged := bytes.Clone(small)
		damaged[at] ^= 1 << r.IntN(8)
		if _, err := Verify(context.Background(), bytes.NewReader(damaged)); err == nil {
			require.Equal(t, want, unpacked(t, damaged), "byte %d", at)
			harmless++
			continue
		}
		require.ErrorIs(t, refuses(t, damaged, fmt.Sprintf("byte %d", at)), ErrArchive)
	}
	require.Less(t, harmless, 5)
}

// An archive that ends early, or goes on behind its end, is refused, and the error says where.
func TestTruncated(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	plain, _ := someArchive(t)
	for name, archive := range map[string][]byte{"plain": plain, "compressed": compressed(t, plain)} {
		lengths := []int{0, 1, 3, 100, 511, 512, 513, len(archive) - 1, len(archive) - 2, len(archive) - 512, len(archive) - 1024, len(archive) - 1025}
		for range 100 {
			lengths = append(lengths, r.IntN(len(archive)))
		}
		for _, length := range lengths {
			err := refuses(t, archive[:length], fmt.Sprintf("%s, %d bytes", name, length))
			require.ErrorIs(t, err, ErrArchive)
			require.Contains(t, err.Error(), "it ends early", "%s, %d bytes", name, length)
		}
		refuses(t, append(bytes.Clone(archive), 0), name)
		refuses(t, append(bytes.Clone(archive), archive...), name)
	}
	err := refuses(t, plain[:len(plain)/2], "half")
	require.Regexp(t, `in "(log|state|events)/[^"]+"|behind "`, err.Error())
}

// rewritten copies an archive file by file; change may alter header and content, and leave the file out.
func rewritten(t *testing.T, archive []byte, change func(h *tar.Header, text []byte) (newText []byte, keep bool)) []byte {
	t.Helper()
	in := tar.NewReader(bytes.NewReader(archive))
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		text, keep := change(h, text)
		if !keep {
			continue
		}
		h.Size = int64(len(text))
		require.NoError(t, out.WriteHeader(h))
		_, err = out.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, out.Close())
	return b.Bytes()
}

// Archives that were made on purpose are refused, too: with other files, other names, another format, or no archive at
// all.
func TestForeign(t *testing.T) {
	testsize.SkipSerial(t)
	archive, _ := someArchive(t)
	same := rewritten(t, archive, func(h *tar.Header, text []byte) ([]byte, bool) { return text, true })
	require.Equal(t, archive, same)
	only := func(name string, f func(h *tar.Header, text []byte) ([]byte, bool)) []byte {
		done := false
		return rewritten(t, archive, func(h *tar.Header, text []byte) ([]byte, bool) {
			if done || !strings.HasPrefix(h.Name, name) {
				return text, true
			}
			done = true
			return f(h, text)
		})
	}
	otherVersion := func(name string, own int) []byte { // the archive of an earlier build
		return rewritten(t, archive, func(h *tar.Header, text []byte) ([]byte, bool) {
			if h.Name == "BACKUP" {
				text = bytes.Replace(text, fmt.Appendf(nil, "%q:%d", name, own), fmt.Appendf(nil, "%q:%d", name, own-1), 1)
			}
			return text, true
		})
	}
	for _, c := range []struct {
		archive []byte
		is      error
		says    string
	}{
		{nil, ErrArchive, "it ends early, at its beginning"},
		{[]byte("hello"), ErrArchive, "it ends early, at its beginning"},
		{bytes.Repeat([]byte("hello world, this is no tar. "), 1000), ErrArchive, "invalid tar header"},
		{only("BACKUP", func(h *tar.Header, text []byte) ([]byte, bool) { return nil, false }), ErrArchive, `it begins with "log/WITNESS"`},
		{only("BACKUP", func(h *tar.Header, text []byte) ([]byte, bool) {
			return []byte(`{"format":2,"news":["unheard of"]}`), true
		}), ErrFormat, "version 2, this program reads version 1"},
		{otherVersion("store_version", replica.StoreVersion), ErrFormat, fmt.Sprintf("its state store has version %d, this program reads version %d", replica.StoreVersion-1, replica.StoreVersion)},
		{otherVersion("record_version", replica.RecordVersion), ErrFormat, fmt.Sprintf("its log of records has version %d, this program reads version %d", replica.RecordVersion-1, replica.RecordVersion)},
		{otherVersion("event_log_version", eventlog.Version()), ErrFormat, fmt.Sprintf("its event log has version %d, this program reads version %d", eventlog.Version()-1, eventlog.Version())},
		{only("BACKUP", func(h *tar.Header, text []byte) ([]byte, bool) { return []byte(`{}`), true }), ErrArchive, "BACKUP can't be read"},
		{only("BACKUP", func(h *tar.Header, text []byte) ([]byte, bool) {
			return bytes.Replace(text, []byte(`"test"`), []byte(`"Test"`), 1), true
		}), ErrArchive, `"BACKUP" has other contents`},
		{only("state/MANIFEST", func(h *tar.Header, text []byte) ([]byte, bool) { return nil, false }), ErrArchive, `where "state/MANIFEST`},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { return append(text, 0), true }), ErrArchive, `"events/STATE" has other contents`},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.Name = "events/STATF"; return text, true }), ErrArchive, `"events/STATF" stands where "events/STATE" should`},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.Name = "../../etc/passwd"; return text, true }), ErrArchive, `"../../etc/passwd" does not belong there`},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.Name = "/etc/passwd"; return text, true }), ErrArchive, "does not belong there"},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.Name = "log/WITNESS"; return text, true }), ErrArchive, `"log/WITNESS" does not belong there`},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.Name = "RESTORING"; return text, true }), ErrArchive, "does not belong there"},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) {
			h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
			return nil, true
		}), ErrArchive, "does not belong there"},
		{only("events/STATE", func(h *tar.Header, text []byte) ([]byte, bool) { h.ModTime = time.Unix(1, 0); return text, true }), ErrArchive, "bytes between its files"},
		{only("MANIFEST", func(h *tar.Header, text []byte) ([]byte, bool) { return nil, false }), ErrArchive, "it ends early, behind"},
		{only("MANIFEST", func(h *tar.Header, text []byte) ([]byte, bool) {
			return bytes.Replace(text, []byte("STATE"), []byte("STATF"), 1), true
		}), ErrArchive, "MANIFEST fails its checksum"},
	} {
		err := refuses(t, c.archive, c.says)
		require.ErrorIs(t, err, c.is, c.says)
		require.ErrorContains(t, err, c.says)
	}
	_, err := Verify(context.Background(), io.MultiReader(bytes.NewReader(archive[:5000]), iotest.ErrReader(syscall.EIO)))
	require.ErrorIs(t, err, syscall.EIO)
	require.NotErrorIs(t, err, ErrArchive, "the archive may be as it was")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Restore(ctx, vfs.NewMem(), "data", bytes.NewReader(archive))
	require.ErrorIs(t, err, context.Canceled)

	// Archives may be compressed by any tool at any level.
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderCRC(false))
	require.NoError(t, err)
	_, err = w.Write(archive)
	require.NoError(t, errors.Join(err, w.Close()))
	require.Equal(t, unpacked(t, archive), unpacked(t, b.Bytes()))
}

// A restore needs a directory that is empty, apart from what a server puts there before it has any data.
func TestNotEmpty(t *testing.T) {
	testsize.SkipSerial(t)
	archive, moments := someArchive(t)
	write := func(fs vfs.FS, path string) {
		require.NoError(t, fs.MkdirAll(fs.PathDir(path), 0o755))
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.Write([]byte("mine"))
		require.NoError(t, errors.Join(err, f.Close()))
	}
	for _, path := range []string{"srv/data/notes", "srv/data/log/000001.log", "srv/data/state/CURRENT", "srv/data/events/STATE"} {
		fs := vfs.NewMem()
		write(fs, path)
		_, err := Restore(context.Background(), fs, "srv/data", bytes.NewReader(archive))
		require.ErrorIs(t, err, ErrNotEmpty)
		require.Equal(t, map[string]string{"/" + path[len("srv/data/"):]: "mine"}, contents(t, fs, "srv/data"))
	}
	fs := vfs.NewMem()
	for _, name := range []string{"LOCK", "admin-token", "lost+found/x"} {
		write(fs, "srv/data/"+name)
	}
	before := contents(t, fs, "srv/data")
	_, err := Restore(context.Background(), fs, "srv/data", bytes.NewReader(archive[:len(archive)-1]))
	require.ErrorIs(t, err, ErrArchive)
	require.Equal(t, before, contents(t, fs, "srv/data"))
	_, err = Restore(context.Background(), fs, "srv/data", bytes.NewReader(archive))
	require.NoError(t, err)
	require.Equal(t, "mine", contents(t, fs, "srv/data")["/admin-token"])
	n := mustOpen(t, fs, "srv/data")
	require.NoError(t, n.settled(moments))
	require.NoError(t, n.close())
}

// step calls a function before each change of the disk.
type step struct{ f func(o errorfs.Op) error }

func (s *step) String() string { return "step" }

func (s *step) MaybeError(o errorfs.Op) error {
	if o.Kind.ReadOrWrite() != errorfs.OpIsWrite || s.f == nil {
		return nil
	}
	return s.f(o)
}

// opens requires that a directory can be used as a whole or not at all, and returns which of them it is.
func opens(t *testing.T, fs vfs.FS, want map[string]string, moments []moment, what string) (whole bool) {
	t.Helper()
	found := contents(t, fs, "srv/data")
	if _, marked := found["/"+replica.RestoreMarker]; marked {
		_, err := openNode(fs, "srv/data")
		require.ErrorContains(t, err, "has not ended", what)
		return false
	}
	if len(found) == 0 {
		return false
	}
	require.Equal(t, want, found, what)
	n, err := openNode(fs, "srv/data")
	require.NoError(t, err, what)
	require.NoError(t, n.settled(moments), what)
	require.NoError(t, n.close())
	return true
}

// Power is lost at every step of a restore. Afterwards the directory is empty, or refused by the engine, or whole, and
// restoring again makes it whole.
func TestRestoreLosesPower(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	archive, moments := someArchive(t)
	want := unpacked(t, archive)
	disk := vfs.NewCrashableMem()
	s := &step{}
	var images []*vfs.MemFS
	steps := 0
	s.f = func(o errorfs.Op) error {
		steps++
		if o.Kind == errorfs.OpRemove && disk.PathBase(o.Path) == replica.RestoreMarker { // everything else must be on the disk for good by now
			found := contents(t, disk.CrashClone(vfs.CrashCloneCfg{}), "srv/data")
			delete(found, "/"+replica.RestoreMarker)
			require.Equal(t, want, found)
		}
		for k := range 8 {
			percent := []int{0, 100, r.IntN(101), r.IntN(101)}[k%4]
			images = append(images, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(r.Uint64(), 0))}))
		}
		return nil
	}
	_, err := Restore(context.Background(), errorfs.Wrap(disk, s), "srv/data", bytes.NewReader(archive))
	require.NoError(t, err)
	done := disk.CrashClone(vfs.CrashCloneCfg{})
	require.True(t, opens(t, done, want, moments, "after the end"))
	whole := 0
	for i, fs := range images {
		if opens(t, fs, want, moments, fmt.Sprintf("image %d of %d, %d steps", i, len(images), steps)) {
			whole++
			continue
		}
		if i%37 == 0 {
			_, err := Restore(context.Background(), fs, "srv/data", bytes.NewReader(archive))
			require.NoError(t, err)
			require.True(t, opens(t, fs, want, moments, "restored again"))
		}
	}
	t.Logf("%d steps, %d images, %d of them whole", steps, len(images), whole)
	require.Less(t, whole, len(images)/2)
}

// osFS is a disk in memory that creates files as vfs.Default does: one that is there is removed first.
type osFS struct{ vfs.FS }

func (fs osFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Remove(name); err != nil && !oserror.IsNotExist(err) {
		return nil, err
	}
	return fs.FS.Create(name, c)
}

// A restore over what a killed one has left may be killed at every step, too: no server takes the rest for the whole.
func TestRestoreIsKilledAgain(t *testing.T) {
	archive, moments := someArchive(t)
	want := unpacked(t, archive)
	disk := vfs.NewMem()
	for _, name := range []string{replica.RestoreMarker, "log/000001.log", "state/000002.sst"} {
		name = "srv/data/" + name
		require.NoError(t, disk.MkdirAll(disk.PathDir(name), 0o700))
		f, err := disk.Create(name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	s := &step{f: func(o errorfs.Op) error {
		if found := contents(t, disk, "srv/data"); len(found) > 0 && !maps.Equal(want, found) {
			require.Contains(t, found, "/"+replica.RestoreMarker, "before %v of %s", o.Kind, o.Path)
		}
		return nil
	}}
	_, err := Restore(context.Background(), osFS{errorfs.Wrap(disk, s)}, "srv/data", bytes.NewReader(archive))
	require.NoError(t, err)
	require.True(t, opens(t, disk, want, moments, "after the end"))
}

// Each write in turn fails, once or for good. The restore returns an error, and the directory is as it was, or refused,
// or (when only the very end of the restore failed) whole.
func TestRestoreFails(t *testing.T) {
	testsize.SkipSerial(t)
	archive, moments := someArchive(t)
	want := unpacked(t, archive)
	for at, failed := 1, true; failed; at++ {
		if at > 20 && at%7 != 0 && !testsize.Stress() {
			continue
		}
		failed = false
		for _, forGood := range []bool{false, true} {
			disk := vfs.NewMem()
			n := 0
			s := &step{f: func(errorfs.Op) error {
				if n++; n == at || forGood && n > at {
					return syscall.ENOSPC
				}
				return nil
			}}
			_, err := Restore(context.Background(), errorfs.Wrap(disk, s), "srv/data", bytes.NewReader(archive))
			if n < at {
				require.NoError(t, err)
				continue
			}
			failed = true
			if err == nil { // closing, or a hint to the disk
				require.True(t, opens(t, disk, want, moments, "no error"))
				continue
			}
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.NotErrorIs(t, err, ErrArchive)
			what := fmt.Sprintf("write %d, for good: %v: %v", at, forGood, err)
			if whole := opens(t, disk, want, moments, what); !forGood {
				require.False(t, whole, what)
				require.Empty(t, contents(t, disk, "srv/data"), what)
			}
		}
	}
}
