package admin

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-json"
	"github.com/valyala/fasthttp"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/refused"
	"millrace/ingest/field"
)

// What was refused (package refused): routes to list it, to count it, and to send it again.

func (s *Server) refusedRoutes() []route {
	const base = "/admin/workspaces/{workspace}/refused"
	return []route{
		{"GET " + base, s.ofRefused(s.listRefused)},
		{"GET " + base + "/counts", s.ofRefused(s.countRefused)},
		{"GET " + base + "/{id}", s.showRefused},
		{"DELETE " + base + "/{id}", s.removeRefused},
		{"POST " + base + "/{id}/send", s.sendRefused},
		{"POST " + base + "/send", s.ofRefused(s.sendAllRefused)},
	}
}

func describeRefused(w *control.Workspace, e *refused.Entry) answers.RefusedEntry {
	out := answers.RefusedEntry{ID: e.ID().String(), At: document.Millis(e.At).Text(), RequestID: e.Request,
		Array: e.Array, Index: e.Index, IsRefused: e.IsRefused,
		Size: e.Size, Object: string(e.Object), Reasons: []answers.RefusedReason{}}
	out.Key, out.KeyName = keyNumbered(w, e.Key)
	for _, f := range e.Faults {
		out.Reasons = append(out.Reasons, answers.RefusedReason(f))
	}
	return out
}

// keyNumbered returns the key with this number, revoked or not.
func keyNumbered(w *control.Workspace, number uint32) (id, name string) {
	for _, k := range w.Keys {
		if k.Number == number {
			return k.ID, k.Name
		}
	}
	return "", ""
}

// Paging of refused objects.
const (
	defaultRefusedLimit = 50
	maxRefusedLimit     = 200
)

// refusedParameters choose entries. Others are errors: with a misspelt key_id, more would be sent again than was meant.
var refusedParameters = []string{"rule", "key_id", "input_array", "refused", "since", "until", "before", "limit"}

// refusedQuery reads the query parameters that choose entries of the workspace.
func (s *Server) refusedQuery(w *control.Workspace, query url.Values) (q refused.Query, err error) {
	if s.common.Refused == nil {
		return q, fmt.Errorf("list of refused objects %w: it is switched off", control.ErrNotFound)
	}
	for name := range query {
		if !slices.Contains(refusedParameters, name) {
			return q, fmt.Errorf("%w: %s is not a known parameter; there are %s", document.ErrInvalid, name,
				strings.Join(refusedParameters, ", "))
		}
	}
	limit, err := queryNumber(query, "limit", defaultRefusedLimit, maxRefusedLimit)
	if err != nil {
		return q, err
	}
	q = refused.Query{Workspace: w.Number, Rule: query.Get("rule"), Array: query.Get("input_array"),
		OnlyRefused: query.Get("refused") == "true", Limit: int(limit)}
	if rules := s.public.Rules(); q.Rule != "" && !slices.Contains(rules, q.Rule) {
		return q, fmt.Errorf("%w: rule: %q is unknown; there are %s", document.ErrInvalid, q.Rule,
			strings.Join(rules, ", "))
	}
	if !slices.Contains([]string{"", "attributes", "events", "purchases", refused.Request}, q.Array) {
		return q, fmt.Errorf("%w: input_array: want attributes, events, purchases or request", document.ErrInvalid)
	}
	if id := query.Get("key_id"); id != "" {
		i := slices.IndexFunc(w.Keys, func(k *document.Key) bool { return k.ID == id })
		if i < 0 {
			return q, fmt.Errorf("API key %q %w", id, control.ErrNotFound)
		}
		q.Key = w.Keys[i].Number
	}
	for name, into := range map[string]*int64{"since": &q.Since, "until": &q.Until} {
		if text := query.Get(name); text != "" {
			millis, ok := field.Time([]byte(text))
			if !ok {
				return q, fmt.Errorf("%w: %s: want ISO 8601", document.ErrInvalid, name)
			}
			*into = millis
		}
	}
	if text := query.Get("before"); text != "" {
		id, ok := refused.ParseID(text)
		if !ok {
			return q, fmt.Errorf("%w: before: want the id of an entry", document.ErrInvalid)
		}
		q.Before = id.Seq
	}
	return q, nil
}

// ofRefused makes a route about the entries that the request's query chooses.
func (s *Server) ofRefused(
	f func(control.Actor, *http.Request, *control.Workspace, refused.Query) (any, error),
) handler {
	return s.within(func(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
		q, err := s.refusedQuery(w, r.URL.Query())
		if err != nil {
			return nil, err
		}
		return f(by, r, w, q)
	})
}

// listRefused answers with a page of entries, newest first; next, if there is one, is the before of the following page.
func (s *Server) listRefused(_ control.Actor, r *http.Request, w *control.Workspace, q refused.Query) (any, error) {
	page, err := s.common.Refused.List(r.Context(), q)
	if err != nil {
		return nil, err
	}
	answer := answers.RefusedPage{Refused: []answers.RefusedEntry{}, Next: nextRefused(page), Missing: page.Missing}
	for i := range page.Entries {
		answer.Refused = append(answer.Refused, describeRefused(w, &page.Entries[i]))
	}
	return answer, nil
}

