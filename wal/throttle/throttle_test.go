package throttle

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A log of debug lines has all lines.
func TestLinesOfADebugLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	l := &Lines{Most: 2}
	for range 100 {
		l.Warn(log, "again")
	}
	require.Equal(t, 100, strings.Count(out.String(), "level=WARN msg=again"))
	require.NotContains(t, out.String(), "left_out")
}

// Of many lines a few are written in each minute, and the number of the others.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		said := func() (lines []string) {
			for line := range strings.Lines(out.String()) {
				_, line, _ = strings.Cut(strings.TrimSpace(line), "level=")
				lines = append(lines, line)
			}
			out.Reset()
			return lines
		}
		for _, most := range []int{0, 1, 8} {
			l := &Lines{Most: most}
			most = max(most, 1)
			several := func(n int) {
				for i := range n {
					l.Error(log, "no", "i", i)
				}
			}
			several(most)
			require.Len(t, said(), most)
			several(1000)
			require.Empty(t, said())
			time.Sleep(interval - 1)
			several(1)
			require.Empty(t, said())
			time.Sleep(time.Nanosecond)
			l.Warn(log, "again", "why", "x")
			require.Equal(t, []string{`WARN msg=again why=x left_out=1001`}, said())
			several(most + 1)
			require.Len(t, said(), most-1)
			require.Equal(t, 2, l.TakeLeft())
			time.Sleep(interval)
			several(1)
			require.Equal(t, []string{`ERROR msg=no i=0`}, said(), "they were taken")
		}
	})
}
