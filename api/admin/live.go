package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/goccy/go-json"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/live"
	"millrace/shard"
	"millrace/shard/op"
)

// What is applied, as it is applied: GET /admin/live, a stream of server-sent events (package live). Each change is one
// JSON object; an event `left_out` says, at most once a second, what was not shown.

// liveItem is an item as it is shown.
type liveItem struct {
	At        string `json:"at"` // when it was accepted, to the microsecond
	Workspace string `json:"workspace"`
	Kind      string `json:"kind"`

	// Whose it is: the identifier that the object was sent with, and the id of the user. Without an id it is about an
	// address.
	ExternalID string     `json:"external_id,omitempty"`
	UserAlias  *liveAlias `json:"user_alias,omitempty"`
	Email      string     `json:"email,omitempty"`
	Phone      string     `json:"phone,omitempty"`
	SvcID      string     `json:"svc_id,omitempty"`

	Name       string          `json:"name,omitempty"`
	ProductID  string          `json:"product_id,omitempty"`
	Currency   string          `json:"currency,omitempty"`
	Price      *float64        `json:"price,omitempty"`
	Quantity   uint32          `json:"quantity,omitempty"`
	Time       string          `json:"time,omitempty"`
	Attributes json.RawMessage `json:"attributes,omitempty"`
	Properties json.RawMessage `json:"properties,omitempty"`
	IsCut      bool            `json:"cut,omitempty"` // attributes or properties are too long to be shown

	*answers.ConsentState
	answers.ChangedBy
}

type liveAlias struct {
	Name  string `json:"alias_name"`
	Label string `json:"alias_label"`
}

// liveLeft is what was not shown.
type liveLeft struct {
	Out    uint64 `json:"left_out"` // chosen, but more than one viewer is shown in a second
	Unseen uint64 `json:"unseen"`   // about this many objects were not looked at
}

// Pace of a stream of server-sent events.
const (
	livePause = time.Second      // between checks of what was left out, and of whom a viewer wants to see
	liveBeat  = 15 * time.Second // between signs of life
	liveWrite = 10 * time.Second // for a write: a client that doesn't read is cut off
)

