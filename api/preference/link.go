package preference

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
)

// Link is the content of a link to a page. Whoever has the link may see and change the states of this one user, until
// it expires.
type Link struct {
	Workspace uint32 // number
	User      uint64 // number of the profile
	Center    string // id of the preference center, at most 255 bytes
	Viewport  string // content of the viewport tag instead of the center's, at most 255 bytes; empty: the center's
	Expires   int64  // Unix seconds
}

// Errors of Open.
var (
	// ErrForged is returned for a text that Sign has not made with this secret. Tell the caller only that there is no
	// such page.
	ErrForged = errors.New("the link is not genuine")
	// errExpired is returned, with the Link, for a link that has expired.
	errExpired = errors.New("the link has expired")
)

const (
	linkVersion = 1
	linkFixed   = 1 + 4 + 8 + 8 + 1 // version, workspace, user, expires, length of center
	// maxLinkText bounds the text that is decoded at all.
	maxLinkText = (linkFixed+255+255+sha256.Size)*4/3 + 4
)

// linkEncoding is strict: each link has one spelling.
var linkEncoding = base64.RawURLEncoding.Strict()

// Sign makes the text of a link, letters, digits, - and _.
//
// Layout: version u8 | workspace u32 | user u64 | expires u64 | length u8 | center | viewport | HMAC-SHA256 of all
// before it, with the domain of links.
func Sign(secret *[32]byte, l Link) string {
	b := make([]byte, 0, linkFixed+len(l.Center)+len(l.Viewport)+sha256.Size)
	b = append(b, linkVersion)
	b = binary.BigEndian.AppendUint32(b, l.Workspace)
	b = binary.BigEndian.AppendUint64(b, l.User)
	b = binary.BigEndian.AppendUint64(b, uint64(l.Expires))
	b = append(append(b, byte(len(l.Center))), l.Center...)
	b = append(b, l.Viewport...)
	return linkEncoding.EncodeToString(append(b, linkTag(secret, b)...))
}

// Open reads the text of a link. The time that it takes does not depend on how much of a forged link is right.
func Open(secret *[32]byte, text string, nowSeconds int64) (Link, error) {
	if len(text) > maxLinkText || strings.ContainsAny(text, "\r\n") { // the decoder would skip these
		return Link{}, ErrForged
	}
	b, err := linkEncoding.DecodeString(text)
	if err != nil || len(b) < linkFixed+sha256.Size {
		return Link{}, ErrForged
	}
	b, tag := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !hmac.Equal(tag, linkTag(secret, b)) || b[0] != linkVersion {
		return Link{}, ErrForged
	}
	l := Link{Workspace: binary.BigEndian.Uint32(b[1:]), User: binary.BigEndian.Uint64(b[5:]),
		Expires: int64(binary.BigEndian.Uint64(b[13:]))}
	center := b[linkFixed:]
	if int(b[linkFixed-1]) > len(center) {
		return Link{}, ErrForged
	}
	l.Center, l.Viewport = string(center[:b[linkFixed-1]]), string(center[b[linkFixed-1]:])
	if nowSeconds >= l.Expires {
		return l, errExpired
	}
	return l, nil
}

func linkTag(secret *[32]byte, payload []byte) []byte {
	h := hmac.New(sha256.New, secret[:])
	h.Write([]byte("millrace preference link\x00"))
	h.Write(payload)
	return h.Sum(nil)
}
