// Package keys holds API keys as the server knows them: a SHA-256 of the token, never the token itself, with the rights
// that it carries.
//
// A token that we make is 190 bits of randomness and a checksum, so a plain SHA-256 is enough and cheap: a request's
// token is hashed, looked up in an immutable Set, and compared in constant time. A Key and a Set never change after
// they were made, apart from a key's Usage; the holder of the documents (package control) makes a Set with another key
// of the one before, and swaps it in.
package keys

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/benbjohnson/immutable"
)

// A token that we make: Prefix or SCIMPrefix, randomDigits digits of base 62, and checksumDigits digits of base 62 that
// hold the CRC-32 of everything before them.
const (
	Prefix         = "millrace_live_"
	SCIMPrefix     = "millrace_scim_"
	randomDigits   = 32
	checksumDigits = 6
	digits         = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// MaxTokenBytes is the longest token that is looked up; a longer one is unknown.
const MaxTokenBytes = 512

// Make returns a new token that begins with prefix. It is shown once; only its Digest is kept.
func Make(prefix string) string {
	token := append(make([]byte, 0, 64), prefix...)
	var random [64]byte
	for n := 0; n < randomDigits; {
		_, _ = rand.Read(random[:]) // never fails
		for _, b := range random {
			if b &= 63; int(b) < len(digits) && n < randomDigits {
				token = append(token, digits[b])
				n++
			}
		}
	}
	return string(appendChecksum(token, token))
}

// WellFormed returns false for a token that has a prefix of ours but not the right checksum: it is a typo, and not a
// token of this server. Tokens of another form (given in the bootstrap file) are all well-formed.
func WellFormed(token []byte) bool {
	prefix := prefixOf(token)
	if prefix == "" {
		return true
	}
	if len(token) != len(prefix)+randomDigits+checksumDigits {
		return false
	}
	var sum [checksumDigits]byte
	body := token[:len(token)-checksumDigits]
	return string(appendChecksum(sum[:0], body)) == string(token[len(body):])
}

// prefixOf returns the prefix of ours that a token has, "" when it has none.
func prefixOf(token []byte) string {
	for _, prefix := range [...]string{Prefix, SCIMPrefix} {
		if len(token) >= len(prefix) && string(token[:len(prefix)]) == prefix {
			return prefix
		}
	}
	return ""
}

func appendChecksum(dst, token []byte) []byte {
	sum := crc32.ChecksumIEEE(token)
	var text [checksumDigits]byte
	for i := checksumDigits - 1; i >= 0; i-- {
		text[i] = digits[sum%62]
		sum /= 62
	}
	return append(dst, text[:]...)
}

// Digest is what is kept of a token.
type Digest [sha256.Size]byte

// DigestOf is the SHA-256 of a token. It is sha256.Sum256, which allocates in a build by profile: the only thing that a
// small request allocates, at a twentieth of its CPU.
func DigestOf(token []byte) Digest {
	h := hashers.Get().(*hasher)
	defer hashers.Put(h)
	h.Reset()
	_, _ = h.Write(token)
	h.Sum(h.digest[:0])
	return h.digest
}

type hasher struct {
	hash.Hash
	digest Digest
}

var hashers = sync.Pool{New: func() any { return &hasher{Hash: sha256.New()} }}

// Hex is the digest in hexadecimal, as documents have it.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// prefix is the beginning of the digest as a number.
func (d *Digest) prefix() uint64 { return binary.LittleEndian.Uint64(d[:]) }

// Hint returns what may be shown of a token: its first and last four characters, and only if it is long.
func Hint(token string) string {
	if len(token) < 20 {
		return "…"
	}
	first := 4 + len(prefixOf([]byte(token)))
	return token[:first] + "…" + token[len(token)-4:]
}

// Usage is the part of a key that changes: when it was last used, in whole minutes. It outlives the Key, whose holder
// hands it to the next Key.
type Usage struct{ minute atomic.Int64 }

// Minute is the Unix minute of the last use; 0 for never.
func (u *Usage) Minute() int64 { return u.minute.Load() }

// Touch records a use. It writes at most once a minute.
func (u *Usage) Touch(nowMillis int64) {
	if minute := nowMillis / 60_000; u.minute.Load() < minute {
		u.minute.Store(minute)
	}
}

// Key is one API key of one workspace.
type Key struct {
	ID        string // of its document
	Name      string
	Number    uint32 // the actor in records; never reused
	Workspace uint32
	Digest    Digest
	Invalid   bool // revoked, or can't be read: no request may use it
	Usage     *Usage

	all         bool
	permissions []string
	networks    []netip.Prefix
}

// SetRights gives a new key its permissions (names of service.md 5, or "*" for all) and its allow-list (addresses and
// subnets; empty: from anywhere).
func (k *Key) SetRights(permissions, allowList []string) (err error) {
	k.all = slices.Contains(permissions, "*")
	k.permissions = permissions
	k.networks, err = ParseNetworks(allowList)
	return err
}

// Allows reports whether the key has a permission. No key has the empty one.
func (k *Key) Allows(permission string) bool {
	return permission != "" && (k.all || slices.Contains(k.permissions, permission))
}

// Restricted reports whether the key has an allow-list.
func (k *Key) Restricted() bool { return len(k.networks) > 0 }

// AllowsAddr reports whether the key may be used from addr.
func (k *Key) AllowsAddr(addr netip.Addr) bool { return !k.Restricted() || Contains(k.networks, addr) }

// Contains reports whether one of the networks has addr. IPv4 addresses in IPv6 form are taken as IPv4.
func Contains(networks []netip.Prefix, addr netip.Addr) bool {
	addr = addr.Unmap()
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// ParseNetworks reads addresses ("10.0.0.7", "2001:db8::1") and subnets ("10.0.0.0/8").
func ParseNetworks(list []string) (networks []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			addr, err := netip.ParseAddr(s)
			if err != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an IP address nor a subnet such as 10.0.0.0/8", s)
			}
			addr = addr.Unmap()
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("write the subnet %q in its IPv4 form", s)
		}
		networks = append(networks, p.Masked())
	}
	return networks, nil
}

