package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/zeebo/xxh3"

	"millrace/api/value"
	"millrace/shard"
)

// track serves POST /users/track: the body goes to the track function with a batch, the batch to the log, and the
// answer, written while parsing, back.
func (s *Server) track(x *exchange) {
	key := x.Ctx.Request.Header.PeekBytes(headerIdempotency)
	if len(key) == 0 {
		x.trackOnce(nil, [32]byte{})
		return
	}
	if len(key) > maxIdempotencyKeyBytes {
		x.Fail(fasthttp.StatusBadRequest, "The Idempotency-Key must be at most 255 bytes")
		return
	}
	s.trackIdempotent(x, x.answerKey(key))
}

// trackOnce applies the request and keeps its answer under key, when there is one. It says false, and nothing was done
// or sent, when an answer is kept under that key already: another node of a cluster has had the request, too.
func (x *exchange) trackOnce(key []byte, bodyHash [32]byte) (answered bool) {
	if err := x.s.options.Store.Admit(); err != nil { // before the work of decoding the body
		x.FailEngine(err)
		return true
	}
	batch := x.NewBatch()
	defer batch.Release()
	x.faults = x.faults[:0]
	var status int
	x.Reply, status = x.s.options.Track(x.Reply[:0], x.Body, x.Workspace, batch, x.Now, x.note)
	accepted := batch.Count()
	// Nothing was accepted: no effect, and the Idempotency-Key stays free for a corrected body.
	if status != fasthttp.StatusCreated {
		countsOf(x.Workspace).count(0, x.Reply)
		x.keepFaults()
		x.SendReply(status)
		return true
	}
	if key != nil {
		batch.KeepAnswer(key, bodyHash, status, x.Reply)
	}
	if batch.Count() > 0 {
		if err := batch.Commit(); errors.Is(err, shard.ErrKept) {
			return false
		} else if err != nil {
			x.FailEngine(err)
			return true
		}
		if unmet := batch.Unmet(); unmet != nil {
			x.warnOfUnmet(unmet, key, bodyHash, status)
		}
	}
	countsOf(x.Workspace).count(accepted, x.Reply)
	x.keepFaults()
	x.SendReply(status)
	return true
}

var unmetTexts = map[shard.Outcome]string{
	shard.OutOfRange: "is at the end of the range of 64-bit integers",
	shard.TooLarge:   "is too large",
	shard.NotArray:   "is no array",
	shard.NotNumber:  "is no number",
}

// warnOfUnmet adds a warning to the answer for each operator that apply found impossible. A kept answer gets them, too,
// by a record of its own, since the one that has the answer and the operators must be there before anybody knows. When
// that can't be written, the answer is the one that is kept.
func (x *exchange) warnOfUnmet(unmet []shard.UnmetOperator, key []byte, bodyHash [32]byte, status int) {
	for _, u := range unmet {
		x.noteUnmet(u)
	}
	reply := appendUnmet(x.Reply, unmet)
	if key != nil {
		again := x.NewBatch()
		defer again.Release()
		if again.ReplaceAnswer(key, bodyHash, status, reply); again.Commit() != nil {
			return
		}
	}
	x.Reply = reply
}

// appendUnmet returns a copy of an answer with a warning for each operator that was not possible.
func appendUnmet(answer []byte, unmet []shard.UnmetOperator) []byte {
	var warnings []byte
	for _, u := range unmet {
		warnings = append(warnings, `,{"type":`...)
		warnings = value.AppendQuoted(warnings, unmetText(u))
		warnings = append(warnings, `,"input_array":"attributes","index":`...)
		warnings = append(strconv.AppendInt(warnings, int64(u.Index), 10), '}')
	}
	return appendWarnings(answer, warnings)
}

func unmetText(u shard.UnmetOperator) string {
	return fmt.Sprintf("'%s' %s", shortName(u.Name), unmetTexts[u.Why])
}

