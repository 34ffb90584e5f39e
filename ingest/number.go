package ingest

import (
	"math"
	"math/bits"
	"strconv"
	"unsafe"
)

// numberKind says what a number's bits are.
type numberKind uint8

const (
	numberInt     numberKind = iota // an int64
	numberFloat                     // a float64
	numberOutside                   // neither an int64 nor a finite float64 (decisions.md D9)
	numberLong                      // longer than maxNumberBytes, and not an integer
)

// maxNumberBytes bounds what strconv is asked to read: 4 MB of digits would cost it 26 ms. No int64 is longer than
// maxIntBytes.
const (
	maxNumberBytes = 1024
	maxIntBytes    = 20
)

var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
	1e17, 1e18,
	1e19, 1e20, 1e21, 1e22}

var tens = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// eightDigits returns the number that the leading digits of v make, and how many digits there are.
func eightDigits(v uint64) (number uint64, n int) {
	v ^= lowBits * '0'
	other := (v + lowBits*0x76 | v) & highBits // correct up to the lowest one
	n = bits.TrailingZeros64(other) >> 3
	if n == 0 {
		return 0, 0
	}
	v <<= 64 - 8*uint(n) // zeros in front
	v = v*10 + v>>8      // pairs of digits in every other byte
	const pairs = 0x000000ff000000ff
	return ((v&pairs)*(100+1_000_000<<32) + (v>>16&pairs)*(1+10_000<<32)) >> 32, n
}

// decimal is a number of at most maxShort digits, and at most as many after a point.
type decimal struct {
	digits uint64 // without the point
	places int    // digits after the point
}

// maxShort is the largest number of digits that eightDigits certainly recognizes as all of them.
const maxShort = 7

// float is exact except for the one rounding that makes the nearest float64.
func (n decimal) float() float64 { return float64(int64(n.digits)) / powersOfTen[n.places&0xf] }

// shortDecimal reads the number at i if it is a decimal; next is 0 if it isn't, or is no number.
func (d *Decoder) shortDecimal(i int) (n decimal, next int) {
	whole, size := eightDigits(word(d.in, i))
	if uint(size-1) >= maxShort || at(d.in, i) == '0' && size > 1 {
		return n, 0
	}
	next = i + size
	if at(d.in, next) == '.' {
		fraction, places := eightDigits(word(d.in, next+1))
		if uint(places-1) >= maxShort {
			return n, 0
		}
		whole, next = whole*tens[places&7]+fraction, next+1+places
		n.places = places
	}
	if at(d.in, next)|0x20 == 'e' {
		return n, 0
	}
	n.digits = whole
	return n, next
}

// number reads a number. Digits without a point or an exponent are an int64, anything else is a float64.
func (d *Decoder) number(i int) (next int, kind numberKind, value uint64) {
	in, start := d.in, i
	negative := at(in, i) == '-'
	if negative {
		i++
	}
	digits := i
	mantissa, n := eightDigits(word(in, i))
	if n == 0 {
		return d.fail(i), 0, 0
	}
	if at(in, i) == '0' {
		mantissa, n = 0, 1
	}
	if i += n; n == 8 {
		for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
			mantissa = mantissa*10 + uint64(c)
			i++
		}
	}
	significant, exponent := i-digits, 0
	if at(in, i) != '.' && at(in, i)|0x20 != 'e' {
		if significant <= 18 {
			if negative {
				mantissa = -mantissa
			}
			return i, numberInt, mantissa
		}
		return i, d.wideInt(start, i, &value), value
	}
	if at(in, i) == '.' {
		i++
		point := i
		fraction, n := eightDigits(word(in, i))
		if n == 0 {
			return d.fail(i), 0, 0
		}
		mantissa = mantissa*tens[n] + fraction
		if i += n; n == 8 {
			for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
				mantissa = mantissa*10 + uint64(c)
				i++
			}
		}
		significant, exponent = significant+i-point, point-i
	}
	if at(in, i)|0x20 == 'e' {
		i++
		sign := 1
		if at(in, i) == '-' {
			sign = -1
			i++
		} else if at(in, i) == '+' {
			i++
		}
		first, e := i, 0
		for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
			if e < 10000 {
				e = e*10 + int(c)
			}
			i++
		}
		if i == first {
			return d.fail(i), 0, 0
		}
		exponent += sign * e
	}
	if i-start > maxNumberBytes {
		return i, numberLong, 0
	}
	// Both factors are exact, so a single rounding makes the nearest float64.
	if significant <= 18 && mantissa < 1<<53 && exponent >= -22 && exponent <= 22 {
		f := float64(mantissa)
		if exponent < 0 {
			f /= powersOfTen[-exponent]
		} else {
			f *= powersOfTen[exponent]
		}
		if negative {
			f = -f
		}
		return i, numberFloat, math.Float64bits(f)
	}
	f, err := strconv.ParseFloat(d.borrow(start, i), 64)
	if err != nil {
		return i, numberOutside, 0
	}
	return i, numberFloat, math.Float64bits(f)
}

// whole returns the integer that a number has as its value, however it is written: programs whose only numbers are
// doubles send 2.0.
func whole(kind numberKind, value uint64) (n int64, ok bool) {
	if kind != numberFloat {
		return int64(value), kind == numberInt
	}
	f := math.Float64frombits(value)
	if f < -1<<63 || f >= 1<<63 {
		return 0, false
	}
	n = int64(f)
	return n, float64(n) == f
}

// wideInt reads an integer of more than 18 digits.
func (d *Decoder) wideInt(start, end int, value *uint64) numberKind {
	if end-start > maxIntBytes {
		return numberOutside
	}
	n, err := strconv.ParseInt(d.borrow(start, end), 10, 64)
	if err != nil {
		return numberOutside
	}
	*value = uint64(n)
	return numberInt
}

// borrow lends a part of the text as a string for the length of one call: strconv keeps nothing of it, and its errors
// hold a copy.
func (d *Decoder) borrow(start, end int) string {
	return unsafe.String(&d.in[start], end-start)
}
