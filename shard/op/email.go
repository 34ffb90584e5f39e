package op

import (
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// AppendEmailKey appends the key of an email address, by which alone addresses are compared: ASCII letters are
// lower-cased, and a domain with other letters is in its ASCII form, as DNS has it (bücher.de is xn--bcher-kva.de). A
// domain that IDNA refuses, and everything before the @, is compared as bytes: whether a server takes K (U+212A) for k
// or İ for i is its own affair, and two people must not have one key. The key of a key is the key itself. An address is
// shown as it was sent.
//
// Keys are in records and in the store, so a change of keys is a change of Version and of the store's version, even
// when it comes by new tables of Unicode in package idna. (Those matter little: endpoints take addresses with ASCII
// domains only, and others come in by imports.)
func AppendEmailKey(dst, address []byte) []byte {
	domain, plain := -1, true
	for _, c := range address {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '@':
			domain, plain = len(dst)+1, true
		case c >= utf8.RuneSelf:
			plain = false
		}
		dst = append(dst, c)
	}
	if plain || domain < 0 || len(dst)-domain > maxDomainBytes || !utf8.Valid(dst[domain:]) {
		return dst
	}
	ascii, err := domains.ToASCII(string(dst[domain:]))
	if err != nil {
		return dst
	}
	return append(dst[:domain], ascii...)
}

// maxDomainBytes is more than a domain of 253 bytes in ASCII can have in UTF-8.
const maxDomainBytes = 1024

var domains = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.VerifyDNSLength(true))
