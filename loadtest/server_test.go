package loadtest

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/loadtest/body"
)

const testKey = "test-key"

// fault is what the test server does wrong with a request.
type fault uint8

const (
	none             fault = iota
	cutBefore              // the connection breaks, nothing is stored
	cutAfter               // the connection breaks, all is stored
	cutHalf                // the connection breaks, every second object is stored
	cutLater               // the connection breaks, all is stored a while later, bit by bit
	failBefore             // 500, nothing is stored
	failAfter              // 500, all is stored
	loseAll                // 201, nothing is stored
	loseOne                // 201, all but the last object is stored
	storeTwice             // 201, stored twice
	throttle               // 429 with Retry-After
	stall                  // 201 after 500 ms, during which nobody else gets in
	acceptEverything       // 201, refuses no object
	turnAway               // 503 that says that nothing was done
	leaveOpen              // 503 that doesn't, and nothing is stored
)

// server keeps counts in memory, behind a real socket.
type server struct {
	t        *testing.T
	url      string
	fault    func(n int64) fault // by number of the request, from 1
	onExport func()              // called for each export that is about to be answered; nil: nothing is
	requests atomic.Int64
	gate     sync.RWMutex // held by a stall
	late     sync.WaitGroup

	http     *fasthttp.Server
	listener net.Listener

	mu         sync.Mutex
	users      map[string]*user
	seen       map[string][]byte // answers by idempotency key
	throttled  []time.Time       // when
	afterLimit []time.Time       // requests after the first throttled one
	encodings  map[string]int
	exports    int
}

type user struct {
	kind             body.IDKind
	events, products map[string]int
	cents            int64
	attributes       map[string]json.RawMessage
}

func newServer(t *testing.T) *server {
	s := &server{t: t, users: map[string]*user{}, seen: map[string][]byte{}, encodings: map[string]int{}, fault: func(int64) fault { return none }}
	s.start("127.0.0.1:0")
	t.Cleanup(func() { s.stop(); s.late.Wait() })
	return s
}

func (s *server) start(address string) {
	listener, err := net.Listen("tcp", address)
	require.NoError(s.t, err)
	s.listener = listener
	s.url = "http://" + listener.Addr().String()
	s.http = &fasthttp.Server{Handler: s.handle, MaxRequestBodySize: 8 << 20, CloseOnShutdown: true, NoDefaultServerHeader: true, Logger: quiet{}}
	go s.http.Serve(listener)
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (s *server) stop() {
	s.http.Shutdown()
	s.listener.Close() // which Shutdown leaves open when Serve had not begun
}

func (s *server) handle(ctx *fasthttp.RequestCtx) {
	if string(ctx.Request.Header.Peek("Authorization")) != "Bearer "+testKey {
		reply(ctx, 401, map[string]any{"message": "Invalid API key: …"})
		return
	}
	switch string(ctx.Path()) {
	case "/users/track":
		s.track(ctx)
	case "/users/export/ids":
		s.export(ctx)
		if s.onExport != nil && ctx.Response.StatusCode() < 300 {
			s.onExport()
		}
	default:
		reply(ctx, 404, map[string]any{"message": "Not Found"})
	}
}

func reply(ctx *fasthttp.RequestCtx, status int, v any) {
	b, _ := json.Marshal(v)
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

func (s *server) track(ctx *fasthttp.RequestCtx) {
	n := s.requests.Add(1)
	f := s.fault(n)
	s.note(ctx, f)
	if f == stall {
		s.gate.Lock()
		time.Sleep(500 * time.Millisecond)
		s.gate.Unlock()
	} else {
		s.gate.RLock()
		s.gate.RUnlock()
	}
	text, err := ctx.Request.BodyUncompressed()
	var in map[string][]json.RawMessage
	if err != nil || json.Unmarshal(text, &in) != nil {
		reply(ctx, 400, map[string]any{"message": "bad JSON", "errors": []string{"bad JSON"}})
		return
	}
	key := string(ctx.Request.Header.Peek("Idempotency-Key"))
	if answer := s.answered(key); answer != nil {
		ctx.SetStatusCode(201)
		ctx.SetBody(answer)
		return
	}
	switch f {
	case throttle:
		ctx.Response.Header.Set("Retry-After", "1")
		reply(ctx, 429, map[string]any{"message": "limit"})
	case turnAway:
		text := []string{"The service is busy. Please try again later.", "The node is starting. Nothing was done; please try again later."}
		reply(ctx, 503, map[string]any{"message": text[n%2]})
	case leaveOpen:
		reply(ctx, 503, map[string]any{"message": "Whether the request was done is unknown; please try again later."})
	case cutBefore:
		cut(ctx)
	case failBefore:
		reply(ctx, 500, map[string]any{"message": "broken"})
	case cutLater:
		s.late.Go(func() {
			for half := range 2 {
				time.Sleep(150 * time.Millisecond)
				s.apply(in, func(i int) bool { return i%2 == half }, false)
			}
		})
		cut(ctx)
	default:
		answer := s.applyFaulty(in, f)
		b, _ := json.Marshal(answer)
		if key != "" {
			s.mu.Lock()
			s.seen[key] = b
			s.mu.Unlock()
		}
		s.answer(ctx, f, b, answer)
	}
}

func (s *server) answered(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key]
}

func (s *server) answer(ctx *fasthttp.RequestCtx, f fault, b []byte, answer map[string]any) {
	switch f {
	case cutAfter, cutHalf:
		cut(ctx)
	case failAfter:
		reply(ctx, 500, map[string]any{"message": "broken"})
	default:
		ctx.SetStatusCode(201)
		if answer["message"] != "success" {
			ctx.SetStatusCode(400)
		}
		ctx.SetBody(b)
	}
}

func (s *server) note(ctx *fasthttp.RequestCtx, f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.throttled) > 0 {
		s.afterLimit = append(s.afterLimit, time.Now())
	}
	if f == throttle {
		s.throttled = append(s.throttled, time.Now())
	}
	s.encodings[string(ctx.Request.Header.ContentEncoding())]++
}

