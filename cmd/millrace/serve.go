package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/alecthomas/kong"

	"millrace/wal/durable"
)

// gcPercent: profiles are outside the Go heap, so the heap is small and may grow fivefold between two collections. GOGC
// overrides it.
const gcPercent = 400

// serveCommand is `millrace serve`. Every bound of the server is a flag here, with its default.
type serveCommand struct {
	Data      string `required:"" help:"Directory of the log and the state." placeholder:"DIR"`
	Listen    string `default:"127.0.0.1:8080" help:"Address of the API."`
	Admin     string `default:"127.0.0.1:8081" help:"Address of metrics, pprof and the admin API; off closes it."`
	Bootstrap string `help:"Bootstrap file: workspaces, keys and groups to create at start, and again on SIGHUP." placeholder:"FILE" type:"path"`
	Demo      bool   `help:"Create a workspace for trying things out, with a publicly known key. Loopback only."`

	TLSCert        string   `help:"Certificate chain, PEM; read again on SIGHUP." placeholder:"FILE" type:"path"`
	TLSKey         string   `help:"Private key of --tls-cert, PEM." placeholder:"FILE" type:"path"`
	InsecureHTTP   bool     `name:"insecure-http" help:"Allow an address other than loopback without TLS."`
	TrustedProxies []string `help:"Addresses or networks of proxies whose X-Forwarded-For header is trusted." placeholder:"CIDR"`

	Node          uint32        `default:"0" bounds:"0..16777215" help:"Number of this node in its cluster, from 1 on; 0: it runs alone, without a cluster."`
	Raft          string        `help:"Address at which the other nodes of the cluster reach this one." placeholder:"HOST:PORT"`
	Members       nodeAddresses `help:"The nodes that form the cluster, including this one, with their addresses; for a node that joins, some of the existing nodes." placeholder:"1=HOST:PORT,…"`
	Groups        int           `default:"0" bounds:"0..256" help:"Groups that the users are divided into, 1 to 256. Fixed when the cluster is made. 0: two for each of --members, but at least six."`
	Replicas      int           `default:"0" bounds:"0..7" help:"Number of nodes that hold the data of each group, 1 to 7. Fixed when the cluster is made. 0: 3."`
	RaftInsecure  bool          `help:"Use no TLS between nodes. Loopback only."`
	RaftCert      string        `help:"This node's certificate chain for other nodes, PEM; read again on SIGHUP." placeholder:"FILE" type:"path"`
	RaftKey       string        `help:"Private key of --raft-cert, PEM." placeholder:"FILE" type:"path"`
	RaftCA        string        `name:"raft-ca" help:"Certificate of the authority that signs the certificates of all nodes, PEM." placeholder:"FILE" type:"path"`
	MaxMoves      int           `default:"2" bounds:"1..256" help:"How many groups are moved to other nodes at the same time. The setting of the control group's leader applies."`
	RaftTimeout   time.Duration `default:"800ms" bounds:"100ms..1m" help:"After this long without a sign of life, a group's leader is replaced, and nobody waits for a silent node."`
	DiskTimeout   time.Duration `default:"1500ms" bounds:"0s|10ms..10m" help:"When a write to a group's log takes longer than this, the node gives up its leaderships; 0: never, so what it leads waits as long as the disk."`
	CommitTimeout time.Duration `default:"2500ms" bounds:"100ms..10m" help:"How long requests wait for other nodes or for a new leader before they are answered 503."`

	PublicURL          string        `help:"Base URL of links to hosted pages; default: the address that the request for the link was sent to." placeholder:"URL"`
	PublicHosts        []string      `help:"Without --public-url: further hosts that a link may begin with, if the request for it names one of them." placeholder:"HOST[:PORT]"`
	PreferenceLinkLife time.Duration `default:"2160h" bounds:"1m..87600h" help:"How long a link to a hosted page is valid."`

	Workers            int           `default:"0" bounds:"0..64" help:"Number of goroutines that apply changes; 0: one per core."`
	Memory             byteSize      `default:"4GiB" bounds:"64KiB..6TiB" help:"Memory that the process may use, on top of --store-cache and 144 MiB. Most of it holds profiles; those that don't fit are read from disk when needed."`
	StoreCache         byteSize      `default:"128MiB" bounds:"64KiB..1TiB" help:"Memory of the state store's block cache; an eighth of it covers allocation overhead."`
	MaxDeltaChanges    int           `default:"8" bounds:"0..1000" help:"How many changes of a user who is not in memory are kept between two checkpoints without reading the profile; one more, and the profile is read. 0: it is always read."`
	ReadProcs          int           `default:"16" bounds:"0..1024" help:"GOMAXPROCS while profiles are read from disk, unless it is higher already, so that more reads reach the disk at once. 0: leave it unchanged."`
	MaxInflight        byteSize      `default:"0" bounds:"0|64KiB..64GiB" help:"Bytes of records that may be accepted but not yet applied; beyond that, requests are answered 503. 0: a sixteenth of --memory, from 32 to 256 MiB."`
	MaxMergesWaiting   int64         `default:"100000" bounds:"1..1000000000" help:"Merges of users that may be accepted but not yet done; beyond that, requests are answered 503."`
	CheckpointBytes    byteSize      `default:"1GiB" bounds:"1KiB..1000TB" help:"Changed profiles are written to the store after this much log; this bounds the replay after a crash."`
	CheckpointInterval time.Duration `default:"5m" bounds:"10ms..8760h" help:"Changed profiles are written to the store at least this often."`
	SegmentBytes       byteSize      `default:"128MiB" bounds:"64KiB..16GiB" help:"Size of a log segment."`
	BufferedLog        bool          `help:"Write and read the log through the page cache, even where the file system supports direct I/O."`
	MinFreeBytes       byteSize      `default:"2GB" bounds:"0..1000TB" help:"Writes are refused when less disk space than this is free."`
	MinFreePercent     float64       `default:"5" bounds:"0..100" help:"Writes are refused when less than this percentage of the disk is free."`
	StallAfter         time.Duration `default:"5s" bounds:"10ms..1h" help:"/readyz fails when an fsync takes longer than this."`
	MaxClockOffset     time.Duration `default:"10m" bounds:"1ms..876000h" help:"How far stamps may be ahead of the clock, and how far apart the clocks of nodes may be; anything beyond is refused."`

	EventRetention  time.Duration `default:"720h" bounds:"1s..876000h" help:"How long events and purchases are kept."`
	EventBacklog    byteSize      `default:"8GiB" bounds:"1KiB..1000TB" help:"How much log may wait to be packed into the event log before packing runs at full speed."`
	EventPackAfter  time.Duration `default:"10m" bounds:"1ms..8760h" help:"Events older than this are packed, however few there are."`
	EventDuty       float64       `default:"0.2" bounds:"0.001..1" help:"Share of one core that packing may use."`
	EventDeleteTime time.Duration `default:"24h" bounds:"10ms..8760h" help:"The events of a deleted user are gone from disk within this time."`

	StreamDir            string        `help:"Directory that streams may write below; default: streams in --data." placeholder:"DIR" type:"path"`
	StreamCredentials    string        `help:"Directory of the credentials that streams use at their destinations, as WORKSPACE/NAME.json; default: stream-credentials in --data." placeholder:"DIR" type:"path"`
	StreamMessageBytes   byteSize      `default:"1MiB" bounds:"1KiB..1GiB" help:"Size of the events in one delivery of messages; an interrupted stream repeats no more than that (to Kafka four times as much while it catches up)."`
	StreamMessageEvery   time.Duration `default:"100ms" bounds:"1ms..1h" help:"How often new events are sent out as messages."`
	StreamRequestTimeout time.Duration `default:"30s" bounds:"1s..1h" help:"How long a stream waits for an HTTP endpoint to answer a request."`
	StreamRefusedBytes   byteSize      `default:"64MiB" bounds:"1KiB..1TiB" help:"How much of what its destination refuses for good a stream keeps; beyond that, the stream waits."`
	StreamFileBytes      byteSize      `default:"256MiB" bounds:"1KiB..16GiB" help:"Size of the events in one file of a stream, before they are encoded."`
	StreamFileAfter      time.Duration `default:"1m" bounds:"1ms..24h" help:"Events of a stream are written to a file after this time, however few there are."`
	StreamRetryMax       time.Duration `default:"1m" bounds:"1s..24h" help:"Longest pause between attempts of a stream whose destination fails."`

	Refused          string        `default:"objects" enum:"objects,reasons,off" help:"What is kept of refused objects: the objects with the reasons, only the reasons, or nothing (${enum})."`
	RefusedRetention time.Duration `default:"168h" bounds:"1h..876000h" help:"How long refused objects are kept."`
	RefusedBytes     byteSize      `default:"256MiB" bounds:"1MiB..1000TB" help:"How many bytes of refused objects are kept; the oldest are dropped first."`
	RefusedObject    byteSize      `default:"64KiB" bounds:"1..256MiB" help:"For an object larger than this, only the reasons are kept."`
	RefusedQueue     byteSize      `default:"4MiB" bounds:"1KiB..16GiB" help:"How many bytes of refused objects may wait to be written; beyond that, they are counted but not kept."`

	LiveViewers     int `default:"32" bounds:"0..1000" help:"How many viewers may watch live changes at the same time; 0: none."`
	LiveViewersEach int `default:"8" bounds:"1..1000" help:"How many of these viewers one person signed in to the console may have."`
	LivePerSecond   int `default:"50" bounds:"10..10000" help:"How many changes a second each viewer is shown; the rest are counted but not shown."`

	CountShare float64 `default:"0.25" bounds:"0|0.01..1" help:"Share of one core that a count of consent may use; 0: counting is off."`

	MaxBody             byteSize      `default:"4MiB" bounds:"1KiB..256MiB" help:"Largest body of a request, after it is decompressed."`
	MaxBulkBody         byteSize      `default:"2MiB" bounds:"1KiB..256MiB" help:"The same for /users/track/bulk, which never takes more than --max-body."`
	MaxBodies           byteSize      `default:"0" bounds:"0|1KiB..6TiB" help:"Memory for the bodies of all requests in flight together; beyond that, requests are answered 503. 0: an eighth of --memory, but at least 128 MiB."`
	MaxAnswers          byteSize      `default:"0" bounds:"0|1KiB..6TiB" help:"Memory for the answers to all requests in flight together; beyond that, reads are answered 503. 0: an eighth of --memory, but at least 128 MiB."`
	MaxDocuments        byteSize      `default:"0" bounds:"0|1KiB..6TiB" help:"Size of all control documents together (workspaces, preference centers, translations, dashboard users, …); beyond that, new ones are refused. 0: an eighth of --memory, but at least 64 MiB."`
	ReadTimeout         time.Duration `default:"10s" bounds:"10ms..24h" help:"How long a request may take to arrive."`
	WriteTimeout        time.Duration `default:"10s" bounds:"10ms..24h" help:"How long an answer may take to be sent."`
	IdleTimeout         time.Duration `default:"60s" bounds:"10ms..24h" help:"How long a connection may be idle between two requests."`
	DrainTimeout        time.Duration `default:"10s" bounds:"10ms..24h" help:"How long requests in flight may take to finish when the server stops."`
	MaxHeaderBytes      int           `default:"8192" bounds:"1024..1048576" help:"Largest request line and headers together, in bytes."`
	MaxHeaders          int           `default:"64" bounds:"1..10000" help:"Largest number of headers of a request."`
	MaxConns            int           `default:"16384" bounds:"1..10000000" help:"Largest number of connections."`
	MaxConnsPerIP       int           `default:"4096" bounds:"-1|1..10000000" help:"Largest number of connections from one address; -1: no limit."`
	MaxRequestsPerConn  int           `default:"0" bounds:"0..1000000000" help:"Requests after which a connection is closed; 0: no limit."`
	MaxBadKeysPerMinute int           `default:"300" bounds:"1..1000000000" help:"How many wrong keys a minute one address may send before it is answered 429."`
	MaxPagesPerMinute   int           `default:"600" bounds:"1..1000000000" help:"How many hosted pages and forms a minute one address may ask for before it is answered 429."`
	AccessLog           bool          `help:"Log a line for each request, without personal data."`

	Console     string        `help:"Address of a separate listener for the console, with the certificate of --tls-cert. The admin listener serves the console, too." placeholder:"HOST:PORT"`
	ConsoleURL  string        `name:"console-url" help:"URL at which browsers find the console; the identity provider sends people back there." placeholder:"URL"`
	ConsoleIdle time.Duration `default:"30m" bounds:"1m..720h" help:"A console session ends when it hasn't been used for this long."`
	ConsoleLife time.Duration `default:"12h" bounds:"1m..720h" help:"A console session ends when it is this old."`
	MaxSessions int           `default:"1000" bounds:"1..10000" help:"How many console sessions there may be at the same time."`

	OIDCIssuer           string `name:"oidc-issuer" help:"Identity provider through which dashboard users sign in to the console (OpenID Connect)." placeholder:"URL"`
	OIDCClientID         string `name:"oidc-client-id" help:"Client ID that the identity provider assigned to this console." placeholder:"ID"`
	OIDCClientSecret     string `name:"oidc-client-secret" help:"Secret of --oidc-client-id; prefer the environment or a file." placeholder:"SECRET"`
	OIDCClientSecretFile string `name:"oidc-client-secret-file" help:"File with the secret of --oidc-client-id." placeholder:"FILE" type:"path"`
	OIDCClaim            string `name:"oidc-claim" default:"email" help:"Claim of the ID token that holds the dashboard user's userName; an email must be verified."`

	MaxProperties      int `default:"256" bounds:"1..100000" help:"How many properties of an event are kept."`
	MaxPropertiesBytes int `default:"51200" bounds:"1..268435456" help:"Largest size in bytes, as JSON, of properties that contain arrays or objects."`
	MaxDepth           int `default:"32" bounds:"2..38" help:"How deep the values of an object may be nested."`

	MemoryLimit byteSize `default:"0" bounds:"0|16MiB..6TiB" help:"Soft limit of the Go heap; 0: GOMEMLIMIT from the environment, or else what --memory leaves."`
	LogLevel    string   `default:"info" enum:"debug,info,warn,error" help:"Lowest level of messages that are logged: ${enum}."`
}

