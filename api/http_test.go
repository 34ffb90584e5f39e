package api

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
)

// raw sends bytes on a fresh connection and returns the answers, want of them, or fewer when the server ends the
// connection before. closed says that it has ended it, as it announced.
func (d *door) raw(t *testing.T, want int, text string) (responses []answer, closed bool) {
	c, err := net.Dial("tcp", d.addr)
	require.NoError(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // of a hang
	go func() { _, _ = c.Write([]byte(text)) }()
	r := bufio.NewReader(c)
	for len(responses) < want && !closed {
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err, text)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		responses = append(responses, answer{response.StatusCode, response.Header, string(body), nil})
		closed = response.Close
	}
	if closed {
		_, err := r.ReadByte()
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "announced its end and did not come to it")
		require.Error(t, err, "went on after its announced end")
	}
	return responses, closed
}

const (
	goodBody = `{"attributes":[{"external_id":"a"}]}`
	goodHead = "POST /users/track HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + demoKey + "\r\nContent-Type: application/json\r\n"
)

func withLength(head, body string) string {
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

// B13, B14, B15: what two servers may read differently is refused, and nothing behind it is served.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	d := open(t, nil)
	chunked := "24\r\n" + goodBody + "\r\n0\r\n\r\n"
	next := withLength(goodHead, goodBody)
	for name, text := range map[string]string{
		"length and chunked":      goodHead + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunked,
		"chunked and length":      goodHead + "Content-Length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + chunked,
		"length and identity":     withLength(goodHead+"Transfer-Encoding: identity\r\n", goodBody),
		"two transfer-encodings":  goodHead + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"xchunked":                goodHead + "Transfer-Encoding: xchunked\r\n\r\n" + chunked,
		"HTTP/1.0 chunked":        strings.Replace(goodHead, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + chunked,
		"length with a sign":      goodHead + "Content-Length: +36\r\n\r\n" + goodBody,
		"two lengths":             withLength(goodHead+"Content-Length: 36\r\n", goodBody),
		"space before the colon":  withLength(goodHead+"X-A : b\r\n", goodBody),
		"tab before the colon":    withLength(goodHead+"X-A\t: b\r\n", goodBody),
		"length and a space":      goodHead + "Content-Length : 36\r\n\r\n" + goodBody,
		"two lengths, one spaced": withLength(goodHead+"Content-Length : 5\r\n", goodBody),
		"chunked and a space":     withLength(goodHead+"Transfer-Encoding : chunked\r\n", goodBody),
		"space in a name":         withLength(goodHead+"X Y: 1\r\n", goodBody),
		"space in a known name":   withLength(goodHead+"Content Length: 5\r\n", goodBody),
		"tab in a name":           withLength(goodHead+"X\tY: 1\r\n", goodBody),
		"no name":                 withLength(goodHead+": 1\r\n", goodBody),
		"no colon":                withLength(goodHead+"X-A\r\n", goodBody),
		"no token":                withLength(goodHead+"X(A): 1\r\n", goodBody),
		"no ASCII":                withLength(goodHead+"X-\xc3\xa4: 1\r\n", goodBody),
		"identity":                goodHead + "Transfer-Encoding: identity\r\n\r\n",
		"identity, and a body":    goodHead + "Transfer-Encoding: identity\r\n\r\n" + goodBody,
		"no encoding":             goodHead + "Transfer-Encoding: \r\n\r\n",
		"folded":                  withLength(goodHead+"X-A: b\r\n c\r\n", goodBody),
		"folded with a tab":       withLength(goodHead+"X-A: b\r\n\tc\r\n", goodBody),
		"two keys":                withLength(goodHead+"authorization: Bearer "+otherKey+"\r\n", goodBody),
		"two content types":       withLength(goodHead+"CONTENT-TYPE: application/json\r\n", goodBody),
		"two content encodings":   withLength(goodHead+"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", goodBody),
		"two idempotency keys":    withLength(goodHead+"Idempotency-Key: a\r\nIdempotency-Key: b\r\n", goodBody),
		"NUL in a header":         withLength(goodHead+"X-A: b\x00c\r\n", goodBody),
		"line that ends in LF":    withLength(goodHead+"X-A: b\n", goodBody),
		"chunk size overflow":     goodHead + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + goodBody,
		"LF in a chunk extension": goodHead + "Transfer-Encoding: chunked\r\n\r\n24;a\nb\r\n" + goodBody + "\r\n0\r\n\r\n",
		"chunk without CRLF":      goodHead + "Transfer-Encoding: chunked\r\n\r\n24\r\n" + goodBody + "XX0\r\n\r\n",
		"65 headers":              withLength(goodHead+strings.Repeat("A: b\r\n", 61), goodBody),
		"garbage":                 "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"no such version":         strings.Replace(withLength(goodHead, goodBody), "HTTP/1.1", "HTTP/1.2", 1),
		"no host":                 strings.Replace(withLength(goodHead, goodBody), "Host: x\r\n", "", 1),
		"two hosts":               withLength(goodHead+"Host: y\r\n", goodBody),
	} {
		responses, closed := d.raw(t, 2, text+next)
		require.Len(t, responses, 1, name)
		require.Equal(t, 400, responses[0].status, name)
		require.NotEmpty(t, responses[0].json(t)["message"], name)
		require.NotEmpty(t, responses[0].header.Get("X-Request-Id"), name)
		require.True(t, closed, name)
	}
	require.Zero(t, d.store.commits.Load())

	responses, closed := d.raw(t, 2, goodHead+"Transfer-Encoding: chunked\r\n\r\n"+chunked+next) // the same without the fault: both are served
	require.Len(t, responses, 2)
	require.Equal(t, 201, responses[0].status, responses[0].body)
	require.False(t, closed)
	require.Equal(t, int64(2), d.store.commits.Load())
}

// B16.
func TestHeaderLimits(t *testing.T) {
	d := open(t, nil)
	ask := func(extra string) answer {
		responses, closed := d.raw(t, 1, withLength(goodHead+extra, goodBody))
		require.Len(t, responses, 1)
		require.Equal(t, responses[0].status != 201, closed)
		return responses[0]
	}
	require.Equal(t, 201, ask("X-A: "+strings.Repeat("a", 4000)+"\r\n").status)
	require.Equal(t, 201, ask(strings.Repeat("A: b\r\n", 64-5)).status)
	large := ask("X-A: " + strings.Repeat("a", 9000) + "\r\n")
	require.Equal(t, 431, large.status)
	require.Equal(t, "Request Header Fields Too Large", large.json(t)["message"])
	require.Equal(t, 400, ask(strings.Repeat("A: b\r\n", 900)).status)
}

// Who sends a body to its end before he reads gets the answer all the same, not a reset connection, when the body is too
// large or the head can't be taken.
func TestTooLargeIsAnswered(t *testing.T) {
	d := open(t, nil)
	const size = 32 << 20
	for name, head := range map[string]string{
		"413": goodHead, "401": "POST /users/track HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
		"431": goodHead + "X-A: " + strings.Repeat("a", 9000) + "\r\n", "400": goodHead + "no header\r\n",
	} {
		c, err := net.Dial("tcp", d.addr)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n", head, size)
		require.NoError(t, err)
		_, err = io.CopyN(c, zeros{}, size)
		require.NoError(t, err, name)
		answer, err := io.ReadAll(c)
		require.NoError(t, err, name)
		require.Contains(t, string(answer), "HTTP/1.1 "+name)
		require.NoError(t, c.Close())
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// B12: with a length and in chunks.
func TestBodyLimit(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxBodyBytes = 4096 })
	fits := `{"attributes":[{"external_id":"` + strings.Repeat("a", 4096-36) + `"}]}`
	require.Equal(t, 4096-1, len(fits))
	for name, body := range map[string]struct {
		text   string
		status int
	}{"fits": {fits + " ", 201}, "too large": {fits + "  ", 413}} {
		responses, closed := d.raw(t, 1, withLength(goodHead, body.text))
		require.Len(t, responses, 1, name)
		require.Equal(t, body.status, responses[0].status, name)
		require.Equal(t, body.status == 413, closed, name)
		responses, closed = d.raw(t, 1, fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", goodHead, len(body.text), body.text))
		require.Len(t, responses, 1, name)
		require.Equal(t, body.status, responses[0].status, name)
		require.Equal(t, body.status == 413, closed, name)
		if body.status == 413 {
			require.Equal(t, map[string]any{"message": "Request Entity Too Large", "errors": []any{"Request Entity Too Large"}}, responses[0].json(t))
			require.NotEmpty(t, responses[0].header.Get("X-RateLimit-Remaining"), "the key is valid")
		}
	}
	// Announced only: refused before it is sent.
	responses, closed := d.raw(t, 1, goodHead+"Content-Length: 100000000\r\n\r\n")
	require.Len(t, responses, 1)
	require.Equal(t, 413, responses[0].status)
	require.True(t, closed)
}

// B17: fasthttp makes room for what a head declares. Who has no key gets room for little, and the answer that the key
// is wrong.
func TestStrangersBodyLimit(t *testing.T) {
	d := open(t, nil)
	head := strings.Replace(goodHead, "Bearer ", "Bearer x", 1)
	require.NotEqual(t, goodHead, head)
	for _, length := range []int{anonymousBodyBytes, anonymousBodyBytes + 1, 4 << 20, 100 << 20} {
		request := fmt.Sprintf("%sContent-Length: %d\r\n\r\n", head, length)
		if length <= anonymousBodyBytes {
			request += strings.Repeat(" ", length)
		}
		responses, _ := d.raw(t, 1, request)
		require.Len(t, responses, 1)
		require.Equal(t, 401, responses[0].status, length)
		require.Contains(t, responses[0].json(t)["message"], "Invalid API key: x")
	}
	big := strings.Repeat("z", anonymousBodyBytes+1)
	responses, closed := d.raw(t, 1, fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(big), big))
	require.Len(t, responses, 1)
	require.Equal(t, 401, responses[0].status, "that the key is wrong, also of a body in chunks")
	require.True(t, closed)
}

var compressors = map[string]func(io.Writer) io.WriteCloser{
	"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"br":      func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
	"zstd": func(w io.Writer) io.WriteCloser {
		z, err := zstd.NewWriter(w)
		if err != nil {
			panic(err)
		}
		return z
	},
}

func compressed(t *testing.T, coding string, plain io.Reader) string {
	var b bytes.Buffer
	w := compressors[coding](&b)
	_, err := io.Copy(w, plain)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Many clients send deflate without the header of zlib (RFC 9110, 8.4.1.2).
func TestBareDeflate(t *testing.T) {
	d := open(t, nil)
	deflated := func(plain io.Reader) string {
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.BestCompression)
		require.NoError(t, err)
		_, err = io.Copy(w, plain)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.String()
	}
	for body, status := range map[string]int{
		deflated(strings.NewReader(goodBody)):                   201,
		deflated(io.LimitReader(spaces{}, 4<<20)):               400,
		deflated(io.LimitReader(spaces{}, 4<<20+1)):             413,
		deflated(strings.NewReader(goodBody))[:len(goodBody)/4]: 400,
	} {
		a := d.call("POST", "/users/track", demoKey, body, "Content-Encoding", "deflate")
		require.Equal(t, status, a.status, "%s", a.body)
	}
}

func TestCompressedBodies(t *testing.T) {
	testsize.SkipSerial(t)
	d := open(t, nil)
	for coding := range compressors {
		body := compressed(t, coding, strings.NewReader(goodBody))
		a := d.call("POST", "/users/track", demoKey, body, "Content-Encoding", coding)
		require.Equal(t, 201, a.status, "%s: %s", coding, a.body)

		// B19: 64 MiB of spaces in some KiB.
		bomb := compressed(t, coding, io.LimitReader(spaces{}, 64<<20))
		require.Less(t, len(bomb), 256<<10)
		a = d.call("POST", "/users/track", demoKey, bomb, "Content-Encoding", coding)
		require.Equal(t, 413, a.status, coding)
		require.Equal(t, "close", a.header.Get("Connection"), coding)

		for cut := range body {
			a = d.call("POST", "/users/track", demoKey, body[:cut], "Content-Encoding", coding)
			require.Equal(t, 400, a.status, "%s cut at %d", coding, cut)
		}
		a = d.call("POST", "/users/track", demoKey, "not compressed", "Content-Encoding", coding)
		require.Equal(t, 400, a.status, coding)
		require.JSONEq(t, `{"message":"The body does not match its Content-Encoding","errors":["The body does not match its Content-Encoding"]}`, a.body)
	}
	require.Equal(t, `{"message":"x","errors":[{"type":"x"}]}`, string(trackObjectsShape.append(nil, 400, "x")))
	for status, want := range map[int]string{400: `,"errors":["x"]`, 413: `,"errors":["x"]`, 415: `,"errors":["x"]`, 422: `,"errors":["x"]`, 401: "", 403: "", 404: "", 405: "", 429: "", 500: "", 503: ""} {
		require.Equal(t, `{"message":"x"`+want+`}`, string(trackShape.append(nil, status, "x")), status)
	}
	for _, coding := range []string{"gzip, gzip", "compress", "gzip,br"} {
		a := d.call("POST", "/users/track", demoKey, goodBody, "Content-Encoding", coding)
		require.Equal(t, 415, a.status, coding)
	}
}

// A zstd frame that declares a window of a gigabyte must not make the server allocate it.
func TestZstdWindow(t *testing.T) {
	d := open(t, nil)
	frame := "\x28\xb5\x2f\xfd\x00\xa0" + "\x01\x00\x00" // window descriptor: 2^30 bytes; one empty last block
	a := d.call("POST", "/users/track", demoKey, frame, "Content-Encoding", "zstd")
	require.Equal(t, 413, a.status, a.body)

	// One of 8 MiB is anybody's who doesn't know yet how much comes.
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(8<<20))
	require.NoError(t, err)
	for _, part := range []string{goodBody, strings.Repeat(" ", 1000)} {
		_, err = io.WriteString(w, part)
		require.NoError(t, err)
		require.NoError(t, w.Flush())
	}
	require.NoError(t, w.Close())
	a = d.call("POST", "/users/track", demoKey, b.String(), "Content-Encoding", "zstd")
	require.Equal(t, 201, a.status, a.body)
}

