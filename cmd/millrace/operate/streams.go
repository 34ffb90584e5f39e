package operate

import (
	"fmt"
	"net/http"

	"github.com/alecthomas/kong"

	"millrace/api/control/document"
)

// Streams is `millrace streams`: the routes of the admin API below streams.
type Streams struct {
	caller

	Create streamsCreate `cmd:"" help:"Create a stream."`
	List   streamsList   `cmd:"" help:"List the streams of a workspace and their progress."`
	Show   streamsShow   `cmd:"" help:"Show a stream and its progress."`
	Pause  streamsPause  `cmd:"" help:"Pause a stream. Events are kept for it no longer than --event-retention."`
	Resume streamsResume `cmd:"" help:"Resume a stream."`
	Rewind streamsRewind `cmd:"" help:"Start a stream again from an earlier point. Events sent again have the same ids."`
	Delete thingRemove   `cmd:"" help:"Remove a stream. Files it has written stay."`
}

type streamsCreate struct {
	inOne
	ID          string   `arg:"" help:"Lower-case letters, digits, - and _; part of the names of files."`
	Kind        []string `env:"-" help:"Kinds of events to send: event, purchase, deletion, email_subscription, subscription_group, merge, identify, attributes; default: the first two."`
	Name        []string `env:"-" help:"Only events and purchases of these names and products."`
	Column      []string `env:"-" help:"parquet: property that gets its own column; TYPE is string, number, boolean or time." placeholder:"NAME:TYPE"`
	Format      string   `env:"-" help:"Format of files: parquet (default), ndjson, avro; of messages: currents (default), json, and for Kafka also avro."`
	Compression string   `env:"-" help:"Compression of files: of ndjson zstd (default), gzip, none; of avro deflate (default), snappy, zstd, none; of parquet zstd. To Kafka: zstd (default), snappy, lz4, gzip, none."`
	From        string   `env:"-" default:"now" help:"Where the stream starts: with events accepted at this time (ISO 8601) or later; beginning: the oldest that are kept; or now."`
	destinationFlags
}

// destinationFlags are the fields of a destination. The server decides which of them belong together.
type destinationFlags struct {
	To          string `env:"-" default:"directory" enum:"directory,s3,http,kafka" help:"Kind of destination: ${enum}."`
	Path        string `env:"-" help:"directory: path of the files, below the workspace's directory in the server's --stream-dir; default: the id." placeholder:"PATH"`
	Layout      string `env:"-" help:"How files are named: hive (default), currents."`
	Credentials string `env:"-" help:"Name of credentials in the server's --stream-credentials or environment."`
	Endpoint    string `env:"-" help:"s3: URL of the service; default: that of AWS." placeholder:"URL"`
	Bucket      string `env:"-" help:"s3: bucket."`
	Prefix      string `env:"-" help:"s3: prefix of object names; default: WORKSPACE/ID; .: none."`
	Region      string `env:"-" help:"s3: region; default: the service is asked."`
	Addressing  string `env:"-" help:"s3: where URLs name the bucket: auto (default), path, host."`
	Encryption  string `env:"-" help:"s3: server-side encryption: AES256, or aws:kms with --kms-key; default: the bucket's setting."`
	KMSKey      string `name:"kms-key" env:"-" help:"s3: key for aws:kms."`
	URL         string `env:"-" help:"http: URL that the events are sent to by POST." placeholder:"URL"`
	Batch       int    `env:"-" bounds:"0..1000" help:"http: most events in a request; default: 100."`
	Brokers     string `env:"-" help:"kafka: brokers to connect to first, separated by commas." placeholder:"HOST:PORT,…"`
	Topic       string `env:"-" help:"kafka: name of the topic, in which {workspace}, {stream} and {kind} are replaced; default: millrace.{workspace}.{kind}."`
	Security    string `env:"-" help:"kafka: security of connections: plaintext (default), tls."`
	SASL        string `name:"sasl" env:"-" help:"kafka: SASL mechanism: plain, scram-sha-256, scram-sha-512, with --credentials; default: none."`
	Registry    string `env:"-" help:"kafka: URL of the schema registry, for the format avro." placeholder:"URL"`
}

