package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/twmb/franz-go/pkg/kfake"

	"millrace/api/admin/answers"
	"millrace/api/control/document"
	"millrace/loadtest"
	"millrace/wal/pause"
)

const (
	streamedTarget  = 0.85 // part of the track rate without a stream
	parquetPerBlock = 1.3  // bytes
	kafkaTarget     = 300_000
	bucketTarget    = 500_000
	maxStreamed     = 1_000_000 // events that are streamed in a round

	streamTopic  = "bench"
	streamBucket = "lake"
)

// fileStreams are the files that are written into a directory; target is events/s of one core, 0 for none.
var fileStreams = []struct {
	id     string
	of     document.Stream
	target float64
}{
	{"parquet", document.Stream{Format: document.FormatParquet}, 1_000_000},
	{"ndjson", document.Stream{Format: document.FormatNDJSON}, 1_000_000},
	{"avro", document.Stream{Format: document.FormatAvro}, 800_000},
	{"avro-snappy", document.Stream{Format: document.FormatAvro, Compression: document.CompressionSnappy}, 0},
	{"avro-zstd", document.Stream{Format: document.FormatAvro, Compression: document.CompressionZstd}, 0},
	{"avro-uncompressed", document.Stream{Format: document.FormatAvro, Compression: document.CompressionNone}, 0},
}

// streamBeside compares requests while a stream writes their events into files with requests alone.
func streamBeside(ctx context.Context, s *settings) (_ []Figure, err error) {
	note("streams: requests beside a stream")
	var sides []*httpSide
	for _, name := range []string{"streamed", "alone"} {
		server, err := startServer(ctx, s, name, "--stream-file-after", "1s")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.stop()) }()
		sides = append(sides, s.side(128, s.bodies(mix225), server))
	}
	stream := &stream{server: sides[0].processes[0], id: "lake"}
	if err := stream.create(ctx, document.Stream{Format: "parquet"}); err != nil {
		return nil, err
	}
	if err := warmUp(ctx, sides...); err != nil {
		return nil, err
	}
	rates, err := inTurns(ctx, s.Rounds, sides[0].turn(ctx), sides[1].turn(ctx))
	if err != nil {
		return nil, err
	}
	status, err := stream.status(ctx)
	if err == nil && status.Error != "" {
		err = errors.New(status.Error)
	}
	return []Figure{newFigure("requests beside a stream to a directory ÷ alone, 225 objects, 128 connections", "",
		ratios(rates[0], rates[1]),
		Detail{"beside", median(rates[0]), "objects/s"}, Detail{"alone", median(rates[1]), "objects/s"},
		Detail{"CPU beside", median(sides[0].cpu), "s per million objects"},
		Detail{"CPU alone", median(sides[1].cpu), "s per million objects"},
		Detail{"streamed", float64(status.Events), "events"},
		Detail{"waiting", float64(status.LagEvents), "events"}).want(
		atLeast, streamedTarget)}, err
}

// streamOut measures how fast the event log goes to each destination. The rate of files is taken by CPU time, so it is
// the rate of one core; the rates of destinations that others answer for are taken by the clock.
func streamOut(ctx context.Context, s *settings) (figures []Figure, err error) {
	note("streams: out of the event log")
	server, err := startServer(ctx, s, "out", "--event-pack-after", "1s", "--event-duty", "1", "--checkpoint-interval",
		"500ms") // what isn't checkpointed isn't packed
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	out := &out{server: server}
	if err := out.fill(ctx, s); err != nil {
		return nil, err
	}
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, streamTopic))
	if err != nil {
		return nil, err
	}
	defer brokers.Close()
	bucket, err := out.bucket(ctx)
	if err != nil {
		return nil, err
	}
	defer bucket.Close()

	var sides []*outSide
	var measures []func(int) (float64, error)
	add := func(name string, document document.Stream, target float64) {
		side := &outSide{out: out, name: name, document: document, target: target}
		sides = append(sides, side)
		measures = append(measures, func(round int) (float64, error) { return side.measure(ctx, round) })
	}
	for _, f := range fileStreams {
		add(f.id, f.of, f.target)
	}
	add("kafka", document.Stream{Format: "json", Destination: document.Destination{Type: document.DestinationKafka,
		Brokers: strings.Join(brokers.ListenAddrs(), ","), Topic: streamTopic}}, kafkaTarget)
	add("s3", document.Stream{Format: "ndjson", Destination: document.Destination{Type: document.DestinationS3,
		Endpoint: "http://" + bucket.Addr().String(), Bucket: streamBucket, Region: "us-east-1", Addressing: "path",
		Credentials: streamBucket}}, bucketTarget)
	rates, err := inTurns(ctx, s.Rounds, measures...)
	if err != nil {
		return nil, err
	}
	for i, side := range sides {
		name := "event log → " + side.name + " files, one core"
		if i >= len(fileStreams) {
			name = "event log → " + side.name
		}
		figures = append(figures, newFigure(name, "events/s", rates[i],
			Detail{"took", median(side.seconds), "s"},
			Detail{"CPU of the server", median(side.cpu) * 1e6, "µs an event"},
			Detail{"bytes", side.perEvent, "an event"},
			Detail{"events", float64(out.events), ""}).want(atLeast, side.target))
	}
	return append(figures, newFigure("bytes of an event in Parquet ÷ in the event log", "",
		[]float64{sides[0].perEvent / out.perEvent}, Detail{"Parquet", sides[0].perEvent, "bytes"},
		Detail{"event log", out.perEvent, "bytes"}).want(atMost, parquetPerBlock)), nil
}

