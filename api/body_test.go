package api

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/api/store"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// countingListener counts what its connections have read.
type countingListener struct {
	net.Listener
	read *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.read}, err
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(p []byte) (n int, err error) {
	n, err = c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// counted serves on a further listener; read is what the server has read of its connections.
func (d *door) counted(t *testing.T) (addr string, read *atomic.Int64) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	read = new(atomic.Int64)
	go func() { _ = d.Serve(countingListener{ln, read}) }()
	return ln.Addr().String(), read
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what pools have held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Memory for a body grows with what arrives, however much its head, or that of a chunk, declares.
func TestDeclaredBodiesReserveNothing(t *testing.T) {
	const connections, declared = 32, 4 << 20
	d := open(t, nil)
	addr, read := d.counted(t)
	body := strings.TrimSuffix(goodBody, "}") + strings.Repeat(" ", declared-len(goodBody)) + "}"
	length := fmt.Sprintf("%sContent-Length: %d\r\n\r\n", goodHead, declared)
	chunk := fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n", goodHead, declared)
	for name, test := range map[string]struct {
		head string
		sent int
		end  string
	}{
		"length, nothing": {length, 0, ""}, "length, 1 KB": {length, 1 << 10, ""}, "length, 20 KB": {length, 20 << 10, ""},
		"chunk, nothing": {chunk, 0, "\r\n0\r\n\r\n"}, "chunk, 1 KB": {chunk, 1 << 10, "\r\n0\r\n\r\n"}, "chunk, 20 KB": {chunk, 20 << 10, "\r\n0\r\n\r\n"},
	} {
		read.Store(0)
		before := heapBytes()
		var open []net.Conn
		for range connections {
			c, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			_, err = c.Write([]byte(test.head + body[:test.sent]))
			require.NoError(t, err)
			open = append(open, c)
		}
		require.Eventually(t, func() bool { return read.Load() == int64(connections*(len(test.head)+test.sent)) }, waitLimit, tick, name)
		require.Less(t, heapBytes()-before, int64(connections*declared/8), name)

		// One of them goes on, and is served.
		_, err := open[0].Write([]byte(body[test.sent:] + test.end))
		require.NoError(t, err)
		_ = open[0].SetReadDeadline(time.Now().Add(waitLimit))
		response, err := http.ReadResponse(bufio.NewReader(open[0]), nil)
		require.NoError(t, err, name)
		require.Equal(t, 201, response.StatusCode, name)
		for _, c := range open {
			c.Close()
		}
	}
}

// A connection that ends within a body ends a request that is not served, also where what has come could be a whole
// one.
func TestBodiesThatAreCutOff(t *testing.T) {
	d := open(t, nil)
	long := strings.TrimSuffix(goodBody, "}") + strings.Repeat(" ", 100_000) + "}"
	chunked := func(body string) string {
		return fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", goodHead, len(body), body)
	}
	plain, secure := d.addr, d.secure(t)
	for name, text := range map[string]string{
		"length":                      fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", goodHead, len(goodBody)+1, goodBody),
		"length, long":                fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", goodHead, len(long)+1, long),
		"in a chunk":                  strings.TrimSuffix(chunked(goodBody), "}"),
		"at the end of a chunk":       chunked(goodBody),
		"before the last chunk":       chunked(goodBody) + "\r\n",
		"before the last chunk, long": chunked(long) + "\r\n",
		"in the last chunk":           chunked(goodBody) + "\r\n0",
		"before the end":              chunked(goodBody) + "\r\n0\r\n",
		"in the end":                  chunked(goodBody) + "\r\n0\r\n\r",
	} {
		for _, dial := range []func() (halfCloser, error){
			func() (halfCloser, error) { c, err := net.Dial("tcp", plain); return c.(*net.TCPConn), err },
			func() (halfCloser, error) { return tls.Dial("tcp", secure, &tls.Config{InsecureSkipVerify: true}) },
		} {
			status, err := sendAndEnd(dial, text)
			require.NoError(t, err, name)
			require.Equal(t, 400, status, name)
			require.Zero(t, d.store.commits.Load(), name)
		}
	}
	for i, text := range []string{withLength(goodHead, long), chunked(long) + "\r\n0\r\n\r\n"} { // the whole, and the end behind it
		status, err := sendAndEnd(func() (halfCloser, error) { c, err := net.Dial("tcp", plain); return c.(*net.TCPConn), err }, text)
		require.NoError(t, err)
		require.Equal(t, 201, status)
		require.Equal(t, int64(i+1), d.store.commits.Load())
	}
}

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// sendAndEnd sends text, ends the sending half of the connection, and returns the status of the answer.
func sendAndEnd(dial func() (halfCloser, error), text string) (status int, err error) {
	c, err := dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(waitLimit))
	if _, err = c.Write([]byte(text)); err != nil {
		return 0, err
	}
	if err = c.CloseWrite(); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, nil
}

