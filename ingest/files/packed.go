package files

import (
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

// Unpack reads a packed file. Reads fail when it is damaged or cut short.
func Unpack(name string, r io.Reader) (io.ReadCloser, error) {
	if strings.HasSuffix(strings.ToLower(name), ".gz") {
		return gzip.NewReader(r)
	}
	d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}
