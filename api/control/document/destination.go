package document

import (
	"maps"
	"net"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Destination is where a stream goes. It can't be changed. Which fields it has depends on its type.
type Destination struct {
	Type string `json:"type" yaml:"type"` // directory (default) | s3 | http | kafka
	// Path of a directory is relative to the workspace's directory, below the one that the server permits; default: the
	// stream's id.
	Path string `json:"path,omitempty" yaml:"path"`
	// Layout is how files are named: hive (default), or currents for the paths of Braze's Currents.
	Layout string `json:"layout,omitempty" yaml:"layout"`
	// Credentials is the name of credentials that the operator has given the server; they themselves are never stored
	// here.
	Credentials string `json:"credentials,omitempty" yaml:"credentials"`

	// For s3. Endpoint is the URL of a service that speaks S3; default: that of AWS. Names of objects begin with
	// Prefix; default: the workspace, / and the stream; ".": no prefix.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint"`
	Bucket   string `json:"bucket,omitempty" yaml:"bucket"`
	Prefix   string `json:"prefix,omitempty" yaml:"prefix"`
	Region   string `json:"region,omitempty" yaml:"region"`
	// Addressing is where URLs have the bucket: in the path, in the host, or auto (default): whichever the endpoint is
	// known to use.
	Addressing string `json:"addressing,omitempty" yaml:"addressing"`
	// Encryption at the server: none (default: as configured for the bucket), AES256, or aws:kms with KMSKey.
	Encryption string `json:"encryption,omitempty" yaml:"encryption"`
	KMSKey     string `json:"kms_key,omitempty" yaml:"kms_key"`

	// For http. URL gets POST requests of up to Batch events, default 100.
	URL   string `json:"url,omitempty" yaml:"url"`
	Batch int    `json:"batch,omitempty" yaml:"batch"`

	// For kafka. Brokers are host:port, separated by commas. In Topic {workspace}, {stream} and {kind} are replaced;
	// default: millrace.{workspace}.{kind}. Security is plaintext (default) or tls; SASL is none (default), plain,
	// scram-sha-256 or scram-sha-512.
	Brokers  string `json:"brokers,omitempty" yaml:"brokers"`
	Topic    string `json:"topic,omitempty" yaml:"topic"`
	Security string `json:"security,omitempty" yaml:"security"`
	SASL     string `json:"sasl,omitempty" yaml:"sasl"`
	// Registry is the URL of the schema registry, which the format avro needs.
	Registry string `json:"registry,omitempty" yaml:"registry"`
}

// Types of a Destination, and values of its fields.
const (
	DestinationDirectory = "directory"
	DestinationS3        = "s3"
	DestinationHTTP      = "http"
	DestinationKafka     = "kafka"

	LayoutHive     = "hive"
	LayoutCurrents = "currents"

	AddressingAuto = "auto"
	AddressingPath = "path"
	AddressingHost = "host"

	// Formats of files; Parquet is the one that has columns.
	FormatParquet = "parquet"
	FormatNDJSON  = "ndjson"

	// Formats of messages: the bodies of Currents, or the rows of files; for Kafka also records of Avro, which is a
	// format of files, too.
	FormatCurrents = "currents"
	FormatJSON     = "json"
	FormatAvro     = "avro"

	CompressionDeflate = "deflate"
	CompressionGzip    = "gzip"
	CompressionLZ4     = "lz4"
	CompressionNone    = "none"
	CompressionSnappy  = "snappy"
	CompressionZstd    = "zstd"

	EncryptionS3  = "AES256"
	EncryptionKMS = "aws:kms"

	SecurityPlaintext = "plaintext"
	SecurityTLS       = "tls"

	SASLPlain    = "plain"
	SASLScram256 = "scram-sha-256"
	SASLScram512 = "scram-sha-512"
)

const (
	maxDestinationBytes = 1024 // of a field
	maxBatch            = 1000
)

func (d *Destination) ensureDefaults(stream string) {
	setDefault(&d.Type, DestinationDirectory)
	if d.Type == DestinationDirectory {
		setDefault(&d.Path, stream)
	}
	if d.Type == DestinationDirectory || d.Type == DestinationS3 {
		setDefault(&d.Layout, LayoutHive)
	}
	if d.Type == DestinationS3 {
		setDefault(&d.Endpoint, "https://s3.amazonaws.com")
		setDefault(&d.Addressing, AddressingAuto)
	}
	if d.Type == DestinationKafka {
		setDefault(&d.Topic, "millrace.{workspace}.{kind}")
		setDefault(&d.Security, SecurityPlaintext)
	}
	if d.Type == DestinationHTTP && d.Batch == 0 {
		d.Batch = 100
	}
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// destinationField says which types have a field, and which values it may have.
type destinationField struct {
	name  string
	value func(*Destination) string
	of    []string
	check func(field, value string) error // of a value that isn't empty
}

var destinationFields = []destinationField{
	{"path", func(d *Destination) string { return d.Path }, []string{DestinationDirectory}, checkDirectory},
	{"layout", func(d *Destination) string { return d.Layout }, []string{DestinationDirectory, DestinationS3},
		oneOf(LayoutHive, LayoutCurrents)},
	{"credentials", func(d *Destination) string { return d.Credentials },
		[]string{DestinationS3, DestinationHTTP, DestinationKafka}, checkSlug},
	{"endpoint", func(d *Destination) string { return d.Endpoint }, []string{DestinationS3}, checkHost},
	{"bucket", func(d *Destination) string { return d.Bucket }, []string{DestinationS3}, checkBucket},
	{"prefix", func(d *Destination) string { return d.Prefix }, []string{DestinationS3}, checkPrefix},
	{"region", func(d *Destination) string { return d.Region }, []string{DestinationS3}, checkRegion},
	{"addressing", func(d *Destination) string { return d.Addressing }, []string{DestinationS3},
		oneOf(AddressingAuto, AddressingPath, AddressingHost)},
	{"encryption", func(d *Destination) string { return d.Encryption }, []string{DestinationS3},
		oneOf(EncryptionS3, EncryptionKMS)},
	{"kms_key", func(d *Destination) string { return d.KMSKey }, []string{DestinationS3}, checkKMSKey},
	{"url", func(d *Destination) string { return d.URL }, []string{DestinationHTTP}, checkURL},
	{"batch", func(d *Destination) string { return number(d.Batch) }, []string{DestinationHTTP}, checkBatch},
	{"brokers", func(d *Destination) string { return d.Brokers }, []string{DestinationKafka}, checkBrokers},
	{"topic", func(d *Destination) string { return d.Topic }, []string{DestinationKafka}, checkTopic},
	{"security", func(d *Destination) string { return d.Security }, []string{DestinationKafka},
		oneOf(SecurityPlaintext, SecurityTLS)},
	{"sasl", func(d *Destination) string { return d.SASL }, []string{DestinationKafka},
		oneOf(SASLPlain, SASLScram256, SASLScram512)},
	{"registry", func(d *Destination) string { return d.Registry }, []string{DestinationKafka}, checkRegistry},
}

// destinationNeeds are the fields that a type must have.
var destinationNeeds = map[string][]string{
	DestinationDirectory: {"path"},
	DestinationS3:        {"endpoint", "bucket"},
	DestinationHTTP:      {"url"},
	DestinationKafka:     {"brokers", "topic"},
}

// destinationFormats are the formats in which a type's events can be written; the first is the default.
var destinationFormats = map[string][]string{
	DestinationDirectory: {FormatParquet, FormatNDJSON, FormatAvro},
	DestinationS3:        {FormatParquet, FormatNDJSON, FormatAvro},
	DestinationHTTP:      {FormatCurrents, FormatJSON},
	DestinationKafka:     {FormatCurrents, FormatJSON, FormatAvro},
}

// formatCompressions are how files of a format can be compressed; the first is the default. Every reader of Parquet
// knows zstd; some that take NDJSON know only gzip, and some that take Avro only deflate.
var formatCompressions = map[string][]string{
	FormatParquet: {CompressionZstd},
	FormatNDJSON:  {CompressionZstd, CompressionGzip, CompressionNone},
	FormatAvro:    {CompressionDeflate, CompressionSnappy, CompressionZstd, CompressionNone},
}

// kafkaCompressions are how batches for Kafka can be compressed; the first is the default.
var kafkaCompressions = []string{CompressionZstd, CompressionSnappy, CompressionLZ4, CompressionGzip, CompressionNone}

func (d *Destination) validate() error {
	needs, known := destinationNeeds[d.Type]
	if !known {
		return Invalid("destination.type %q: want %s", d.Type,
			strings.Join(slices.Sorted(maps.Keys(destinationNeeds)), " or "))
	}
	for _, f := range destinationFields {
		field, value := "destination."+f.name, f.value(d)
		switch {
		case value == "" && slices.Contains(needs, f.name):
			return Invalid("%s is required", field)
		case value == "":
			continue
		case !slices.Contains(f.of, d.Type):
			return Invalid("%s: a destination of type %s can't have it", field, d.Type)
		case len(value) > maxDestinationBytes || !Printable(value):
			return Invalid("%s: want printable text of at most %d bytes", field, maxDestinationBytes)
		}
		if err := f.check(field, value); err != nil {
			return err
		}
	}
	if d.SASL != "" && d.Credentials == "" {
		return Invalid("destination.credentials is required with sasl")
	}
	if (d.Encryption == EncryptionKMS) != (d.KMSKey != "") {
		return Invalid("destination.kms_key goes with encryption %s: give both or neither", EncryptionKMS)
	}
	if d.Type == DestinationS3 {
		return d.checkAddressing()
	}
	return nil
}

// checkAddressing refuses a bucket in the host of URLs where no such host can exist.
func (d *Destination) checkAddressing() error {
	host := webURL(d.Endpoint).Hostname()
	isAWS := strings.HasSuffix(host, ".amazonaws.com")
	if d.Addressing != AddressingHost && (d.Addressing != AddressingAuto || !isAWS) {
		return nil
	}
	if net.ParseIP(host) != nil {
		return Invalid("destination.addressing %s: %s has no hosts below it; want %s", AddressingHost, d.Endpoint,
			AddressingPath)
	}
	if !bucketOfHostForm.MatchString(d.Bucket) {
		return Invalid("destination.bucket %q: want lower-case letters, digits, . and -, since the bucket is part of "+
			"the host; or addressing %s", d.Bucket, AddressingPath)
	}
	return nil
}

func checkDirectory(field, value string) error {
	if !isBelow(value) || len(value) > maxIDBytes {
		return Invalid("%s %q: want a relative path without .., such as lake/events, within the workspace's "+
			"directory below --stream-dir", field, value)
	}
	if slices.Contains(strings.Split(value, "/"), UnfinishedDir) {
		return Invalid("%s %q: in %s a stream has its unfinished files", field, value, UnfinishedDir)
	}
	return nil
}

// UnfinishedDir is the directory in which a stream has files until they are shown. What a crash has left there is
// removed.
const UnfinishedDir = ".millrace"

// maxPrefixBytes leaves room for the names of files: an object's key has at most 1024 bytes, and the longest name, that
// of the layout currents, has less than 500.
const maxPrefixBytes = 512

func checkPrefix(field, value string) error {
	if !isBelow(value) || len(value) > maxPrefixBytes {
		return Invalid("%s %q: want a prefix such as lake/events, without / at either end and without .., of at most "+
			"%d bytes", field, value, maxPrefixBytes)
	}
	return nil
}

var (
	// bucketForm is that of S3, and what some other services permit in paths.
	bucketForm       = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._:-]{1,61}[a-zA-Z0-9]$`)
	bucketOfHostForm = regexp.MustCompile(`^[a-z0-9.-]+$`)
	badInBucket      = regexp.MustCompile(`\.\.|\.-|-\.`)
)

func checkBucket(field, value string) error {
	if !bucketForm.MatchString(value) || badInBucket.MatchString(value) || net.ParseIP(value) != nil {
		return Invalid("%s %q: want the name of a bucket: 3 to 63 lower-case letters, digits, . and -, not an address",
			field, value)
	}
	return nil
}

var regionForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,63}$`)

func checkRegion(field, value string) error {
	if !regionForm.MatchString(value) {
		return Invalid("%s %q: want a region such as eu-central-1", field, value)
	}
	return nil
}

// isBelow reports whether a path leads nowhere but below.
func isBelow(p string) bool {
	return p == path.Clean(p) && !path.IsAbs(p) && p != ".." && !strings.HasPrefix(p, "../")
}

func checkSlug(field, value string) error {
	if !slugForm.MatchString(value) {
		return Invalid("%s %q: want a name in lower-case letters, digits, - and _, at most 63", field, value)
	}
	return nil
}

// checkKMSKey permits slashes, which ARNs and aliases of keys have.
func checkKMSKey(field, value string) error {
	if strings.Contains(value, " ") {
		return Invalid("%s %q: want the id, alias or ARN of a key", field, value)
	}
	return nil
}

func checkURL(field, value string) error {
	if webURL(value) == nil {
		return Invalid("%s %q: want a URL such as https://example.com/events", field, value)
	}
	return nil
}

// webURL returns nil for what no request may be sent to. A URL with a password would show it to whoever reads the
// stream.
func webURL(value string) *url.URL {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.Fragment != "" || strings.HasSuffix(u.Host, ":") || u.Port() != "" && !isPort(u.Port()) {
		return nil
	}
	return u
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func checkBrokers(field, value string) error {
	for broker := range strings.SplitSeq(value, ",") {
		host, port, err := net.SplitHostPort(broker)
		if err != nil || host == "" || strings.ContainsAny(host, " /@") || !isPort(port) {
			return Invalid("%s %q: want host:port, or several of them separated by commas", field, value)
		}
	}
	return nil
}

var topicForm = regexp.MustCompile(`^([a-zA-Z0-9._-]|\{workspace\}|\{stream\}|\{kind\})+$`)

// maxTopicBytes is Kafka's. What replaces {workspace} and the like is counted at its longest.
const maxTopicBytes = 249

var longestInTopic = strings.NewReplacer("{workspace}", strings.Repeat("w", maxSlugBytes),
	"{stream}", strings.Repeat("s", maxSlugBytes), "{kind}", strings.Repeat("k", len("email_subscription")))

func checkTopic(field, value string) error {
	if !topicForm.MatchString(value) || value == "." || value == ".." {
		return Invalid("%s %q: want letters, digits, ., _, - and {workspace}, {stream}, {kind}", field, value)
	}
	if n := len(longestInTopic.Replace(value)); n > maxTopicBytes {
		return Invalid("%s %q: names of topics would have up to %d bytes, at most %d are allowed", field, value, n,
			maxTopicBytes)
	}
	return nil
}

// number returns a number in the form of the table; it is empty for 0, which stands for the default.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func checkBatch(field, value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 1 || n > maxBatch {
		return Invalid("%s %s: want 1 to %d", field, value, maxBatch)
	}
	return nil
}

// checkRegistry permits a path, below which some services have theirs.
func checkRegistry(field, value string) error {
	if u := webURL(value); u == nil || u.RawQuery != "" {
		return Invalid("%s %q: want a URL such as https://registry.example.com", field, value)
	}
	return nil
}

// checkHost wants a URL that is no more than a scheme and a host.
func checkHost(field, value string) error {
	if u := webURL(value); u == nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return Invalid("%s %q: want a URL such as https://s3.example.com", field, value)
	}
	return nil
}