// secure serves on a further listener, with TLS.
func (d *door) secure(t *testing.T) (addr string) {
	certificate, err := LoadTLS(writeCertificate(t, t.TempDir(), "localhost"))
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = d.Serve(certificate.Listener(ln)) }()
	return ln.Addr().String()
}

// A request of usual size takes no memory of its own for its body, and is read as it was sent.
func TestBodiesReuseMemory(t *testing.T) {
	if underRace {
		t.Skip("pools forget under the race detector")
	}
	d := open(t, func(o *Options) { o.AccessLog = false })
	c, err := net.Dial("tcp", d.addr)
	require.NoError(t, err)
	defer c.Close()
	r := bufio.NewReader(c)
	ask := func(request []byte) {
		_, err := c.Write(request)
		require.NoError(t, err)
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, 201, response.StatusCode)
		_, err = r.Discard(int(response.ContentLength))
		require.NoError(t, err)
	}
	body := strings.TrimSuffix(goodBody, "}") + strings.Repeat(" ", 100_000) + "}"
	length, chunked := withLength(goodHead, body), fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", goodHead, len(body), body)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it empties pools
	for _, text := range []string{length, chunked} {
		const requests = 20
		request := []byte(text)
		ask(request)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range requests {
			ask(request)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/requests, uint64(len(body)/2))
	}
}

// gatheringConn holds back what is written while it gathers.
type gatheringConn struct {
	net.Conn
	gathers bool
	held    []byte
}

func (c *gatheringConn) Write(p []byte) (int, error) {
	if !c.gathers {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	return len(p), nil
}

// A whole body is one, also when the end of the connection comes with its last bytes, as TLS 1.2 may have it.
func TestBodyThatComesWithTheEndOfTLS(t *testing.T) {
	d := open(t, nil)
	addr := d.secure(t)
	chunked := fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", goodHead, len(goodBody), goodBody)
	for text, want := range map[string]int{withLength(goodHead, goodBody): 201, chunked + "0\r\n\r\n": 201, chunked: 400, chunked + "0\r\n": 400} {
		plain, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		gathering := &gatheringConn{Conn: plain}
		c := tls.Client(gathering, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		require.NoError(t, c.Handshake())
		gathering.gathers = true
		_, err = c.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, c.CloseWrite())
		_ = plain.SetDeadline(time.Now().Add(waitLimit)) // of TLS, the time to write is over
		_, err = plain.Write(gathering.held)
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, text)
		require.Equal(t, want, response.StatusCode, text)
		plain.Close()
	}
}

// Who asks before sending is told to go on, in whatever case he asks; in HTTP/1.0 nobody is.
func TestExpect(t *testing.T) {
	d := open(t, nil)
	for _, expect := range []string{"100-continue", "100-Continue", "100-CONTINUE"} {
		answers, closed := d.raw(t, 2, withLength(goodHead+"Expect: "+expect+"\r\n", goodBody))
		require.False(t, closed)
		require.Equal(t, 100, answers[0].status, expect)
		require.Equal(t, 201, answers[1].status, expect)
	}
	head := strings.Replace(goodHead, "1.1", "1.0", 1)
	answers, closed := d.raw(t, 2, withLength(head+"Expect: 100-continue\r\n", goodBody))
	require.True(t, closed)
	require.Len(t, answers, 1)
	require.Equal(t, 201, answers[0].status)
}

