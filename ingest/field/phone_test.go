package field

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nyaruka/phonenumbers/v2"
	"github.com/stretchr/testify/require"
)

func TestPhoneForms(t *testing.T) {
	phones := NewPhones(0)
	parse := func(in, want string) {
		t.Helper()
		for range 2 { // the second time from memory
			got, ok := phones.Parse([]byte("tel:"), []byte(in))
			require.True(t, ok, in)
			require.Equal(t, "tel:"+want, string(got))
		}
	}
	parse("+14155552671", "+14155552671")
	parse("4155552671", "+14155552671")
	parse("4155552671+", "+14155552671") // a + behind the first digit is a mark like any other
	parse("(415) 555-2671", "+14155552671")
	parse(" +1 (415) 555.2671", "+14155552671")
	parse("(+1) 415 555 2671", "+14155552671")
	parse("+15043277269", "+15043277269")
	parse("+44 20 7183 8750", "+442071838750")
	parse("+44 (0)20 7183 8750", "+442071838750")
	parse("+390612345678", "+390612345678")
	parse("+378886377", "+3780549886377") // a number of full length gets the area code
	parse("+54 011 15 2345 6789", "+5491123456789")
	parse("+49+30+123456", "+4930123456")
	parse("\uff0b\uff14\uff14 20 7183 8750", "+442071838750")
	parse("+\u0664\u06642071838750", "+442071838750")
	parse("+44\x00 20\u00a07183\xff8750", "+442071838750")
}

func TestPhoneRefuses(t *testing.T) {
	phones := NewPhones(0)
	for _, in := range []string{
		"", "+", "abc", "0", "911", "555-2671", "14155552671", "442071838750", "0123456789", "1234567890", "+0", "+04155552671", "+11112223333", "+1415555267", "+141555526711",
		"+999123456789", "+123456789012345678", "+1234567890123456789", strings.Repeat("9", 100), "+" + strings.Repeat("\u0664", 40), "4155552671" + strings.Repeat(" ", 255),
	} {
		for range 2 {
			got, ok := phones.Parse([]byte("x"), []byte(in))
			require.False(t, ok, in)
			require.Equal(t, "x", string(got))
		}
	}
}

// A memory of one place forgets all the time and must still give right answers to many callers at once.
func TestPhoneMemoryNeverChangesAnAnswer(t *testing.T) {
	for _, size := range []int{1, 3, 64} {
		phones := NewPhones(size)
		var wait sync.WaitGroup
		for worker := range 4 {
			wait.Go(func() {
				for i := range 300 {
					number := 2071838000 + (i*7+worker)%100
					got, ok := phones.Parse(nil, fmt.Appendf(nil, "+440%d", number))
					if want := fmt.Sprintf("+44%d", number); !ok || string(got) != want {
						t.Errorf("%d: %q %v", number, got, ok)
					}
					if _, ok := phones.Parse(nil, fmt.Appendf(nil, "+4400%d", 1000000+i)); ok {
						t.Errorf("+4400%d is good", 1000000+i)
					}
				}
			})
		}
		wait.Wait()
	}
}

func TestPhoneMemoryIsBounded(t *testing.T) {
	for size, want := range map[int]int{0: defaultPhoneCache, -1: defaultPhoneCache, 1: 4, 5: 8, 1024: 1024} {
		require.Len(t, NewPhones(size).lines, want/len(phoneLine{}))
	}
}

// Halves of two numbers, which a reader may see between two writers, are not an answer.
func TestPhoneAnswerInHalves(t *testing.T) {
	var a, b, torn phoneLine
	a.put(14155552671, 14155552671)
	b.put(4402071838750, 442071838750)
	torn[0].e164.Store(b[0].e164.Load())
	torn[0].seal.Store(a[0].seal.Load())
	for _, dialed := range []uint64{14155552671, 4402071838750, 442071838750} {
		_, ok := torn.find(dialed)
		require.False(t, ok)
	}
	got, ok := b.find(4402071838750)
	require.True(t, ok)
	require.EqualValues(t, 442071838750, got)
}

// Numbers that share a line with others are remembered as long as there is a place, and found again afterwards.
func TestPhoneLineIsFull(t *testing.T) {
	phones := NewPhones(1)
	for i := range 10 {
		for j := range i {
			got, ok := phones.Parse(nil, fmt.Appendf(nil, "+44020718387%d", 10+j))
			require.True(t, ok)
			require.Equal(t, fmt.Sprintf("+4420718387%d", 10+j), string(got))
		}
		for j := range min(i, 4) {
			_, ok := phones.lines[0].find(uint64(4402071838710 + j))
			require.True(t, ok || i > 4)
		}
	}
}

func TestEveryRegionHasAPhone(t *testing.T) {
	phones := NewPhones(0)
	regions := phonenumbers.GetSupportedRegions()
	require.Greater(t, len(regions), 200)
	for region := range regions {
		example := phonenumbers.Format(phonenumbers.GetExampleNumber(region), phonenumbers.E164)
		got, ok := phones.Parse(nil, []byte(example))
		require.True(t, ok, region)
		require.Equal(t, example, string(got))
	}
}

func FuzzPhone(f *testing.F) {
	for _, seed := range []string{"+14155552671", "(415) 555-2671", "+44 (0)20 7183 8750", "+390612345678", "\uff0b\uff14\uff1420 7183 8750"} {
		f.Add([]byte(seed))
	}
	phones := NewPhones(1 << 10)
	f.Fuzz(func(t *testing.T, in []byte) {
		got, ok := phones.Parse(nil, in)
		if !ok {
			return
		}
		again, ok := phones.Parse(nil, got)
		if !ok || string(again) != string(got) {
			t.Fatalf("%q is %q, which is %q %v", in, got, again, ok)
		}
	})
}

func BenchmarkPhone(b *testing.B) {
	phones := NewPhones(1 << 10)
	for name, number := range map[string]string{"by the plan": "+1 (415) 555-2671", "bad": "+1 (115) 555-2671", "remembered": "+44 (0)20 7183 8750"} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 32)
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = phones.Parse(buf[:0], []byte(number))
			}
		})
	}
	b.Run("by the library", func(b *testing.B) {
		for b.Loop() {
			validNumber(14155552671)
		}
	})
}
