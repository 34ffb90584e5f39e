package bounded

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