// cut closes the connection without an answer.
func cut(ctx *fasthttp.RequestCtx) {
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) {})
}

func (s *server) applyFaulty(in map[string][]json.RawMessage, f fault) map[string]any {
	total := len(in["attributes"]) + len(in["events"]) + len(in["purchases"])
	take := func(int) bool { return true }
	switch f {
	case loseAll:
		take = func(int) bool { return false }
	case loseOne:
		take = func(i int) bool { return i != total-1 }
	case cutHalf:
		take = func(i int) bool { return i%2 == 0 }
	case storeTwice:
		s.apply(in, take, false)
	}
	return s.apply(in, take, f == acceptEverything)
}

// apply stores the objects that are taken and not refused, and makes the answer as if all had been taken.
func (s *server) apply(in map[string][]json.RawMessage, take func(i int) bool, everything bool) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := map[string]any{"message": "success"}
	var problems []map[string]any
	i, accepted := -1, 0
	for _, array := range []string{"attributes", "events", "purchases"} {
		count := 0
		for index, raw := range in[array] {
			i++
			var o trackObject
			if problem := o.read(array, raw); problem != "" && !everything {
				problems = append(problems, map[string]any{"type": problem, "input_array": array, "index": index})
				continue
			}
			count++
			if take(i) {
				s.store(array, &o)
			}
		}
		if count > 0 {
			answer[array+"_processed"] = count
		}
		accepted += count
	}
	if problems != nil {
		answer["errors"] = problems
	}
	if accepted == 0 {
		answer["message"] = "Valid data must be provided in the 'attributes', 'events', or 'purchases' fields."
	}
	return answer
}

// trackObject is an object of any array, as far as the test server looks.
type trackObject struct {
	ExternalID string `json:"external_id"`
	Email      string `json:"email"`
	Alias      *struct {
		Name string `json:"alias_name"`
	} `json:"user_alias"`
	Name       json.RawMessage            `json:"name"`
	Time       string                     `json:"time"`
	Properties map[string]json.RawMessage `json:"properties"`
	Product    string                     `json:"product_id"`
	Currency   string                     `json:"currency"`
	Price      json.RawMessage            `json:"price"`
	Quantity   *int                       `json:"quantity"`
	Subscribe  string                     `json:"email_subscribe"`

	all  map[string]json.RawMessage
	kind body.IDKind
	id   string
}

