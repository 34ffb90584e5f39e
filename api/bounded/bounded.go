// Package bounded asks other servers, and reads no more of what they answer than it has any use for, and waits for no
// more of it than there comes something: libraries that ask them read all of it into memory, however much comes, and
// wait for it for ever.
package bounded

import (
	"fmt"
	"io"
	"net/http"
)

// Transport is Base, with answers of at most Bytes, as they are decompressed; reading on is an error.
type Transport struct {
	Base  http.RoundTripper
	Bytes int64
}

// RoundTrip does what Base does.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Base.RoundTrip(r)
	if err == nil {
		resp.Body = &body{resp.Body, t.Bytes, t.Bytes}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	left, all int64
}

// Read reads one byte more than there may be, to know whether there is one.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if int64(n) > b.left {
		n, err = int(b.left), fmt.Errorf("the answer has more than %d bytes", b.all)
	}
	b.left -= int64(n)
	return n, err
}