// nextRefused is the before of the page that follows; empty: none does.
func nextRefused(p refused.Page) string {
	if !p.More {
		return ""
	}
	return p.Entries[len(p.Entries)-1].ID().String()
}

// countRefused answers with counts by hour, key and rule, newest first.
func (s *Server) countRefused(_ control.Actor, r *http.Request, w *control.Workspace, q refused.Query) (any, error) {
	counts, missing, err := s.common.Refused.Counts(r.Context(), q)
	if err != nil {
		return nil, err
	}
	answer := answers.RefusedCounts{Counts: []answers.RefusedCount{}, Missing: missing}
	for _, c := range counts {
		one := answers.RefusedCount{Hour: timeText(c.Hour), Rule: c.Rule, Refused: c.Refused, LeftOut: c.LeftOut}
		one.Key, one.KeyName = keyNumbered(w, c.Key)
		answer.Counts = append(answer.Counts, one)
	}
	return answer, nil
}

// refusedAt returns the entry that the path names, and its workspace.
func (s *Server) refusedAt(r *http.Request) (w *control.Workspace, e refused.Entry, err error) {
	if w, err = s.workspace(r); err != nil {
		return nil, e, err
	}
	if s.common.Refused == nil {
		return nil, e, fmt.Errorf("list of refused objects %w: it is switched off", control.ErrNotFound)
	}
	id, ok := refused.ParseID(r.PathValue("id"))
	if ok {
		e, ok, err = s.common.Refused.Get(r.Context(), w.Number, id)
	}
	if err == nil && !ok {
		err = fmt.Errorf("refused object %q %w", r.PathValue("id"), control.ErrNotFound)
	}
	return w, e, err
}

func (s *Server) showRefused(_ control.Actor, r *http.Request) (any, error) {
	w, e, err := s.refusedAt(r)
	if err != nil {
		return nil, err
	}
	return describeRefused(w, &e), nil
}

func (s *Server) removeRefused(by control.Actor, r *http.Request) (any, error) {
	w, e, err := s.refusedAt(r)
	if err != nil {
		return nil, err
	}
	if err := s.common.Control.Audit(by, "refused object removed", w.ID, "id", e.ID().String()); err != nil {
		return nil, err
	}
	_, err = s.common.Refused.Remove(r.Context(), w.Number, e.ID())
	return success{}, err
}

// sendRefused sends an object again, as it was or as the body has it: {"object": …}. If it is accepted, the entry is
// removed.
func (s *Server) sendRefused(by control.Actor, r *http.Request) (any, error) {
	text, err := s.readAll(r)
	if err != nil {
		return nil, err
	}
	done, err := s.beginSending(r.Context())
	if err != nil {
		return nil, err
	}
	defer done()
	if id, ok := refused.ParseID(r.PathValue("id")); ok && s.common.Refused != nil {
		claimed, err := s.common.Refused.Claim(r.Context(), id)
		if err != nil {
			return nil, err
		}
		defer s.release(r.Context(), claimed)
		if len(claimed) == 0 {
			return nil, fmt.Errorf("%w: the object is being sent again at this moment", control.ErrConflict)
		}
	}
	w, e, err := s.refusedAt(r)
	if err != nil {
		return nil, err
	}
	edited, err := editedObject(text)
	if err != nil {
		return nil, err
	}
	if edited != nil {
		e.Object = edited
	}
	if err := isSendable(&e); err != nil {
		return nil, err
	}
	if err := s.common.Control.Audit(by, "refused object sent again", w.ID, "id", e.ID().String(),
		"edited", edited != nil); err != nil {
		return nil, err
	}
	reply, status, err := s.public.TrackAgain(w, e.Array, e.Object)
	if err != nil {
		return nil, err
	}
	again := answers.SentAgain{Status: status, Accepted: status == fasthttp.StatusCreated, Answer: reply}
	if again.Accepted {
		err = s.removeSent(r.Context(), w, e.ID())
	}
	return again, err
}

// removeSent removes entries whose objects were accepted, even when nobody waits for the answer any more: the second of
// two clicks has the browser give up the first one's request, and would find the entry still there.
func (s *Server) removeSent(ctx context.Context, w *control.Workspace, ids ...refused.ID) error {
	_, err := s.common.Refused.Remove(context.WithoutCancel(ctx), w.Number, ids...)
	return err
}

// release ends claims, also when nobody waits for the answer any more. Those on a node that is gone end by themselves.
func (s *Server) release(ctx context.Context, claimed []refused.ID) {
	if len(claimed) > 0 {
		_ = s.common.Refused.Release(context.WithoutCancel(ctx), claimed...)
	}
}