// read gives the rule that the object breaks, in words.
func (o *trackObject) read(array string, raw json.RawMessage) string {
	if json.Unmarshal(raw, o) != nil || json.Unmarshal(raw, &o.all) != nil {
		return "not valid"
	}
	switch {
	case o.ExternalID != "" && o.Alias != nil:
		return "You must specify only one of 'external_id', 'user_alias' or 'svc_id'"
	case o.ExternalID != "":
		o.kind, o.id = body.ExternalID, o.ExternalID
	case o.Alias != nil:
		o.kind, o.id = body.Alias, o.Alias.Name
	case o.Email != "":
		o.kind, o.id = body.Email, o.Email
	default:
		return "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required"
	}
	if len(o.id) > 987 {
		return "'external_id' must be fewer than 988 bytes"
	}
	if array == "attributes" {
		if strings.Contains(o.Email, " ") || o.Subscribe == "perhaps" || strings.Count(string(raw), `"twice"`) > 1 {
			return "attribute is not valid"
		}
		return ""
	}
	if array == "events" && (len(o.Name) == 0 || o.Name[0] != '"') {
		return "'name' is required"
	}
	if _, err := time.Parse(time.RFC3339, o.Time); err != nil {
		return "'time' is not valid"
	}
	for name, v := range o.Properties {
		if name == "event_name" || name[0] == '$' || string(v) == "null" || (v[0] == '"' && len(v) > 257) {
			return "Invalid 'properties' field"
		}
	}
	if array == "purchases" && (o.Product == "" || len(o.Currency) != 3 || len(o.Price) == 0 || o.Price[0] == '"' || (o.Quantity != nil && (*o.Quantity < 1 || *o.Quantity > 100))) {
		return "purchase is not valid"
	}
	return ""
}

func (s *server) store(array string, o *trackObject) {
	u := s.users[o.id]
	if u == nil {
		u = &user{kind: o.kind, events: map[string]int{}, products: map[string]int{}, attributes: map[string]json.RawMessage{}}
		s.users[o.id] = u
	}
	switch array {
	case "attributes":
		for name, v := range o.all {
			u.attributes[name] = v
		}
	case "events":
		name, _ := strconv.Unquote(string(o.Name))
		u.events[name]++
	case "purchases":
		quantity := 1
		if o.Quantity != nil {
			quantity = *o.Quantity
		}
		price, _ := strconv.ParseFloat(string(o.Price), 64)
		u.products[o.Product] += quantity
		u.cents += int64(math.Round(price*100)) * int64(quantity)
	}
}

func (s *server) export(ctx *fasthttp.RequestCtx) {
	var q struct {
		ExternalIDs []string `json:"external_ids"`
		Aliases     []struct {
			Name  string `json:"alias_name"`
			Label string `json:"alias_label"`
		} `json:"user_aliases"`
		Email  string   `json:"email_address"`
		Fields []string `json:"fields_to_export"`
	}
	if err := json.Unmarshal(ctx.PostBody(), &q); err != nil || len(q.ExternalIDs) > 50 || len(q.Aliases) > 50 {
		reply(ctx, 400, map[string]any{"message": fmt.Sprint("bad question: ", err)})
		return
	}
	ids := q.ExternalIDs
	for _, a := range q.Aliases {
		ids = append(ids, a.Name)
	}
	if q.Email != "" {
		ids = append(ids, q.Email)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exports++; s.exports%7 == 3 {
		ctx.Response.Header.Set("Retry-After", "0")
		reply(ctx, 429, map[string]any{"message": "limit"})
		return
	}
	users := []map[string]any{}
	for _, id := range ids {
		if u := s.users[id]; u != nil {
			users = append(users, u.exported(id, q.Fields))
		}
	}
	reply(ctx, 201, map[string]any{"message": "success", "users": users})
}

func (u *user) exported(id string, fields []string) map[string]any {
	counts := func(m map[string]int) (list []map[string]any) {
		for name, n := range m {
			list = append(list, map[string]any{"name": name, "count": n, "first": "2026-11-01T00:00:00.000Z", "last": "2026-11-01T00:00:00.000Z"})
		}
		return list
	}
	all := map[string]any{"custom_events": counts(u.events), "purchases": counts(u.products), "custom_attributes": u.attributes, "total_revenue": float64(u.cents) / 100}
	switch u.kind {
	case body.ExternalID:
		all["external_id"] = id
	case body.Alias:
		all["user_aliases"] = []map[string]any{{"alias_name": id, "alias_label": body.AliasLabel}}
	case body.Email:
		all["email"] = id
	}
	out := map[string]any{}
	for _, f := range fields {
		if v, ok := all[f]; ok {
			out[f] = v
		}
	}
	return out
}