// Who asks before sending a body that is too large is not told to go on.
func TestExpectationOfTooMuch(t *testing.T) {
	d := open(t, nil)
	const expect = "Expect: 100-continue\r\n"
	responses, closed := d.raw(t, 1, goodHead+expect+"Content-Length: 5000000\r\n\r\n")
	require.Equal(t, 413, responses[0].status)
	require.True(t, closed)
	responses, _ = d.raw(t, 2, withLength(goodHead+expect, goodBody))
	require.Equal(t, 100, responses[0].status)
	require.Equal(t, 201, responses[1].status)
}

// What all bodies under way take of memory has a bound: a key, whatever it may do, and bodies that never end would fill
// any memory otherwise. Those of one workspace leave room for others.
func TestBodiesUnderWayAreBounded(t *testing.T) {
	const size = 256 << 10
	d := open(t, func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = size, 3*size })
	addr, read := d.counted(t)
	otherHead := strings.Replace(goodHead, demoKey, otherKey, 1)
	for name, format := range map[string]string{
		"length": fmt.Sprintf("%%sContent-Length: %d\r\n\r\n", size),
		"chunk":  fmt.Sprintf("%%sTransfer-Encoding: chunked\r\n\r\n%x\r\n", size),
	} {
		unended := func(head string) string { return fmt.Sprintf(format, head) + strings.Repeat(" ", size-1) }
		read.Store(0)
		sent := int64(0)
		var held []net.Conn
		hold := func(head string) {
			c, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			n, err := c.Write([]byte(unended(head)))
			require.NoError(t, err)
			held, sent = append(held, c), sent+int64(n)
			require.Eventually(t, func() bool { return read.Load() == sent }, waitLimit, tick, name)
		}
		refused := func(head string) {
			responses, closed := d.raw(t, 1, unended(head))
			require.Equal(t, 503, responses[0].status, name)
			require.Equal(t, "1", responses[0].header.Get("Retry-After"))
			require.NotEmpty(t, responses[0].header.Get("X-RateLimit-Remaining"), "the key is valid")
			require.True(t, closed, "the rest is not read")
			responses, _ = d.raw(t, 1, withLength(head, goodBody+strings.Repeat(" ", 30<<10)))
			require.Equal(t, 201, responses[0].status, "there is room for small ones: %s", name)
		}
		hold(goodHead)
		hold(goodHead)
		refused(goodHead) // three quarters
		hold(otherHead)
		refused(otherHead) // all
		for _, c := range held {
			c.Close()
		}
		require.Eventually(t, func() bool { return d.bodies.taken.Load() == 0 }, waitLimit, tick, name)
		d.bodies.shares.Range(func(_ uint32, share *atomic.Int64) bool {
			require.Zero(t, share.Load(), name)
			return true
		})
		responses, _ := d.raw(t, 1, withLength(goodHead, goodBody+strings.Repeat(" ", size-len(goodBody))))
		require.Equal(t, 201, responses[0].status, name)
	}
}

// So has what they are decompressed to, as long as their requests are under way.
func TestDecompressedBodiesUnderWayAreBounded(t *testing.T) {
	const size, plain = 256 << 10, 200 << 10
	d := open(t, func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = size, 2*size })
	waiting, goOn := make(chan struct{}), make(chan struct{})
	d.store.commit = func() error {
		waiting <- struct{}{}
		<-goOn
		return nil
	}
	for coding := range compressors {
		body := compressed(t, coding, strings.NewReader(goodBody+strings.Repeat(" ", plain-len(goodBody))))
		send := func() answer { return d.call("POST", "/users/track", demoKey, body, "Content-Encoding", coding) }
		done := make(chan answer, 3)
		for range 2 {
			go func() { done <- send() }()
			select {
			case <-waiting:
			case a := <-done:
				require.FailNow(t, "it is not taken", "%s: %d %s", coding, a.status, a.body)
			}
		}
		go func() { done <- send() }()
		select {
		case <-waiting:
			require.FailNow(t, "it is taken", coding)
		case a := <-done:
			require.Equal(t, 503, a.status, coding)
		}
		for range 2 {
			goOn <- struct{}{}
			require.Equal(t, 201, (<-done).status, coding)
		}
		require.Eventually(t, func() bool { return d.bodies.taken.Load() == 0 }, waitLimit, tick, coding)
	}
}