// serveLive is GET /admin/live?workspace=&kind=&name=&external_id=….
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	watch, err := s.beginLive(r)
	if err == nil {
		defer watch.viewer.Close()
		err = s.common.Control.Audit(ActorOf(r), "live view opened", r.URL.Query().Get("workspace"),
			"kinds", r.URL.Query()["kind"], "by_user", watch.byUser)
	}
	if err != nil {
		s.failLive(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // makes proxies pass each event on at once
	out := liveWriter{w: w, c: http.NewResponseController(w)}
	// part: what other nodes of the cluster apply is not shown
	out.send("watching", map[string]bool{"part": s.options.Cluster != nil})
	out.flush() // it may be long until there is more to send
	s.watchLive(r.Context(), watch, &out)
}

func (s *Server) failLive(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, live.ErrMany) {
		Refuse(w, http.StatusTooManyRequests, err.Error())
		return
	}
	if errors.Is(err, live.ErrFull) || errors.Is(err, live.ErrClosed) {
		Refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	s.fail(w, r, err)
}

// liveWatch is one watching client.
type liveWatch struct {
	viewer *live.Viewer
	byUser bool
	ws     *control.Workspace // of the user
	id     op.IDKind
	key    []byte
}

func (s *Server) beginLive(r *http.Request) (watch liveWatch, err error) {
	if s.options.Live == nil {
		return watch, fmt.Errorf("live view %w: it is switched off", control.ErrNotFound)
	}
	query := r.URL.Query()
	filter := live.Filter{Name: query.Get("name"), Who: personOf(r)}
	for _, name := range query["kind"] {
		kind, ok := live.KindNamed(name)
		if !ok {
			return watch, fmt.Errorf("%w: kind: want attributes, event, purchase or consent", document.ErrInvalid)
		}
		filter.Kinds = filter.Kinds.With(kind)
	}
	if slug := query.Get("workspace"); slug != "" {
		if watch.ws = s.common.Control.Snapshot().Lookup(slug); watch.ws == nil {
			return watch, fmt.Errorf("workspace %q %w", slug, control.ErrNotFound)
		}
		filter.Workspace = watch.ws.Number
	}
	if watch.byUser = slices.ContainsFunc(userParameters, query.Has); watch.byUser {
		if watch.ws == nil {
			return watch, fmt.Errorf("%w: workspace is required with a user", document.ErrInvalid)
		}
		if watch.id, watch.key, err = s.identifierOf(query); err != nil {
			return watch, err
		}
		filter.ByUser = true
	}
	if watch.viewer, err = s.options.Live.Watch(filter); err == nil {
		s.lookUpLive(watch)
	}
	return watch, err
}

// lookUpLive tells the viewer who the chosen user is now: that may be another user, or a user who didn't exist before.
func (s *Server) lookUpLive(watch liveWatch) {
	if !watch.byUser {
		return
	}
	numbers, err := s.numbersOf(watch.ws, watch.id, watch.key)
	if err != nil { // the store is busy; the user of a second ago will do
		return
	}
	if watch.id != op.SvcID {
		numbers = append(numbers, s.common.Store.HomeNumber(watch.ws.Number, watch.id, watch.key))
	}
	watch.viewer.SetUsers(numbers)
}

// watchLive passes on what the viewer is shown, until either side ends it.
func (s *Server) watchLive(ctx context.Context, watch liveWatch, out *liveWriter) {
	var left live.Left
	told, looked, wrote := time.Now(), time.Now(), time.Now()
	for out.err == nil {
		items, more, err := watch.viewer.Read(ctx, livePause)
		if err != nil {
			return
		}
		now := time.Now()
		for _, item := range items {
			out.send("", s.describeLive(item))
			wrote = now
		}
		if left.Out, left.Unseen = left.Out+more.Out, left.Unseen+more.Unseen; left != (live.Left{}) &&
			now.Sub(told) >= livePause {
			out.send("left_out", liveLeft(left))
			left, told, wrote = live.Left{}, now, now
		}
		if now.Sub(wrote) >= liveBeat {
			out.write([]byte(": \n\n"))
			wrote = now
		}
		out.flush()
		if now.Sub(looked) >= livePause {
			s.lookUpLive(watch)
			looked = now
		}
	}
}

func (s *Server) describeLive(i *live.Item) liveItem {
	snapshot := s.common.Control.Snapshot()
	ws := snapshot.Workspace(i.Workspace)
	out := liveItem{At: microText(i.Stamp), Kind: i.Kind.String(), IsCut: i.IsCut}
	if ws != nil {
		out.Workspace, out.ChangedBy = ws.ID, describeActor(ws, i.Actor, i.Source)
	}
	out.name(i.ID, i.Key)
	if i.User != 0 {
		out.SvcID = string(s.common.Store.AppendSvcID(nil, i.Workspace, i.User))
	}
	switch i.Kind {
	case live.Attributes:
		out.Attributes = i.Body
	case live.Event:
		out.Name, out.Time, out.Properties = i.Name, timeText(i.Time), i.Body
	case live.Purchase:
		out.ProductID, out.Time, out.Properties = i.Name, timeText(i.Time), i.Body
		out.Currency, out.Price, out.Quantity = i.Currency, &i.Price, i.Quantity
	case live.Consent:
		if ws != nil {
			c := s.describeChange(ws, shard.StateChange{State: i.Change.State})
			out.ConsentState = &c.ConsentState
		}
	}
	return out
}

// name sets whose item it is.
func (i *liveItem) name(id op.IDKind, key []byte) {
	switch id {
	case op.ExternalID:
		i.ExternalID = string(key)
	case op.Email:
		i.Email = string(key)
	case op.Phone:
		i.Phone = string(key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(key); ok {
			i.UserAlias = &liveAlias{Name: string(name), Label: string(label)}
		}
	}
}

// liveWriter writes server-sent events, until err is set.
type liveWriter struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	err error
}

// send writes one event; name is empty for items.
func (o *liveWriter) send(name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		o.err = err
		return
	}
	var b []byte
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	o.write(append(append(append(b, "data: "...), text...), "\n\n"...))
}

func (o *liveWriter) write(b []byte) {
	if o.err == nil {
		_ = o.c.SetWriteDeadline(time.Now().Add(liveWrite))
		_, o.err = o.w.Write(b)
	}
}

func (o *liveWriter) flush() {
	if o.err == nil {
		o.err = o.c.Flush()
	}
}