func TestMediaTypes(t *testing.T) {
	d := open(t, nil)
	for contentType, status := range map[string]int{
		"": 201, "application/json": 201, "application/json; charset=utf-8": 201, "Application/JSON": 201, "application/vnd.api+json": 201,
		"text/plain": 415, "application/x-www-form-urlencoded": 415, "application/jsonx": 415, "text/json": 415, "application/+json": 415,
		"multipart/form-data; boundary=x": 415,
	} {
		head := strings.Replace(goodHead, "Content-Type: application/json\r\n", "", 1)
		if contentType != "" {
			head += "Content-Type: " + contentType + "\r\n"
		}
		responses, _ := d.raw(t, 1, withLength(head, goodBody))
		require.Len(t, responses, 1)
		require.Equal(t, status, responses[0].status, contentType)
	}
}

// B20 and the rules of D1.
func TestPathsAndMethods(t *testing.T) {
	d := open(t, nil)
	for path, status := range map[string]int{
		"/users/track": 201, "/users/track/": 201, "/users/track?a=b": 201, "/users/track/?a=//b/../c%2Fd": 201, "/users/track?": 201,
		"//users/track": 404, "//users//track": 404, "/users/%74rack": 404, "/x/../users/track": 404, "/users/x/../track": 404, "/users/x/%2e%2e/track": 404, "/./users/track": 404,
		"/users/./track": 404, "/users/track/.": 404, "/users/track/..": 404, "/users/track/%2e": 404, "/users/track//": 404, "/users/track%2F": 404, "/users/track%2f": 404,
		"/users%2Ftrack": 404, "/users%2ftrack": 404, "%2Fusers/track": 400, "/users\\track": 404, "/users/track#x": 404, "/users/track#?a=b": 404,
		"/users/track%00": 404, "/users/track;a=b": 404, "/users/Track": 404, "/users/track/x": 404, "/users": 404, "/": 404, "/users/track.json": 404,
		"http://evil.example/users/track": 201, "http://evil.example/users/track/?a=b": 201, "http://evil.example//users/track": 404, "http://evil.example": 404,
		"http://evil.example/x/../users/track": 404, "http://evil.example?/users/track": 404, "//evil.example/users/track": 404, "users/track": 400,
	} {
		responses, _ := d.raw(t, 1, withLength("POST "+path+strings.TrimPrefix(goodHead, "POST /users/track"), goodBody))
		require.Len(t, responses, 1, path)
		require.Equal(t, status, responses[0].status, path)
		if status == 404 {
			require.Equal(t, `{"message":"Not Found"}`, responses[0].body)
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "FROBNICATE"} {
		a := d.call(method, "/users/track", demoKey, "")
		require.Equal(t, 405, a.status, method)
		require.Equal(t, "POST", a.header.Get("Allow"), method)
		if method == "HEAD" {
			require.Empty(t, a.body)
		} else {
			require.Equal(t, `{"message":"Method Not Allowed"}`, a.body)
		}
	}
	a := d.call("HEAD", "/livez", "", "")
	require.Equal(t, 200, a.status)
	require.Empty(t, a.body)
}

func TestRequestIDs(t *testing.T) {
	d := open(t, nil)
	require.Equal(t, "abc-123_X", d.track(demoKey, "a", "X-Request-Id", "abc-123_X").header.Get("X-Request-Id"))
	for _, insane := range []string{"a b", `"`, "<script>", strings.Repeat("a", 129), "ä"} {
		id := d.track(demoKey, "a", "X-Request-Id", insane).header.Get("X-Request-Id")
		require.Len(t, id, 16)
	}
	require.NotEqual(t, d.track(demoKey, "a").header.Get("X-Request-Id"), d.track(demoKey, "a").header.Get("X-Request-Id"))
}

func TestBadKeys(t *testing.T) {
	d := open(t, nil)
	for header, shown := range map[string]string{
		"": "", "Bearer": "", "Bearer ": "", "Basic abc": "", "Bearer x": "", "Bearer abcd": "ab", "Bearer wrong": "wron", "Bearer äöüßx": "äöüß", "Bearer äöüß": "äö", "Bearer 😀😀😀😀": "😀😀", "Bearer secret-token-of-somebody": "secr", "Bearer \xff\xff\xff\xff\xff\xff\xff\xff\xff": "",
		demoKey: "", "Bearer " + demoKey + "x": "demo", "Bearer millrace_live_abc": "mill", "Bearer \"" + demoKey + "\"": `"dem`,
	} {
		head := strings.Replace(goodHead, "Authorization: Bearer "+demoKey+"\r\n", "", 1)
		if header != "" {
			head += "Authorization: " + header + "\r\n"
		}
		responses, _ := d.raw(t, 1, withLength(head, goodBody))
		require.Len(t, responses, 1, header)
		require.Equal(t, 401, responses[0].status, header)
		message := responses[0].json(t)["message"].(string)
		require.Equal(t, "Invalid API key: "+shown+"…", message, header)
		require.Empty(t, responses[0].header.Get("X-RateLimit-Limit"))
	}
	require.NotContains(t, d.logged(), "secret-token")
	require.NotContains(t, d.logged(), demoKey)
	require.Equal(t, 201, func() int {
		r, _ := d.raw(t, 1, withLength(strings.Replace(goodHead, "Bearer", "bearer", 1), goodBody))
		return r[0].status
	}())
}

// B24.
func TestBruteForce(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxBadKeysPerMinute = 5 })
	for i := range 5 {
		require.Equal(t, 401, d.track(fmt.Sprint("wrong-key-", i), "a").status)
	}
	a := d.track("wrong-key-6", "a")
	require.Equal(t, 429, a.status)
	require.Equal(t, "60", a.header.Get("Retry-After"))
	require.Equal(t, "60", a.header.Get("X-RateLimit-Retry-After"))
	require.NotEmpty(t, a.json(t)["message"])
	require.Equal(t, 201, d.track(demoKey, "a").status, "a right key is not affected")
	require.Equal(t, 401, d.track("", "a").status, "no key is no try")
	require.Equal(t, 401, d.call("GET", "/scim/v2/Users", "", "").status)
	require.Equal(t, 429, d.call("GET", "/scim/v2/Users", "wrong", "").status)
	// Nor are keys tried without end by bodies that are too large for who has none.
	wrong := strings.Replace(goodHead, "Bearer ", "Bearer x", 1) + "X-Request-Id: mine\r\n"
	for _, text := range []string{wrong + "Content-Length: 20000\r\n\r\n", wrong + "Transfer-Encoding: chunked\r\n\r\n5000\r\n" + strings.Repeat(" ", 0x5000) + "\r\n0\r\n\r\n"} {
		responses, closed := d.raw(t, 1, text)
		require.Equal(t, 429, responses[0].status)
		require.Equal(t, "60", responses[0].header.Get("Retry-After"))
		require.Equal(t, "mine", responses[0].header.Get("X-Request-Id"))
		require.True(t, closed)
	}
	defer testClock.Store(testClock.Load())
	testClock.Add(60_000)
	require.Equal(t, 401, d.track("wrong-key-7", "a").status)
}

