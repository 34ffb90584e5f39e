package operate

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A view that the server ends is an error, unless as many changes as were wanted have been shown.
func TestLiveThatEnds(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "event: watching\ndata: {}\n\ndata: {\"at\":\"now\",\"workspace\":\"shop\",\"kind\":\"event\"}\n\n")
	})
	serveInBubble(t, handler, func(c *Target) {
		for count, want := range map[int]string{0: "the server has ended the view", 1: "", 2: "the server has ended the view"} {
			var out strings.Builder
			err := (&Live{Target: *c, Count: count}).Run(context.Background(), &out)
			require.Equal(t, "now shop event\n", out.String())
			if want == "" {
				require.NoError(t, err)
				continue
			}
			require.EqualError(t, err, want)
		}
	})
}
