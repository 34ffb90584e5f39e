package field

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bojanz/currency"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

func TestCurrency(t *testing.T) {
	for _, want := range currency.GetCurrencyCodes() {
		digits, _ := currency.GetDigits(want)
		for _, in := range []string{want, strings.ToLower(want)} {
			code, got, ok := Currency([]byte(in))
			require.True(t, ok, in)
			require.Equal(t, want, string(code[:]))
			require.Equal(t, digits, got, in)
		}
	}
	for in, want := range map[string]uint8{"USD": 2, "eur": 2, "JPY": 0, "KWD": 3, "HRK": 2, "bgn": 2, "BYR": 0, "XAU": 2, "BTC": 8} {
		_, digits, ok := Currency([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, digits, in)
	}
	for _, bad := range []string{"", "US", "USDD", "ZZZ", "US1", "U D", "U\x00D", "\xff\xff\xff", "US{", "US@", "$", "USD "} {
		_, _, ok := Currency([]byte(bad))
		require.False(t, ok, bad)
	}
}

func TestMinorUnits(t *testing.T) {
	minor := func(price string, digits uint8, quantity, want int64) {
		t.Helper()
		got, ok := MinorUnits([]byte(price), digits, quantity)
		require.True(t, ok, price)
		require.Equal(t, want, got, price)
	}
	minor("0", 2, 1, 0)
	minor("-0", 2, 1, 0)
	minor("12.34", 2, 1, 1234)
	minor("12.345", 2, 1, 1235) // half away from zero
	minor("-12.345", 2, 1, -1235)
	minor("12.345", 2, 2, 2469) // rounded once, at the end
	minor("12.345", 0, 1, 12)
	minor("12.345", 3, 1, 12345)
	minor("0.000123455", 8, 2, 24691)
	minor("1e2", 2, 1, 10000)
	minor("1E+2", 2, 1, 10000)
	minor("-3.5", 2, 1, -350)
	minor("-3.5", 2, -1, 350)
	minor("0.1", 2, 3, 30)
	minor("0.005", 2, 1, 1)
	minor("0.00499999999999999999999999999999999999999999999999999", 2, 1, 0)
	minor("0.5e-2", 2, 1, 1)
	minor("0.4e-2", 2, 1, 0)
	minor("1e-400", 2, 1, 0)
	minor("1e-99999999999999999999", 2, 1, 0)
	minor("0e99999999999999999999", 2, 1, 0)
	minor("1e400", 2, 0, 0)
	minor("92233720368547758.07", 2, 1, math.MaxInt64)
	minor("-92233720368547758.08", 2, 1, math.MinInt64)
	minor("0.01", 2, math.MinInt64, math.MinInt64)
	minor("9223372036854775807.4", 0, 1, math.MaxInt64)
	minor("100000000000000000000000000000000000000000000000000000000000e-60", 2, 1, 10)

	minor("1."+strings.Repeat("0", 1022), 2, 1, 100)
	minor("0."+strings.Repeat("0", 1000)+"125e1001", 2, 3, 375)
	minor("0.00"+strings.Repeat("4", 1000), 2, 1, 0)
	minor("0.00"+strings.Repeat("5", 1000), 2, 1, 1)
	minor("1"+strings.Repeat("0", 1000)+".5e-1000", 2, 1, 100)
	minor(strings.Repeat("7", 1000)+"e-998", 2, 1, 7778)

	for _, bad := range []string{
		"", "-", "+1", "01", "-01", "1.", ".1", "1.e1", "1e", "1e+", "1e1.5", "1,5", " 1", "1 ", "0x1", "1_0", "NaN", "Infinity", "--1", "1e--1", "1\x00", "\"1\"", "1.2.3",
		strings.Repeat("1", 65), "1." + strings.Repeat("0", 1023),
		"1e400", "1e99999999999999999999", "92233720368547758.08", "-92233720368547758.09", "92233720368547758.075", strings.Repeat("9", 64), "-" + strings.Repeat("9", 63),
	} {
		_, ok := MinorUnits([]byte(bad), 2, 1)
		require.False(t, ok, bad)
	}
	_, ok := MinorUnits([]byte("0.01"), 2, math.MaxInt64)
	require.True(t, ok)
	_, ok = MinorUnits([]byte("-0.01"), 2, math.MinInt64)
	require.False(t, ok)
	_, ok = MinorUnits([]byte(strings.Repeat("9", 64)), 255, math.MaxInt64)
	require.False(t, ok)
	_, ok = MinorUnits([]byte("1e"), 2, 0)
	require.False(t, ok, "a quantity of zero doesn't make the text good")
}

// minorByRat is the same computation with arbitrary precision.
func minorByRat(price string, digits uint8, quantity int64) (int64, bool) {
	rat, ok := new(big.Rat).SetString(price)
	if !ok {
		return 0, false
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil)
	rat.Mul(rat, new(big.Rat).SetInt(scale))
	rat.Mul(rat, new(big.Rat).SetInt64(quantity))
	half := big.NewRat(int64(rat.Sign()), 2)
	rat.Add(rat, half)
	whole := new(big.Int).Quo(rat.Num(), rat.Denom()) // toward zero
	return whole.Int64(), whole.IsInt64()
}

func randomPrice(random *rand.Rand) string {
	var s strings.Builder
	if random.IntN(3) == 0 {
		s.WriteByte('-')
	}
	digits := func(upTo int) {
		for range 1 + random.IntN(upTo) {
			s.WriteByte("0123456789559900"[random.IntN(16)])
		}
	}
	if random.IntN(4) == 0 {
		s.WriteByte('0')
	} else {
		s.WriteByte('1' + byte(random.IntN(9)))
		digits(1 + random.IntN(20))
	}
	if random.IntN(3) > 0 {
		s.WriteByte('.')
		digits(1 + random.IntN(20))
		if random.IntN(8) == 0 {
			digits(1 + random.IntN(200))
		}
	}
	if random.IntN(3) == 0 {
		fmt.Fprintf(&s, "%c%s%d", "eE"[random.IntN(2)], []string{"", "+", "-"}[random.IntN(3)], random.IntN(40))
	}
	return s.String()
}

func TestMinorUnitsAgreesWithRat(t *testing.T) {
	random := testseed.Rand(t)
	good := 0
	for range 60_000 {
		price, digits := randomPrice(random), uint8(random.IntN(5))
		quantity := []int64{1, int64(random.IntN(101)), -int64(random.IntN(101)), int64(random.Uint64())}[random.IntN(4)]
		if len(price) > maxPriceBytes {
			continue
		}
		want, fits := minorByRat(price, digits, quantity)
		got, ok := MinorUnits([]byte(price), digits, quantity)
		require.Equal(t, fits, ok, "%s digits %d × %d", price, digits, quantity)
		if ok {
			good++
			require.Equal(t, want, got, "%s digits %d × %d", price, digits, quantity)
		}
	}
	require.Greater(t, good, 20_000)
}

func FuzzMinorUnits(f *testing.F) {
	f.Add("12.345", uint8(2), int64(3))
	f.Add("-1e-2", uint8(0), int64(-1))
	f.Add("9223372036854775807.5", uint8(0), int64(1))
	f.Fuzz(func(t *testing.T, price string, digits uint8, quantity int64) {
		got, ok := MinorUnits([]byte(price), digits, quantity)
		var number json.Number
		isNumber := json.Unmarshal([]byte(price), &number) == nil && string(number) == price && price != "" && len(price) <= maxPriceBytes
		if !isNumber {
			if ok {
				t.Fatalf("%q is no number", price)
			}
			return
		}
		if mantissa, exponent, found := strings.Cut(strings.ToLower(price), "e"); found && len(strings.TrimLeft(exponent, "+-0")) > 3 || mantissa == "" {
			return // too much for the judge
		}
		want, fits := minorByRat(price, digits, quantity)
		if ok != fits || ok && got != want {
			t.Fatalf("%s digits %d × %d is %d %v, want %d %v", price, digits, quantity, got, ok, want, fits)
		}
	})
}

func BenchmarkMinorUnits(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		MinorUnits([]byte("129.99"), 2, 3)
	}
}

func BenchmarkCurrency(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Currency([]byte("usd"))
	}
}
