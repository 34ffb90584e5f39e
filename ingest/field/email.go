package field

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/publicsuffix"
)

// Limits of an address in bytes, from RFC 5321.
const (
	maxEmailBytes      = 254
	maxEmailLocalBytes = 64
	maxLabelBytes      = 63
)

// Email reports whether b is an e-mail address by the syntax of reference.md 2.1: letters and digits of any script in
// the local part; a host of ASCII labels that ends in a top-level domain of ICANN; stricter rules for Microsoft and
// Gmail addresses. Nothing is trimmed. The compiled-in public suffix list stands for ICANN's list of top-level domains.
func Email(b []byte) bool {
	at := bytes.IndexByte(b, '@')
	if at < 1 || at > maxEmailLocalBytes || len(b) > maxEmailBytes {
		return false
	}
	local, host := b[:at], b[at+1:]
	return isLocalPart(local) && isHost(host) && providerAccepts(local, host)
}

// Where an ASCII byte may be in a local part: at its ends and inside, or only inside.
const (
	localEnd    = 1
	localInside = 2
)

var localBytes = func() (table [utf8.RuneSelf]byte) {
	for c := range table {
		switch c := byte(c); {
		case isWord(c), c == '-':
			table[c] = localEnd
		case strings.IndexByte(".+'&#/", c) >= 0:
			table[c] = localInside
		}
	}
	return table
}()

// isLocalPart is [\p{L}\p{N}_-]([.+'\p{L}\p{N}_&#/-]*[\p{L}\p{N}_-])? by hand. b isn't empty.
func isLocalPart(b []byte) bool {
	kind := byte(localInside)
	for i := 0; i < len(b); {
		first, size := i == 0, 1
		if b[i] < utf8.RuneSelf {
			kind = localBytes[b[i]]
		} else {
			var r rune
			r, size = utf8.DecodeRune(b[i:])
			kind = 0
			if unicode.IsLetter(r) || unicode.IsNumber(r) {
				kind = localEnd
			}
		}
		if kind == 0 || first && kind != localEnd {
			return false
		}
		i += size
	}
	return kind == localEnd
}

// isHost accepts two or more labels of letters, digits and inner hyphens, of which the last is a top-level domain.
func isHost(b []byte) bool {
	start, labels := 0, 0
	for i := 0; i <= len(b); i++ {
		if i < len(b) && b[i] != '.' {
			if !isAlphanumeric(b[i]) && b[i] != '-' {
				return false
			}
			continue
		}
		label := b[start:i]
		if len(label) == 0 || len(label) > maxLabelBytes || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		labels++
		if i == len(b) {
			return labels >= 2 && topLevel.has(label)
		}
		start = i + 1
	}
	return false
}

// providerAccepts applies the additional rules of single providers. Both parts are already valid in general.
func providerAccepts(local, host []byte) bool {
	name := host[:bytes.IndexByte(host, '.')]
	switch {
	case equalsLower(name, "msn"), equalsLower(name, "hotmail"), equalsLower(name, "outlook"),
		equalsLower(name, "live"):
		// The expensive question, who owns the host, comes last.
		return isMicrosoftLocalPart(local) || !isRegistered(name, host)
	case equalsLower(host, "gmail.com"), equalsLower(host, "googlemail.com"):
		return utf8.RuneCount(local) >= 2
	}
	return true
}

// isMicrosoftLocalPart matches the part before the plus sign against \w[-\w]*(\.[-\w]+)*.
func isMicrosoftLocalPart(b []byte) bool {
	if plus := bytes.IndexByte(b, '+'); plus >= 0 {
		b = b[:plus]
	}
	if len(b) == 0 || !isWord(b[0]) || b[len(b)-1] == '.' {
		return false
	}
	for i, c := range b {
		if !isWord(c) && c != '-' && c != '.' || c == '.' && b[i-1] == '.' {
			return false
		}
	}
	return true
}

// isRegistered reports whether host is its first label and a public suffix (live.co.uk, not live.example.com).
func isRegistered(name, host []byte) bool {
	suffix, _ := publicsuffix.PublicSuffix(string(appendLower(nil, host)))
	return len(name)+1+len(suffix) == len(host)
}

// topLevel remembers which labels are top-level domains of ICANN, because asking the list allocates. It remembers only
// such labels, so its size is bounded by the list.
var topLevel = newTopLevelDomains()

type topLevelDomains struct {
	known atomic.Pointer[map[string]struct{}] // never changed, only replaced, under mu
	mu    sync.Mutex
}

func newTopLevelDomains() *topLevelDomains {
	d := &topLevelDomains{}
	d.known.Store(&map[string]struct{}{"com": {}, "net": {}, "org": {}})
	return d
}

func (d *topLevelDomains) has(label []byte) bool {
	if len(label) > maxLabelBytes {
		return false
	}
	var buf [maxLabelBytes]byte
	n := 0
	for ; n < len(label); n++ {
		buf[n] = lower(label[n])
	}
	if _, ok := (*d.known.Load())[string(buf[:n])]; ok {
		return true
	}
	name := string(buf[:n])
	// Some countries only give out third-level names, which the list writes as *.np: with a label in front, both kinds
	// are found.
	if _, icann := publicsuffix.PublicSuffix("x." + name); !icann {
		return false
	}
	d.remember(name)
	return true
}

func (d *topLevelDomains) remember(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.known.Load()
	next := make(map[string]struct{}, len(old)+1)
	for k := range old {
		next[k] = struct{}{}
	}
	next[name] = struct{}{}
	d.known.Store(&next)
}

// equalsLower compares b, in lower case, to s, which is in lower case already.
func equalsLower(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if lower(c) != s[i] {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return lower(c)-'a' < 26 || isDigit(c)
}

// isWord is \w of the reference: ASCII letters, digits and the underscore.
func isWord(c byte) bool {
	return isAlphanumeric(c) || c == '_'
}