// appendWarnings returns a copy of an answer, whose last member may be its warnings, with more of them.
func appendWarnings(answer, more []byte) []byte {
	out := append([]byte{}, answer[:len(answer)-1]...)
	if bytes.Contains(answer, []byte(`,"warnings":[`)) { // in no string: a quote has a backslash there
		out = out[:len(out)-1]
	} else {
		out, more = append(out, `,"warnings":[`...), more[1:]
	}
	return append(append(out, more...), "]}"...)
}

// shortName is as much of an attribute's name as a text shows.
func shortName(name string) string {
	if len(name) <= maxNameInText {
		return name
	}
	return strings.ToValidUTF8(name[:maxNameInText], "") + "…"
}

// maxNameInText is how many bytes of a name a text shows.
const maxNameInText = 64

const maxIdempotencyKeyBytes = 255

// idempotencyID is an answerKey in its workspace.
type idempotencyID struct {
	workspace uint32
	key       string
}

// answerKey is what the answer to a request is kept under: the number of the API key that has sent it, and its
// Idempotency-Key. Each API key has a name space of its own (D3): who holds one can't be told what another one was
// answered. Valid until the next use of the scratch for keys.
func (x *exchange) answerKey(sent []byte) []byte {
	x.lookup = append(binary.BigEndian.AppendUint32(x.lookup[:0], x.Key.Number), sent...)
	return x.lookup
}

// trackIdempotent serves a request with an Idempotency-Key (D3). The answer is kept in the same record as the effects,
// so both are there or neither is. Of requests with one key at the same time the first goes on and the others wait for
// it; when it was refused, the next one goes on.
func (s *Server) trackIdempotent(x *exchange, key []byte) {
	bodyHash := hashOfBody(x.Body)
	id := idempotencyID{x.Workspace.Number, string(key)}
	mine := make(chan struct{})
	timeout := time.NewTimer(maxIdempotencyWait)
	defer timeout.Stop()
	for {
		theirs, waiting := s.inflight.LoadOrStore(id, mine)
		if !waiting {
			break
		}
		select {
		case <-theirs:
		case <-timeout.C:
			x.FailEngine(shard.ErrBusy)
			return
		}
	}
	defer func() {
		s.inflight.Delete(id)
		close(mine)
	}()
	// An answer that another node has kept is there, before this body is judged.
	if err := s.options.Store.BarrierAnswer(x.Workspace.Number, key); err != nil {
		x.FailEngine(err)
		return
	}
	kept, ok, err := s.options.Store.Answer(x.Workspace.Number, key)
	if err == nil && !ok {
		if x.trackOnce(key, bodyHash) {
			return
		}
		kept, ok, err = s.options.Store.Answer(x.Workspace.Number, key)
	}
	switch {
	case err != nil:
		x.FailEngine(err)
	case !ok: // it has become too old at this very moment
		x.FailEngine(shard.ErrBusy)
	case kept.BodyHash != bodyHash && kept.BodyHash != sha256.Sum256(x.Body): // which was the hash before
		x.Fail(fasthttp.StatusUnprocessableEntity, "This Idempotency-Key was used with another body")
	default:
		x.Ctx.Response.Header.SetCanonical(headerReplay, []byte("true"))
		x.Reply = append(x.Reply[:0], kept.Body...)
		x.SendReply(kept.Status)
	}
}

// hashOfBody tells a body from another one that comes under the same key by mistake: hash and length. Whoever would
// make two bodies with one hash holds the API key, and had only himself told that the second one was taken. A hash that
// forbids it costs nearly a tenth of what the whole request does.
func hashOfBody(body []byte) (h [32]byte) {
	sum := xxh3.Hash128(body).Bytes()
	copy(h[:], sum[:])
	binary.LittleEndian.PutUint64(h[len(sum):], uint64(len(body)))
	return h
}

// maxIdempotencyWait bounds the wait for another request with the same key.
const maxIdempotencyWait = 2500 * time.Millisecond
