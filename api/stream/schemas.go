package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"

	"millrace/api/bounded"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// schemas are the schemas of a stream's records, at a schema registry. A value begins with the registry's number of its
// schema, as Confluent's clients expect it: a zero, the number in 4 bytes, highest first, and then the record.
type schemas struct {
	url     string
	timeout time.Duration
	topics  map[string]string // by kind
	ids     map[op.Kind]int
	rows    *currents.Rows
}

// open registers the schemas, which does nothing if they are already known.
func (s *schemas) open(ctx context.Context, c *kafkaCredentials) error {
	config, err := c.tls()
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxResponseHeaderBytes = config, bounded.HeaderBytes
	defer transport.CloseIdleConnections()
	options := []sr.ClientOpt{sr.URLs(s.url), sr.UserAgent("millrace"),
		sr.HTTPClient(&http.Client{Transport: bounded.Transport{Base: transport, Bytes: maxRegistryAnswer},
			Timeout: s.timeout})}
	switch {
	case c.RegistryToken != "":
		options = append(options, sr.BearerToken(c.RegistryToken))
	case c.RegistryUser != "":
		options = append(options, sr.BasicAuth(c.RegistryUser, c.RegistryPassword))
	}
	client, err := sr.NewClient(options...)
	if err != nil {
		return fmt.Errorf("schema registry: %w", err)
	}
	s.ids = map[op.Kind]int{}
	for kind := range s.topics {
		k, _ := event.KindNamed(kind)
		subject := s.subject(kind)
		id, err := client.RegisterSchema(ctx, subject,
			sr.Schema{Schema: currents.SchemaOf(k).String(), Type: sr.TypeAvro},
			-1, -1)
		if err == nil {
			err = s.number(k, id)
		}
		if err != nil {
			return fmt.Errorf("schema registry: register subject %q: %w", subject, err)
		}
	}
	return nil
}

// number notes the number of a kind's schema. An answer with one that can't be is not that of a registry: whoever reads
// the records would find no schema, or a wrong one.
func (s *schemas) number(k op.Kind, id int) error {
	if id < 1 || id > math.MaxInt32 {
		return fmt.Errorf("the answer has the number %d for the schema: want 1 to %d", id, math.MaxInt32)
	}
	for other, of := range s.ids {
		if of == id {
			return fmt.Errorf("the answer has the number %d, which the schema of kind %q has, too", id,
				event.KindName(other))
		}
	}
	s.ids[k] = id
	return nil
}

// maxRegistryAnswer bounds a registry's answer: a number, or a schema with everything that it refers to.
const maxRegistryAnswer = 1 << 20

// subject returns the subject of a kind's topic or, if the topic has several kinds, that of the record in it.
func (s *schemas) subject(kind string) string {
	topic, kinds := s.topics[kind], 0
	for _, t := range s.topics {
		if t == topic {
			kinds++
		}
	}
	if kinds == 1 {
		return topic + "-value"
	}
	k, _ := event.KindNamed(kind)
	root := currents.SchemaOf(k).Root()
	return topic + "-" + root.Namespace + "." + root.Name
}

const registryHeader = 5 // bytes before a value

// append appends the value of the event that was last read.
func (s *schemas) append(dst []byte, e *event.Event) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, 0), uint32(s.ids[e.Kind]))
	return s.rows.Append(dst, e)
}

// json returns a value in a form that people can read.
func (s *schemas) json(value []byte) json.RawMessage {
	id := int(binary.BigEndian.Uint32(value[1:registryHeader]))
	for kind, of := range s.ids {
		if of == id {
			return recordJSON(currents.SchemaOf(kind), value[registryHeader:])
		}
	}
	panic("BUG: a value of no schema")
}

func recordJSON(schema *avro.Schema, value []byte) json.RawMessage {
	var row map[string]any
	if _, err := schema.Decode(value, &row); err != nil {
		panic("BUG: a record can't be read: " + err.Error())
	}
	text, err := json.Marshal(row)
	if err != nil {
		panic("BUG: a record is no JSON: " + err.Error())
	}
	return text
}