// claimPage claims the entries of a page and returns those that it could claim and that are there since: others may
// have sent some of them again before, or be at it. Those of a node that doesn't answer any more are left alone.
func (s *Server) claimPage(ctx context.Context, q refused.Query, page []refused.Entry) (
	mine []refused.Entry, claimed []refused.ID, err error,
) {
	if len(page) == 0 {
		return nil, nil, nil
	}
	claimed, _ = s.common.Refused.Claim(ctx, mapSlice(page, func(e refused.Entry) refused.ID { return e.ID() })...)
	q.Before = page[0].Seq + 1
	now, err := s.common.Refused.List(ctx, q)
	mine = slices.DeleteFunc(now.Entries, func(e refused.Entry) bool { return !slices.Contains(claimed, e.ID()) })
	return mine, claimed, err
}

// beginSending waits until no other request of this server sends objects again, so that the second of two clicks finds
// what became of the first. Requests to other nodes find the entries claimed.
func (s *Server) beginSending(ctx context.Context) (done func(), err error) {
	select {
	case s.sending <- struct{}{}:
		return func() { <-s.sending }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// editedObject returns the object in a body, with its bytes as they were sent; nil: there is none.
func editedObject(text []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	var edited struct {
		Object json.RawMessage `json:"object"`
	}
	if err := document.DecodeStrict(text, &edited); err != nil {
		return nil, err
	}
	if len(edited.Object) == 0 || string(edited.Object) == "null" {
		return nil, nil
	}
	if edited.Object[0] != '{' {
		return nil, fmt.Errorf("%w: object: want an object", document.ErrInvalid)
	}
	return edited.Object, nil
}

// isSendable returns why an entry can't be sent again.
func isSendable(e *refused.Entry) error {
	switch {
	case e.Array == "":
		return fmt.Errorf("%w: a request that was refused as a whole is not kept; its client must send it again",
			control.ErrConflict)
	case e.Object == nil:
		return fmt.Errorf("%w: the object was not kept; give the object to send", control.ErrConflict)
	case !e.IsRefused && e.Array != "attributes":
		return fmt.Errorf("%w: the object was accepted, only a value was left out; sent again, it would count twice",
			control.ErrConflict)
	}
	return nil
}

// resendBatch is how many objects one request sends again: no plan allows fewer.
const resendBatch = 50

// sendAllRefused sends a page of refused objects again, beginning with those that were sent first. It leaves out
// entries about values that were left out of accepted objects. Entries whose objects are accepted are removed; next, if
// there is one, leads to older ones.
func (s *Server) sendAllRefused(by control.Actor, r *http.Request, w *control.Workspace, q refused.Query) (any, error) {
	if q.Rule == "" {
		return nil, fmt.Errorf("%w: rule is required", document.ErrInvalid)
	}
	done, err := s.beginSending(r.Context())
	if err != nil {
		return nil, err
	}
	defer done()
	q.OnlyRefused = true
	page, err := s.common.Refused.List(r.Context(), q)
	if err != nil {
		return nil, err
	}
	answer := answers.AllSentAgain{Next: nextRefused(page), Missing: page.Missing}
	list, claimed, err := s.claimPage(r.Context(), q, page.Entries)
	defer s.release(r.Context(), claimed)
	if err != nil {
		return nil, err
	}
	if err := s.common.Control.Audit(by, "refused objects sent again", w.ID, "rule", q.Rule,
		"count", len(list)); err != nil {
		return nil, err
	}
	slices.Reverse(list)
	kept := slices.DeleteFunc(slices.Clone(list), func(e refused.Entry) bool { return isSendable(&e) != nil })
	answer.Skipped = len(list) - len(kept)
	for len(kept) > 0 {
		n := 1
		for n < min(len(kept), resendBatch) && kept[n].Array == kept[0].Array {
			n++
		}
		accepted, err := s.sendTogether(r.Context(), w, kept[:n])
		if err != nil {
			return nil, err
		}
		answer.Accepted, answer.Refused, kept = answer.Accepted+accepted, answer.Refused+n-accepted, kept[n:]
	}
	return answer, nil
}

// sendTogether sends entries of one array in one request, and removes those that were accepted.
func (s *Server) sendTogether(ctx context.Context, w *control.Workspace,
	list []refused.Entry) (accepted int, err error) {
	reply, status, err := s.public.TrackAgain(w, list[0].Array,
		mapSlice(list, func(e refused.Entry) []byte { return e.Object })...)
	if err != nil || status != fasthttp.StatusCreated { // nothing was accepted
		return 0, err
	}
	var answer struct {
		Errors []struct {
			Index int `json:"index"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(reply, &answer); err != nil {
		return 0, err
	}
	isRefused := map[int]bool{}
	for _, e := range answer.Errors {
		isRefused[e.Index] = true
	}
	var ids []refused.ID
	for i := range list {
		if !isRefused[i] {
			ids = append(ids, list[i].ID())
		}
	}
	return len(ids), s.removeSent(ctx, w, ids...)
}
