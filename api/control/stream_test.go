package control

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

const streamsFile = `
workspaces:
  - id: shop
    streams:
      - {id: lake}
      - {id: orders, kinds: [purchase], names: [sku-1], format: ndjson, compression: gzip, from: beginning, destination: {type: directory, path: lake/orders}}
`

// The bootstrap file makes streams, with defaults for what it doesn't say, and leaves alone what was done to them
// since.
func TestBootstrapStreams(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	bootstrap(t, c, streamsFile)
	lake, orders := c.Streams.Get("shop", "lake"), c.Streams.Get("shop", "orders")
	require.Equal(t, []string{"event", "purchase"}, lake.Kinds)
	require.Equal(t, []string{"parquet", "zstd"}, []string{lake.Format, lake.Compression})
	require.Equal(t, "gzip", orders.Compression)
	require.Equal(t, document.Destination{Type: document.DestinationDirectory, Path: "lake", Layout: document.LayoutHive}, lake.Destination)
	since, err := lake.Since()
	require.NoError(t, err)
	require.EqualValues(t, lake.StartedAt, since.UnixMilli(), "now is when it was made")
	since, err = orders.Since()
	require.NoError(t, err)
	require.True(t, since.IsZero())
	require.Equal(t, "lake/orders", orders.Destination.Path)

	_, err = c.Streams.Change(Actor{Name: "test"}, "shop", "lake", func(s *document.Stream) (*document.Stream, error) { s.Paused = true; return s, nil })
	require.NoError(t, err)
	puts := m.puts
	bootstrap(t, c, streamsFile)
	require.Equal(t, puts, m.puts, "it says what it said before")
	bootstrap(t, c, strings.Replace(streamsFile, "{id: lake}", "{id: lake, names: [e], columns: ['a:b:time', n:number]}", 1))
	now := c.Streams.Get("shop", "lake")
	require.Equal(t, []string{"e"}, now.Names)
	require.Equal(t, []string{"a:b:time", "n:number"}, now.Columns)
	require.True(t, now.Paused, "the file can't say it")
	require.Equal(t, []any{lake.From, lake.StartedAt}, []any{now.From, now.StartedAt}, "what the file doesn't say begins nothing anew")
	c.options.Now = func() int64 { return int64(lake.StartedAt) + 1000 }
	bootstrap(t, c, strings.Replace(streamsFile, "{id: lake}", "{id: lake, from: now, names: [f]}", 1))
	now = c.Streams.Get("shop", "lake")
	require.Equal(t, []string{"f"}, now.Names)
	require.Equal(t, []any{lake.From, lake.StartedAt}, []any{now.From, now.StartedAt}, "now was when it was made")
}

