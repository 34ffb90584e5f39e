package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/api/census"
	"millrace/api/consent"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/live"
	"millrace/api/refused"
	"millrace/api/store"
	"millrace/ingest"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
)

// openEngine starts the whole corridor on dir: door, decoder, engine, disk; or, when members says so, as many nodes of
// a cluster. It ends with the test, or before by the door's end.
func openEngine(t *testing.T, dir string, edit ...func(*Options)) *door {
	if members > 1 {
		return openCluster(t, dir, edit)
	}
	d := newDoor(t)
	kept, err := refused.Open(refused.Options{Dir: filepath.Join(dir, "refused"), Now: systemClock, Logger: d.logger()})
	require.NoError(t, err)
	edit = append([]func(*Options){func(o *Options) { o.Refused = kept }}, edit...)
	engine, err := shard.Open(shard.Options{Dir: dir, MemoryBytes: 16 << 20, StoreCacheBytes: 8 << 20, StoreMemTableBytes: 1 << 20, OnDocument: d.control.Apply, Tap: d.live,
		Logger: d.logger()})
	require.NoError(t, err)
	d.control.Start(store.Control(engine))
	require.NoError(t, d.bootstrap())
	counter, err := census.New(census.Options{Store: engine, Share: 1, Logger: d.logger()})
	require.NoError(t, err)
	d.operator.Census = counter
	served := d.openDoor(store.Engine(engine), edit)
	d.endBy(func() {
		d.closeDoor(served)
		require.NoError(t, counter.Close())
		require.NoError(t, d.control.FlushUsage())
		require.NoError(t, engine.Close())
		require.NoError(t, kept.Close())
	})
	return d
}

// endBy says how to end what is behind the door as a SIGTERM does.
func (d *door) endBy(end func()) {
	d.end = sync.OnceFunc(end)
	d.t.Cleanup(d.end)
}

// newDoor is a door with nothing behind it.
func newDoor(t *testing.T) *door {
	d := &door{log: new(bytes.Buffer), live: live.NewHub(live.Options{MaxViewers: 4}), t: t}
	d.operator = OperatorOptions{Token: "admin-token", Live: d.live}
	d.control = control.New(control.Options{Now: systemClock, Logger: d.logger(), Prepare: prepare})
	return d
}

// prepare is what the decoder has to know of a workspace.
func prepare(w *control.Workspace) any {
	prepared := &ingest.Workspace{ID: w.Number, Blocked: w.Blocked, Groups: map[[16]byte]byte{}, Apps: map[string]struct{}{}, Braze: w.Braze()}
	for id := range w.Apps {
		prepared.Apps[id] = struct{}{}
	}
	for id, g := range w.Groups {
		raw, _ := field.UUID([]byte(id))
		prepared.Groups[raw] = consent.ChannelOf(g)
	}
	return prepared
}

func (d *door) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(&lockedWriter{w: d.log}, nil))
}

func systemClock() int64 { return time.Now().UnixMilli() }

func (d *door) bootstrap() error {
	file, err := document.ParseBootstrap([]byte(demoYAML))
	if err == nil {
		_, err = d.control.Bootstrap(context.Background(), control.Actor{Name: "bootstrap file"}, file)
	}
	return err
}

