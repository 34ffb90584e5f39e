package event

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
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
	for range 2 { // days in the memo of dates, and days that share a place there
		for range 2000 {
			check(time.UnixMilli(r.Int64N(300 * 24 * 60 * 60 * 1000)))
		}
	}
	check(time.UnixMilli(math.MinInt64))
	check(time.UnixMilli(math.MaxInt64))
	check(time.UnixMilli(0))
	check(time.UnixMilli(-1))
	check(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))
	check(time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC))
	check(time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 3600)))
}

// AppendDecimal writes what AppendValue writes of the same number as a Float.
func TestAppendDecimal(t *testing.T) {
	r := testseed.Rand(t)
	check := func(m int64) {
		for scale, power := range []float64{1, 10, 100, 1000, 10000} {
			if m > -1<<52 && m < 1<<52 { // others are no Floats of a block
				want := AppendValue(nil, op.AppendFloat(nil, float64(m)/power))
				require.Equal(t, string(want), string(AppendDecimal(nil, m, scale)), "%d, %d", m, scale)
			}
		}
	}
	for range 50_000 {
		check(r.Int64N(1<<r.IntN(63)+1) * (r.Int64N(3) - 1))
	}
	for power := int64(1); power < 1e18; power *= 10 {
		for near := power - 2; near <= power+2; near++ {
			check(near)
			check(-near)
		}
	}
	check(1<<52 - 1)
	check(1 - 1<<52)
	check(math.MaxInt64)
	check(math.MinInt64)
}