// B25.
func TestPanicInAHandler(t *testing.T) {
	d := open(t, nil)
	before := handlerPanics.Get()
	a := d.call("POST", "/users/track", demoKey, `{"panic":true}`)
	require.Equal(t, 500, a.status)
	require.Equal(t, "Internal Server Error", a.json(t)["message"])
	require.Equal(t, "close", a.header.Get("Connection"))
	require.NotEmpty(t, a.header.Get("X-Request-Id"))
	require.Equal(t, before+1, handlerPanics.Get())
	require.Equal(t, 201, d.track(demoKey, "a").status)
	require.Zero(t, requestsInFlight.Load())
}

// B17: a connection that dawdles is cut. Here each has sent what it ever sends when the server takes it.
func TestSlowRequestsAreCut(t *testing.T) {
	d := open(t, func(o *Options) {
		o.ReadTimeout, o.WriteTimeout, o.IdleTimeout = time.Second, time.Second, 1500*time.Millisecond
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	open := map[string]net.Conn{}
	for name, text := range map[string]string{"nothing": "", "half a head": "POST /users/track HTT", "half a body": goodHead + "Content-Length: 36\r\n\r\n{",
		"half a body behind a request": withLength(goodHead, goodBody) + goodHead + "Content-Length: 36\r\n\r\n{", "idle": withLength(goodHead, goodBody)} {
		c, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte(text))
		require.NoError(t, err)
		open[name] = c
	}
	go func() { _ = d.Serve(ln) }()
	for name, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(waitLimit))
		all, err := io.ReadAll(c)
		require.NoError(t, err, name) // closed, not timed out here
		switch name {
		case "nothing":
			require.Empty(t, string(all), "nothing was asked")
		case "half a body behind a request":
			require.Contains(t, string(all), "HTTP/1.1 201", name)
			require.Contains(t, string(all), "HTTP/1.1 408", name)
		case "idle":
			require.Contains(t, string(all), "HTTP/1.1 201", name)
		default:
			require.Contains(t, string(all), "HTTP/1.1 408", name)
		}
	}
}

