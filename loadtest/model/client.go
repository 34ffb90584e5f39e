package model

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// outcome is how an attempt ended.
type outcome uint8

const (
	answered outcome = iota
	undone           // certainly without effect: never sent, or refused
	unknown
)

// Client sends requests. It is safe for concurrent use.
type Client struct {
	HTTP *http.Client
	URL  func() string // of the server, or of any node; asked for each attempt
}

// send makes one attempt to send a request.
func (c *Client) send(w *Wire) (Reply, outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, w.Method, c.URL()+w.Path+"?"+w.Query.Encode(),
		bytes.NewReader(w.Text))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	request.GetBody = nil // so that the client doesn't send anything again unseen
	request.Header.Set("Authorization", "Bearer "+w.APIKey)
	if w.Method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	if w.IdempotencyKey != "" {
		request.Header.Set("Idempotency-Key", w.IdempotencyKey)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return Reply{}, failed(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return Reply{}, unknown
	}
	r := Reply{response.StatusCode, text, response.Header.Get("Idempotent-Replay") == "true"}
	return r, r.outcome()
}

func failed(err error) outcome {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return undone
	}
	return unknown
}

func (r *Reply) outcome() outcome {
	switch {
	case r.Status == http.StatusTooManyRequests:
		return undone
	case r.Status == http.StatusServiceUnavailable && strings.Contains(string(r.Body), "unknown"):
		return unknown
	case r.Status == http.StatusServiceUnavailable:
		return undone
	}
	return answered
}
