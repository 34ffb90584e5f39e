package stream

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"millrace/api/control/document"
	"millrace/loadtest/testseed"
	"millrace/shard/eventlog"
)

var testTopics = []string{"millrace.shop.event", "millrace.shop.purchase"}

func newBrokers(t testing.TB, options ...kfake.Opt) *kfake.Cluster {
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(3, testTopics...)}, options...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func brokersOf(c *kfake.Cluster) string { return strings.Join(c.ListenAddrs(), ",") }

// consumed are all records of topics, in the order of each partition.
func consumed(t testing.TB, c *kfake.Cluster, topics ...string) (all []*kgo.Record) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics(topics...), kgo.FetchMaxWait(10*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	want := int64(0)
	request := kmsg.NewPtrListOffsetsRequest()
	for _, topic := range topics {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic
		for p := range int32(3) {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = p, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		request.Topics = append(request.Topics, rt)
	}
	ends, err := request.RequestWith(context.Background(), client)
	require.NoError(t, err)
	for _, topic := range ends.Topics {
		for _, p := range topic.Partitions {
			want += p.Offset
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for int64(len(all)) < want {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err())
		all = append(all, fetches.Records()...)
	}
	return all
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func (w *world) topics(id string, c *kfake.Cluster, edit func(*document.Stream)) *document.Stream {
	v := document.Stream{ID: id, Format: document.FormatJSON, Destination: document.Destination{Type: document.DestinationKafka, Brokers: brokersOf(c)}}
	if edit != nil {
		edit(&v)
	}
	return w.create(v)
}

// Topics get each event of the export, a user's in one partition and in order, while brokers and cursors fail.
func TestKafkaIsTheExport(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	r := testseed.Rand(t)
	stream := w.topics("all", c, nil)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if r.IntN(4) == 0 {
			return nil, fmt.Errorf("the connection ends"), true // the request has had no effect
		}
		return nil, nil, false
	})
	puts := 0
	w.puts = func() error {
		if puts++; puts%5 == 0 {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	w.commit(w.ws.Number, 10, 7)
	w.pack()
	w.commit(w.ws.Number, 10, 7)
	o := w.options()
	o.MessageBytes = 1 << 10
	o.kafka = []kgo.Opt{kgo.MetadataMinAge(10 * time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond })}
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	k.carryOn(t)
	k.close()
	want := map[string]map[string]any{}
	for _, line := range w.exported(eventlog.Query{}) {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		want[v["id"].(string)] = v
	}
	last, partition, seen := map[string]string{}, map[string]int32{}, map[string]bool{}
	for _, rec := range consumed(t, c, testTopics...) {
		var v map[string]any
		require.NoError(t, json.Unmarshal(rec.Value, &v))
		id, user := v["id"].(string), rec.Topic+string(rec.Key)
		require.Equal(t, v["svc_id"], string(rec.Key))
		require.Equal(t, []string{id, v["type"].(string), "shop", "application/json"},
			[]string{header(rec, "id"), header(rec, "kind"), header(rec, "workspace"), header(rec, "content-type")})
		require.Equal(t, "millrace.shop."+v["type"].(string), rec.Topic)
		delete(v, "svc_id")
		require.Equal(t, want[id], v)
		if p, was := partition[user]; was {
			require.Equal(t, p, rec.Partition)
		}
		partition[user] = rec.Partition
		if !seen[id] { // what comes again may be late
			require.Less(t, last[user], id)
			last[user], seen[id] = id, true
		}
	}
	require.Len(t, seen, len(want))
}

// Brokers that create topics on demand create those of a stream.
func TestKafkaTopicsAreCreated(t *testing.T) {
	w := newWorld(t, 4<<10)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(3))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	stream := w.topics("all", c, nil)
	w.commit(w.ws.Number, 2, 7)
	o := w.options()
	o.kafka = []kgo.Opt{kgo.MetadataMinAge(10 * time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond })}
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	defer k.close()
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	require.Len(t, consumed(t, c, testTopics...), len(w.exported(eventlog.Query{})))
}

