package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// receivers are what streams deliver to besides a directory: a bucket, a Kafka, an endpoint. They outlive the server,
// and fail now and then, also after they have taken what was sent.
type receivers struct {
	bucket gofakes3.Backend
	kafka  *kfake.Cluster
	topics []string

	mu     sync.Mutex
	random *rand.Rand
	posted []string // events that the endpoint has taken
}

const receiverKey, receiverSecret = "AKIDEXAMPLE", "wJalrXUtnFEMI"

// receive makes the receivers of a site, and a stream to each: bucket, topics, endpoint.
func (s *site) receive(t *testing.T, seed uint64) *receivers {
	t.Helper()
	v := &receivers{bucket: s3mem.New(), random: rand.New(rand.NewPCG(seed, 0)), topics: []string{"millrace.test.event", "millrace.test.purchase"}}
	require.NoError(t, v.bucket.CreateBucket(context.Background(), "lake"))
	service := httptest.NewServer(v.failing(gofakes3.New(v.bucket, gofakes3.WithV4Auth(map[string]string{receiverKey: receiverSecret})).Server()))
	t.Cleanup(service.Close)
	endpoint := httptest.NewServer(v.failing(http.HandlerFunc(v.take)))
	t.Cleanup(endpoint.Close)
	var err error
	v.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, v.topics...))
	require.NoError(t, err)
	t.Cleanup(v.kafka.Close)

	credentials := filepath.Join(s.dir, "stream-credentials", "test")
	require.NoError(t, os.MkdirAll(credentials, 0o700))
	text, err := json.Marshal(map[string]string{"access_key_id": receiverKey, "secret_access_key": receiverSecret})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "lake.json"), text, 0o600))
	create := func(args ...string) {
		tool(t, s.target(append([]string{"streams", "create", "test", "--from", "beginning"}, args...)...)...)
	}
	create("bucket", "--to", "s3", "--bucket", "lake", "--endpoint", service.URL, "--region", "us-east-1", "--addressing", "path",
		"--credentials", "lake", "--format", "ndjson")
	create("topics", "--to", "kafka", "--brokers", strings.Join(v.kafka.ListenAddrs(), ","), "--format", "json")
	create("endpoint", "--to", "http", "--url", endpoint.URL, "--format", "json", "--batch", "1000")
	return v
}

// failing refuses one request in twenty, and loses the answer to another.
func (v *receivers) failing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		n := v.random.IntN(20)
		v.mu.Unlock()
		switch n {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (v *receivers) take(_ http.ResponseWriter, r *http.Request) {
	var body struct{ Events []json.RawMessage }
	text, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(text, &body) != nil {
		panic(http.ErrAbortHandler) // who sent it was killed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range body.Events {
		v.posted = append(v.posted, string(e))
	}
}

// lines are those of all objects of the bucket.
func (v *receivers) lines(t *testing.T) (lines []string) {
	t.Helper()
	list, err := v.bucket.ListBucket(context.Background(), "lake", nil, gofakes3.ListBucketPage{})
	require.NoError(t, err)
	for _, c := range list.Contents {
		o, err := v.bucket.GetObject(context.Background(), "lake", c.Key, nil)
		require.NoError(t, err)
		text, err := io.ReadAll(o.Contents)
		require.NoError(t, err)
		z, err := zstd.NewReader(bytes.NewReader(text))
		require.NoError(t, err)
		plain, err := io.ReadAll(z)
		require.NoError(t, err, c.Key)
		z.Close()
		lines = append(lines, strings.Split(strings.TrimSuffix(string(plain), "\n"), "\n")...)
	}
	return lines
}

// records are the values of all partitions, of each in its order, to where it ends by now.
func (v *receivers) records(t *testing.T) (partitions map[string][]string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(v.kafka.ListenAddrs()...), kgo.ConsumeTopics(v.topics...), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	partitions = map[string][]string{}
	left := int64(0)
	for _, topic := range v.topics {
		for _, p := range v.kafka.PartitionInfos(topic) {
			left += p.HighWatermark
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			at := r.Topic + string(rune('0'+r.Partition))
			partitions[at] = append(partitions[at], string(r.Value))
		})
	}
	return partitions
}

// requireMessages holds what came as messages against the export: nothing is missing, what came again is the same under
// the same id, and what came first came in order. It returns how many came again.
func requireMessages(t *testing.T, want []string, sequences ...[]string) (again int) {
	t.Helper()
	seen := map[string]string{}
	for _, sequence := range sequences {
		last := ""
		for _, line := range sequence {
			id, row := idOf(t, line), withoutSvcID(t, line)
			if before, was := seen[id]; was {
				require.Equal(t, before, row)
				again++
				continue
			}
			require.Less(t, last, id)
			last, seen[id] = id, row
		}
	}
	require.Len(t, seen, len(want))
	for _, line := range want {
		require.Equal(t, withoutSvcID(t, line), seen[idOf(t, line)])
	}
	return again
}

// withoutSvcID is a row without the svc_id, which messages have and the export has of some.
func withoutSvcID(t *testing.T, line string) string {
	t.Helper()
	var row map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(line), &row))
	delete(row, "svc_id")
	text, err := json.Marshal(row)
	require.NoError(t, err)
	return string(text)
}

// requireReceived waits for the streams of receive, and holds each against the export.
func (v *receivers) requireReceived(t *testing.T, s *site, want []string) {
	t.Helper()
	for _, stream := range []string{"bucket", "topics", "endpoint"} {
		s.awaitEvents(t, stream, len(want))
	}
	got := v.lines(t)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	require.Equal(t, len(want), len(got), "in a bucket each is once")
	require.Equal(t, want, got)
	var partitions [][]string
	for _, p := range v.records(t) {
		partitions = append(partitions, p)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	t.Logf("%d events; came again: %d records of Kafka, %d to the endpoint", len(want), requireMessages(t, want, partitions...), requireMessages(t, want, v.posted))
}
