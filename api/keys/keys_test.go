package keys

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMake(t *testing.T) {
	token := Make(Prefix)
	require.Len(t, token, len(Prefix)+38)
	require.NotEqual(t, token, Make(Prefix))
	require.True(t, WellFormed([]byte(token)))
	for i := len(Prefix); i < len(token); i++ { // every typo is seen
		b := []byte(token)
		b[i]++
		require.False(t, WellFormed(b), i)
	}
	require.False(t, WellFormed([]byte(token[:len(token)-1])))
	require.False(t, WellFormed([]byte(token+"0")))
	require.True(t, WellFormed([]byte("anything else")))
	counts := map[rune]int{}
	for range 200 {
		for _, c := range Make(Prefix)[len(Prefix) : len(Prefix)+randomDigits] {
			counts[c]++
		}
	}
	require.Len(t, counts, 62) // 6400 digits: each is missing with a probability of 1e-45
}

func TestHint(t *testing.T) {
	require.Equal(t, "…", Hint("short"))
	require.Equal(t, "abcd…6789", Hint("abcdefghijklmnop0123456789"))
	token := Make(Prefix)
	require.Equal(t, token[:len(Prefix)+4]+"…"+token[len(token)-4:], Hint(token))
}

func newKey(t *testing.T, token string, permissions, networks []string) *Key {
	k := &Key{Name: token, Digest: DigestOf([]byte(token)), Usage: new(Usage)}
	require.NoError(t, k.SetRights(permissions, networks))
	return k
}

func TestFind(t *testing.T) {
	made := Make(Prefix)
	a, b := newKey(t, "token-a", nil, nil), newKey(t, made, nil, nil)
	a.Number, b.Number = 2, 3
	s := Set{}.With(a).With(b)
	require.Same(t, a, s.Find([]byte("token-a")))
	require.Same(t, b, s.Find([]byte(made)))
	for _, unknown := range []string{"", "token-", "token-b", "TOKEN-A", made[:len(made)-1], strings.Repeat("a", MaxTokenBytes+1)} {
		require.Nil(t, s.Find([]byte(unknown)), unknown)
	}
	require.Nil(t, Set{}.Find([]byte("token-a")))
	require.Equal(t, 2, s.Len())
	token := []byte(made)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Find(token) }))
}

// Of two keys with one token the older one is found, in whichever order they came; a key that is invalid never is, but
// its token stays taken.
func TestSameToken(t *testing.T) {
	first, second := newKey(t, "token", nil, nil), newKey(t, "token", nil, nil)
	first.Number, second.Number = 1, 2
	for _, s := range []Set{Set{}.With(first).With(second), Set{}.With(second).With(first)} {
		require.Same(t, first, s.Find([]byte("token")))
		require.Equal(t, 2, s.Len())
		require.Same(t, second, s.Without(first.Digest, 1).Find([]byte("token")))
		require.Same(t, first, s.Without(first.Digest, 2).Find([]byte("token")))
		none := s.Without(first.Digest, 1).Without(first.Digest, 2)
		require.Nil(t, none.Holder(first.Digest))
		require.Same(t, first, s.Find([]byte("token")), "a Set never changes")

		revoked := *first
		revoked.Invalid = true
		s = s.Without(first.Digest, 1).With(&revoked)
		require.Same(t, second, s.Find([]byte("token")))
		s = s.Without(first.Digest, 2)
		require.Nil(t, s.Find([]byte("token")))
		require.Same(t, &revoked, s.Holder(first.Digest))
		require.Zero(t, s.Len())
	}
}

func TestRights(t *testing.T) {
	all, some, none := newKey(t, "a", []string{"*"}, nil), newKey(t, "b", []string{"users.track", "users.merge"}, nil), newKey(t, "c", nil, nil)
	require.True(t, all.Allows("users.track"))
	require.False(t, all.Allows(""))
	require.True(t, some.Allows("users.merge"))
	require.False(t, some.Allows("users"))
	require.False(t, some.Allows("users.delete"))
	require.False(t, none.Allows("users.track"))
}

func TestNetworks(t *testing.T) {
	k := newKey(t, "a", nil, []string{"10.0.0.0/8", "192.0.2.7", "2001:db8::/32"})
	for addr, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "11.0.0.1": false, "192.0.2.7": true, "192.0.2.8": false, "2001:db8::9": true, "2001:db9::9": false} {
		require.Equal(t, want, k.AllowsAddr(netip.MustParseAddr(addr)), addr)
	}
	require.False(t, k.AllowsAddr(netip.Addr{}))
	require.True(t, newKey(t, "b", nil, nil).AllowsAddr(netip.Addr{}))
	for _, bad := range []string{"", "10.0.0", "10.0.0.0/33", "host", "::ffff:10.0.0.0/104", "fe80::1%eth0"} {
		_, err := ParseNetworks([]string{bad})
		require.Error(t, err, bad)
	}
}

func TestUsage(t *testing.T) {
	u := new(Usage)
	u.Touch(120_000)
	u.Touch(60_000) // a clock that went backwards
	require.Equal(t, int64(2), u.Minute())
}

func BenchmarkFind(b *testing.B) {
	token := []byte(Make(Prefix))
	s := Set{}.With(&Key{Digest: DigestOf(token)})
	b.ReportAllocs()
	for b.Loop() {
		s.Find(token)
	}
}
