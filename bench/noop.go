package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/loadtest/body"
)

// startNoop starts this binary as a server that reads each body and answers at once, as if it had accepted every object
// in it.
func startNoop(ctx context.Context, s *settings, mix body.Mix) (*process, error) {
	program, args, err := self(order{Noop: noopAnswer(mix)})
	if err != nil {
		return nil, err
	}
	return start(ctx, s, program, args...)
}

// noopAnswer is byte for byte the answer of the real server, so that the client's work is the same.
func noopAnswer(mix body.Mix) string {
	answer := "{"
	for a, n := range mix {
		if n > 0 {
			answer += fmt.Sprintf(`"%s_processed":%d,`, body.Array(a), n)
		}
	}
	return answer + `"message":"success"}`
}

// serveNoop is that server. It shows what HTTP costs, and so the most that any server behind fasthttp could do on this
// machine with this client. It has the options of the server in package api.
func serveNoop(ctx context.Context, answer string) error {
	server := &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			if len(ctx.Request.Body()) == 0 {
				ctx.SetStatusCode(fasthttp.StatusBadRequest)
				return
			}
			ctx.SetStatusCode(fasthttp.StatusCreated)
			ctx.SetContentType("application/json")
			ctx.SetBodyString(answer)
		},
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 10 * time.Second,
		IdleTimeout:                  60 * time.Second,
		ReadBufferSize:               8192,
		MaxRequestBodySize:           4 << 20,
		Concurrency:                  16384 + 1,
		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true,
		CloseOnShutdown:              true,
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stderr).Encode(map[string]string{"msg": "serving",
		"address": listener.Addr().String()}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Shutdown()
	}
}