// Run serves until ctx ends (SIGINT, SIGTERM), then drains. It returns an exitError with exitDiskFailed when the disk
// has failed.
func (c *serveCommand) Run(ctx context.Context, stdout io.Writer, command *kong.Context) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	slog.SetDefault(logger) // takes what libraries write to the standard logger
	for _, name := range strangeVariables(os.Environ(), command.Model.Node) {
		logger.Warn("unknown environment variable ignored: no flag has this name", "name", name)
	}
	if err := c.check(); err != nil {
		return err
	}
	c.warnOfMemory(os.DirFS("/"), logger)
	c.boundHeap(ctx)
	if err := makeData(c.Data, logger); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	unlock, err := lockDir(c.Data)
	if err != nil {
		return err
	}
	defer unlock()
	s := &serving{serveCommand: c, logger: logger, stdout: stdout, failed: make(chan error, 1)}
	return s.run(ctx)
}

// boundHeap sets when the Go heap is collected, as far as the environment doesn't.
func (c *serveCommand) boundHeap(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	switch {
	case c.MemoryLimit > 0:
		debug.SetMemoryLimit(int64(c.MemoryLimit))
	case os.Getenv("GOMEMLIMIT") == "":
		go steerHeap(ctx, int64(c.Memory)+int64(c.StoreCache)+overhead*2/3)
	}
}

// makeData makes the data directory, for its owner alone, since its files are personal data and contain secrets. An
// existing directory that is open to others may be meant to be.
func makeData(dir string, logger *slog.Logger) error {
	dir = filepath.Clean(dir) // the parent of "data/" would be data
	err := durable.MakeDir(nil, filepath.Dir(dir), 0o755)
	if err == nil {
		err = durable.MakeDir(nil, dir, 0o700)
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		logger.Warn("the data directory is accessible to other users than its owner; close it with chmod 700",
			"data", dir, "mode", fmt.Sprintf("%#o", info.Mode().Perm()))
	}
	return nil
}

// lockDir keeps a second server off the directory.
func lockDir(dir string) (unlock func(), err error) {
	f, err := durable.Lock(filepath.Join(dir, "LOCK"))
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("the data directory %q is in use by another server", dir)
	} else if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	return func() { f.Close() }, nil
}
