package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// Slow clients and garbage, while a good client works: its requests all succeed, the process lives, and its memory
// stays bounded.
func TestHostileClients(t *testing.T) {
	r := testseed.Rand(t)
	s := newSite(t, "--read-timeout", "2s", "--max-bad-keys-per-minute", "1000000")
	p := s.start(t)
	for i := range 300 {
		require.Equal(t, 201, s.track(t, fmt.Sprint("warm", i%50)).status)
	}
	before := p.rss()

	stop := make(chan struct{})
	var good, bad sync.WaitGroup
	var served atomic.Int64
	good.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			a, err := call(patient, http.MethodPost, s.url("/users/track"), allKey, `{"events":[{"external_id":"good","name":"e","time":"2026-01-31T09:30:00Z"}]}`)
			if err != nil || a.status != 201 {
				t.Errorf("the good client's request %d: %v %d %s", n, err, a.status, a.body)
				return
			}
			served.Add(1)
		}
	})
	const keyed, declared = 20, 4 << 20 // who has a key may cost what the head declares, until the read timeout: fasthttp makes room for it at once
	for i := range keyed {
		bad.Go(func() { s.slowClient(i) })
	}
	for range 300 {
		bad.Go(s.stranger)
	}
	garbage := testsize.Of(100_000, 1000, 1000)
	seeds := make([]uint64, 4)
	for i := range seeds {
		seeds[i] = r.Uint64()
	}
	for _, seed := range seeds {
		bad.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range garbage / len(seeds) {
				if problem := s.sendGarbage(r); problem != "" {
					t.Error(problem)
					return
				}
			}
		})
	}
	bad.Wait()
	close(stop)
	good.Wait()
	require.True(t, p.isAlive())
	after := p.rss()
	t.Logf("the good client had %d requests served; memory %d MiB before, %d MiB after", served.Load(), before>>20, after>>20)
	require.Positive(t, served.Load())
	require.Equal(t, int(served.Load()), s.events(t, "good"))
	if !underRace { // which takes memory of its own
		require.Less(t, after-before, int64(keyed*declared+32<<20), "the strangers declare 1.2 GB")
	}
	require.NotContains(t, p.log.String(), "panic")
	p.stop()
}

// stranger has no key, declares a large body and sends a byte of it.
func (s *site) stranger() {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = c.Write([]byte("POST /users/track HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4194304\r\n\r\n{"))
	_, _ = io.Copy(io.Discard, c)
}

// slowClient sends its request byte by byte, or stops in the middle, or never reads its answer, until the server has
// enough of it.
func (s *site) slowClient(kind int) {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	head := "POST /users/track HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + allKey + "\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n"
	switch kind % 4 {
	case 0: // nothing at all
	case 1: // a head without an end
		for i := range len(head) {
			if _, err := c.Write([]byte(head[i : i+1])); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	case 2: // a body that stops
		_, _ = c.Write([]byte(head + "\r\n" + strings.Repeat(" ", 100_000)))
	case 3: // answers that nobody reads
		_, _ = c.Write([]byte(strings.Repeat("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 20_000)))
		return
	}
	_, _ = c.Read(make([]byte, 1000))
}

// sendGarbage sends something that is no good request, or by accident one, and says what the server did wrong about it.
func (s *site) sendGarbage(r *rand.Rand) string {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return fmt.Sprintf("dial: %v", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	text := garbage(r)
	go func() {
		_, _ = c.Write(text)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil { // cut off without a word
		return ""
	}
	response.Body.Close()
	if response.StatusCode >= 500 {
		return fmt.Sprintf("%d for %.300q", response.StatusCode, text)
	}
	return ""
}

func garbage(r *rand.Rand) []byte {
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	head := "POST /users/track HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + allKey + "\r\nContent-Type: application/json\r\n"
	post := func(body []byte) []byte {
		return append(fmt.Appendf(nil, "%sContent-Length: %d\r\n\r\n", head, len(body)), body...)
	}
	good := []byte(`{"attributes":[{"external_id":"g","email":"g@example.com","a":[1,2,{"b":null}],"c":{"$add":["x"]}}],"events":[{"external_id":"g","name":"e","time":"2026-01-31T09:30:00Z","properties":{"p":1.5e3}}]}`)
	mutate := func(b []byte) []byte {
		b = append([]byte(nil), b...)
		for range 1 + r.IntN(6) {
			at := r.IntN(len(b))
			switch r.IntN(3) {
			case 0:
				b[at] = byte(r.Uint32())
			case 1:
				b = append(b[:at], b[min(len(b), at+1+r.IntN(8)):]...)
			default:
				b = append(b[:at:at], append([]byte(`"{[]}:,\u00`)[r.IntN(8):], b[at:]...)...)
			}
			if len(b) == 0 {
				return []byte("{")
			}
		}
		return b
	}
	switch r.IntN(10) {
	case 0:
		return noise(1 + r.IntN(5000))
	case 1:
		return post(noise(r.IntN(5000)))
	case 2:
		return mutate(post(good)) // anywhere, heads too
	case 3:
		return []byte(head + strings.Repeat(fmt.Sprintf("X-%d: %x\r\n", r.IntN(100), noise(10)), r.IntN(500)) + "\r\n")
	case 4:
		return append([]byte(head+"Transfer-Encoding: chunked\r\n\r\n"), noise(200)...)
	case 5:
		return post([]byte(`{"attributes":` + strings.Repeat("[", 1+r.IntN(100_000))))
	case 6:
		encoding := []string{"gzip", "br", "zstd", "deflate"}[r.IntN(4)]
		body := noise(2000)
		return append(fmt.Appendf(nil, "%sContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n", head, encoding, len(body)), body...)
	case 7:
		return post([]byte(`{"events":[` + strings.Repeat("0,", r.IntN(400_000)) + `0]}`))
	}
	return post(mutate(good))
}
