package field

import (
	"math"
	"math/bits"
	"sync"

	"github.com/bojanz/currency"
)

// Currency returns an ISO 4217 code in upper case, and how many decimal digits the currency has (2 for USD, 0 for JPY).
// Lower case is also read (reference.md 1.7), and so are moreCurrencies.
func Currency(b []byte) (code [3]byte, digits uint8, ok bool) {
	if len(b) != 3 {
		return code, 0, false
	}
	code = [3]byte{upper(b[0]), upper(b[1]), upper(b[2])}
	place, ok := currencyPlace(code)
	if !ok {
		return [3]byte{}, 0, false
	}
	known := currencies()[place]
	if known == 0 {
		return [3]byte{}, 0, false
	}
	return code, known - 1, true
}

// moreCurrencies are those that the public API's own clients take besides the present ones, with their digits: what has
// been replaced but is still sent with purchases of its time, metals, and some without a code of ISO's.
var moreCurrencies = map[string]uint8{
	"ANG": 2, "BGN": 2, "BYR": 0, "CUC": 2, "EEK": 2, "HRK": 2, "LTL": 2, "LVL": 2, "MRO": 2, "MTL": 2, "SLL": 2,
	"STD": 2, "VEF": 2, "ZMK": 2, "ZWL": 2, "XAG": 2, "XAU": 2, "XDR": 2, "XPD": 2, "XPT": 2, "GGP": 2, "IMP": 2,
	"JEP": 2, "BTC": 8,
}

// currencies holds the number of digits of each currency plus one, and 0 for codes that aren't currencies.
var currencies = sync.OnceValue(func() *[26 * 26 * 26]uint8 {
	table := new([26 * 26 * 26]uint8)
	for _, code := range currency.GetCurrencyCodes() {
		digits, ok := currency.GetDigits(code)
		if !ok || len(code) != 3 {
			continue
		}
		if place, ok := currencyPlace([3]byte([]byte(code))); ok {
			table[place] = digits + 1
		}
	}
	for code, digits := range moreCurrencies {
		place, _ := currencyPlace([3]byte([]byte(code)))
		table[place] = digits + 1
	}
	return table
})

func currencyPlace(code [3]byte) (place int, ok bool) {
	x, y, z := code[0]-'A', code[1]-'A', code[2]-'A'
	return int(x)*26*26 + int(y)*26 + int(z), x < 26 && y < 26 && z < 26
}

// maxPriceBytes bounds the text of a price.
const maxPriceBytes = 1024

// maxPriceDigits is how many digits of a price count, from the first non-zero one on. The digits after them are below
// 10⁻⁴⁵ of a minor unit of any product that fits.
const maxPriceDigits = 64

// MinorUnits multiplies a price, given as the text of a JSON number (12.345, 1e2, -3.5), by a quantity, and returns the
// product in minor units: with digits 2, a price of 12.34 is 1234. The arithmetic is exact for maxPriceDigits; the
// product is rounded once, at the end, half away from zero. ok is false for a text that is not a JSON number or longer
// than maxPriceBytes, and for a product that doesn't fit into 64 bits.
func MinorUnits(priceText []byte, digits uint8, quantity int64) (minor int64, ok bool) {
	if minor, ok = plainPrice(priceText, digits, quantity); ok {
		return minor, true
	}
	negative, coefficient, exponent, ok := decimal(priceText)
	if !ok {
		return 0, false
	}
	if quantity == 0 {
		return 0, true
	}
	if quantity < 0 {
		negative = !negative
	}
	coefficient.multiplyAdd(magnitude(quantity), 0)
	amount, ok := coefficient.scale(exponent + int(digits))
	switch {
	case !ok:
		return 0, false
	case negative && amount <= 1<<63:
		return -int64(amount), true
	case !negative && amount <= math.MaxInt64:
		return int64(amount), true
	}
	return 0, false
}

