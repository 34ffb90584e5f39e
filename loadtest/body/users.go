package body

import (
	"math"
	"math/rand/v2"
)

// zipfDraws is how many draws a Picker of Zipf makes ahead: drawing costs some hundred nanoseconds, reading a finished
// draw one or two.
const zipfDraws = 1 << 17

// Picker draws user numbers. Next costs a few nanoseconds whatever the skew, so that a load generator can draw each
// object's user in its loop. A Picker is not for concurrent use.
type Picker struct {
	rng   *rand.Rand
	users uint64
	draws []uint32 // Zipf only: drawn ahead, used round and round
	at    int
}

// NewPicker makes a Picker of numbers below users. The exponent matters for Zipf alone.
func NewPicker(skew Skew, exponent float64, users int, seed, stream uint64) *Picker {
	p := &Picker{rng: rand.New(rand.NewPCG(seed, stream)), users: uint64(users)}
	switch skew {
	case Hot:
		p.users = 1
	case Zipf:
		z := newZipf(exponent, users)
		p.draws = make([]uint32, zipfDraws)
		for i := range p.draws {
			p.draws[i] = uint32(z.next(p.rng))
		}
	}
	return p
}

// Next draws a user.
func (p *Picker) Next() int {
	if p.draws != nil {
		p.at = (p.at + 1) & (zipfDraws - 1)
		return int(p.draws[p.at])
	}
	return int(p.rng.Uint64N(p.users))
}

// zipf draws k in [0, n) with a probability of 1/(k+1)^s, by inverting the integral of the density and rejecting where
// the histogram lies below it (W. Hörmann, G. Derflinger, Rejection-inversion to generate variates from monotone
// discrete distributions, 1996). The one in math/rand wants s > 1; access logs have it near 1, on either side.
type zipf struct {
	s, n          float64
	top, bottom   float64 // integral up to n + 1/2; integral up to 3/2, less the mass of the first
	alwaysAccept  float64 // a draw this close to its integer needs no test
	isLogarithmic bool    // s is 1, where the integral of 1/x is the logarithm
}

func newZipf(s float64, n int) *zipf {
	z := &zipf{s: s, n: float64(n), isLogarithmic: math.Abs(s-1) < 1e-9}
	z.top = z.integral(z.n + 0.5)
	z.bottom = z.integral(1.5) - 1
	z.alwaysAccept = 2 - z.inverse(z.integral(2.5)-z.density(2))
	return z
}

func (z *zipf) density(x float64) float64 { return math.Pow(x, -z.s) }

func (z *zipf) integral(x float64) float64 {
	if z.isLogarithmic {
		return math.Log(x)
	}
	return (math.Pow(x, 1-z.s) - 1) / (1 - z.s)
}

func (z *zipf) inverse(y float64) float64 {
	if z.isLogarithmic {
		return math.Exp(y)
	}
	return math.Pow(max(0, 1+y*(1-z.s)), 1/(1-z.s))
}

func (z *zipf) next(rng *rand.Rand) int {
	for {
		u := z.top + rng.Float64()*(z.bottom-z.top)
		x := z.inverse(u)
		k := min(max(math.Round(x), 1), z.n)
		if k-x <= z.alwaysAccept || u >= z.integral(k+0.5)-z.density(k) {
			return int(k) - 1
		}
	}
}