// Batches are compressed as the stream says, or by zstd.
func TestKafkaCompression(t *testing.T) {
	w := newWorld(t, 4<<10)
	w.commit(w.ws.Number, 20, 7)
	for compression, codec := range map[string]kgo.CompressionCodecType{"": kgo.CodecZstd, "none": kgo.CodecNone, "gzip": kgo.CodecGzip, "snappy": kgo.CodecSnappy,
		"lz4": kgo.CodecLz4, "zstd": kgo.CodecZstd} {
		c := newBrokers(t)
		stream := w.topics("c"+compression, c, func(s *document.Stream) { s.Compression = compression })
		require.NoError(t, w.turns(w.options(), stream))
		all := consumed(t, c, testTopics...)
		require.Len(t, all, 140, compression)
		for _, rec := range all {
			require.EqualValues(t, codec, rec.Attrs.CompressionType(), compression)
		}
	}
}

// An event that is too large for its topic, or that the broker finds invalid, is refused for good, alone; those beside it
// are there.
func TestKafkaRefusesRecords(t *testing.T) {
	for _, why := range []*kerr.Error{kerr.MessageTooLarge, kerr.InvalidRecord} {
		t.Run(why.Message, func(t *testing.T) { testRefusedRecords(t, why) })
	}
}

func testRefusedRecords(t *testing.T, why *kerr.Error) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	stream := w.topics("all", c, func(s *document.Stream) {
		s.Format, s.Destination.Topic = document.FormatCurrents, "millrace.{workspace}.event"
	})
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		produce := req.(*kmsg.ProduceRequest)
		tooLarge := func(t kmsg.ProduceRequestTopic) bool {
			return slices.ContainsFunc(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return len(p.Records) > 20_000 })
		}
		if !slices.ContainsFunc(produce.Topics, tooLarge) {
			return nil, nil, false
		}
		return refusal(produce, why), nil, true
	})
	w.commit(w.ws.Number, 3, 7)
	noise := make([]byte, 24_000)
	_, err := rand.Read(noise)
	require.NoError(t, err)
	w.track(fmt.Sprintf(`{"events":[{"external_id":"user 1","name":"large","time":"2026-01-31T09:30:00Z","properties":{"a":{"b":"%x"}}}]}`, noise))
	w.commit(w.ws.Number, 3, 7)
	o := w.options()
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	defer k.close()
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	var ids []string
	for _, rec := range consumed(t, c, testTopics...) {
		require.Contains(t, string(rec.Value), `"id":"`+header(rec, "id")+`"`)
		ids = append(ids, header(rec, "id"))
	}
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), 42)
	require.EqualValues(t, 1, k.status().Refused)
	text, err := os.ReadFile(filepath.Join(w.dir, "shop", refusedDir, "all..0.ndjson"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"name":"large"`)
	require.Contains(t, string(text), why.Message)
	require.Equal(t, 1, strings.Count(string(text), "\n"))
}

// refusal answers a request of which nothing is stored.
func refusal(produce *kmsg.ProduceRequest, why *kerr.Error) kmsg.Response {
	resp := produce.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range produce.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, why.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// limitedTopic is a broker with a topic that takes batches of so many bytes.
func limitedTopic(t *testing.T, topic string, limit int) *kfake.Cluster {
	text := fmt.Sprint(limit)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topic), kfake.BrokerConfigs(map[string]string{"message.max.bytes": text}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	ask, r, v := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	r.ResourceType, r.ResourceName, v.Name, v.Value = kmsg.ConfigResourceTypeTopic, topic, configMaxBytes, &text
	r.Configs = append(r.Configs, v)
	ask.Resources = append(ask.Resources, r)
	answer, err := ask.RequestWith(context.Background(), client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(answer.Resources[0].ErrorCode))
	return c
}

// Batches are no larger than their topic takes: records of one that was refused would stand behind later ones.
func TestKafkaKeepsToTheLimitOfATopic(t *testing.T) {
	const limit = 2048
	w, c := newWorld(t, 4<<10), limitedTopic(t, "small", limit)
	largest := 0
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				largest = max(largest, len(p.Records))
			}
		}
		return nil, nil, false
	})
	stream := w.topics("all", c, func(s *document.Stream) { s.Destination.Topic = "small" })
	w.commit(w.ws.Number, 10, 7)
	o := w.options()
	o.kafka = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
	require.NoError(t, w.turns(o, stream))
	require.Greater(t, largest, limit/2)
	require.LessOrEqual(t, largest, limit)
	w.requireInOrder(consumed(t, c, "small"))
}

// requireInOrder requires each event once, and those with one key in their order.
func (w *world) requireInOrder(all []*kgo.Record) {
	w.t.Helper()
	last := map[string]string{}
	require.Len(w.t, all, len(w.exported(eventlog.Query{})))
	for _, rec := range all {
		require.Less(w.t, last[string(rec.Key)], header(rec, "id"))
		last[string(rec.Key)] = header(rec, "id")
	}
}

// Brokers that end the connection when they are asked for limits get what they take all the same.
func TestKafkaThatDoesNotKnowLimits(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, fmt.Errorf("the connection ends"), true
	})
	stream := w.topics("all", c, nil)
	w.commit(w.ws.Number, 3, 7)
	require.NoError(t, w.turns(w.options(), stream))
	require.Len(t, consumed(t, c, testTopics...), 21)
}

// Brokers that never answer that question, and others, get what they take, too, in batches as they were told of before.
func TestKafkaThatDoesNotTellLimits(t *testing.T) {
	for name, limit := range map[string]int{"never told": 1 << 20, "told before": 2048} {
		t.Run(name, func(t *testing.T) {
			w, c := newWorld(t, 4<<10), limitedTopic(t, "topic", limit)
			var largest atomic.Int64
			c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				for _, topic := range req.(*kmsg.ProduceRequest).Topics {
					for _, p := range topic.Partitions {
						largest.Store(max(largest.Load(), int64(len(p.Records))))
					}
				}
				return nil, nil, false
			})
			var isSilent atomic.Bool
			released := make(chan struct{})
			defer close(released)
			c.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				if isSilent.Load() {
					c.SleepControl(func() { <-released })
				}
				return nil, nil, false
			})
			stream := w.topics("all", c, func(s *document.Stream) { s.Destination.Topic = "topic" })
			o := w.options()
			var said bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&said, nil))
			o.kafka = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
			k := newCarrier(&o, w.ws, stream, o.Parts()[0])
			defer k.close()
			if name == "told before" {
				w.commit(w.ws.Number, 1, 1)
				k.carryOn(t)
			}
			isSilent.Store(true)
			o.RequestTimeout = 2 * time.Second // half of which passes each time; what fails since it is late is tried again
			for range 2 {
				k.note(errors.New("a delivery has failed")) // so it begins anew
				w.commit(w.ws.Number, 10, 7)
				k.carryOn(t)
			}
			require.Greater(t, largest.Load(), int64(1024))
			require.LessOrEqual(t, largest.Load(), int64(limit))
			w.requireInOrder(consumed(t, c, "topic"))
			require.Equal(t, 1, strings.Count(said.String(), "the brokers don't tell"), said.String())
		})
	}
}

// The limit of a topic that becomes smaller while a stream runs is found out, and kept to from then on.
func TestKafkaWhoseLimitShrinks(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	limit, refused := 1<<20, 0
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		produce := req.(*kmsg.ProduceRequest)
		isLarge := false
		for _, topic := range produce.Topics {
			for _, p := range topic.Partitions {
				isLarge = isLarge || len(p.Records) > limit
			}
		}
		if !isLarge {
			return nil, nil, false
		}
		refused++
		return refusal(produce, kerr.MessageTooLarge), nil, true
	})
	stream := w.topics("all", c, nil)
	o := w.options()
	o.kafka = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	defer k.close()
	rounds := 0
	for last := -1; last != refused; rounds++ {
		last = refused
		w.commit(w.ws.Number, 10, 7)
		k.carryOn(t)
		if rounds == 0 {
			require.Zero(t, refused)
			limit, last = 2048, -1
		}
		require.Less(t, rounds, 12, "it goes on being refused")
	}
	require.NotZero(t, refused)
	require.Len(t, consumed(t, c, testTopics...), 70*rounds)
	require.Zero(t, k.status().Refused)
}

// An event that is larger than a batch usually is, and not than its topic takes, is there, in its place.
func TestKafkaLargerThanBatches(t *testing.T) {
	w, c := newWorld(t, 4<<10), limitedTopic(t, "large", 16<<20)
	stream := w.topics("all", c, func(s *document.Stream) {
		s.Kinds, s.Destination.Topic = []string{document.StreamAttributes}, "large"
	})
	var attributes strings.Builder
	for i := range 12_000 {
		fmt.Fprintf(&attributes, `,"a%d":"%0100d"`, i, i)
	}
	for _, more := range []string{`,"b":1`, attributes.String(), `,"b":2`} {
		w.track(`{"attributes":[{"external_id":"u1"` + more + `}]}`)
	}
	o := w.options()
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	defer k.close()
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	require.Zero(t, k.status().Refused)
	all := consumed(t, c, "large")
	require.Len(t, all, 3)
	require.Greater(t, len(all[1].Value), 1<<20)
}

// Brokers that don't answer are an error, though the producer can't know whether they have what was sent.
func TestKafkaThatHangs(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	stream := w.topics("all", c, nil)
	var hang atomic.Bool
	hang.Store(true)
	released := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if hang.Load() {
			c.SleepControl(func() { <-released })
		}
		return nil, nil, false
	})
	w.commit(w.ws.Number, 3, 7)
	o := w.options()
	o.RequestTimeout = time.Second // the least that the client takes
	o.kafka = []kgo.Opt{kgo.ProduceRequestTimeout(100 * time.Millisecond), kgo.RequestTimeoutOverhead(100 * time.Millisecond)}
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	require.ErrorContains(t, k.turn(context.Background()), "the brokers don't answer")
	k.close()
	hang.Store(false)
	close(released)
	o.RequestTimeout, o.kafka = time.Minute, nil
	require.NoError(t, w.turns(o, stream))
	require.GreaterOrEqual(t, len(consumed(t, c, testTopics...)), 21)
}

// While a stream waits for its next try it has no producer, nor what that has buffered, nor memory of earlier deliveries.
func TestKafkaLetsGoAfterAFailure(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	o := w.options()
	o.MessageBytes = 1 << 10
	k := newCarrier(&o, w.ws, w.topics("all", c, nil), o.Parts()[0])
	w.commit(w.ws.Number, 20, 7)
	require.NoError(t, k.turn(context.Background()))
	to := k.to.(*topics)
	for name, fails := range map[string]func(){
		"cursor": func() { w.puts = func() error { return os.ErrDeadlineExceeded } },
		"broker": func() {
			c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
				return refusal(req.(*kmsg.ProduceRequest), kerr.TopicAuthorizationFailed), nil, true
			})
		},
	} {
		fails()
		err := k.turn(context.Background())
		require.Error(t, err, name)
		require.NotNil(t, to.client, name)
		k.note(err)
		w.puts = nil
		require.Nil(t, to.client, name)
		require.Empty(t, to.spare, name)
	}
	k.carryOn(t)
	k.close()
	ids := map[string]bool{}
	for _, rec := range consumed(t, c, testTopics...) {
		ids[header(rec, "id")] = true
	}
	require.Len(t, ids, 140)
}

// What brokers answer until the time of records is up is in the error.
func TestKafkaSaysWhyTimeIsUp(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	stream := w.topics("all", c, nil)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return refusal(req.(*kmsg.ProduceRequest), kerr.NotEnoughReplicas), nil, true
	})
	w.commit(w.ws.Number, 3, 7)
	o := w.options()
	o.kafka = []kgo.Opt{kgo.RecordDeliveryTimeout(time.Second), kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond })}
	err := w.turns(o, stream)
	require.ErrorIs(t, err, kgo.ErrRecordTimeout)
	require.ErrorIs(t, err, kerr.NotEnoughReplicas)
	require.Empty(t, consumed(t, c, testTopics...))
}

// SASL and TLS with what the operator has given; what is wrong is said without it.
func TestKafkaCredentials(t *testing.T) {
	w := newWorld(t, 4<<10)
	w.commit(w.ws.Number, 2, 5)
	certificate, ca := selfSigned(t)
	o := w.options()
	set := func(v kafkaCredentials) {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_KAFKA", string(text))
	}
	for i, mechanism := range []string{document.SASLPlain, document.SASLScram256, document.SASLScram512} {
		c := newBrokers(t, kfake.EnableSASL(), kfake.Superuser(strings.ToUpper(mechanism), "millrace", "hidden"), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}))
		stream := w.topics(mechanism, c, func(s *document.Stream) {
			s.Destination.SASL, s.Destination.Security, s.Destination.Credentials = mechanism, document.SecurityTLS, "kafka"
		})
		if i == 0 {
			set(kafkaCredentials{Password: "hidden"})
			require.ErrorContains(t, w.turns(o, stream), "user is missing")
			set(kafkaCredentials{User: "millrace", Password: "hidden", CA: "hidden"})
			require.ErrorContains(t, w.turns(o, stream), "no certificate in PEM")
			set(kafkaCredentials{User: "millrace", Password: "wrong", CA: ca})
			soon := o
			soon.RequestTimeout = 100 * time.Millisecond
			err := w.turns(soon, stream)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "wrong")
		}
		set(kafkaCredentials{User: "millrace", Password: "hidden", CA: ca})
		require.NoError(t, w.turns(o, stream))
	}
}

// A broker can't have the password hashed as often as it likes.
func TestScramIterations(t *testing.T) {
	c := kafkaCredentials{User: "millrace", Password: "hidden"}
	for _, name := range []string{document.SASLScram256, document.SASLScram512} {
		m, err := c.mechanism(name)
		require.NoError(t, err)
		require.Equal(t, strings.ToUpper(name), m.Name())
		for _, n := range []int{4096, maxIterations + 1} {
			session, message, err := m.Authenticate(t.Context(), "")
			require.NoError(t, err)
			nonce := message[bytes.Index(message, []byte("r=")):]
			_, _, err = session.Challenge(fmt.Appendf(nil, "%s1,s=c2FsdA==,i=%d", nonce, n))
			if n == 4096 {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, "the broker wants 1000001 iterations of SCRAM: at most 1000000")
			}
		}
	}
}

// selfSigned is a certificate of 127.0.0.1, and what trusts it.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// The memory of a delivery is another one's when all of it is there, and not before; that of a large one is not kept for
// small ones.
func TestMemoryOfRecords(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	stream := w.topics("all", c, nil)
	o := w.options()
	o.MessageBytes = 1 << 10
	w.commit(w.ws.Number, 100, 7)
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	defer k.close()
	require.NoError(t, k.turn(context.Background()))
	require.True(t, k.lags)
	require.NotEmpty(t, k.to.(*topics).spare.records)
	for range seatsOfAKind {
		o.seats.messages <- struct{}{}
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, k.turn(late), context.Canceled)
	require.Empty(t, k.to.(*topics).spare, "one that waits for a seat has nothing in memory")
	for range seatsOfAKind {
		<-o.seats.messages
	}

	for k.lags {
		require.NoError(t, k.turn(context.Background()))
	}
	require.Empty(t, k.to.(*topics).spare, "nor has one that was catching up")
	w.commit(w.ws.Number, 1, 7)
	require.NoError(t, k.turn(context.Background()))
	spare := k.to.(*topics).spare
	require.NotEmpty(t, spare.records)
	require.Empty(t, spare.texts)
	require.Zero(t, spare.used)

	d := k.to.begin(false).(*records)
	require.Same(t, spare.records[0], d.memory.record())
	require.Empty(t, k.to.(*topics).spare.records, "two have the same")
	d.err = errors.New("a broker is gone")
	require.ErrorIs(t, d.confirm(context.Background(), 1, 2), d.err)
	require.Empty(t, k.to.(*topics).spare.records, "the producer may still have it")

	d.memory.texts = make([]byte, 3, 100)
	require.Equal(t, memory{}, d.memory.emptied())
	d.memory.texts = make([]byte, 30, 100)
	require.Equal(t, 100, cap(d.memory.emptied().texts))
}

// A stream that catches up has four times as much in a delivery, once the brokers have answered; one that is at the end
// of its log has not.
func TestKafkaCatchesUp(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	o := w.options()
	o.MessageBytes = 1 << 10
	k := newCarrier(&o, w.ws, w.topics("all", c, nil), o.Parts()[0])
	defer k.close()
	deliveries := func() (sizes []int64) {
		w.commit(w.ws.Number, 400, 1)
		for before := k.cursor.Events; ; before = k.cursor.Events {
			require.NoError(t, k.turn(context.Background()))
			if k.cursor.Events == before {
				return sizes
			}
			sizes = append(sizes, k.cursor.Events-before)
		}
	}
	sizes := deliveries()
	first, second := sizes[0], sizes[1]
	require.Greater(t, len(sizes), 3)
	require.InDelta(t, 4*first, second, 4)
	require.InDelta(t, first, deliveries()[0], 1)
}

// Records of a refused batch are waited for one by one, and there may be thousands.
func TestKafkaSinglesLeaveAtOnce(t *testing.T) {
	w, c := newWorld(t, 4<<10), newBrokers(t)
	o := w.options()
	w.commit(w.ws.Number, 1, 1)
	k := newCarrier(&o, w.ws, w.topics("all", c, nil), o.Parts()[0])
	defer k.close()
	require.NoError(t, k.turn(context.Background()))
	require.Equal(t, linger, k.to.(*topics).client.OptValue(kgo.ProducerLinger))
	singles, err := k.to.(*topics).forSingles(kgo.RecordRetries(0))
	require.NoError(t, err)
	defer singles.Close()
	require.Zero(t, singles.OptValue(kgo.ProducerLinger))
}
