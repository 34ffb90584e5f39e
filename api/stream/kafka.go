package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
)

// topics is a destination that gets each event as a record, keyed with the user's svc_id, so that a user's events are
// in one partition and in order. The producer is idempotent: what it retries by itself is there once. After a failure
// there is a new producer, and records of the delivery may come once more, with the same ids.
type topics struct {
	o       *Options
	to      *document.Destination
	ws      *control.Workspace
	stream  string
	codecs  []kgo.CompressionCodec // of batches; the first that the brokers know
	writer  *writer
	names   map[string]string             // topics by kind
	headers map[string][]kgo.RecordHeader // by kind: what all its records have
	refused refusedFile
	client  *kgo.Client      // nil: not connected
	options []kgo.Opt        // the options that it was made with
	schemas *schemas         // nil: values are JSON
	limits  map[string]int32 // the largest batch that each topic takes, as the client has it
	told    map[string]int32 // the same, according to the latest answers of brokers
	learned map[string]int32 // the same, as learned from refusals
	takes   bool             // the brokers have taken a delivery since they were opened
	silent  bool             // brokers did not answer when they were last asked
	spare   memory           // memory of the previous delivery, which nobody uses any more
}

func newTopics(o *Options, ws *control.Workspace, s *document.Stream, refused refusedFile) *topics {
	k := &topics{o: o, to: &s.Destination, ws: ws, stream: s.ID, writer: newWriter(o, ws, s),
		codecs: batchCodecs(s.Compression), names: map[string]string{},
		headers: map[string][]kgo.RecordHeader{}, refused: refused,
		told: map[string]int32{}, learned: map[string]int32{}}
	contentType := "application/json"
	if s.Format == document.FormatAvro {
		contentType = "application/avro"
		k.schemas = &schemas{url: s.Destination.Registry, timeout: o.RequestTimeout, topics: k.names,
			rows: currents.NewRows(k.writer.Reader, ws.ID)}
	}
	for _, kind := range s.Kinds {
		k.names[kind] = strings.NewReplacer("{workspace}", ws.ID, "{stream}", s.ID,
			"{kind}", kind).Replace(s.Destination.Topic)
		k.headers[kind] = []kgo.RecordHeader{{Key: "kind", Value: []byte(kind)},
			{Key: "workspace", Value: []byte(ws.ID)}, {Key: "content-type", Value: []byte(contentType)}}
	}
	return k
}

// batchCodecs are the codecs by a stream's compression, each at its fastest level.
func batchCodecs(compression string) []kgo.CompressionCodec {
	switch compression {
	case document.CompressionGzip:
		return []kgo.CompressionCodec{kgo.GzipCompression().WithLevel(gzip.BestSpeed)}
	case document.CompressionLZ4:
		return []kgo.CompressionCodec{kgo.Lz4Compression()}
	case document.CompressionNone:
		return []kgo.CompressionCodec{kgo.NoCompression()}
	case document.CompressionSnappy:
		return []kgo.CompressionCodec{kgo.SnappyCompression()}
	}
	return []kgo.CompressionCodec{kgo.ZstdCompression().WithLevel(int(zstd.SpeedFastest)), kgo.SnappyCompression()}
}

func (k *topics) notes() bool   { return false }
func (k *topics) looksUp() bool { return true }
func (k *topics) answers() bool { return k.takes }
func (k *topics) letGo()        { k.spare = memory{} }

// pace has a stream that catches up send more at a time: each delivery ends with small batches, an answer to wait for
// and a cursor to store.
func (k *topics) pace() pace {
	return pace{bytes: k.o.MessageBytes, behind: 4 * k.o.MessageBytes, interval: k.o.MessageInterval}
}

func (k *topics) begin(bool) delivery {
	d := &records{to: k, memory: k.spare}
	k.spare, d.noted = memory{}, d.note
	return d
}

// close gives up what the producer has not sent.
func (k *topics) close() {
	k.letGo()
	if k.client != nil {
		k.client.Close()
		k.client = nil
	}
}

