// Package bounded limits what requests to other servers may cost: how much of an answer is read, since libraries would
// read all of it into memory, however large, and for how long; how long a connection may be silent; and how long a
// server may ask to be left alone. It also limits how much is read of files that operators name.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Transport is Base with answers of at most Bytes, counted decompressed; reading further is an error. 0: answers may be
// of any size and take any time.
type Transport struct {
	Base  http.RoundTripper
	Bytes int64
	// Time is how long reading an answer may take, besides the last wait for more of it; 0: any time.
	Time time.Duration
	// Free says which answers may be of any size and take any time; nil: none.
	Free func(*http.Response) bool
}

// RoundTrip does what Base does, and bounds the answer. A switch to another protocol, which nobody has asked for, is an
// error: the body of such an answer is the connection itself, which no timeout ends.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Base.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.Join(errSwitched, resp.Body.Close())
	}
	if err == nil && t.Bytes > 0 && (t.Free == nil || !t.Free(resp)) {
		resp.Body = &body{ReadCloser: resp.Body, left: t.Bytes, since: time.Now(), bounds: t}
	}
	return resp, err
}

var errSwitched = errors.New("answers 101 Switching Protocols, which nobody has asked for")

// CloseIdleConnections closes those of Base, as http.Client does.
func (t Transport) CloseIdleConnections() { (&http.Client{Transport: t.Base}).CloseIdleConnections() }

type body struct {
	io.ReadCloser
	left   int64
	since  time.Time
	bounds Transport
}

// Read reads one byte more than is allowed, to find out whether there is one.
func (b *body) Read(p []byte) (int, error) {
	if b.bounds.Time > 0 && time.Since(b.since) > b.bounds.Time {
		return 0, fmt.Errorf("the answer takes longer than %v", b.bounds.Time)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if int64(n) > b.left {
		n, err = int(b.left), fmt.Errorf("the answer has more than %d bytes", b.bounds.Bytes)
	}
	b.left -= int64(n)
	return n, err
}