// plainPrice is MinorUnits for a price of few digits without an exponent, none of them below the minor unit, and a
// small quantity.
func plainPrice(text []byte, digits uint8, quantity int64) (minor int64, ok bool) {
	const maxBytes, maxQuantity = 12, 1000 // the product, with three more digits of the currency, is below 10^18
	if len(text) == 0 || len(text) > maxBytes || digits > 3 || quantity < 0 || quantity > maxQuantity ||
		!isDigit(text[0]) ||
		text[0] == '0' && len(text) > 1 && text[1] != '.' {
		return 0, false
	}
	fraction := -1 // digits after the point, -1 before it
	for _, c := range text {
		switch {
		case isDigit(c):
			minor = minor*10 + int64(c-'0')
			if fraction >= 0 {
				fraction++
			}
		case c == '.' && fraction < 0:
			fraction = 0
		default:
			return 0, false
		}
	}
	if fraction == 0 || fraction > int(digits) {
		return 0, false
	}
	for k := max(fraction, 0); k < int(digits); k++ {
		minor *= 10
	}
	return minor * quantity, true
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// maxExponent is where exponents are cut: beyond it every number of maxPriceBytes is practically infinite, or zero.
const maxExponent = 10 * maxPriceBytes

// decimal reads a JSON number as ±coefficient·10^exponent. The coefficient has at most maxPriceDigits, 213 bits.
func decimal(b []byte) (negative bool, coefficient wide, exponent int, ok bool) {
	if len(b) > maxPriceBytes {
		return false, wide{}, 0, false
	}
	if len(b) > 0 && b[0] == '-' {
		negative = true
		b = b[1:]
	}
	significant := 0
	whole, exponent := coefficient.digits(b, &significant)
	if whole == 0 || whole > 1 && b[0] == '0' {
		return false, wide{}, 0, false
	}
	b = b[whole:]
	if len(b) > 0 && b[0] == '.' {
		part, dropped := coefficient.digits(b[1:], &significant)
		if part == 0 {
			return false, wide{}, 0, false
		}
		exponent += dropped - part
		b = b[1+part:]
	}
	if len(b) > 0 && lower(b[0]) == 'e' {
		power, ok := power(b[1:])
		return negative, coefficient, exponent + power, ok
	}
	return negative, coefficient, exponent, len(b) == 0
}

// power reads all of b as the exponent of a JSON number, cut at ±maxExponent.
func power(b []byte) (n int, ok bool) {
	sign := 1
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		if b[0] == '-' {
			sign = -1
		}
		b = b[1:]
	}
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		n = min(n*10+int(c-'0'), maxExponent)
	}
	return sign * n, len(b) > 0
}

// wide is an unsigned integer of 320 bits, lowest limb first: enough for a coefficient of 64 digits times a quantity of
// 64 bits. Limbs from used on are zero.
type wide struct {
	limbs [5]uint64
	used  int
}

// digits appends the decimal digits at the start of b to w and returns how many there were, and how many of them were
// dropped because w already has maxPriceDigits significant ones.
func (w *wide) digits(b []byte, significant *int) (count, dropped int) {
	for ; count < len(b) && isDigit(b[count]); count++ {
		if *significant == maxPriceDigits {
			dropped++
			continue
		}
		w.multiplyAdd(10, uint64(b[count]-'0'))
		if w.used > 0 {
			*significant++
		}
	}
	return count, dropped
}

// multiplyAdd sets w to w·factor + carry. The factor isn't zero, so that no limb gets lost.
func (w *wide) multiplyAdd(factor, carry uint64) {
	for i := range w.used {
		high, low := bits.Mul64(w.limbs[i], factor)
		low, over := bits.Add64(low, carry, 0)
		w.limbs[i], carry = low, high+over
	}
	if carry != 0 {
		w.limbs[w.used] = carry
		w.used++
	}
}

// divide divides w by ten and returns the remainder.
func (w *wide) divide() (remainder uint64) {
	for i := w.used - 1; i >= 0; i-- {
		w.limbs[i], remainder = bits.Div64(remainder, w.limbs[i], 10)
	}
	for w.used > 0 && w.limbs[w.used-1] == 0 {
		w.used--
	}
	return remainder
}

// scale returns w·10^exponent, rounded half up, if it fits into 64 bits. It consumes w.
func (w *wide) scale(exponent int) (value uint64, ok bool) {
	for ; exponent > 0 && w.used > 0; exponent-- {
		if w.used > 1 {
			return 0, false
		}
		w.multiplyAdd(10, 0)
	}
	// The digit that is dropped last decides: those after it only make the remainder larger, by less than one unit of
	// it.
	var dropped uint64
	for ; exponent < 0 && (w.used > 0 || dropped != 0); exponent++ {
		dropped = w.divide()
	}
	if dropped >= 5 {
		w.multiplyAdd(1, 1)
	}
	return w.limbs[0], w.used <= 1
}