// open makes a producer, with the current credentials.
func (k *topics) open(ctx context.Context) error {
	k.takes = false
	k.refused.folders.forget()
	var c kafkaCredentials
	if k.to.Credentials != "" {
		if err := k.o.credentials(k.ws.ID, k.to.Credentials, &c); err != nil {
			return err
		}
	}
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(k.to.Brokers, ",")...),
		kgo.ClientID("millrace-" + k.ws.ID + "-" + k.stream),
		kgo.AllowAutoTopicCreation(), // where the brokers do so: a client has to ask for it
		kgo.RecordDeliveryTimeout(k.o.RequestTimeout),
		kgo.ProducerLinger(linger),
		kgo.MaxBufferedRecords(math.MaxInt32), // a delivery bounds them, and waits for them in confirm
		kgo.ProducerBatchCompression(k.codecs...)}
	if m, err := c.mechanism(k.to.SASL); err != nil {
		return fmt.Errorf("credentials %q: %w", k.to.Credentials, err)
	} else if m != nil {
		options = append(options, kgo.SASL(m))
	}
	if k.to.Security == document.SecurityTLS {
		config, err := c.tls()
		if err != nil {
			return fmt.Errorf("credentials %q: %w", k.to.Credentials, err)
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if k.schemas != nil {
		if err := k.schemas.open(ctx, &c); err != nil {
			return err
		}
	}
	limits := map[string]int32{}
	k.limits = limits
	options = append(options, kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
		return cmp.Or(limits[topic], batchBytes) // called when there is first something for a topic
	}))
	k.options = append(options, k.o.kafka...)
	client, err := kgo.NewClient(k.options...)
	if err != nil {
		return err
	}
	k.client = client
	return k.askLimits(ctx)
}

// learn records that a topic has refused a batch of at most that many bytes, although it takes the records of the batch
// one by one. So the topic's limit isn't known, or has become smaller. The next client uses the new limit.
func (k *topics) learn(topic string, bytes int) {
	k.learned[topic] = max(int32(min(k.limit(topic), bytes)/2), minBatchBytes)
}

func (k *topics) limit(topic string) int { return int(cmp.Or(k.limits[topic], batchBytes)) }

// askLimits finds out how large a batch each topic takes, so that all records leave in their order: the records of a
// refused batch come after later ones. A topic whose limit can't be found out keeps the last known one, or gets batches
// of batchBytes. The topic may not exist yet, the user may not see its configuration, or the brokers don't know the
// question, or never answer it. Refusals then show the limit.
func (k *topics) askLimits(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.o.RequestTimeout)
	defer cancel()
	err := k.hearLimits(ctx)
	maps.Copy(k.limits, k.told)
	for topic, n := range k.learned {
		k.limits[topic] = min(n, cmp.Or(k.told[topic], math.MaxInt32))
	}
	return err
}

// hearLimits asks the brokers for the limits. It waits for half of ctx's time. In the other half the caller finds out
// whether the brokers answer nothing at all, or ignore only this question.
func (k *topics) hearLimits(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, k.o.RequestTimeout/2)
	defer cancel()
	ask := kmsg.NewPtrDescribeConfigsRequest()
	for _, topic := range slices.Compact(slices.Sorted(maps.Values(k.names))) {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
		r.ConfigNames = []string{configMaxBytes}
		ask.Resources = append(ask.Resources, r)
	}
	answer, err := ask.RequestWith(wait, k.client)
	if err != nil && wait.Err() != nil {
		return k.goOnUntold(ctx)
	}
	if k.silent = false; err != nil {
		return nil
	}
	for _, r := range answer.Resources {
		for _, c := range r.Configs {
			if c.Name != configMaxBytes || c.Value == nil {
				continue
			}
			if n, err := strconv.Atoi(*c.Value); err == nil && n >= minBatchBytes {
				k.told[r.ResourceName] = int32(min(n, maxRecordBytes))
			}
		}
	}
	return nil
}

