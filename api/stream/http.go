package stream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"millrace/api/bounded"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog/event"
)

// endpoint is a destination that gets events by POST, some at a time, one request after the other: what Braze calls a
// Custom HTTP connector, or a webhook. When a request fails, it is sent again, and everything after it waits; what the
// endpoint refuses for good goes into a file instead.
type endpoint struct {
	o       *Options
	to      *document.Destination
	ws      *control.Workspace
	writer  *writer
	client  *http.Client
	known   httpCredentials
	secret  []byte
	refused refusedFile

	takes    bool  // it has taken a request since it was opened
	answered place // of the last event that was taken or refused for good: a new delivery continues after it
	done     sum   // what has left since sent was last called
}

// place is the place of an event in the log.
type place struct {
	position       uint64
	ordinal, index uint32
}

func placeOf(e *event.Event) place { return place{e.Position, e.Ordinal, e.Index} }

// has reports whether an event is at this place or before it.
func (p place) has(e *event.Event) bool {
	return cmp.Or(cmp.Compare(e.Position, p.position), cmp.Compare(e.Ordinal, p.ordinal),
		cmp.Compare(e.Index, p.index)) <= 0
}

// httpCredentials is the form of credentials for HTTP: a bearer token, a secret to sign with, or both.
type httpCredentials struct {
	Token  string `json:"token,omitempty"`
	Secret string `json:"secret,omitempty"` // base64, with or without the prefix whsec_
}

const (
	maxAnswerBytes = 1 << 10     // how much of an answer is kept
	maxAnswerTime  = time.Second // how long the text of an answer that has taken the events is waited for
)

func newEndpoint(o *Options, ws *control.Workspace, s *document.Stream, refused refusedFile) *endpoint {
	transport := o.transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = 1, bounded.HeaderBytes
		transport = t
	}
	return &endpoint{o: o, to: &s.Destination, ws: ws, writer: newWriter(o, ws, s), refused: refused,
		client: &http.Client{Transport: bounded.Transport{Base: transport}, Timeout: o.RequestTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (h *endpoint) notes() bool         { return false }
func (h *endpoint) looksUp() bool       { return true }
func (h *endpoint) answers() bool       { return h.takes }
func (h *endpoint) letGo()              {}
func (h *endpoint) begin(bool) delivery { return &posts{to: h} }
func (h *endpoint) pace() pace          { return pace{bytes: h.o.MessageBytes, interval: h.o.MessageInterval} }

// close has the next request look for the host's address: what answers at an earlier one may answer with errors for as
// long as a connection to it is used.
func (h *endpoint) close() { h.client.CloseIdleConnections() }

// open reads the credentials again, since they may have changed after a failure.
func (h *endpoint) open(context.Context) (err error) {
	h.refused.folders.forget()
	h.takes = false
	h.known, h.secret = httpCredentials{}, nil
	if h.to.Credentials == "" {
		return nil
	}
	if err := h.o.credentials(h.ws.ID, h.to.Credentials, &h.known); err != nil {
		return err
	}
	if h.secret, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(h.known.Secret, "whsec_")); err != nil {
		return fmt.Errorf("credentials %q: the secret is not base64", h.to.Credentials)
	}
	if strings.ContainsFunc(h.known.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("credentials %q: the token has characters that no header can have", h.to.Credentials)
	}
	return nil
}

// posts is a delivery that goes out in requests.
type posts struct {
	to      *endpoint
	batch   []post
	whole   mark // after the last position that was written completely
	there   mark // the same for what was answered, or refused for good
	current mark
}

// post is an event of a request.
type post struct {
	place
	id   string
	text []byte
}

// mark is how far a delivery has come.
type mark struct {
	position uint64
	tally    tally
}

func (d *posts) ends(*event.Event) bool     { return !d.to.takes && d.isFull() }
func (d *posts) isFull() bool               { return len(d.batch) >= d.to.to.Batch }
func (d *posts) abort()                     {}
func (d *posts) confirmed() (uint64, tally) { return d.there.position, d.there.tally }

func (d *posts) sent() sum {
	done := d.to.done
	d.to.done = sum{}
	return done
}

func (d *posts) write(ctx context.Context, e *event.Event) error {
	if e.Position != d.current.position {
		d.whole = d.current
		d.current.position = e.Position
	}
	if d.to.takes && d.isFull() {
		if err := d.flush(ctx); err != nil {
			return err
		}
		d.there = d.whole
	}
	d.current.tally.add(e)
	if d.to.answered.has(e) {
		return nil
	}
	w := d.to.writer
	if err := w.Read(e); err != nil {
		return err
	}
	d.batch = append(d.batch, post{placeOf(e), string(w.AppendUUID(nil, e)), w.append(nil, e)})
	return nil
}

func (d *posts) finish() error { return nil }

func (d *posts) confirm(ctx context.Context, _, _ uint64) error { return d.flush(ctx) }

func (d *posts) flush(ctx context.Context) error {
	if len(d.batch) == 0 {
		return nil
	}
	for part := range slices.Chunk(d.batch, d.to.to.Batch) {
		if err := d.send(ctx, part); err != nil {
			return err
		}
	}
	d.batch, d.to.takes = d.batch[:0], true
	return nil
}

// send returns when the endpoint has taken the events, or refused them for good.
func (d *posts) send(ctx context.Context, batch []post) error {
	if len(batch) == 0 {
		return nil
	}
	body := bodyOf(batch)
	status, answer, err := d.to.post(ctx, batch, body)
	switch {
	case err != nil:
		return err
	case status/100 == 2:
		d.to.done.bytes += int64(len(body))
		d.to.answered = batch[len(batch)-1].place
		return nil
	case !isFinal(status):
		return fmt.Errorf("%s answers %d: %s", d.to.to.URL, status, answer)
	case len(batch) == 1:
		return d.refuse(batch[0], status, answer)
	}
	part := 1 // after a batch was refused as a whole, events are sent one by one to find the faulty one
	if status == http.StatusRequestEntityTooLarge {
		part = (len(batch) + 1) / 2
	}
	for ; len(batch) > 0; batch = batch[min(part, len(batch)):] {
		if err := d.send(ctx, batch[:min(part, len(batch))]); err != nil {
			return err
		}
	}
	return nil
}

// refuse keeps an event that was refused for good.
func (d *posts) refuse(p post, status int, answer string) error {
	line := refusedLine{RefusedAt: time.Now().UTC(), Status: status, Answer: answer, Event: p.text}
	if err := d.to.refused.add(line); err != nil {
		return err
	}
	d.to.done.refused++
	d.to.answered = p.place
	return nil
}

func bodyOf(batch []post) []byte {
	body := []byte(`{"events":[`)
	for i, p := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, p.text...)
	}
	return append(body, "]}"...)
}

