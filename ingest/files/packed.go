package files

import (
	"bufio"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// packings are the suffixes of packed files.
var packings = []string{".gz", ".zst"}

// unpackedName returns a file's name without the suffix that says that it is packed.
func unpackedName(name string) (inner string, isPacked bool) {
	for _, ending := range packings {
		if len(name) > len(ending) && strings.EqualFold(name[len(name)-len(ending):], ending) {
			return name[:len(name)-len(ending)], true
		}
	}
	return name, false
}

// IsPacked reports, by its name, whether a file is packed as a whole, with gzip or zstd.
func IsPacked(name string) bool {
	_, is := unpackedName(name)
	return is
}

// maxWindow bounds how much memory a packed file may ask for: as much as zstd's own command permits without a flag.
const maxWindow = 128 << 20

// Unpack reads a packed file. Reads fail when it is damaged or cut short. A file without a byte is one without text.
func Unpack(name string, r io.Reader) (io.ReadCloser, error) {
	if strings.HasSuffix(strings.ToLower(name), ".gz") {
		return newGzip(r)
	}
	d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// gzipReader reads a gzip file as gzip(1) does: its members one after the other, and no zeros behind them, which pad
// the blocks of tapes.
type gzipReader struct {
	from   *bufio.Reader
	member *gzip.Reader
}

func newGzip(r io.Reader) (io.ReadCloser, error) {
	g := &gzipReader{from: bufio.NewReader(r), member: new(gzip.Reader)}
	if _, err := g.from.Peek(1); err == io.EOF {
		return io.NopCloser(g.from), nil
	}
	return g, g.begin()
}

// begin begins a member.
func (g *gzipReader) begin() error {
	err := g.member.Reset(g.from)
	g.member.Multistream(false)
	return err
}

func (g *gzipReader) Read(p []byte) (n int, err error) {
	for n, err = g.member.Read(p); n == 0 && err == io.EOF; n, err = g.member.Read(p) {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	if err == io.EOF { // of the member
		err = nil
	}
	return n, err
}

// next begins the next member; at the end of the file it returns io.EOF.
func (g *gzipReader) next() error {
	for isPadded := false; ; isPadded = true {
		head, err := g.from.Peek(1)
		switch {
		case err != nil:
			return err
		case head[0] != 0 && isPadded:
			return gzip.ErrHeader
		case head[0] != 0:
			return g.begin()
		}
		_, _ = g.from.Discard(1)
	}
}

// Close implements io.Closer.
func (g *gzipReader) Close() error { return nil }