// B18.
func TestPipelining(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxRequestsPerConn = 1000 })
	var text strings.Builder
	for i := range 1001 {
		text.WriteString(withLength(goodHead+fmt.Sprintf("X-Request-Id: r%d\r\n", i), goodBody))
	}
	responses, closed := d.raw(t, 1001, text.String())
	require.Len(t, responses, 1000)
	require.True(t, closed)
	for i, r := range responses {
		require.Equal(t, 201, r.status)
		require.Equal(t, fmt.Sprintf("r%d", i), r.header.Get("X-Request-Id"))
	}
}

// A client that reads until the end of the connection gets that end, however it has asked for it.
func TestConnectionClose(t *testing.T) {
	d := open(t, nil)
	for options, want := range map[string]bool{
		"close": true, "Close": true, "TE, close": true, "CLOSE ,x": true, "x\r\nConnection: close": true, "x\r\nConnection: y, Close": true,
		"keep-alive": false, "closed": false, "x, clo se": false, "TE": false, "": false,
	} {
		one := withLength(goodHead+"Connection: "+options+"\r\n", goodBody)
		responses, closed := d.raw(t, 2, one+one)
		require.Equal(t, want, closed, options)
		require.Len(t, responses, map[bool]int{true: 1, false: 2}[want], options)
	}
}

