// Package bounded limits what requests to other servers may cost: how much of an answer is read, since libraries would
// read all of it into memory, however large; and how long a connection may be silent. It also limits how much is read
// of files that operators name.
package bounded

import (
	"fmt"
	"io"
	"net/http"
)

// Transport is Base with answers of at most Bytes, counted decompressed; reading further is an error.
type Transport struct {
	Base  http.RoundTripper
	Bytes int64
	// Free says which answers may be of any size; nil: none.
	Free func(*http.Response) bool
}

// RoundTrip does what Base does, and bounds the answer.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Base.RoundTrip(r)
	if err == nil && (t.Free == nil || !t.Free(resp)) {
		resp.Body = &body{resp.Body, t.Bytes, t.Bytes}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	left, all int64
}

// Read reads one byte more than is allowed, to find out whether there is one.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if int64(n) > b.left {
		n, err = int(b.left), fmt.Errorf("the answer has more than %d bytes", b.all)
	}
	b.left -= int64(n)
	return n, err
}
