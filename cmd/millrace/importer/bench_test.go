package importer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"
)

// BenchmarkRun takes a file of events into a server that does nothing; an operation is a row.
func BenchmarkRun(b *testing.B) {
	server := fasthttputil.NewInmemoryListener()
	go func() {
		_ = fasthttp.Serve(server, func(ctx *fasthttp.RequestCtx) {
			ctx.SetStatusCode(201)
			ctx.SetBodyString(`{"message":"success"}`)
		})
	}()
	defer server.Close()
	var text strings.Builder
	for n := range b.N {
		fmt.Fprintf(&text, `{"kind":%q,"payload":{"external_id":"user-%d","name":"signed up","time":"2026-01-02T03:04:05Z","properties":{"plan":"gold","n":%d,"source":"a campaign of a length"}}}`+"\n",
			[]string{"attributes", "events", "purchases"}[n%3], n*7919%100_000, n)
	}
	path := filepath.Join(b.TempDir(), "a.ndjson")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len() / b.N))
	o := Options{URL: []string{"http://server"}, Key: "key", Paths: []string{path}, Connections: 32, dial: server.Dial}
	b.ResetTimer()
	b.ReportAllocs()
	if _, err := Run(b.Context(), o); err != nil {
		b.Fatal(err)
	}
}
