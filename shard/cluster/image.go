package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/quorum"
)

// The image of a group is the state of one of its replicas at one position, as files, while the replica goes on
// (replica.Image): store and event log, which are copied first, and what the log has behind them up to that position,
// which is chosen when all groups have theirs (cut.go):
//
//	state/…  events/…  log/TAIL
//
// They lie in the replica's directory until they are let go.

const (
	imagesDir = "backup" // of a group
	tailName  = "TAIL"
	tailMagic = "MRTAIL01" // the last characters are the version
	// imageReadBytes is how much of an image goes by one call; imageIdle is how long one is kept that nobody asks for.
	imageReadBytes = 1 << 20
	imageIdle      = 2 * time.Minute
	// imageWait bounds a call that makes one: it writes a checkpoint and packs events.
	imageWait = 10 * time.Minute
	// cutWait bounds how long a replica may need to have what is in a cut.
	cutWait = time.Minute
)

// imageFile is a file of an image: its name there, with slashes.
type imageFile struct {
	name string
	size int64
}

// groupImage is an image of a group on this node.
type groupImage struct {
	g     *group
	image *replica.Image // nil once it has ended
	e     *replica.Replica
	from  uint64 // the tail begins here
	files []imageFile
}

// beginImage copies what a replica of this node has. end or release follows.
func (n *Node) beginImage(ctx context.Context, id uint32) (_ *groupImage, err error) {
	g := n.group(id)
	if g == nil {
		return nil, fmt.Errorf("%w: group %d has no replica here", replica.ErrUnavailable, id)
	}
	e, events := g.replica.Load(), g.events.Load()
	if e == nil || events == nil && id != controlGroup {
		return nil, fmt.Errorf("%w: the replica of group %d is just being replaced", replica.ErrUnavailable, id)
	}
	i := &groupImage{g: g, e: e}
	if err := os.RemoveAll(i.dir()); err != nil {
		return nil, err
	}
	if i.image, err = e.BeginImage(ctx); err != nil {
		return nil, err
	}
	i.from = i.image.Checkpointed() + 1
	if events != nil {
		var packed uint64
		if err = events.PackTo(ctx, i.image.Checkpointed()); err == nil { // so that the tail is short
			packed, err = events.Image(i.image.Path("events"))
			i.from = min(i.from, packed+1)
		}
	}
	if err != nil {
		return nil, errors.Join(err, i.release())
	}
	return i, nil
}

func (i *groupImage) dir() string { return filepath.Join(i.g.dir, imagesDir) }

// end fixes the position. The replica's log is not held from then on.
func (i *groupImage) end(position uint64) error {
	deadline := time.Now().Add(cutWait)
	if _, err := i.g.n.barrierOne(i.g.id, deadline); err != nil { // so that the replica here need not wait to be told
		return err
	}
	if err := i.g.wait(position, deadline); err != nil {
		return err
	}
	if err := i.writeTail(position); err != nil {
		return fmt.Errorf("write the tail of group %d: %w", i.g.id, err)
	}
	if err := os.Rename(filepath.Dir(i.image.Path("state")), i.dir()); err != nil {
		return err
	}
	image := i.image
	i.image = nil
	if err := image.Release(); err != nil {
		return err
	}
	return filepath.WalkDir(i.dir(), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(i.dir(), path)
		i.files = append(i.files, imageFile{filepath.ToSlash(name), info.Size()})
		return err
	})
}

// writeTail writes magic, first and last position, then for each record position u64, count u32, size u32, payload.
func (i *groupImage) writeTail(position uint64) error {
	path := i.image.Path("log")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(path, tailName))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	head := appendU64(appendU64([]byte(tailMagic), i.from), position)
	_, _ = w.Write(head) // Flush says what is wrong
	err = i.e.ReadLog(i.from, position, func(position uint64, count uint32, payload []byte) error {
		head = appendU32(appendU32(appendU64(head[:0], position), count), uint32(len(payload)))
		_, _ = w.Write(head)
		_, err := w.Write(payload)
		return err
	})
	return errors.Join(err, w.Flush(), f.Close())
}

// open opens a file. Errors say, too, when the node is better off without the image.
func (i *groupImage) open(file int) (io.ReadCloser, error) {
	if err := i.e.Ready(); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(i.dir(), filepath.FromSlash(i.files[file].name)))
}

// release removes the image.
func (i *groupImage) release() error {
	var err error
	if i.image != nil {
		err = i.image.Release()
		i.image = nil
	}
	return errors.Join(err, os.RemoveAll(i.dir()))
}