func TestStreamErrors(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	bootstrap(t, c, streamsFile)
	for field, s := range map[string]document.Stream{
		"id": {ID: "a.b"},
		"kinds[1] \"click\": want event, purchase, deletion, email_": {ID: "a", Kinds: []string{"event", "click"}},
		"kinds: identify is not possible":                            {ID: "a", Kinds: []string{"identify"}, Format: document.FormatAvro},
		"kinds[1] \"event\" appears":                                 {ID: "a", Kinds: []string{"event", "event"}},
		"names[0]":                                                   {ID: "a", Names: []string{""}},
		"names: 1001":                                                {ID: "a", Names: make([]string, 1001)},
		"format":                                                     {ID: "a", Format: "csv"},
		"compression \"snappy\": want zstd, which the format parquet":                {ID: "a", Compression: "snappy"},
		"compression \"deflate\": want zstd or gzip or none, which":                  {ID: "a", Format: "ndjson", Compression: "deflate"},
		"compression \"gzip\": want deflate or snappy or zstd or none, which":        {ID: "a", Format: "avro", Compression: "gzip"},
		"compression: a destination of type http can't have it":                      {ID: "a", Compression: "none", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h"}},
		"compression \"deflate\": want zstd or snappy or lz4 or gzip or none, which": {ID: "a", Format: "avro", Compression: "deflate", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Registry: "http://h"}},
		"columns: the format ndjson can't have them":                                 {ID: "a", Format: "ndjson", Columns: []string{"a:string"}},
		"columns: the format currents can't have them":                               {ID: "a", Columns: []string{"a:string"}, Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h"}},
		"columns: 51":                              {ID: "a", Columns: make([]string, 51)},
		"columns[0] \"plan\": want NAME:TYPE":      {ID: "a", Columns: []string{"plan"}},
		"columns[0] \"a:b:int\": want NAME:TYPE":   {ID: "a", Columns: []string{"a:b:int"}},
		"columns[0] \"\": want 1 to":               {ID: "a", Columns: []string{":string"}},
		"columns[1] \"Plan:number\": most readers": {ID: "a", Columns: []string{"plan:string", "Plan:number"}},
		"from":                      {ID: "a", From: "yesterday"},
		"destination.type":          {ID: "a", Destination: document.Destination{Type: "ftp"}},
		"destination.path \"/etc\"": {ID: "a", Destination: document.Destination{Path: "/etc"}},
		"destination.path \"../x\"": {ID: "a", Destination: document.Destination{Path: "../x"}},
		"destination.path \"a/../b": {ID: "a", Destination: document.Destination{Path: "a/../b"}},
		"destination.path \"lake/.millrace\": in .millrace":           {ID: "a", Destination: document.Destination{Path: "lake/.millrace"}},
		"destination.path \"..\"":                                     {ID: "a", Destination: document.Destination{Path: ".."}},
		"destination.bucket: a destination of type directory":         {ID: "a", Destination: document.Destination{Bucket: "b"}},
		"destination.layout":                                          {ID: "a", Destination: document.Destination{Layout: "flat"}},
		"destination.bucket is required":                              {ID: "a", Destination: document.Destination{Type: document.DestinationS3}},
		"destination.bucket \"a/b\"":                                  {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "a/b"}},
		"destination.bucket \"ab\"":                                   {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "ab"}},
		"destination.bucket \"-lake\"":                                {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "-lake"}},
		"destination.bucket \"lake-\"":                                {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake-"}},
		"destination.bucket \"a..b\"":                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "a..b"}},
		"destination.bucket \"a.-b\"":                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "a.-b"}},
		"destination.bucket \"192.168.0.1\"":                          {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "192.168.0.1"}},
		"destination.bucket \"my lake\"":                              {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "my lake"}},
		"destination.bucket \"lakeé\"":                                {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lakeé"}},
		"destination.bucket \"" + strings.Repeat("a", 64):             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: strings.Repeat("a", 64)}},
		"destination.bucket \"My_Lake\": want lower-case":             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "My_Lake"}},
		"destination.bucket \"my_lake\": want lower-case":             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "my_lake", Endpoint: "http://s3.example.com", Addressing: document.AddressingHost}},
		"destination.addressing host: http://[::1]:9000 has no hosts": {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Endpoint: "http://[::1]:9000", Addressing: document.AddressingHost}},
		"destination.region \"eu/x\"":                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Region: "eu/x"}},
		"destination.kms_key \"a b\"":                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Encryption: document.EncryptionKMS, KMSKey: "a b"}},
		"destination.prefix \"aaa":                                    {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Prefix: strings.Repeat("a", 513)}},
		"destination.endpoint \"http://:9000\"":                       {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Endpoint: "http://:9000"}},
		"destination.url \"https://h:99999/x\"":                       {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h:99999/x"}},
		"destination.url \"https://h:/x\"":                            {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h:/x"}},
		"destination.brokers \"h:http\"":                              {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:http"}},
		"destination.brokers \"h:0\"":                                 {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:0"}},
		"destination.brokers \"h:65536\"":                             {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:65536"}},
		"destination.brokers \"h:1, i:1\"":                            {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1, i:1"}},
		"destination.brokers \"kafka://h:1\"":                         {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "kafka://h:1"}},
		"destination.brokers \"u@h:1\"":                               {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "u@h:1"}},
		"destination.brokers \"-\"":                                   {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "-"}},
		"destination.topic \"{workspace}{workspace}{stream}{stream}\": names of topics would have up to 252": {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Topic: "{workspace}{workspace}{stream}{stream}"}},
		"destination.topic \"" + strings.Repeat("a", 250):                                                    {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Topic: strings.Repeat("a", 250)}},
		"destination.path: a destination":                                                                    {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Path: "p"}},
		"destination.endpoint \"https://u:p@h\"":                                                             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Endpoint: "https://u:p@h"}},
		"destination.endpoint \"s3.example.com\"":                                                            {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Endpoint: "s3.example.com"}},
		"destination.prefix \"/a\"":                                                                          {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Prefix: "/a"}},
		"destination.prefix \"a/../..\"":                                                                     {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Prefix: "a/../.."}},
		"destination.credentials":                                                                            {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Credentials: "../secret"}},
		"destination.addressing":                                                                             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Addressing: "dns"}},
		"destination.encryption":                                                                             {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Encryption: "rot13"}},
		"destination.kms_key":                                                                                {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Encryption: document.EncryptionKMS}},
		"destination.registry goes with the format avro":                                                     {ID: "a", Format: document.FormatAvro, Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1"}},
		"destination.registry goes with the format":                                                          {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Registry: "http://h"}},
		"destination.registry \"h:1\"":                                                                       {ID: "a", Format: document.FormatAvro, Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Registry: "h:1"}},
		"format \"avro\"":                                                                                    {ID: "a", Format: document.FormatAvro, Destination: document.Destination{Type: document.DestinationHTTP, URL: "http://h"}},
		"destination.url is required":                                                                        {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP}},
		"destination.url \"ftp://h\"":                                                                        {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "ftp://h"}},
		"destination.url \"https://u:p@h/x\"":                                                                {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://u:p@h/x"}},
		"destination.batch 1001":                                                                             {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h", Batch: 1001}},
		"destination.batch -1":                                                                               {ID: "a", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h", Batch: -1}},
		"destination.batch: a destination":                                                                   {ID: "a", Destination: document.Destination{Batch: 5}},
		"format \"parquet\": want currents or json":                                                          {ID: "a", Format: "parquet", Destination: document.Destination{Type: document.DestinationHTTP, URL: "https://h"}},
		"format \"json\": want parquet or ndjson or avro":                                                    {ID: "a", Format: "json"},
		"destination.brokers is required":                                                                    {ID: "a", Destination: document.Destination{Type: document.DestinationKafka}},
		"destination.brokers \"h\"":                                                                          {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h"}},
		"destination.brokers \"h:1,\"":                                                                       {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1,"}},
		"destination.topic \"a/b\"":                                                                          {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Topic: "a/b"}},
		"destination.topic \"{name}\"":                                                                       {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Topic: "{name}"}},
		"destination.security":                                                                               {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", Security: "ssl"}},
		"destination.sasl":                                                                                   {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", SASL: "gssapi"}},
		"destination.credentials is required with sasl":                                                      {ID: "a", Destination: document.Destination{Type: document.DestinationKafka, Brokers: "h:1", SASL: document.SASLPlain}},
		"destination.region: want printable":                                                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Region: "a\n"}},
		"destination.prefix: want printable":                                                                 {ID: "a", Destination: document.Destination{Type: document.DestinationS3, Bucket: "lake", Prefix: strings.Repeat("a", 1025)}},
	} {
		_, err := c.Streams.Create(Actor{Name: "test"}, "shop", s)
		require.ErrorIs(t, err, document.ErrInvalid, field)
		require.ErrorContains(t, err, field)
	}
	for field, edit := range map[string]func(*document.Stream){"format": func(s *document.Stream) { s.Format = "ndjson" }, "destination": func(s *document.Stream) { s.Destination.Path = "other" }} {
		_, err := c.Streams.Change(Actor{}, "shop", "lake", func(s *document.Stream) (*document.Stream, error) { edit(s); return s, nil })
		require.ErrorIs(t, err, document.ErrInvalid)
		require.ErrorContains(t, err, field)
	}
	_, err := c.RewindStream(Actor{}, "shop", "nothing", "")
	require.ErrorIs(t, err, ErrNotFound)
	for i := range document.MaxStreams - 2 {
		_, err := c.Streams.Create(Actor{}, "shop", document.Stream{ID: strings.Repeat("x", i+1)})
		require.NoError(t, err)
	}
	_, err = c.Streams.Create(Actor{}, "shop", document.Stream{ID: "one-more"})
	require.ErrorIs(t, err, ErrConflict)
}

// A rewind, and another from, begin anew; no two beginnings are alike. Each is an entry of the audit log, a move of the
// cursor is none.
func TestRewindAndCursors(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	bootstrap(t, c, streamsFile)
	entries, beginnings := len(m.audit), map[document.Millis]bool{c.Streams.Get("shop", "lake").StartedAt: true}
	for i, from := range []string{"", "", "beginning", "2026-01-31T09:30:00Z"} {
		v, err := c.RewindStream(Actor{Name: "test"}, "shop", "lake", from)
		require.NoError(t, err)
		beginnings[v.StartedAt] = true
		require.Len(t, beginnings, i+2)
	}
	require.Equal(t, "2026-01-31T09:30:00Z", c.Streams.Get("shop", "lake").From)
	require.Len(t, m.audit, entries+4)

	require.NoError(t, c.MoveStream("shop", "lake", "05", nil, []byte(`{"position":1}`)))
	require.NoError(t, c.MoveStream("shop", "lake", "05", []byte(`{"position":1}`), []byte(`{"position":2}`)))
	require.ErrorIs(t, c.MoveStream("shop", "lake", "05", []byte(`{"position":1}`), []byte(`{"position":3}`)), ErrConflict)
	require.NoError(t, c.MoveStream("shop", "lake", "", nil, []byte(`{"position":9}`)))
	require.Equal(t, map[string][]byte{"05": []byte(`{"position":2}`), "": []byte(`{"position":9}`)}, c.StreamCursors("shop", "lake"))
	require.Equal(t, `{"position":2}`, string(c.StreamCursor("shop", "lake", "05")))
	require.Len(t, m.audit, entries+4)
	require.NoError(t, c.Streams.Remove(Actor{Name: "test"}, "shop", "lake", nil))
	require.Empty(t, c.StreamCursors("shop", "lake"))
	require.ErrorIs(t, c.MoveStream("shop", "lake", "05", nil, []byte(`{"position":1}`)), ErrNotFound)
	require.Empty(t, c.StreamCursors("shop", "lake"), "who was carrying it leaves nothing behind")
}