// What all requests together have read for their answers has a bound, too: one may name fifty users with megabytes each.
func TestReadsForAnswersAreBounded(t *testing.T) {
	const size = 60_000
	d := open(t, func(o *Options) { o.MaxAnswersBytes = 4 * size })
	blob := profile.New(nil, 1, op.ExternalID, bytes.Repeat([]byte("x"), size), 1)
	var list []string
	for i := range uint64(50) {
		id := fmt.Sprint("u", i)
		list = append(list, `"`+id+`"`)
		d.store.users[userKey(1, op.ExternalID, []byte(id))] = store.User{Number: 1000 + i, Blob: blob}
	}
	export := func(users int) answer {
		return d.call("POST", "/users/export/ids", demoKey, `{"external_ids":[`+strings.Join(list[:users], ",")+`],"fields_to_export":["svc_id"]}`)
	}
	reading, goOn := make(chan struct{}), make(chan struct{})
	d.store.read = func() {
		reading <- struct{}{}
		<-goOn
	}
	const fit = 3 // in three quarters of half of MaxAnswersBytes, all but 32 KiB of each
	done := make(chan answer, fit+1)
	for i := range fit + 1 {
		go func() { done <- export(1) }()
		<-reading
		require.EqualValues(t, (i+1)*(len(blob)-copiedReplyBytes), d.reads.taken.Load())
	}
	close(goOn)
	refused := 0
	for range fit + 1 {
		a := <-done
		if a.status == 503 {
			require.Equal(t, "1", a.header.Get("Retry-After"))
			refused++
		} else {
			require.Equal(t, 201, a.status)
		}
	}
	require.Equal(t, 1, refused)
	require.Zero(t, d.reads.taken.Load())
	most := int64(0)
	d.store.read = func() { most = max(most, d.reads.taken.Load()) }
	require.Equal(t, 201, export(50).status)
	require.EqualValues(t, len(blob)-copiedReplyBytes, most, "what is in the answer doesn't count any more")
	require.Zero(t, d.reads.taken.Load())
}

// What all answers under way take of memory has a bound: those that are read slowly, or never, would fill any memory
// otherwise.
func TestAnswersUnderWayAreBounded(t *testing.T) {
	const size, users = 60_000, 200 // more than sockets take
	d := open(t, func(o *Options) { o.MaxAnswersBytes, o.WriteTimeout = size*users/2, time.Hour })
	blob := profile.New(nil, 1, op.ExternalID, bytes.Repeat([]byte("x"), size), 1)
	for i := range uint64(users) {
		d.store.users[fmt.Sprint(userKey(1, op.Email, []byte("x@example.com")), "#", i)] = store.User{Number: 1000 + i, Blob: blob}
	}
	const body, small = `{"email_address":"x@example.com"}`, `{"email_address":"x@example.com","fields_to_export":["svc_id"]}`
	export := strings.Replace(goodHead, "/users/track", "/users/export/ids", 1)
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", d.addr)
		require.NoError(t, err)
		_ = c.SetDeadline(time.Now().Add(waitLimit))
		_, err = c.Write([]byte(withLength(export, body)))
		require.NoError(t, err)
		r := bufio.NewReader(c)
		_, err = r.Peek(1)
		require.NoError(t, err)
		return c, r
	}

	// one that is alone may be larger than the bound
	c, r := dial()
	require.Greater(t, d.replies.taken.Load(), int64(size*users))
	refused := d.call("POST", "/users/export/ids", demoKey, body)
	require.Equal(t, 503, refused.status)
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.Greater(t, d.replies.taken.Load(), int64(size*users))
	require.Equal(t, 201, d.call("POST", "/users/export/ids", demoKey, small).status, "there is room for small ones")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 201, response.StatusCode)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, users, bytes.Count(text, []byte(`"svc_id"`)))
	require.Eventually(t, func() bool { return d.replies.taken.Load() == 0 }, waitLimit, tick)
	_, err = c.Write([]byte(withLength(export, small)))
	require.NoError(t, err)
	response, err = http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 201, response.StatusCode, "the connection goes on")
	c.Close()

	c, _ = dial()
	require.Positive(t, d.replies.taken.Load())
	c.Close() // with most of it unread
	require.Eventually(t, func() bool { return d.replies.taken.Load() == 0 }, waitLimit, tick)
	again := d.call("POST", "/users/export/ids", demoKey, body)
	require.Equal(t, 201, again.status)
	require.Equal(t, len(text), len(again.body))
	require.Eventually(t, func() bool { return d.replies.taken.Load() == 0 }, waitLimit, tick)
}

