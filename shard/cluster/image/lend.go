package image

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/cluster/calls"
	"millrace/wal/quorum/host"
)

const (
	// partBytes is how much of an image one call carries; idle is how long an image is kept that nobody asks for.
	partBytes = 1 << 20
	idle      = 2 * time.Minute
)

// The verbs of the call.
//
//	begin    group u32                                      answer  id u64
//	end      id u64, position u64                           answer  for each file: size u64, name (with its size in front)
//	read     id u64, file u32, offset u64                   answer  up to partBytes of it
//	letGo    id u64
const (
	begin = 1
	end   = 2
	read  = 3
	letGo = 4
)

// Lender makes images for other nodes.
type Lender struct {
	context context.Context // ends with the node
	begin   func(ctx context.Context, group uint32) (Image, error)
	logger  *slog.Logger
	lent    *xsync.MapOf[uint64, *lent]
}

// NewLender returns a Lender that lends the images made by begin.
func NewLender(
	ctx context.Context, begin func(ctx context.Context, group uint32) (Image, error), logger *slog.Logger,
) *Lender {
	return &Lender{ctx, begin, logger, xsync.NewMapOf[uint64, *lent]()}
}

// lent is an image on loan. One call at a time uses it.
type lent struct {
	group uint32
	mu    sync.Mutex
	own   Image
	idle  *time.Timer
}

// Serve is a calls.Handler.
func (l *Lender) Serve(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	if verb := x.Byte(); verb != begin {
		return l.use(dst, verb, x)
	}
	return l.lend(dst, x)
}

func (l *Lender) lend(dst calls.Body, x *calls.Reader) (calls.Body, error) {
	group := x.U32()
	if err := x.Err(); err != nil {
		return dst, err
	}
	own, err := l.begin(l.context, group)
	if err != nil {
		return dst, err
	}
	id, i := rand.Uint64(), &lent{group: group, own: own}
	i.idle = time.AfterFunc(idle, func() { l.takeBack(id) })
	l.lent.Store(id, i)
	return dst.U64(id), nil
}

func (l *Lender) takeBack(id uint64) {
	i, ok := l.lent.LoadAndDelete(id)
	if !ok {
		return
	}
	i.idle.Stop()
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.own.Release(); err != nil {
		l.logger.Warn("the image of a group could not be removed", "group", i.group, "error", err)
	}
}

// TakeBackAll removes all images that are lent.
func (l *Lender) TakeBackAll() {
	l.lent.Range(func(id uint64, _ *lent) bool {
		l.takeBack(id)
		return true
	})
}

func (l *Lender) use(dst calls.Body, verb byte, x *calls.Reader) (calls.Body, error) {
	id := x.U64()
	i, ok := l.lent.Load(id)
	if !ok {
		return dst, ErrGone
	}
	i.idle.Reset(idle)
	if verb == letGo {
		l.takeBack(id)
		return dst, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch verb {
	case end:
		position := x.U64()
		if err := x.Err(); err != nil {
			return dst, err
		}
		if err := i.own.End(position); err != nil {
			return dst, err
		}
		for _, f := range i.own.Files() {
			dst = dst.U64(uint64(f.Size)).Sized([]byte(f.Name))
		}
		return dst, nil
	case read:
		file, offset := int(x.U32()), int64(x.U64())
		if err := x.Err(); err != nil || file >= len(i.own.Files()) {
			return dst, calls.ErrMalformed
		}
		return appendPart(dst, i.own, file, offset)
	}
	return dst, calls.ErrMalformed
}

func appendPart(dst calls.Body, i Image, file int, offset int64) (calls.Body, error) {
	f, err := i.Open(file)
	if err != nil {
		return dst, err
	}
	defer f.Close()
	at := len(dst)
	dst = slices.Grow(dst, partBytes)[:at+partBytes]
	count, err := f.(io.ReaderAt).ReadAt(dst[at:], offset)
	if err == io.EOF {
		err = nil
	}
	return dst[:at+count], err
}
