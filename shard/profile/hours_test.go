package profile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// TestHours counts random occurrences, by which the window moves slowly, fast, or beyond the modulus of hours, in three
// users, and merges them.
func TestHours(t *testing.T) {
	rng := testseed.Rand(t)
	for range testsize.Of(3000, 60, 20) {
		var users [3][]byte
		var all [3][]int64
		hours, most := 1+rng.Int64N(2500), 1+rng.IntN(4)
		for i := range users {
			users[i] = user("u")
			for range rng.IntN(150) {
				at, times := noon+rng.Int64N(hours*hour), 1+rng.IntN(most)
				users[i] = buy(t, users[i], "sku", at, 1, uint32(times), "USD")
				for range times {
					all[i] = append(all[i], at)
				}
				require.NoError(t, Check(users[i]))
				require.Equal(t, recentOf(all[i]), recent(users[i], tagProduct, "sku"))
			}
		}
		merged, one := users[0], all[0]
		for i := 1; i < len(users); i++ {
			merged, one = merge(t, merged, users[i], MergeUsers), append(one, all[i]...)
			require.NoError(t, Check(merged))
		}
		if len(one) > 0 {
			require.Equal(t, recentOf(one), recent(merged, tagProduct, "sku"))
		}
	}
}
