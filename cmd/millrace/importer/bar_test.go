package importer

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Already the first frame of a bar has the rate since its beginning.
func TestFirstFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := newBar(&out)
		for _, step := range []func(){func() { b.add(1000) }, func() { b.set(1000) }} {
			out.Reset()
			b.begin("a.ndjson", 100_000, "rows")
			time.Sleep(100 * time.Millisecond)
			step()
			require.Contains(t, out.String(), "(1000/100000, 10000 rows/s) [0s:9s]")
		}
	})
}
