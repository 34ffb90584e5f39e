package api

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/zeebo/xxh3"

	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
)

// track serves POST /users/track and its siblings, which differ in their limits and in the form of the answer. It
// passes the body with a batch to the track function, commits the batch to the log, and sends the answer, which was
// written while parsing.
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

// trackOnce applies the request and keeps its answer under key, if there is one. It returns false, without having done
// or sent anything, if an answer is already kept under that key: another node of a cluster has had the request, too.
func (x *exchange) trackOnce(key []byte, bodyHash [32]byte) (answered bool) {
	if err := x.s.options.Store.Admit(); err != nil { // before the work of decoding the body
		x.FailEngine(err)
		return true
	}
	batch := x.NewBatch()
	defer batch.Release()
	x.faults = x.faults[:0]
	var status int
	x.Reply, status = x.s.options.Track(x.Reply[:0], x.Body, x.Workspace, x.route.limits, batch, x.Now, x.note)
	accepted := batch.Count()
	// Nothing was accepted: there is no effect, and the Idempotency-Key stays free for a corrected body.
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
			if err := x.warnOfUnmet(unmet, key, bodyHash, status); err != nil {
				x.FailEngine(err)
				return true
			}
		}
	}
	countsOf(x.Workspace).count(accepted, x.Reply)
	x.keepFaults()
	x.sendAccepted(status)
	return true
}

// sendAccepted sends the answer to a request that was accepted.
func (x *exchange) sendAccepted(status int) {
	if x.route.answer != nil {
		x.route.answer(&x.Call)
	}
	x.SendReply(status)
}

// warnOfUnmet adds a warning to the answer for each operator that apply found impossible. A kept answer gets the
// warnings too, by a record of its own, since the record with the answer and the operators must exist before anybody
// knows the outcome. If that record is not written, or another node has given the kept answer to somebody before, the
// answer that is kept is sent. Error: shard.ErrUnknown, when nobody knows which one is kept.
func (x *exchange) warnOfUnmet(unmet []shard.UnmetOperator, key []byte, bodyHash [32]byte, status int) error {
	for _, u := range unmet {
		x.noteUnmet(u)
	}
	reply := appendUnmet(x.Reply, unmet)
	if key == nil {
		x.Reply = reply
		return nil
	}
	again := x.NewBatch()
	defer again.Release()
	again.SettleAnswer(key, bodyHash, status, reply)
	switch err := again.Commit(); {
	case errors.Is(err, shard.ErrUnknown), errors.Is(err, shard.ErrFailed):
		return err
	case err != nil:
		return nil
	}
	kept, ok, err := x.s.keptAnswer(x.Workspace.Number, key)
	if err != nil {
		return fmt.Errorf("%w: %w", shard.ErrUnknown, err)
	}
	if ok {
		x.Reply = append(x.Reply[:0], kept.Body...)
	}
	return nil
}

// keptAnswer returns the answer that any node has kept under a key before the call.
func (s *Server) keptAnswer(workspace uint32, key []byte) (kept store.Answer, ok bool, err error) {
	if err := s.options.Store.BarrierAnswer(workspace, key); err != nil {
		return kept, false, err
	}
	return s.options.Store.Answer(workspace, key)
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

// appendWarnings returns a copy of an answer, whose last member may be its warnings, with more of them.
func appendWarnings(answer, more []byte) []byte {
	out := append([]byte{}, answer[:len(answer)-1]...)
	if bytes.Contains(answer, []byte(`,"warnings":[`)) { // not in a string: there, a quote has a backslash
		out = out[:len(out)-1]
	} else {
		out, more = append(out, `,"warnings":[`...), more[1:]
	}
	return append(append(out, more...), "]}"...)
}

const maxIdempotencyKeyBytes = 255

// idempotencyID is an answerKey within its workspace.
type idempotencyID struct {
	workspace uint32
	key       string
}

// answerKey returns the key under which the answer to a request is kept: the number of the API key that has sent the
// request, and its Idempotency-Key. Each API key has a name space of its own (D3): the holder of one can't learn the
// answers to another one. The result is valid until the next use of the scratch for keys.
func (x *exchange) answerKey(sent []byte) []byte {
	x.lookup = append(binary.BigEndian.AppendUint32(x.lookup[:0], x.Key.Number), sent...)
	return x.lookup
}

// trackIdempotent serves a request with an Idempotency-Key (D3). The answer is kept in the same record as the effects,
// so both are there or neither is. Of simultaneous requests with the same key, the first goes on and the others wait
// for it; if it is refused, the next one goes on.
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
	// After this barrier an answer that another node has kept is here before this body is judged.
	kept, ok, err := s.keptAnswer(x.Workspace.Number, key)
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
	case kept.BodyHash != bodyHash:
		x.Fail(fasthttp.StatusUnprocessableEntity, "This Idempotency-Key was used with another body")
	default:
		x.Ctx.Response.Header.SetCanonical(headerReplay, []byte("true"))
		x.Reply = append(x.Reply[:0], kept.Body...)
		x.sendAccepted(kept.Status)
	}
}

// hashOfBody distinguishes a body from another one that comes under the same key by mistake: hash and length. Somebody
// who could make two bodies with the same hash would hold the API key, and would only fool themselves into believing
// that the second one was taken. A hash that prevents this costs nearly a tenth of what the whole request does.
func hashOfBody(body []byte) (h [32]byte) {
	sum := xxh3.Hash128(body).Bytes()
	copy(h[:], sum[:])
	binary.LittleEndian.PutUint64(h[len(sum):], uint64(len(body)))
	return h
}

// maxIdempotencyWait bounds the wait for another request with the same key.
const maxIdempotencyWait = 2500 * time.Millisecond