// goOnUntold makes a new client for brokers that have not answered, since answers on a connection come in order.
func (k *topics) goOnUntold(ctx context.Context) (err error) {
	k.close()
	if k.client, err = kgo.NewClient(k.options...); err != nil {
		return err
	}
	if err := k.client.Ping(ctx); err != nil {
		return fmt.Errorf("the brokers don't answer: %w", err)
	}
	if !k.silent {
		k.o.Logger.Warn("the brokers don't tell how large batches may be; the stream uses the last known size",
			"workspace", k.ws.ID, "stream", k.stream)
	}
	k.silent = true
	return nil
}

const (
	configMaxBytes = "max.message.bytes" // of a topic: the largest batch that it takes
	minBatchBytes  = 512                 // a smaller value is not taken for a limit
	// batchBytes is what a topic takes by default, with a margin.
	batchBytes = 1_000_000
	// linger is how long a batch waits for more, unless the delivery has ended: batches leave while the rest of the
	// delivery is read, but each costs both sides the same, however small it is.
	linger = 5 * time.Millisecond
)

// maxRecordBytes is more than any event can have, and less than brokers take as one request.
const maxRecordBytes = 64 << 20

// memory holds the records of a delivery. The producer uses it until it has reported what became of each. When it
// grows, it is copied, and records that are under way stay where they are.
type memory struct {
	records []*kgo.Record // made before; the delivery has the first used of them
	used    int
	headers []kgo.RecordHeader
	texts   []byte // keys, ids and values
}

// record returns a record for the producer, with its earlier content.
func (m *memory) record() *kgo.Record {
	if m.used == len(m.records) {
		m.records = append(m.records, new(kgo.Record))
	}
	m.used++
	return m.records[m.used-1]
}

// emptied returns the memory for another delivery, if that may need as much.
func (m *memory) emptied() memory {
	if len(m.texts) < cap(m.texts)/4 {
		return memory{}
	}
	return memory{records: m.records[:m.used], headers: m.headers[:0], texts: m.texts[:0]}
}

// records is a delivery to topics.
type records struct {
	to     *topics
	done   sum
	noted  func(*kgo.Record, error) // the method note, bound once
	memory memory

	mu    sync.Mutex
	apart []refusedRecord // from batches that were refused, because of one record or of all together
	err   error           // the first error of another kind
	// untold is the record that the error is about, if its time was up and the producer doesn't tell why.
	untold *kgo.Record
}

type refusedRecord struct {
	*kgo.Record
	why error
}

func (d *records) ends(*event.Event) bool               { return false }
func (d *records) confirmed() (through uint64, t tally) { return 0, tally{} }
func (d *records) sent() sum                            { return d.done }

func (d *records) write(ctx context.Context, e *event.Event) error {
	w := d.to.writer
	if err := w.Read(e); err != nil {
		return err
	}
	if d.to.client == nil {
		if err := d.to.open(ctx); err != nil {
			return err
		}
	}
	m, start := &d.memory, len(d.memory.texts)
	m.texts = append(m.texts, w.SvcID()...)
	id := len(m.texts)
	m.texts = w.appendID(m.texts, e)
	value := len(m.texts)
	m.texts = d.to.appendValue(m.texts, e)
	end := len(m.texts)
	d.done.bytes += int64(end - value)

	kind, first := event.KindName(e.Kind), len(m.headers)
	m.headers = append(m.headers, kgo.RecordHeader{Key: "id", Value: m.texts[id:value:value]})
	m.headers = append(m.headers, d.to.headers[kind]...)
	r := m.record()
	*r = kgo.Record{Topic: d.to.names[kind], Key: m.texts[start:id:id], Value: m.texts[value:end:end],
		Headers: m.headers[first:len(m.headers):len(m.headers)]}
	d.to.client.Produce(ctx, r, d.noted)
	return d.failed(ctx)
}

// appendValue appends the record of the event that the writer has last read.
func (k *topics) appendValue(dst []byte, e *event.Event) []byte {
	if k.schemas == nil {
		return k.writer.append(dst, e)
	}
	return k.schemas.append(dst, e)
}

// note is told what became of a record.
func (d *records) note(r *kgo.Record, err error) {
	if err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case isOfRecords(err):
		d.apart = append(d.apart, refusedRecord{r, err})
	case d.err == nil:
		d.err = fmt.Errorf("produce to topic %q: %w", r.Topic, err)
		if err == kgo.ErrRecordTimeout { // by itself; what the producer knows is wrapped with it
			d.untold = r
		}
	}
}

