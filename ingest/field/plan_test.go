package field

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/nyaruka/phonenumbers/v2"
	"github.com/nyaruka/phonenumbers/v2/metadata"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// requireLibrarysWord compares the verdict on the digits, which include the calling code, with the library's.
func requireLibrarysWord(t *testing.T, digits []byte) verdict {
	t.Helper()
	dialed, err := strconv.ParseUint(string(digits), 10, 64)
	require.NoError(t, err)
	got := judgePhone(digits)
	switch want := validNumber(dialed); got {
	case isNumber:
		require.Equal(t, dialed, want, "+%s", digits)
	case noNumber:
		require.Zero(t, want, "+%s", digits)
	}
	return got
}

// Plans and library agree on random walks through the plans, which end at numbers and elsewhere, and on the library's
// example of each kind of number in each region, with digits changed.
func TestPlansSayWhatTheLibrarySays(t *testing.T) {
	r := testseed.Rand(t)
	var said [askLibrary + 1]int
	for code := range plans {
		p := planOf(code)
		if p == nil {
			continue
		}
		require.NotEqual(t, askLibrary, p.nodes[planRoot].verdict, "+%d can't be followed", code)
		prefix := strconv.AppendInt(nil, int64(code), 10)
		for range testsize.Of(20_000, 50, 15) {
			said[requireLibrarysWord(t, p.wander(r, prefix))]++
		}
	}
	for _, example := range examplesOfPhones() {
		require.NotEqual(t, noNumber, requireLibrarysWord(t, []byte(example)), example)
		for range testsize.Of(2000, 4, 2) {
			changed := []byte(example)
			for range 1 + r.IntN(3) {
				changed[1+r.IntN(len(changed)-1)] = '0' + byte(r.IntN(10))
			}
			if r.IntN(4) == 0 {
				changed = slices.Insert(changed, 1+r.IntN(len(changed)-1), '0'+byte(r.IntN(10)))
			}
			said[requireLibrarysWord(t, changed)]++
		}
	}
	t.Logf("no number %d, a number %d, a question to the library %d", said[noNumber], said[isNumber], said[askLibrary])
	for _, n := range said {
		require.NotZero(t, n)
	}
}

// A region that is told by leading digits has no number without them, whatever its kinds of numbers match.
func TestLeadingDigits(t *testing.T) {
	m := &planMaker{prefix: -1}
	pattern := func(text string, open bool) int {
		index, err := m.pattern(text, open)
		require.NoError(t, err)
		return index
	}
	leading, all := pattern("1", true), kind{pattern: pattern(`[123]\d`, false)}
	isNumber := func(digits string) bool {
		at := m.start()
		for _, digit := range digits {
			at = m.follow(at, digit)
		}
		return m.isNumber(m.tidy(at), len(digits))
	}
	m.regions = []region{{leading: leading, general: all, kinds: []kind{all}}}
	require.True(t, isNumber("12"))
	require.False(t, isNumber("22"))
	m.regions = append(m.regions, region{leading: -1, general: all, kinds: []kind{{pattern: pattern(`2\d|13`, false)}}})
	require.True(t, isNumber("12"))
	require.True(t, isNumber("22"), "it is of the second region")
	require.False(t, isNumber("32"))
	m.regions[0].kinds = nil
	require.False(t, isNumber("13"), "it is of the first region")
}

// wander returns prefix and the digits of a random walk that rarely leaves the plan.
func (p *plan) wander(r *rand.Rand, prefix []byte) []byte {
	digits := slices.Clone(prefix)
	for at := uint16(planRoot); len(digits) < maxDialedDigits; {
		digit := r.IntN(10)
		for range r.IntN(40) {
			if next := p.nodes[at].next[digit]; next != planDead && next != planAsk {
				break
			}
			digit = r.IntN(10)
		}
		digits, at = append(digits, '0'+byte(digit)), p.nodes[at].next[digit]
		if p.nodes[at].verdict == isNumber && r.IntN(3) > 0 || r.IntN(30) == 0 {
			break
		}
	}
	return digits
}

// examplesOfPhones returns the library's example numbers of each region and kind, the calling code first.
func examplesOfPhones() (numbers []string) {
	add := func(n *phonenumbers.PhoneNumber) {
		if n != nil {
			numbers = append(numbers, phonenumbers.Format(n, phonenumbers.E164)[1:])
		}
	}
	for code, regions := range metadata.CountryCodeToRegion() {
		for _, region := range regions {
			if region == nonGeographic {
				add(phonenumbers.GetExampleNumberForNonGeoEntity(code))
				continue
			}
			for kind := range phonenumbers.GetSupportedTypesForRegion(region) {
				add(phonenumbers.GetExampleNumberForTypeInRegion(region, kind))
			}
		}
	}
	return numbers
}

// The library is asked about few of the numbers in use. Plans that asked too often would be slow, and no other test
// would notice.
func TestPlansSeldomAsk(t *testing.T) {
	examples, asked := examplesOfPhones(), 0
	for _, example := range examples {
		if judgePhone([]byte(example)) == askLibrary {
			asked++
		}
	}
	t.Logf("%d of %d", asked, len(examples))
	require.Less(t, asked*100, len(examples)*5)
}

// Plans are small, since they are kept for good and the first request with a number of a country waits for the
// country's plan.
func TestPlansAreSmall(t *testing.T) {
	for code := range plans {
		if p := planOf(code); p != nil {
			require.Less(t, len(p.nodes), 1000, "+%d", code)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		makePlan(1)
	}
}