// A workspace whose answers are read slowly, or never, leaves room for those of others.
func TestAnswersOfOneWorkspaceLeaveRoom(t *testing.T) {
	const size, users = 60_000, 10
	d := open(t, func(o *Options) { o.MaxAnswersBytes = 10 * size * users })
	blob := profile.New(nil, 1, op.ExternalID, bytes.Repeat([]byte("x"), size), 1)
	for i := range uint64(users) {
		for ws := range uint32(2) {
			d.store.users[fmt.Sprint(userKey(1+ws, op.Email, []byte("x@example.com")), "#", i)] = store.User{Number: 1000*uint64(1+ws) + i, Blob: blob}
		}
	}
	export := func(key string) *fasthttp.Response {
		const body = `{"email_address":"x@example.com"}`
		var r fasthttp.Request
		text := fmt.Sprintf("POST /users/export/ids HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
		require.NoError(t, r.Read(bufio.NewReader(strings.NewReader(text))))
		return d.Do(&r, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	var unread []*fasthttp.Response
	for {
		if unread = append(unread, export(demoKey)); unread[len(unread)-1].StatusCode() == 503 {
			break
		}
	}
	require.Equal(t, 7+1, len(unread))
	others := export(otherKey)
	require.Equal(t, 201, others.StatusCode())
	require.Equal(t, 503, export(demoKey).StatusCode())
	for _, answer := range append(unread, others) {
		answer.Reset()
	}
	require.Zero(t, d.replies.taken.Load())
	d.replies.shares.Range(func(_ uint32, share *atomic.Int64) bool {
		require.Zero(t, share.Load())
		return true
	})
	again := export(demoKey)
	require.Equal(t, 201, again.StatusCode())
	again.Reset()
}

// Answers to writes and hosted pages are counted like those of exports, until they are sent or given up.
func TestLargeAnswersOfAllKindsAreCounted(t *testing.T) {
	h := openHosting(t, strings.Repeat("x", 100<<10))
	ask := func(method, path, body string, headers ...string) *fasthttp.Response {
		text := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n"
		for i := 0; i < len(headers); i += 2 {
			text += headers[i] + ": " + headers[i+1] + "\r\n"
		}
		if body != "" {
			text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
		}
		var r fasthttp.Request
		require.NoError(t, r.Read(bufio.NewReader(strings.NewReader(text+"\r\n"+body))))
		return h.Do(&r, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	counted := func(what string, status int, answer *fasthttp.Response) {
		require.Equal(t, status, answer.StatusCode(), what)
		require.Greater(t, h.replies.taken.Load(), int64(30<<10), what)
		answer.Reset()
		require.Zero(t, h.replies.taken.Load(), what)
	}
	var members strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&members, `,"a%d":{"$x":1}`, i)
	}
	key := []string{"Authorization", "Bearer " + demoKey, "Idempotency-Key", "k"}
	for _, what := range []string{"first", "replay"} {
		counted(what, 201, ask("POST", "/users/track", `{"attributes":[{"external_id":"ada"`+members.String()+`}]}`, key...))
	}
	counted("page", 200, ask("GET", h.link("ada"), ""))
}