// isOfRecords reports whether a batch was refused because of its content: other records of the topic would have been
// taken.
func isOfRecords(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

// failed returns the first error. The brokers may have answered each attempt with an error that may pass, such as too
// few replicas in sync, which the producer keeps to itself.
func (d *records) failed(ctx context.Context) error {
	d.mu.Lock()
	err, untold := d.err, d.untold
	d.mu.Unlock()
	if untold == nil {
		return err
	}
	client, failed := d.to.forSingles(kgo.RecordRetries(0))
	if failed != nil {
		return err
	}
	defer client.Close()
	if why := d.to.alone(ctx, client, untold); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err // the record is there now, and comes once more
}

func (d *records) finish() error { return nil }

// confirm returns when all records are there. Records are sent one by one if they belong to a batch that the broker
// finds invalid, or that was too large for a topic whose limit isn't known, and if they are larger than a batch. A
// record that its topic doesn't take even alone is refused for good.
func (d *records) confirm(ctx context.Context, _, _ uint64) error {
	if d.to.client == nil { // there was nothing to send
		return nil
	}
	wait, cancel := d.to.patience(ctx)
	defer cancel()
	if err := d.to.client.Flush(wait); err != nil {
		return fmt.Errorf("the brokers don't answer, or only with errors that may pass: %w", err)
	}
	if err := d.failed(ctx); err != nil {
		return err
	}
	if err := d.sendApart(ctx); err != nil {
		return err
	}
	d.to.spare, d.to.takes = d.memory.emptied(), true
	return nil
}

func (d *records) sendApart(ctx context.Context) error {
	if len(d.apart) == 0 {
		return nil
	}
	client, err := d.to.forSingles(kgo.ProducerBatchMaxBytes(maxRecordBytes))
	if err != nil {
		return err
	}
	defer client.Close()
	tooLarge := map[string]int{} // by topic: size of batches that were too large as a whole
	for _, r := range d.apart {
		err := d.to.alone(ctx, client, r.Record)
		if limit := d.to.limit(r.Topic); err == nil && errors.Is(r.why, kerr.MessageTooLarge) &&
			limit > minBatchBytes && len(r.Value) < limit/2 {
			tooLarge[r.Topic] += len(r.Value)
		}
		if isOfRecords(err) {
			d.done.refused++
			d.done.bytes -= int64(len(r.Value))
			err = d.to.refused.add(refusedLine{RefusedAt: time.Now().UTC(), Answer: err.Error(),
				Event: d.to.readable(r.Value)})
		}
		if err != nil {
			return fmt.Errorf("produce to topic %q: %w", r.Topic, err)
		}
	}
	for topic, bytes := range tooLarge {
		d.to.learn(topic, bytes)
	}
	if len(tooLarge) > 0 {
		d.to.close() // the next record opens it
	}
	return nil
}

// forSingles makes a producer for alone: a record that is waited for has no use for a batch that waits for more.
func (k *topics) forSingles(o kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(slices.Clip(k.options), kgo.ProducerLinger(0), o)...)
}

// alone returns when the copy of a record, sent by itself, is there.
func (k *topics) alone(ctx context.Context, client *kgo.Client, r *kgo.Record) error {
	wait, cancel := k.patience(ctx)
	defer cancel()
	sent := make(chan error, 1)
	again := kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
	client.Produce(wait, &again, func(_ *kgo.Record, err error) { sent <- err })
	select {
	case err := <-sent:
		return err
	case <-wait.Done():
		return wait.Err()
	}
}

// patience bounds a wait for brokers. The producer itself gives up what it knows not to be there. What it has sent
// without an answer it would retry for ever, and nobody would notice.
func (k *topics) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, k.o.maxSilence())
}

// readable returns a record's value as JSON.
func (k *topics) readable(value []byte) json.RawMessage {
	if k.schemas == nil {
		return value
	}
	return k.schemas.json(value)
}

// abort does nothing: what was not sent is given up when open makes a new producer.
func (d *records) abort() {}
