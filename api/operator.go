package api

import (
	"bytes"
	"context"
	"maps"
	"net"
	"slices"

	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/users"
)

// What the operator's door (package admin) uses of the public one.

// Options returns the options that the server runs with. They are lent and must only be read.
func (s *Server) Options() *Options { return &s.options }

// RequestID returns id if a request may have it, else a new one.
func (s *Server) RequestID(id string) string {
	if saneRequestID([]byte(id)) {
		return id
	}
	return string(s.appendRequestID(nil))
}

// AllowsBadKey counts a request from addr that came with a wrong key or token. It reports whether the request gets a
// 401; otherwise there are too many.
func (s *Server) AllowsBadKey(addr net.Addr) bool {
	badKeyRequests.Inc()
	return s.badKeys.Allow(addrOf(addr), s.options.Now(), s.options.MaxBadKeysPerMinute)
}

// Operation returns the path of the operation that a request with an API key is for, in the form of the OpenAPI
// document; it is empty if there is none that API keys may be used for.
func (s *Server) Operation(method, path string) string {
	res := s.router.find([]byte(path))
	if res == nil {
		return ""
	}
	rt := res.method([]byte(method))
	if rt == nil || rt.permission == "" {
		return ""
	}
	return rt.path
}

// Do serves a request as if it had come from the address from.
func (s *Server) Do(request *fasthttp.Request, from net.Addr) *fasthttp.Response {
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(request, from, nil)
	s.handle(ctx)
	return &ctx.Response
}

// TrackAgain sends objects of one array as /users/track does. What is refused again is not kept a second time.
func (s *Server) TrackAgain(
	w *control.Workspace, array string, objects ...[]byte,
) (reply []byte, status int, err error) {
	body := append(append([]byte(`{"`), array...), `":[`...)
	body = append(append(body, bytes.Join(objects, []byte(","))...), "]}"...)
	if err := s.options.Store.Admit(); err != nil {
		return nil, 0, err
	}
	batch := s.options.Store.NewBatch(w.Number, control.AdminActor)
	defer batch.Release()
	reply, status = s.options.Track(nil, body, w, Limits{}, batch, s.options.Now(), nil)
	if status != fasthttp.StatusCreated {
		countsOf(w).count(0, reply)
		return reply, status, nil
	}
	accepted := batch.Count()
	if accepted > 0 {
		if err := batch.Commit(); err != nil {
			return nil, 0, err
		}
		if unmet := batch.Unmet(); unmet != nil {
			reply = appendUnmet(reply, unmet)
		}
	}
	countsOf(w).count(accepted, reply)
	return reply, status, nil
}

// Rules are the names of all rules that refused objects may have broken, in their order.
func (s *Server) Rules() []string {
	return slices.Sorted(slices.Values(slices.AppendSeq(slices.Clone(s.options.Rules), maps.Values(unmetRules))))
}

// EraseRefused erases what is kept of refused objects that name a user who is about to be deleted.
func (s *Server) EraseRefused(ctx context.Context, workspace uint32, number uint64) error {
	return users.EraseRefused(ctx, s.options.Refused, s.options.Store, s.options.Store, workspace, nil, number)
}