func TestConnectionLimits(t *testing.T) {
	for _, test := range []struct {
		change func(*Options)
		status int
	}{{func(o *Options) { o.MaxConns = 2 }, 503}, {func(o *Options) { o.MaxConnsPerIP = 2 }, 429}} {
		d := open(t, test.change)
		var held []net.Conn
		for range 2 {
			c, err := net.Dial("tcp", d.addr)
			require.NoError(t, err)
			_, err = c.Write([]byte(withLength(goodHead, goodBody)))
			require.NoError(t, err)
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			require.Equal(t, 201, response.StatusCode)
			held = append(held, c)
		}
		c, err := net.Dial("tcp", d.addr)
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, test.status, response.StatusCode)
		require.NotEmpty(t, answer{body: string(body)}.json(t)["message"])
		c.Close()
		held[0].Close()
		require.Eventually(t, func() bool {
			r, _ := d.raw(t, 1, withLength(goodHead, goodBody))
			return len(r) == 1 && r[0].status == 201
		}, 5*time.Second, 10*time.Millisecond)
		held[1].Close()
	}
}

// F22: what was acknowledged during the drain is there, nobody gets half an answer, and the server ends.
func TestDrainUnderLoad(t *testing.T) {
	d := open(t, nil)
	d.store.commit = func() error { time.Sleep(2 * time.Millisecond); return nil }
	var acked sync.Map
	var count atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("w%d-%d", worker, i)
				a := d.track(demoKey, id)
				if a.err != nil {
					return
				}
				if a.status == 201 {
					acked.Store(id, true)
					count.Add(1)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return count.Load() > 100 }, time.Minute, time.Millisecond)
	require.NoError(t, d.Shutdown(context.Background()))
	group.Wait()
	acked.Range(func(id, _ any) bool {
		users, err := d.store.Find(1, 1, []byte(id.(string)))
		require.NoError(t, err)
		require.Len(t, users, 1, id)
		return true
	})
	require.Zero(t, requestsInFlight.Load())
	require.Error(t, d.Ready())
}

// Connections on which nothing was sent, with TLS or without, don't keep a server from stopping.
func TestShutdownWithSilentConnections(t *testing.T) {
	d := open(t, func(o *Options) { o.ReadTimeout = time.Hour })
	certificate, err := LoadTLS(writeCertificate(t, t.TempDir(), "localhost"))
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- d.Serve(certificate.Listener(ln)) }()
	silent, err := net.Dial("tcp", d.addr)
	require.NoError(t, err)
	defer silent.Close()
	require.Equal(t, 201, d.track(demoKey, "ann").status, "and so the one before is accepted")
	secure, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer secure.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, d.Shutdown(ctx))
	require.NoError(t, <-served)
	require.Eventually(t, func() bool {
		for range d.conns.Range {
			return false
		}
		return true
	}, time.Minute, time.Millisecond, "none is remembered")
}

// A signal may come before the listener is served.
func TestShutdownBeforeServe(t *testing.T) {
	d := open(t, nil)
	require.NoError(t, d.Shutdown(context.Background()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, d.Serve(ln))
	_, err = net.Dial("tcp", ln.Addr().String())
	require.Error(t, err)
}
