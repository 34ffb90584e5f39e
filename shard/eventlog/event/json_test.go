package event

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// appendTime writes what the layouts of package time write.
func TestAppendTime(t *testing.T) {
	r := testseed.Rand(t)
	check := func(at time.Time) {
		require.Equal(t, at.UTC().Format(`"2006-01-02T15:04:05.000Z"`), string(appendTime(nil, at)))
	}
	for range 20_000 {
		check(time.UnixMilli(r.Int64N(1<<48) - 1<<46))
	}
	check(time.UnixMilli(0))
	check(time.UnixMilli(-1))
	check(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))
	check(time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC))
	check(time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 3600)))
}