func (f *destinationFlags) destination() document.Destination {
	return document.Destination{Type: f.To, Path: f.Path, Layout: f.Layout, Credentials: f.Credentials,
		Endpoint: f.Endpoint, Bucket: f.Bucket, Prefix: f.Prefix,
		Region: f.Region, Addressing: f.Addressing, Encryption: f.Encryption, KMSKey: f.KMSKey,
		URL: f.URL, Batch: f.Batch, Brokers: f.Brokers, Topic: f.Topic, Security: f.Security, SASL: f.SASL,
		Registry: f.Registry}
}

// Run makes a stream.
func (c *streamsCreate) Run(s *session) error {
	return s.show(http.MethodPost, inWorkspace(c.Workspace, "streams"),
		document.Stream{ID: c.ID, Kinds: c.Kind, Names: c.Name, Columns: c.Column, Format: c.Format,
			Compression: c.Compression, Destination: c.destination(), From: c.From})
}

type streamsList struct{ inOne }

// Run lists streams, each with its status.
func (c *streamsList) Run(s *session) error {
	rows, err := s.rows(inWorkspace(c.Workspace, "streams"), "streams")
	if err != nil {
		return err
	}
	there := rows[:0]
	for _, row := range rows {
		status, err := s.do(http.MethodGet, inWorkspace(c.Workspace, "streams", row.text("id"), "status"), nil)
		if isNotFound(err) {
			continue // it was removed meanwhile
		} else if err != nil {
			return err
		}
		there = append(there, append(row, status...))
	}
	return s.printRows("streams", there, column{"ID", "id"}, column{"STATE", "state"},
		column{"LAG EVENTS", "lag_events"}, column{"LAG SECONDS", "lag_seconds"}, column{"FORMAT", "format"},
		column{"DESTINATION", "destination"}, column{"KINDS", "kinds"}, column{"FROM", "from"})
}

type streamsShow struct{ oneThing }

// Run shows a stream and its status as one object, and how far it is in each event log as a table.
func (c *streamsShow) Run(s *session, k *kong.Context) error {
	all, err := s.do(http.MethodGet, c.path(k), nil)
	if err != nil {
		return err
	}
	status, err := s.do(http.MethodGet, c.path(k, "status"), nil)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.printJSON(append(all, status...))
	}
	parts, err := status.rows("parts")
	if err != nil {
		return err
	}
	status.remove("parts")
	if err := s.printObject(append(all, status...)); err != nil || len(parts) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	return s.printRows("parts", parts, column{"GROUP", "group"}, column{"HERE", "here"},
		column{"POSITION", "position"}, column{"PENDING", "pending"}, column{"EVENTS", "events"},
		column{"FILES", "files"}, column{"BYTES", "bytes"}, column{"REFUSED", "refused"},
		column{"LAG EVENTS", "lag_events"}, column{"LAG SECONDS", "lag_seconds"},
		column{"ATTEMPT SECONDS", "attempt_seconds"}, column{"LAST EVENT AT", "last_event_at"},
		column{"MOVED AT", "moved_at"}, column{"EXPIRED AT", "expired_at"}, column{"ERROR AT", "error_at"},
		column{"ERROR", "error"})
}

type streamsPause struct{ oneThing }

// Run pauses a stream.
func (c *streamsPause) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodPatch, c.path(k), map[string]any{"paused": true}, "%s is paused", c.ID)
}

type streamsResume struct{ oneThing }

// Run resumes a stream.
func (c *streamsResume) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodPatch, c.path(k), map[string]any{"paused": false}, "%s is resumed", c.ID)
}

type streamsRewind struct {
	oneThing
	From string `env:"-" help:"Where the stream starts again: with events accepted at this time (ISO 8601) or later; beginning: the oldest that are kept; default: where it last started."`
}

// Run rewinds a stream.
func (c *streamsRewind) Run(s *session, k *kong.Context) error {
	return s.show(http.MethodPost, c.path(k, "rewind"), map[string]any{"from": c.From})
}
