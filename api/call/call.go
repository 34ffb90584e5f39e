// Package call represents a request that has passed the door, and its answer, as handlers see them.
package call

import (
	"net"
	"net/netip"

	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/keys"
	"millrace/api/refused"
	"millrace/api/store"
)

// Call is one request. It is pooled: a handler must keep neither the Call nor what it lends.
type Call struct {
	Door
	Store   store.Store
	Control *control.Control
	Refused refused.Feed // nil: refused objects are not kept
	// AppendPhoneKey appends the engine's key of a phone number as a caller sent it; see api.Options.
	AppendPhoneKey func(dst, phone []byte) (key []byte, ok bool)

	Ctx       *fasthttp.RequestCtx
	Workspace *control.Workspace // nil behind the SCIM token, as is Key
	Key       *keys.Key
	Now       int64       // Unix ms
	Body      []byte      // decompressed; lent until the handler returns
	Reply     []byte      // a handler's scratch, until SendReply
	Reads     store.Reads // of users and addresses
}

// Door is what the door knows of the current request, and how it answers that the request failed.
type Door interface {
	// Fail answers with a message, in the shape of the path.
	Fail(status int, text string)
	// FailEngine answers a request that the engine refused.
	FailEngine(err error)
	// HoldReply counts the current size of Reply among all large answers under way. When there is no room for it,
	// HoldReply answers 503 and returns false. A handler that appends much calls it now and then.
	HoldReply() bool
	// SendReply answers with Reply, which is empty afterwards. It never refuses, unlike SendRead.
	SendReply(status int)
	// Actor returns who makes the change that the request asks for.
	Actor() control.Actor
	// Param returns a segment of the path, by its name in the route: {id}.
	Param(name string) string
	// LastSegment returns the rest of the path from the route's last segment on.
	LastSegment() string
}

// NewBatch begins the request's changes. The batch must always be released.
func (x *Call) NewBatch() store.Batch { return x.Store.NewBatch(x.Workspace.Number, x.Key.Number) }

// Send answers with a small body.
func (x *Call) Send(status int, body []byte) {
	x.Ctx.SetStatusCode(status)
	x.Ctx.Response.SetBody(body) // copies body, whose memory is ours again when the handler returns
}

// SendRead answers with Reply, which is empty afterwards, or with a 503 when there is no room for it: a read has
// changed nothing.
func (x *Call) SendRead(status int) {
	if x.HoldReply() {
		x.SendReply(status)
	}
}

// Succeed answers {"message":"success"}.
func (x *Call) Succeed(status int) { x.Send(status, []byte(`{"message":"success"}`)) }

// Verdict is what is wrong with a request, as found while reading it; it is empty when nothing is. The first fault is
// the answer.
type Verdict struct{ Bad string }

// Fail notes what is wrong.
func (v *Verdict) Fail(text string) {
	if v.Bad == "" {
		v.Bad = text
	}
}

// AddrPort returns the address of one end of a connection, or the zero value when it has none.
func AddrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