// Set finds keys by their tokens. It is immutable; the zero Set is empty. The next one shares with it all but a path of
// nodes.
type Set struct {
	// By the beginning of the digest. One key a token, but for revoked ones and what other means than ours have stored;
	// in order of their numbers.
	byDigest immutable.Map[uint64, []*Key]
}

// With returns a Set that has k as well.
func (s Set) With(k *Key) Set {
	same := s.near(k.Digest)
	i, _ := slices.BinarySearchFunc(same, k.Number, func(o *Key, n uint32) int { return cmp.Compare(o.Number, n) })
	return Set{*s.byDigest.Set(k.Digest.prefix(), slices.Insert(slices.Clone(same), i, k))}
}

// Without returns a Set that doesn't have the key with this digest and number.
func (s Set) Without(d Digest, number uint32) Set {
	left := slices.DeleteFunc(slices.Clone(s.near(d)), func(k *Key) bool { return k.Digest == d && k.Number == number })
	if len(left) == 0 {
		return Set{*s.byDigest.Delete(d.prefix())}
	}
	return Set{*s.byDigest.Set(d.prefix(), left)}
}

// near returns the keys whose digests begin like d.
func (s Set) near(d Digest) []*Key {
	list, _ := s.byDigest.Get(d.prefix())
	return list
}

// Find returns the key of a token, or nil. The token is only read. Of two valid keys with the same token it is the one
// with the lower number.
func (s Set) Find(token []byte) *Key {
	if len(token) == 0 || len(token) > MaxTokenBytes || !WellFormed(token) {
		return nil
	}
	if k := s.Holder(DigestOf(token)); k != nil && !k.Invalid {
		return k
	}
	return nil
}

// Holder returns the key that has the token with this digest: the valid one, or one that was, or nil.
func (s Set) Holder(d Digest) (holder *Key) {
	for _, k := range s.near(d) {
		switch {
		case subtle.ConstantTimeCompare(k.Digest[:], d[:]) != 1:
		case !k.Invalid:
			return k
		default:
			holder = k
		}
	}
	return holder
}

// Len is the number of valid keys, which it counts.
func (s Set) Len() (n int) {
	for i := s.byDigest.Iterator(); !i.Done(); {
		_, list, _ := i.Next()
		for _, k := range list {
			if !k.Invalid {
				n++
			}
		}
	}
	return n
}