// out is a server with a packed event log.
type out struct {
	server   *process
	events   int64
	perEvent float64 // packed bytes
}

// fill sends events and waits until they are packed.
func (o *out) fill(ctx context.Context, s *settings) error {
	side := s.side(64, s.bodies(mixEvents), o.server)
	r, err := side.run(ctx, loadtest.Options{Duration: 2 * s.Duration,
		Requests: maxStreamed / int64(mixEvents.Total())})
	if err != nil {
		return err
	}
	o.events = r.Objects
	for packed := 0.0; packed < float64(o.events); {
		if err := pause.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if packed, err = o.server.metric(ctx, "millrace_eventlog_packed_events_total"); err != nil {
			return err
		}
	}
	size, err := o.server.metric(ctx, "millrace_eventlog_bytes")
	o.perEvent = size / float64(o.events)
	return err
}

// bucket serves a bucket in memory, until the listener is closed. The measured server has the bucket's key.
func (o *out) bucket(ctx context.Context) (net.Listener, error) {
	const id, secret = "AKIDBENCH", "bench-secret"
	backend := s3mem.New()
	if err := backend.CreateBucket(ctx, streamBucket); err != nil {
		return nil, err
	}
	folder := filepath.Join(o.server.data, "stream-credentials", "bench")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	text := fmt.Appendf(nil, `{"access_key_id":%q,"secret_access_key":%q}`, id, secret)
	if err := os.WriteFile(filepath.Join(folder, streamBucket+".json"), text, 0o600); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	handler := gofakes3.New(backend, gofakes3.WithV4Auth(map[string]string{id: secret})).Server()
	go func() { _ = http.Serve(l, handler) }()
	return l, nil
}

// outSide is one destination. It gets a stream of its own in each round.
type outSide struct {
	*out
	name     string
	document document.Stream
	target   float64

	seconds, cpu []float64 // of a round, and of an event
	perEvent     float64   // bytes
}

func (o *outSide) measure(ctx context.Context, round int) (float64, error) {
	stream := &stream{server: o.server, id: fmt.Sprint(o.name, round)}
	cpu, start := cpuSeconds(o.server.pid()), time.Now()
	o.document.From, o.document.Kinds = document.StreamBeginning, []string{"event"}
	if err := stream.create(ctx, o.document); err != nil {
		return 0, err
	}
	status, err := stream.await(ctx, o.events)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", o.name, err)
	}
	took, used := time.Since(start).Seconds(), max(cpuSeconds(o.server.pid())-cpu, cpuTick)
	o.seconds, o.cpu = append(o.seconds, took), append(o.cpu, used/float64(o.events))
	o.perEvent = float64(status.Bytes) / float64(o.events)
	if err := stream.remove(ctx); err != nil {
		return 0, err
	}
	quiet(o.server.pid())
	if o.document.Destination.Type != "" {
		return float64(o.events) / took, nil
	}
	return float64(o.events) / used, os.RemoveAll(filepath.Join(o.server.data, "streams", "bench", stream.id))
}

// stream is a stream of a server.
type stream struct {
	server *process
	id     string
}

func (t *stream) create(ctx context.Context, document document.Stream) error {
	document.ID = t.id
	return t.call(ctx, http.MethodPost, "", document, nil)
}

func (t *stream) remove(ctx context.Context) error {
	return t.call(ctx, http.MethodDelete, "/"+t.id, nil, nil)
}

func (t *stream) status(ctx context.Context) (v answers.StreamStatus, err error) {
	return v, t.call(ctx, http.MethodGet, "/"+t.id+"/status", nil, &v)
}

// await waits until the stream has delivered so many events.
func (t *stream) await(ctx context.Context, events int64) (answers.StreamStatus, error) {
	for {
		status, err := t.status(ctx)
		if err == nil && status.Error != "" {
			err = errors.New(status.Error)
		}
		if err != nil || status.Events >= events {
			return status, err
		}
		if err := pause.For(ctx, 10*time.Millisecond); err != nil {
			return status, err
		}
	}
}

func (t *stream) call(ctx context.Context, method, path string, body, answer any) error {
	return t.server.ask(ctx, method, "/admin/workspaces/bench/streams"+path, body, answer)
}