// openDoor serves engine on a port of its own.
func (d *door) openDoor(engine store.Store, edit []func(*Options)) (served chan error) {
	decoders := ingest.NewPool(ingest.Options{})
	options := Options{Store: engine, Control: d.control, Now: systemClock, Logger: d.logger(), AppendPhoneKey: field.NewPhones(0).Parse,
		Rules: ingest.Rules(),
		Track: func(dst, body []byte, ws *control.Workspace, limits Limits, batch store.Batch, nowMillis int64, note func(Fault)) ([]byte, int) {
			decoder := decoders.Get()
			defer decoders.Put(decoder)
			b := batch.(*shard.Batch)
			b.SetSource(op.SourceTrack)
			return decoder.TrackWithin(ingest.Limits(limits), dst, body, ws.Prepared().(*ingest.Workspace), &b.Builder, b, nowMillis, func(f ingest.Fault) {
				if note != nil {
					note(Fault(f))
				}
			})
		}}
	for _, e := range edit {
		e(&options)
	}
	var err error
	d.Server, err = New(options)
	require.NoError(d.t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(d.t, err)
	d.addr = ln.Addr().String()
	served = make(chan error, 1)
	go func() { served <- d.Serve(ln) }()
	return served
}

func (d *door) closeDoor(served chan error) {
	client.CloseIdleConnections() // one that it has dialled and not used would be waited for
	require.NoError(d.t, d.Shutdown(context.Background()))
	require.NoError(d.t, <-served)
}

func TestEndToEnd(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	a := d.call("POST", "/users/track", demoKey, `{"attributes":[{"external_id":"a","first_name":"Ada","email":"Ada@Example.com","points":7},{"user_alias":{"alias_label":"l","alias_name":"n"},"_update_existing_only":false,"x":true},
		{"phone":"+14155552671","y":1}],
		"events":[{"external_id":"a","name":"seen","time":"2026-01-02T03:04:05Z"},{"external_id":"a","time":"2026-01-02T03:04:05Z"}],
		"purchases":[{"external_id":"a","product_id":"p","currency":"USD","price":1.25,"quantity":2,"time":"2026-01-02T03:04:05Z"}]}`, "Idempotency-Key", "k")
	require.Equal(t, 201, a.status, a.body)
	v := a.json(t)
	require.Equal(t, 3.0, v["attributes_processed"])
	require.Equal(t, 1.0, v["events_processed"])
	require.Equal(t, 1.0, v["purchases_processed"])
	require.Len(t, v["errors"], 1)

	export := func(body string) []any {
		a := d.call("POST", "/users/export/ids", demoKey, body)
		require.Equal(t, 201, a.status, a.body)
		return a.json(t)["users"].([]any)
	}
	check := func() {
		u := export(`{"external_ids":["a"]}`)[0].(map[string]any)
		require.Equal(t, "Ada", u["first_name"])
		require.Equal(t, map[string]any{"points": 7.0}, u["custom_attributes"])
		require.Equal(t, 1.0, u["custom_events"].([]any)[0].(map[string]any)["count"])
		require.Equal(t, 2.5, u["total_revenue"])
		for _, same := range []string{`{"email_address":"ada@example.com"}`, fmt.Sprintf(`{"svc_id":%q}`, u["svc_id"])} {
			require.Equal(t, []any{u}, export(same))
		}
		require.Len(t, export(`{"user_aliases":[{"alias_label":"l","alias_name":"n"}],"phone":"+1 (415) 555-2671"}`), 2)
		// Another workspace finds nobody.
		for _, body := range []string{`{"external_ids":["a"]}`, `{"email_address":"ada@example.com"}`, fmt.Sprintf(`{"svc_id":%q}`, u["svc_id"])} {
			require.Empty(t, d.call("POST", "/users/export/ids", otherKey, body).json(t)["users"], body)
			require.Zero(t, d.call("POST", "/users/delete", otherKey, `{"external_ids":["a"]}`).json(t)["deleted"])
		}
	}
	check()
	require.Equal(t, 422, d.track(demoKey, "a", "Idempotency-Key", "k").status)

	d.end()
	d = openEngine(t, dir) // everything is there after a restart, the kept answer and the keys' use too
	check()
	require.NotZero(t, d.control.LastUsed(1))
	require.Equal(t, 422, d.track(demoKey, "a", "Idempotency-Key", "k").status)

	deleted := d.call("POST", "/users/delete", demoKey, `{"external_ids":["a","b"]}`)
	require.Equal(t, `{"deleted":1,"invalid_user_ids":["b"],"message":"success"}`, deleted.body)
	require.Empty(t, export(`{"external_ids":["a"]}`))
	require.Empty(t, export(`{"email_address":"ada@example.com"}`))
	d.end()
}

// A body that goes bad at its end has no effect, though its beginning was decoded.
func TestRefusedBodiesHaveNoEffect(t *testing.T) {
	d := openEngine(t, t.TempDir())
	for _, body := range []string{`{"attributes":[{"external_id":"a","x":1}]`, `{"attributes":[{"external_id":"a","x":1}]}x`, `{"attributes":[{"external_id":"a","x":1}],"events":7}`} {
		a := d.call("POST", "/users/track", demoKey, body)
		require.Equal(t, 400, a.status, body)
		require.NotEmpty(t, a.json(t)["message"])
	}
	require.Empty(t, d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["a"]}`).json(t)["users"])
}

// An operator whose fate only apply knows: what was not possible is told, in the answer and in its replays, and not by
// an error.
func TestUnmetOperators(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	ask := func(attributes string, headers ...string) string {
		a := d.call("POST", "/users/track", demoKey, `{"attributes":[`+attributes+`]}`, headers...)
		require.Equal(t, 201, a.status, a.body)
		return a.body
	}
	const good = `{"attributes_processed":1,"message":"success"}`
	warning := func(name, text string, index int) string {
		return fmt.Sprintf(`{"type":"'%s' %s","input_array":"attributes","index":%d}`, name, text, index)
	}
	require.Equal(t, good, ask(`{"external_id":"a","n":9223372036854775806,"l":["x"],"s":"text","objects":[{"id":1}],"_merge_objects":true,"o":{"x":1}}`))
	require.Equal(t, good, ask(`{"external_id":"a","n":{"inc":1},"l":{"add":["y"]},"objects":{"$add":[{"id":2}]},"none":{"remove":["x"]},"m":{"inc":5},"o":{"x":2},"_merge_objects":true}`))
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[`+warning("n", "is at the end of the range of 64-bit integers", 0)+`]}`, ask(`{"external_id":"a","n":{"inc":1}}`))
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[`+warning("s", "is no number", 0)+`]}`, ask(`{"external_id":"a","s":{"inc":1}}`))
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[`+warning("objects", "has no element to update", 0)+`]}`,
		ask(`{"external_id":"a","objects":{"$update":[{"$identifier_key":"id","$identifier_value":7,"$new_object":{"id":7}}]}}`))
	require.Equal(t, good, ask(`{"external_id":"a","objects":{"$remove":[{"$identifier_key":"id","$identifier_value":7}]}}`))
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[`+warning("s", "is no array", 0)+`]}`,
		ask(`{"external_id":"a","s":{"$add":[]},"none":{"$add":[]},"objects":{"$add":[]}}`))

	body := `{"external_id":"b","a":1},{"country":"x"},{"external_id":"a","dob":"never","list":["i"],"s":{"remove":["x"]},"l":{"add":["z"]},"o":{"x":3},"n":{"inc":1},"s\"2":1,"n2":{"inc":1}}`
	first := ask(body, "Idempotency-Key", "k")
	require.Equal(t, `{"attributes_processed":2,"message":"success","errors":[{"type":"'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required","input_array":"attributes","index":1}],`+
		`"warnings":[`+warning("dob", "is not valid", 2)+`,`+warning("s", "is no array", 2)+`,`+warning("n", "is at the end of the range of 64-bit integers", 2)+`]}`, first)
	require.Equal(t, first, ask(body, "Idempotency-Key", "k"))
	d.end()
	d = openEngine(t, dir)
	require.Equal(t, first, ask(body, "Idempotency-Key", "k"))
	require.Equal(t, map[string]any{"n": 9223372036854775807.0, "l": []any{"x", "y", "z"}, "s": "text", "objects": []any{map[string]any{"id": 1.0}, map[string]any{"id": 2.0}},
		"m": 5.0, "o": map[string]any{"x": 3.0}, "list": []any{"i"}, "s\"2": 1.0, "n2": 1.0}, d.user(t, byID("a"))["custom_attributes"])

	// An array of objects, and an object that is merged, that would grow beyond 100 KB.
	large := strings.Repeat(`"`+strings.Repeat("x", 250)+`",`, 230)
	object := func(name string) string { return `{"` + name + `":[` + large[:len(large)-1] + `]}` }
	require.Equal(t, good, ask(`{"user_alias":{"alias_label":"l","alias_name":"n"},"_update_existing_only":false,"objects":[`+object("a")+`],"o":`+object("a")+`}`))
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[`+warning("objects", "is too large", 0)+`,`+warning("o", "is too large", 0)+`]}`,
		ask(`{"user_alias":{"alias_label":"l","alias_name":"n"},"plain":["x"],"objects":{"$add":[`+object("b")+`]},"o":`+object("b")+`,"_merge_objects":true}`))
}

