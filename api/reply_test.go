package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/store"
	"millrace/shard/op"
	"millrace/shard/profile"
)

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
	require.Greater(t, d.replies.Load(), int64(size*users))
	refused := d.call("POST", "/users/export/ids", demoKey, body)
	require.Equal(t, 503, refused.status)
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.Greater(t, d.replies.Load(), int64(size*users))
	require.Equal(t, 201, d.call("POST", "/users/export/ids", demoKey, small).status, "there is room for small ones")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 201, response.StatusCode)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, users, bytes.Count(text, []byte(`"svc_id"`)))
	require.Eventually(t, func() bool { return d.replies.Load() == 0 }, waitLimit, tick)
	_, err = c.Write([]byte(withLength(export, small)))
	require.NoError(t, err)
	response, err = http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 201, response.StatusCode, "the connection goes on")
	c.Close()

	c, _ = dial()
	require.Positive(t, d.replies.Load())
	c.Close() // with most of it unread
	require.Eventually(t, func() bool { return d.replies.Load() == 0 }, waitLimit, tick)
	again := d.call("POST", "/users/export/ids", demoKey, body)
	require.Equal(t, 201, again.status)
	require.Equal(t, len(text), len(again.body))
	require.Eventually(t, func() bool { return d.replies.Load() == 0 }, waitLimit, tick)
}