// post makes a request. If the answer asks to wait, the error says for how long.
func (h *endpoint) post(ctx context.Context, batch []post, body []byte) (status int, answer string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.to.URL, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "millrace")
	if h.writer.currents {
		req.Header.Set("Braze-Currents-Version", "1")
	}
	if h.known.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.known.Token)
	}
	if len(h.secret) > 0 {
		sign(req.Header, h.secret, h.idOf(batch), time.Now(), body)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 { // nothing else matters, but a connection whose answer was read is used again
		defer time.AfterFunc(maxAnswerTime, cancel).Stop()
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes)) // the text is for operators
	answer = string(bytes.ToValidUTF8(bytes.TrimSpace(text), nil))
	after := bounded.RetryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date"), time.Now())
	if after > 0 && !isFinal(resp.StatusCode) {
		return 0, "", &laterError{fmt.Errorf("%s answers %d: %s", h.to.URL, resp.StatusCode, answer), after}
	}
	return resp.StatusCode, answer, nil
}

// idOf returns the id of a request, which differs for different events. A receiver that knows an id takes nothing from
// a request with it.
func (h *endpoint) idOf(batch []post) string {
	var ids []byte
	for _, p := range batch {
		ids = append(ids, p.id...)
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, ids).String()
}

// isFinal reports whether sending the same request again would change nothing: it was accepted, is wrong, or is too
// large.
func isFinal(status int) bool {
	return status/100 == 2 || status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge
}

// sign adds the headers of Standard Webhooks: an HMAC over the id, the time and the body.
func sign(h http.Header, secret []byte, id string, at time.Time, body []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", stamp)
	h.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// laterError is a failure of a destination that has said when to try again.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

// later returns how long a failed destination has asked to be left alone.
func later(err error) time.Duration {
	if e, ok := errors.AsType[*laterError](err); ok {
		return e.after
	}
	return 0
}
