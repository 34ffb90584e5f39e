package files

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// A file without a byte has no text, however it is packed. gzip files have any number of members, and zeros behind them.
func TestUnpack(t *testing.T) {
	member := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.String()
	}
	long, zeros := strings.Repeat("row\n", 100_000), strings.Repeat("\x00", 10_240)
	for _, c := range []struct{ name, packed, want string }{
		{"a.ndjson.gz", "", ""}, {"a.ndjson.zst", "", ""},
		{"a.gz", member("a"), "a"}, {"a.gz", member(""), ""},
		{"a.GZ", member("a") + member("") + member(long) + member("b"), "a" + long + "b"},
		{"a.gz", member(long) + "\x00", long}, {"a.gz", member("") + zeros, ""}, {"a.gz", member("a") + member("b") + zeros, "ab"},
	} {
		for _, source := range []io.Reader{strings.NewReader(c.packed), iotest.OneByteReader(strings.NewReader(c.packed))} {
			r, err := Unpack(c.name, source)
			require.NoError(t, err)
			require.NoError(t, iotest.TestReader(readerOnly{r}, []byte(c.want)), c.want)
			require.NoError(t, r.Close())
		}
	}
	for _, wrong := range []string{
		zeros, "\x1f", "row\n", member("a") + "row\n", member("a") + zeros + "row\n", member("a") + "\x00" + member("b"), member("a")[:20],
		member("a") + member("b")[:9], member(long)[:100],
	} {
		r, err := Unpack("a.gz", strings.NewReader(wrong))
		if err == nil {
			_, err = io.ReadAll(r)
		}
		require.Error(t, err, "%.100q", wrong)
	}
}

// readerOnly hides what a reader can do besides.
type readerOnly struct{ io.Reader }