// tail is the log of a group that is not there any more, as far as an image has it: behind that, nothing comes. It is a
// replica.Log.
type tail struct {
	file        *os.File
	first, last uint64
	records     []tailRecord
}

type tailRecord struct {
	position uint64
	offset   int64
	size     uint32
	count    uint32
}

func openTail(path string) (*tail, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t := &tail{file: f}
	if err := t.index(); err != nil {
		return nil, errors.Join(fmt.Errorf("read %q: %w", path, err), f.Close())
	}
	return t, nil
}

// index finds the records.
func (t *tail) index() error {
	r := bufio.NewReaderSize(t.file, 256<<10)
	var head [16]byte
	var magic [len(tailMagic)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil || string(magic[:]) != tailMagic {
		return errors.New("it is no tail of a log that this program reads")
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	t.first, t.last = binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	for offset := int64(len(magic) + len(head)); ; {
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		offset += int64(len(head))
		rec := tailRecord{binary.LittleEndian.Uint64(head[:]), offset, binary.LittleEndian.Uint32(head[12:]),
			binary.LittleEndian.Uint32(head[8:])}
		if _, err := r.Discard(int(rec.size)); err != nil {
			return io.ErrUnexpectedEOF
		}
		offset += int64(rec.size)
		t.records = append(t.records, rec)
	}
}

// Read calls f for the records from position from to to.
func (t *tail) Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	at, _ := slices.BinarySearchFunc(t.records, from, func(r tailRecord, p uint64) int {
		if r.position < p {
			return -1
		}
		return 1
	})
	var buf bytes.Buffer
	for _, r := range t.records[at:] {
		if r.position > to {
			return nil
		}
		buf.Reset()
		if _, err := io.Copy(&buf, io.NewSectionReader(t.file, r.offset, int64(r.size))); err != nil {
			return err
		}
		if err := f(r.position, r.count, buf.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Replay calls f for the records from position from on.
func (t *tail) Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error {
	if from < t.first {
		return fmt.Errorf("%w: from %d on, the tail begins at %d", wal.ErrMissing, from, t.first)
	}
	return t.Read(from, t.last, f)
}

func (t *tail) Append(*wal.Record) error                         { return wal.ErrNotLeader }
func (t *tail) Hold(string, uint64)                              {}
func (t *tail) Trim(uint64) error                                { return nil }
func (t *tail) FirstPosition() uint64                            { return t.first }
func (t *tail) LastPosition() uint64                             { return t.last }
func (t *tail) DurablePosition() uint64                          { return t.last }
func (t *tail) Bytes() int64                                     { return 0 }
func (t *tail) Stalled() bool                                    { return false }
func (t *tail) DiskFull() bool                                   { return false }
func (t *tail) Image(string, uint64, uint64) ([]wal.File, error) { return nil, replica.ErrImage }
func (t *tail) Close() error                                     { return t.file.Close() }

// images are those that this node has made for others.
type images struct {
	mu   sync.Mutex
	list map[uint64]*lentImage
}

// lentImage is used by one call at a time.
type lentImage struct {
	mu   sync.Mutex
	own  *groupImage
	idle *time.Timer
}

// The verbs of callImage.
//
//	begin    group u32                                      answer  id u64
//	end      id u64, position u64                           answer  for each file: size u64, name (with its size in front)
//	read     id u64, file u32, offset u64                   answer  up to imageReadBytes of it
//	letGo    id u64
const (
	imageBegin = 1
	imageEnd   = 2
	imageRead  = 3
	imageLetGo = 4
)

func (n *Node) serveImage(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	if verb := x.u8(); verb == imageBegin {
		return n.lendImage(dst, x)
	} else {
		return n.useImage(dst, verb, x)
	}
}

func (n *Node) lendImage(dst []byte, x *reader) ([]byte, error) {
	group := x.u32()
	if err := x.err(); err != nil {
		return dst, err
	}
	own, err := n.beginImage(n.context, group)
	if err != nil {
		return dst, err
	}
	id, lent := rand.Uint64(), &lentImage{own: own}
	n.images.mu.Lock()
	defer n.images.mu.Unlock()
	if n.images.list == nil {
		n.images.list = map[uint64]*lentImage{}
	}
	n.images.list[id] = lent
	lent.idle = time.AfterFunc(imageIdle, func() { n.takeBack(id) })
	return appendU64(dst, id), nil
}

func (n *Node) takeBack(id uint64) {
	n.images.mu.Lock()
	lent := n.images.list[id]
	delete(n.images.list, id)
	n.images.mu.Unlock()
	if lent == nil {
		return
	}
	lent.idle.Stop()
	lent.mu.Lock()
	defer lent.mu.Unlock()
	if err := lent.own.release(); err != nil {
		n.log.Warn("the image of a group is not removed", "group", lent.own.g.id, "error", err)
	}
}

// takeBackAll removes them all.
func (n *Node) takeBackAll() {
	n.images.mu.Lock()
	var ids []uint64
	for id := range n.images.list {
		ids = append(ids, id)
	}
	n.images.mu.Unlock()
	for _, id := range ids {
		n.takeBack(id)
	}
}

func (n *Node) useImage(dst []byte, verb byte, x *reader) ([]byte, error) {
	id := x.u64()
	n.images.mu.Lock()
	lent := n.images.list[id]
	n.images.mu.Unlock()
	if lent == nil {
		return dst, errors.New("the image is not there any more")
	}
	lent.idle.Reset(imageIdle)
	if verb == imageLetGo {
		n.takeBack(id)
		return dst, nil
	}
	lent.mu.Lock()
	defer lent.mu.Unlock()
	switch verb {
	case imageEnd:
		position := x.u64()
		if err := x.err(); err != nil {
			return dst, err
		}
		if lent.own.image == nil { // ended, or let go, meanwhile
			return dst, errors.New("the image is not there any more")
		}
		if err := lent.own.end(position); err != nil {
			return dst, err
		}
		for _, f := range lent.own.files {
			dst = appendSized(appendU64(dst, uint64(f.size)), []byte(f.name))
		}
		return dst, nil
	case imageRead:
		file, offset := int(x.u32()), int64(x.u64())
		if err := x.err(); err != nil || file >= len(lent.own.files) {
			return dst, errMalformed
		}
		return lent.own.appendPart(dst, file, offset)
	}
	return dst, errMalformed
}

func (i *groupImage) appendPart(dst []byte, file int, offset int64) ([]byte, error) {
	f, err := i.open(file)
	if err != nil {
		return dst, err
	}
	defer f.Close()
	at := len(dst)
	dst = slices.Grow(dst, imageReadBytes)[:at+imageReadBytes]
	count, err := f.(*os.File).ReadAt(dst[at:], offset)
	if err == io.EOF {
		err = nil
	}
	return dst[:at+count], err
}

// farImage is an image of a group on another node.
type farImage struct {
	r     *remote
	group uint32
	id    uint64
	files []imageFile
}

func (r *remote) beginImage(group uint32) (*farImage, error) {
	answer, err := r.ask(callImage, appendU32([]byte{imageBegin}, group), time.Now().Add(imageWait))
	if err != nil {
		return nil, err
	}
	x := &reader{rest: answer}
	i := &farImage{r: r, group: group, id: x.u64()}
	return i, x.err()
}

func (i *farImage) call(verb byte) []byte { return appendU64([]byte{verb}, i.id) }

func (i *farImage) end(position uint64) error {
	answer, err := i.r.ask(callImage, appendU64(i.call(imageEnd), position), time.Now().Add(imageWait))
	if err != nil {
		return err
	}
	x := &reader{rest: answer}
	for len(x.rest) > 0 && !x.short {
		f := imageFile{size: int64(x.u64())}
		f.name = string(x.sized())
		i.files = append(i.files, f)
	}
	return x.err()
}

func (i *farImage) release() error {
	_, err := i.r.ask(callImage, i.call(imageLetGo), time.Now().Add(holdTime))
	return err
}

func (i *farImage) open(file int) (io.ReadCloser, error) {
	return io.NopCloser(&farFile{i: i, file: file, size: i.files[file].size}), nil
}

// farFile reads a file of another node, part by part.
type farFile struct {
	i      *farImage
	file   int
	size   int64
	offset int64
	part   []byte
}

// Read reads.
func (f *farFile) Read(p []byte) (int, error) {
	if len(f.part) == 0 {
		if f.offset >= f.size {
			return 0, io.EOF
		}
		body := appendU64(appendU32(f.i.call(imageRead), uint32(f.file)), uint64(f.offset))
		part, err := f.i.r.ask(callImage, body, time.Now().Add(callReadTime))
		if err != nil {
			return 0, err
		}
		if len(part) == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		f.part, f.offset = part, f.offset+int64(len(part))
	}
	n := copy(p, f.part)
	f.part = f.part[n:]
	return n, nil
}