// Requests with one key at once, on the real engine: one effect. Who has waited for the others for long
// (maxIdempotencyWait, which a busy machine needs) is told to try again, and does.
func TestIdempotencyOnTheEngine(t *testing.T) {
	d := openEngine(t, t.TempDir())
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for round := range 5 {
				a := answer{status: 503}
				for end := time.Now().Add(clusterPatience); a.status == 503 && time.Now().Before(end); {
					a = d.call("POST", "/users/track", demoKey, `{"events":[{"external_id":"a","name":"e","time":"2026-01-02T03:04:05Z"}]}`, "Idempotency-Key", fmt.Sprint(round))
				}
				if a.status != 201 {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	group.Wait()
	u := d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["a"]}`).json(t)["users"].([]any)[0].(map[string]any)
	require.Equal(t, 5.0, u["custom_events"].([]any)[0].(map[string]any)["count"])
}

// nothingStore and nothingBatch cost nothing, so what is measured is the door.
type nothingStore struct{ store.Store }
type nothingBatch struct{ store.Batch }

func (nothingStore) NewBatch(uint32, uint32) store.Batch { return nothingBatch{} }
func (nothingBatch) Count() int                          { return 1 }
func (nothingBatch) Commit() error                       { return nil }
func (nothingBatch) Unmet() []shard.UnmetOperator        { return nil }
func (nothingBatch) Release()                            {}

// The track path allocates at most twice per request (corridor), fasthttp included.
func TestTrackAllocations(t *testing.T) {
	if underRace {
		t.Skip("the race detector drops what is pooled")
	}
	d := open(t, func(o *Options) {
		o.AccessLog = false
		o.Store = nothingStore{o.Store}
		o.Track = func(dst, _ []byte, _ *control.Workspace, _ Limits, _ store.Batch, _ int64, _ func(Fault)) ([]byte, int) {
			return append(dst, `{"message":"success"}`...), 201
		}
	})
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error {
		return s.Patch([]byte(`{"rate_limits":{"users.track":"100000000/1s"}}`))
	})
	require.NoError(t, err)
	c, err := net.Dial("tcp", d.addr)
	require.NoError(t, err)
	defer c.Close()
	request := []byte(withLength(goodHead, goodBody))
	buffer := make([]byte, 4096)
	ask := func() {
		_, _ = c.Write(request)
		n, err := c.Read(buffer)
		if err != nil || !bytes.HasPrefix(buffer[:n], []byte("HTTP/1.1 201")) {
			t.Fatalf("%s %v", buffer[:n], err)
		}
	}
	ask()
	require.LessOrEqual(t, testing.AllocsPerRun(500, ask), 2.0)
}

func BenchmarkDoor(b *testing.B) {
	d := open(b, func(o *Options) {
		o.AccessLog, o.Logger = false, slog.New(slog.DiscardHandler)
		o.Store = nothingStore{o.Store}
		o.Track = func(dst, _ []byte, _ *control.Workspace, _ Limits, _ store.Batch, _ int64, _ func(Fault)) ([]byte, int) {
			return append(dst, `{"message":"success"}`...), 201
		}
	})
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error {
		return s.Patch([]byte(`{"rate_limits":{"users.track":"1000000000/1s"}}`))
	})
	require.NoError(b, err)
	ctx := new(fasthttp.RequestCtx)
	var request fasthttp.Request
	require.NoError(b, request.Read(bufio.NewReader(bytes.NewReader([]byte(withLength(goodHead, goodBody))))))
	ctx.Init(&request, nil, nil)
	b.ReportAllocs()
	for b.Loop() {
		ctx.Response.Reset()
		d.handle(ctx)
	}
	require.Equal(b, 201, ctx.Response.StatusCode())
}

func writeCertificate(t *testing.T, dir, name string) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	return cert, key
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, "first.example")
	certificate, err := LoadTLS(cert, key)
	require.NoError(t, err)
	d := open(t, func(o *Options) { o.MaxConnsPerIP = 100 })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- d.Serve(certificate.Listener(ln)) }()
	ask := func(version uint16) (name string, err error) {
		c, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
		if err != nil {
			return "", err
		}
		defer c.Close()
		_, err = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		text, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Contains(t, string(text), "HTTP/1.1 200 OK")
		return c.ConnectionState().PeerCertificates[0].DNSNames[0], nil
	}
	name, err := ask(0)
	require.NoError(t, err)
	require.Equal(t, "first.example", name)
	_, err = ask(tls.VersionTLS11)
	require.Error(t, err)

	require.NoError(t, os.WriteFile(cert, []byte("half written"), 0o600))
	require.Error(t, certificate.Reload(), "the old one stays")
	name, err = ask(tls.VersionTLS12)
	require.NoError(t, err)
	require.Equal(t, "first.example", name)
	writeCertificate(t, dir, "second.example")
	require.NoError(t, certificate.Reload())
	name, err = ask(0)
	require.NoError(t, err)
	require.Equal(t, "second.example", name)

	require.NoError(t, d.Shutdown(context.Background()))
	require.NoError(t, <-served)
}
