package bounded

import (
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTransport(t *testing.T) {
	const most = 1000
	length := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := strings.Repeat("x", length)
		if r.URL.Path == "/gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
			return
		}
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	client := &http.Client{Transport: Transport{Base: http.DefaultTransport, Bytes: most}}
	for _, path := range []string{"/", "/gzip"} {
		for _, length = range []int{0, 1, most - 1, most, most + 1, 100 * most} {
			resp, err := client.Get(server.URL + path)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, min(length, most), len(text))
			if length > most {
				require.EqualError(t, err, "the answer has more than 1000 bytes")
			} else {
				require.NoError(t, err)
			}
		}
	}
}

// An answer that switches protocols has a body that no timeout ends: it isn't read.
func TestTransportSwitchesNoProtocols(t *testing.T) {
	there, here := net.Pipe()
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: here}, nil
	})
	_, err := Transport{Base: base, Bytes: 1000}.RoundTrip(nil)
	require.ErrorIs(t, err, errSwitched)
	_, err = there.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err) // the connection is closed
}

// drip is a body that gives a byte a second, without end.
type drip struct{}

func (drip) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return copy(p, "x"), nil
}

func (drip) Close() error { return nil }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An answer that comes byte by byte is never silent, and takes its time all the same.
func TestTransportTime(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{Body: drip{}}, nil })
	for _, most := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			resp, err := Transport{Base: base, Bytes: 1000, Time: most}.RoundTrip(nil)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			if most == 0 {
				require.EqualError(t, err, "the answer has more than 1000 bytes")
				require.Len(t, text, 1000)
			} else {
				require.EqualError(t, err, "the answer takes longer than 1m0s")
				require.Len(t, text, 61)
			}
		})
	}
}
