package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"millrace/api"
	"millrace/api/bounded"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testlog"
	"millrace/loadtest/testsize"
)

// An address of IPv4 in the form of IPv6 is that address: callers' addresses are compared in the form of IPv4.
func TestTrustedProxiesAreNetworks(t *testing.T) {
	c := serveCommand{TrustedProxies: []string{"::ffff:10.0.0.7", "10.1.2.3/16", "2001:db8::1"}}
	o, err := c.doorOptions(slog.Default())
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("10.1.0.0/16"),
		netip.MustParsePrefix("2001:db8::1/128")}, o.TrustedProxies)
}

// What cannot be meant is refused before anything is opened, and the text says what to do.
func TestFlagsAreRefused(t *testing.T) {
	testsize.SkipSerial(t)
	t.Setenv("GOGC", "100") // a server sets both for its process otherwise, and this is one of tests
	t.Setenv("GOMEMLIMIT", "off")
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("a: [b"), 0o600))
	// a file that is longer than any, as /dev/zero is; it takes no room
	huge := filepath.Join(dir, "huge")
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, bounded.LargeFile+1))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	data := []string{"serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin", "off"}
	with := func(more ...string) []string { return append(data[:len(data):len(data)], more...) }
	of := func(members string, more ...string) []string {
		return append(with("--node", "1", "--raft", "127.0.0.1:7081", "--raft-insecure", "--members", members), more...)
	}
	member := func(more ...string) []string {
		return append(with("--node", "1", "--raft", "127.0.0.1:7081", "--members", "1=127.0.0.1:7081,2=127.0.0.1:7082"), more...)
	}
	config := func(name, text string) []string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return with("--config", file)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{}, "expected one of"},
		{[]string{}, "; see millrace --help"},
		{[]string{"admin", "keys", "lst"}, "; see millrace admin keys --help"},
		{with("--public-hosts", "https://mail.example.com"), `--public-hosts: ["https://mail.example.com"], want host[:port] each`},
		{[]string{"serv"}, "unexpected argument serv"},
		{[]string{"serve"}, "--data"},
		{with("--no-such-flag"), "unknown flag --no-such-flag; see millrace serve --help"},
		{with("--data", ""), "--data is empty"},
		{with("--memory", "much"), `"much" is not a number of bytes`},
		{with("--memory", "0"), "--memory: 0 is out of bounds: want 64KiB to 6TiB"},
		{with("--memory", "1KB"), "--memory: 1000 is out of bounds: want 64KiB to 6TiB"},
		{with("--memory", "1000000TB"), "--memory"},
		{with("--memory", "1000000000TB"), "is not a number of bytes"},
		{with("--memory", "1000GiB", "--workers", "2"), "--memory: at most about 96 GiB with 2 workers; for more, raise --workers"},
		{with("--max-inflight", "1"), "--max-inflight: 1 is out of bounds: want 0, or 64KiB to 64GiB"},
		{with("--max-body", "0.5"), `"0.5" is not a number of bytes`},
		{with("--min-free-percent=-1"), "--min-free-percent: -1 is out of bounds: want 0 to 100"},
		{with("--min-free-percent", "NaN"), "--min-free-percent: NaN is out of bounds"},
		{with("--idle-timeout=-1s"), "--idle-timeout: -1s is out of bounds: want 10ms to 24h"},
		{with("--max-conns-per-ip", "0"), "--max-conns-per-ip: 0 is out of bounds: want -1, or 1 to 10000000"},
		{with("--event-duty", "2"), "--event-duty: 2 is out of bounds: want 0.001 to 1"},
		{with("--public-url", "mail.example.com"), "--public-url"},
		{with("--stall-after", "5"), "--stall-after"},
		{with("--log-level", "loud"), "--log-level"},
		{with("--listen", "8080"), "--listen"},
		{with("--listen", "0.0.0.0:0"), "--insecure-http"},
		{with("--listen", ":0"), "--insecure-http"},
		{with("--listen", "[::]:0"), "--insecure-http"},
		{with("--listen", "example.com:80"), "--insecure-http"},
		{with("--listen", "0.0.0.0:0", "--insecure-http", "--demo"), "--demo"},
		{with("--admin", "0.0.0.0:0"), "--admin"},
		{with("--console", "0.0.0.0:0"), "--console"},
		{with("--console", "8082"), "--console"},
		{with("--oidc-client-id", "x"), "--oidc-issuer"},
		{with("--oidc-issuer", "https://idp.example"), "--console-url"},
		{with("--oidc-issuer", "http://idp.example", "--oidc-client-id", "x", "--console-url", "https://console.example"), "--oidc-issuer: \"http://idp.example\": want https"},
		{with("--console-url", "nope"), "--console-url: \"nope\": want https"},
		{with("--console-url", "https://:8443"), "--console-url: \"https://:8443\": want https"},
		{with("--oidc-issuer", "https://idp.example", "--oidc-client-id", "x", "--console-url", "https://console.example", "--oidc-client-secret-file", filepath.Join(dir, "none")), "--oidc-client-secret-file"},
		{with("--console-idle", "1s"), "--console-idle"},
		{with("--max-sessions", "-1"), "--max-sessions"},
		{with("--tls-cert", "cert.pem"), "--tls-key"},
		{with("--tls-cert", broken, "--tls-key", broken), "certificate"},
		{with("--trusted-proxies", "proxy"), `--trusted-proxies: "proxy" is neither an IP address nor a subnet`},
		{with("--trusted-proxies", "::ffff:10.0.0.0/104"), "--trusted-proxies: write the subnet"},
		{with("--bootstrap", filepath.Join(dir, "none.yaml")), "--bootstrap: open " + filepath.Join(dir, "none.yaml")},
		{with("--bootstrap", broken), "--bootstrap: \"" + broken},
		{with("--data", filepath.Join(broken, "data")), "--data: mkdir " + broken},
		{with("--max-body", "8MiB", "--max-bodies", "4MiB"), "--max-bodies must be at least --max-body"},
		{with("--memory", "64MiB", "--max-inflight", "33MiB"), "--max-inflight: at most 32 MiB with this --memory"},
		{with("--memory", "1GiB", "--max-inflight", "64GiB"), "--max-inflight: at most 416 MiB with this --memory"},
		{with("--event-retention", "9m"), "--event-retention must be at least --event-pack-after"},
		{with("--event-pack-after", "721h"), "--event-retention must be at least --event-pack-after"},
		{with("--refused-object", "5MiB"), "--refused-queue must be at least --refused-object"},
		{with("--console-idle", "2h", "--console-life", "1h"), "--console-life must be at least --console-idle"},
		{with("--tls-cert", "", "--tls-key", broken), "--tls-cert and --tls-key go together"},
		{with("--config", "", "--log-level", "loud"), "--log-level"},
		{with("--config", broken), "--config: configuration file: "},
		{with("--config", filepath.Join(dir, "none.yaml")), "--config: open " + filepath.Join(dir, "none.yaml") + ": no such file"},
		{with("--max-body", "1"), "--max-body: 1 is out of bounds: want 1KiB to 256MiB"},
		{with("--segment-bytes", "1KB"), "--segment-bytes: 1000 is out of bounds: want 64KiB to 16GiB"},
		{with("--workers", "1000"), "--workers: 1000 is out of bounds: want 0 to 64"},
		{with("--listen", taken.Addr().String()), "--listen: listen tcp " + taken.Addr().String() + ": bind: address already in use"},
		{with("--admin", taken.Addr().String()), "--admin: listen tcp " + taken.Addr().String() + ": bind: address already in use"},
		{with("--console", taken.Addr().String()), "--console: listen tcp " + taken.Addr().String() + ": bind: address already in use"},
		{with("--data", "/proc/no/such"), "/proc/no"},
		{with("--node", "1"), "--raft and --members"},
		{with("--node", "1", "--raft", "127.0.0.1:7081"), "--raft and --members"},
		{with("--node", "-1"), "--node"},
		{with("--members", "1=127.0.0.1:7081"), "--node"},
		{with("--raft", "127.0.0.1:7081"), "--node"},
		{with("--raft-insecure"), "--node"},
		{with("--groups", "8"), "--groups is for nodes of a cluster and needs --node"},
		{with("--replicas", "5"), "--replicas is for nodes of a cluster and needs --node"},
		{with("--commit-timeout", "1s"), "--commit-timeout is for nodes of a cluster and needs --node"},
		{with("--raft-ca", broken), "--node"},
		{member(), "--raft-cert"},
		{member("--raft-cert", broken, "--raft-key", broken), "--raft-ca"},
		{member("--raft-insecure", "--raft-ca", broken), "--raft-insecure can't be combined with"},
		{member("--raft-cert", broken, "--raft-key", broken, "--raft-ca", broken), "--raft-cert, --raft-key: load certificate and key: \"" + broken + "\", \"" + broken + "\": tls: failed to find any PEM data in certificate"},
		{member("--raft-insecure", "--groups", "257"), "--groups"},
		{member("--raft-insecure", "--replicas", "8"), "--replicas"},
		{member("--raft-insecure", "--raft-timeout", "1ms"), "--raft-timeout"},
		{member("--raft-insecure", "--raft-timeout", "3s"), "--commit-timeout 2.5s must be at least --raft-timeout 3s"},
		{member("--raft-insecure", "--commit-timeout", "700ms"), "--commit-timeout 700ms must be at least --raft-timeout 800ms"},
		{of("0=127.0.0.1:7081"), "node numbers start at 1"},
		{of("x=127.0.0.1:7081"), `--members: "x=127.0.0.1:7081": want NUMBER=HOST:PORT`},
		{of("1=127.0.0.1:7081,"), `--members: "": want NUMBER=HOST:PORT`},
		{of("1=127.0.0.1:7081,2=127.0.0.1"), "node 2"},
		{of("1=a:7081,2=A:7081"), `--members: "2=A:7081": nodes 1 and 2 have the same address`},
		{of("1=127.0.0.1:7081,1=127.0.0.1:7082"), `--members: "1=127.0.0.1:7082": node 1 is given twice, first at "127.0.0.1:7081"`},
		{of("1=127.0.0.1:7081", "--members", "1=127.0.0.1:7081"), `node 1 is given twice`},
		{of("1=:7081"), "is not an address that other nodes can reach"},
		{of("1=127.0.0.1:0"), "no port"},
		{of("1=127.0.0.1:7081,2=10.0.0.1:7081"), "node 2"},
		{config("key.yaml", "memory: 64MiB\nmax_body: 1KiB\n"), `configuration file: line 2: "max_body": there is no such flag`},
		{config("own.yaml", "serve:\n  memory: 64MiB\n  server: x\n"), `configuration file: line 3: "server": serve has no such flag`},
		{config("command.yaml", "served:\n  memory: 64MiB\n"), `line 1: "served"`},
		{config("empty.yaml", "serve:\n  bootstrap:\n"), `line 2: "bootstrap": it has no value`},
		{config("list.yaml", "- memory: 64MiB\n"), "configuration file: line 1: want flags and their values"},
		{config("word.yaml", "memory\n"), "configuration file: line 1: want flags and their values"},
		{config("config.yaml", "config: other.yaml\n"), `line 1: "config"`},
		{config("two.yaml", "memory: 64MiB\n---\nmax-body: 1KiB\n"), "more than one document"},
		{config("twice.yaml", "memory: 64MiB\nmemory: 32MiB\n"), "already defined at line 1"},
		{config("members.yaml", "serve:\n  members: {1: 127.0.0.1:7081, 2: 127.0.0.1:7081}\n"), "nodes 1 and 2 have the same address"},
		{member("--raft-insecure", "--raft", "0.0.0.0:7081"), "--raft-insecure"},
		{member("--raft-insecure", "--raft", "7081"), "--raft:"},
		{with("--bootstrap", huge), "--bootstrap: " + huge + " has more than 67108864 bytes"},
		{with("--config", huge), "--config: " + huge + " has more than 1048576 bytes"},
		{with("--tls-cert", huge, "--tls-key", huge), "load certificate and key: " + huge + " has more than"},
		{with("--tls-cert", broken, "--tls-key", huge), "load certificate and key: " + huge + " has more than"},
		{[]string{"refused", "list", "shop", "--array", "users"}, `--array must be one of "","attributes","events","purchases","request"`},
		{[]string{"admin", "trail", "shop"}, "--external-id, --svc-id, --alias, --email or --phone is required"},
		{[]string{"loadtest", "--key", "k", "--duration", "0s"}, "--duration: 0s is out of bounds: want 1ms to 8760h"},
		{[]string{"loadtest", "--key", "k", "--connections", "0"}, "--connections: 0 is out of bounds: want 1 to 100000"},
		{[]string{"loadtest", "--key", "k", "--timeout", "0s"}, "--timeout: 0s is out of bounds"},
		{[]string{"loadtest", "--key", "k", "--users", "0"}, "--users: 0 is out of bounds"},
		{[]string{"loadtest", "--key", "k", "--pool", "0"}, "--pool: 0 is out of bounds"},
	} {
		require.Contains(t, refusedHere(t, c.args...), c.says, c.args)
	}
	require.Contains(t, refused(t, nil, with("--memory", "much")...), `"much" is not a number of bytes`)

	fresh := filepath.Join(dir, "fresh")
	refusedHere(t, "serve", "--data", fresh, "--listen", "127.0.0.1:0", "--admin", taken.Addr().String())
	refusedHere(t, "serve", "--data", fresh, "--listen", "127.0.0.1:0", "--admin", "off", "--bootstrap", broken)
	both := testaddr.Free(t)
	says := refusedHere(t, "serve", "--data", fresh, "--listen", "127.0.0.1:0", "--admin", both, "--console", both)
	require.Contains(t, says, "--console: listen tcp "+both+": bind: address already in use")
	require.NoDirExists(t, filepath.Join(fresh, "state"), "what is wrong is known before anything is opened")
}

// A path that is given as nothing is not that of the directory that one is in.
func TestEmptyPaths(t *testing.T) {
	var c cli
	parser, err := kong.New(&c, flagReaders)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"serve", "--data", "d", "--stream-dir", "", "--bootstrap=", "--stream-credentials", "c"})
	require.NoError(t, err)
	require.Empty(t, c.Serve.StreamDir)
	require.Empty(t, c.Serve.Bootstrap)
	here, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(here, "c"), c.Serve.StreamCredentials)
}

// An integer that begins with 0 is no octal number. What says otherwise is read as it says.
func TestIntegersAreDecimal(t *testing.T) {
	t.Setenv("MILLRACE_GROUPS", "012")
	var c cli
	parser, err := kong.New(&c, flagReaders, kong.DefaultEnvars("MILLRACE"))
	require.NoError(t, err)
	_, err = parser.Parse([]string{"serve", "--data", "d", "--max-conns", "010", "--node=009", "--replicas", "0", "--max-moves=0x10"})
	require.NoError(t, err)
	s := &c.Serve
	require.EqualValues(t, []int{10, 9, 0, 16, 12}, []int{s.MaxConns, int(s.Node), s.Replicas, s.MaxMoves, s.Groups})
	_, err = parser.Parse([]string{"serve", "--data", "d", "--max-conns", "many"})
	require.ErrorContains(t, err, `expected a valid 64 bit int but got "many"`)
	_, err = parser.Parse([]string{"serve", "--data", "d", "--max-conns"})
	require.ErrorContains(t, err, "--max-conns: expected int value")
}

// Each number of the server's flags has bounds beside its default, which is within them; what other commands are told
// those judge to whom they send it.
func TestNumbersHaveBounds(t *testing.T) {
	parser, err := kong.New(&cli{})
	require.NoError(t, err)
	seen := 0
	for _, n := range parser.Model.Children {
		if n.Name != "serve" {
			continue
		}
		for _, f := range n.Flags {
			if !f.Target.CanInt() && !f.Target.CanUint() && !f.Target.CanFloat() {
				continue
			}
			seen++
			bounds, value := f.Tag.Get("bounds"), reflect.ValueOf(bound(f.Target.Type(), f.Default)).Convert(f.Target.Type())
			require.NotEmpty(t, bounds, f.Name)
			require.True(t, isWithin(value, bounds), "--%s: %v, %s", f.Name, value, bounds)
		}
	}
	require.Greater(t, seen, 50)
}

// The help of each command has the default of each flag.
func TestHelpHasDefaults(t *testing.T) {
	parser, err := kong.New(&cli{})
	require.NoError(t, err)
	seen := 0
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			if f.Default != "" {
				seen++
				require.Contains(t, f.FormatPlaceHolder(), f.Default, "--%s of %s", f.Name, n.Name)
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(parser.Model.Node)
	require.Greater(t, seen, 100)
}

// A second server on the same directory would write over the first one's log.
func TestOneServerPerDirectory(t *testing.T) {
	s := newSite(t)
	p := s.start(t)
	other := *s
	other.addr = testaddr.Free(t)
	require.Contains(t, refused(t, nil, other.args()...), fmt.Sprintf("the data directory %q is in use by another server\n", s.dir))
	require.Equal(t, 201, s.track(t, "ann").status)
	p.kill()
	p = other.start(t) // a killed one holds nothing
	require.Equal(t, 1, other.events(t, "ann"))
	p.stop()
}

// The help of a command has what it takes: no flags of its parent that would do nothing, and none of several
// alternatives as if it were required.
func TestHelp(t *testing.T) {
	help := func(args ...string) string {
		var out strings.Builder
		require.NoError(t, run(t.Context(), append(args, "--help"), &out))
		return out.String()
	}
	require.Contains(t, help("cluster", "status"), "--server")
	require.Contains(t, help("cluster", "import"), "--members")
	require.NotContains(t, help("cluster", "import"), "--server")
	require.Contains(t, help("admin", "trail"), "Usage: millrace admin trail <workspace> [flags]")
}

// Flags come from the command line, else from the environment, else from the file.
func TestPublicHosts(t *testing.T) {
	for listen, want := range map[string][]string{
		"www.example.com:8080": {"www.example.com:8080", "more"}, "localhost:8080": {"localhost:8080", "more"}, "127.0.0.1:8080": {"more"}, "0.0.0.0:8080": {"more"},
		":8080": {"more"}, "[::]:8080": {"more"},
	} {
		require.Equal(t, want, (&serveCommand{Listen: listen, PublicHosts: []string{"more"}}).publicHosts(), listen)
	}
}

func TestConfiguration(t *testing.T) {
	testsize.SkipSerial(t)
	s := newSite(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "data: %s\nimport:\nrefused: reasons\nstreams: {server: http://127.0.0.1:8081}\nserve:\n  max-body: 2000\n  bootstrap: %s\n  trusted-proxies: [127.0.0.1, 10.0.0.0/8]\n", s.dir, s.bootstrap), 0o600))
	t.Setenv("MILLRACE_ADMIN", "off")
	t.Setenv("MILLRACE_MIN_FREE_BYTES", "0")
	t.Setenv("MILLRACE_MIN_FREE_PERCENT", "0")
	var log string
	largest := func(args ...string) (size int) {
		p := startProcess(t, binary, append([]string{"serve", "--listen", s.addr, "--config", file}, args...)...)
		p.waitReady(s.url("/readyz"))
		for _, n := range []int{1200, 2000, 3000, 4000} {
			body := `{"attributes":[{"external_id":"ann"}]}`
			if a := s.post(t, "/users/track", allKey, body+strings.Repeat(" ", n-len(body))); a.status == 201 {
				size = n
			} else {
				require.Equal(t, 413, a.status)
			}
		}
		p.stop()
		log = p.log.String()
		return size
	}
	require.Equal(t, 2000, largest(), "of the file")
	require.DirExists(t, s.dir)
	t.Setenv("MILLRACE_MAX_BODY", "3000")
	t.Setenv("MILLRACE_MAX_BODYS", "3000")
	require.NotContains(t, log, "no flag has")
	require.Equal(t, 3000, largest(), "of the environment")
	require.Contains(t, log, `"unknown environment variable ignored: no flag has this name","name":"MILLRACE_MAX_BODYS"`)
	require.Equal(t, 1200, largest("--max-body", "1200"), "of the command line")
	require.Contains(t, refused(t, []string{"MILLRACE_MEMORY=much"}, "serve", "--data", dir), "much")
}

// Flags get numbers and times of the file as they are written: YAML would make 83 of 0123, and of a time one that flags
// don't read.
func TestNumbersOfTheConfiguration(t *testing.T) {
	resolver, err := yamlConfig([]byte("max-conns: 010\ntoken: 0123\nrate: 1.50\nnode: 7\nsections: [01, 2]\nto: 0x1F\n" +
		"memory: 1_000\nsince: 2026-01-31T09:30:00Z\nuntil: 2026-02-01\nmembers: {01: 0x2, 2026-01-31: a}\n"))
	require.NoError(t, err)
	for name, want := range map[string]string{"max-conns": "010", "token": "0123", "rate": "1.50", "node": "7", "sections": "01,2", "to": "0x1F",
		"memory": "1_000", "since": "2026-01-31T09:30:00Z", "until": "2026-02-01", "members": "01=0x2,2026-01-31=a"} {
		got, err := resolver.Resolve(nil, &kong.Path{}, &kong.Flag{Value: &kong.Value{Name: name}})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// Variables of the environment that look like those of flags and are none are told of.
func TestStrangeVariables(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.DefaultEnvars("MILLRACE"))
	require.NoError(t, err)
	require.Equal(t, []string{"MILLRACE_API_PORT", "MILLRACE_LISTEN_PORT", "MILLRACE_MAXBODY", "MILLRACE_PLAN"}, strangeVariables([]string{
		"HOME=/root", "millrace_x=", "MILLRACE_MAXBODY=3000", "MILLRACE_MAX_BODY=3000", "MILLRACE_DATA=d", "MILLRACE_CONFIG=c", "MILLRACE_KEY=k", "MILLRACE_TOKEN=t",
		"MILLRACE_STREAM_CREDENTIALS=d", "MILLRACE_STREAM_CREDENTIALS_SHOP_LAKE={}", "MILLRACE_LISTEN_PORT=80", "MILLRACE_PLAN=p", "MILLRACE_API_PORT=1",
		"MILLRACE_SERVICE_HOST=10.0.0.1", "MILLRACE_SERVICE_PORT=8080", "MILLRACE_SERVICE_PORT_HTTP=8080", "MILLRACE_PORT=tcp://10.0.0.1:8080", "MILLRACE_PORT_8080_TCP=tcp://10.0.0.1:8080",
		"MILLRACE_PORT_8080_TCP_ADDR=10.0.0.1", "MILLRACE_NODE_1_SERVICE_HOST=10.0.0.2", "MILLRACE_NODE_1_PORT_8080_TCP=tcp://10.0.0.2:8080",
	}, parser.Model.Node))
}

// What the server prints at the start can be pasted, and so can the README.
func TestPrintedCommandsWork(t *testing.T) {
	testsize.SkipSerial(t)
	s := newSite(t)
	p := startProcess(t, binary, "serve", "--data", s.dir, "--listen", s.addr, "--admin", "off", "--demo", "--min-free-bytes", "0", "--min-free-percent", "0")
	p.waitReady(s.url("/readyz"))
	require.Eventually(t, func() bool { return strings.Contains(p.out.String(), "/url/ada") }, testPatience, time.Millisecond)
	commands := curls(p.out.String())
	require.Len(t, commands, 3, p.out.String())
	track, err := commands[0].run()
	require.NoError(t, err)
	require.Equal(t, 201, track.status, track.body)
	require.JSONEq(t, `{"message":"success","attributes_processed":1,"events_processed":1}`, track.body)
	check := func() {
		export, err := commands[1].run()
		require.NoError(t, err)
		require.Equal(t, 201, export.status, export.body)
		require.Contains(t, export.body, `"first_name":"Ada"`)
		require.Contains(t, export.body, `"signed_up"`)
		link, err := commands[2].run()
		require.NoError(t, err)
		require.Equal(t, 200, link.status, link.body)
		var answer struct {
			URL string `json:"preference_center_url"`
		}
		require.NoError(t, json.Unmarshal([]byte(link.body), &answer))
		page, err := call(patient, http.MethodGet, answer.URL, "", "")
		require.NoError(t, err)
		require.Equal(t, 200, page.status, page.body)
		require.Contains(t, page.body, "For <b>ada&#64;example&#46;com</b>")
	}
	check()
	p.stop()

	p = startProcess(t, binary, "serve", "--data", s.dir, "--listen", s.addr, "--admin", "off", "--demo", "--min-free-bytes", "0", "--min-free-percent", "0")
	p.waitReady(s.url("/readyz"))
	check()
	for _, c := range []struct {
		key, body string
		status    int
		says      string
	}{
		{"wrong-key-0123456789", commands[0].body, 401, "Invalid API key: wron"},
		{"", commands[0].body, 401, "Invalid API key"},
		{demoKey, commands[0].body[1:], 400, ""},
		{demoKey, `[]`, 400, ""},
		{demoKey, `{}`, 400, "Valid data must be provided"},
		{demoKey, ``, 400, ""},
	} {
		a := s.post(t, "/users/track", c.key, c.body)
		require.Equal(t, c.status, a.status, "%s: %s", c.body, a.body)
		require.Contains(t, a.message(), c.says)
	}
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	written := curls(string(readme))
	require.Greater(t, len(written), 2)
	for _, c := range written {
		for _, node := range []string{"127.0.0.1:8080", "127.0.0.1:8084"} { // the first and the last of `make cluster`: here one is both
			c.url = strings.Replace(c.url, node, s.addr, 1)
		}
		a, err := c.run()
		require.NoError(t, err)
		require.Equal(t, map[string]int{http.MethodPost: 201, http.MethodGet: 200}[c.method], a.status, "%s: %s", c.url, a.body)
	}
	p.stop()

	for i := range commands {
		commands[i].url = strings.Replace(commands[i].url, s.addr, "127.0.0.1:8080", 1)
	}
	require.Equal(t, commands, written[:3], "README and server print different commands")
}

type curl struct {
	method, url, body string
	headers           []string // name, value
}

func (c curl) run() (reply, error) {
	return call(patient, c.method, c.url, "", c.body, c.headers...)
}

// curls finds the curl commands in a text.
func curls(text string) (found []curl) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		words := shellWords(line)
		if len(words) == 0 || words[0] != "curl" {
			continue
		}
		c := curl{method: http.MethodGet}
		for i := 1; i < len(words); i++ {
			switch words[i] {
			case "-s":
			case "-H":
				i++
				name, value, _ := strings.Cut(words[i], ": ")
				c.headers = append(c.headers, name, value)
			case "-d":
				i++
				c.method, c.body = http.MethodPost, words[i]
			default:
				c.url = words[i]
			}
		}
		found = append(found, c)
	}
	return found
}

// shellWords splits at blanks outside of single quotes.
func shellWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// SIGHUP at the end changes nothing: a server that is being stopped ends with 0, however late it comes.
func TestHangupAtTheEnd(t *testing.T) {
	testsize.SkipSerial(t)
	s := newSite(t)
	for range 3 {
		p := s.start(t)
		p.signal(syscall.SIGTERM)
		for ended := false; !ended; {
			ended = p.cmd.Process.Signal(syscall.SIGHUP) != nil
		}
		require.Zero(t, p.exit(testPatience), p.log.String())
	}
}

// SIGHUP reads the bootstrap file again: new keys work, revoked ones stay revoked, a broken file changes nothing.
func TestReload(t *testing.T) {
	s := newSite(t)
	s.admin = testaddr.Free(t)
	p := s.start(t)
	const newKey = "new-0123456789abcdefghijklmnopqrstuvwxyz"
	body := `{"events":[{"external_id":"ann","name":"e","time":"2026-01-31T09:30:00Z"}]}`
	status := func(key string) int { return s.post(t, "/users/track", key, body).status }
	require.Equal(t, 401, status(newKey))
	require.Equal(t, 201, status(trackKey))
	require.Equal(t, 403, s.post(t, "/users/export/ids", trackKey, `{"external_ids":["ann"]}`).status)
	reload := func(text, says string) {
		before := strings.Count(p.log.String(), says)
		require.NoError(t, os.WriteFile(s.bootstrap, []byte(text), 0o600))
		p.signal(syscall.SIGHUP)
		require.Eventually(t, func() bool { return strings.Count(p.log.String(), says) > before }, testPatience, time.Millisecond, says)
	}
	more := strings.Replace(bootstrapText, "    subscription_groups:", "      - {name: new, key: "+newKey+", permissions: [users.track]}\n    subscription_groups:", 1)
	reload(more, `"reloaded"`)
	require.Equal(t, 201, status(newKey))

	admin := func(args ...string) string {
		out, err := exec.Command(binary, append([]string{"admin", "--server", "http://" + s.admin, "--data", s.dir}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	var list struct {
		Keys []struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		} `json:"api_keys"`
	}
	require.NoError(t, json.Unmarshal([]byte(admin("call", "get", "workspaces/test/api_keys")), &list))
	require.Len(t, list.Keys, 3)
	for _, k := range list.Keys {
		if k.Name == "new" {
			admin("call", "delete", "workspaces/test/api_keys/"+k.ID)
		}
	}
	require.Equal(t, 401, status(newKey), "revoked at once")
	reload(more, `"reloaded"`)
	require.Equal(t, 401, status(newKey), "the file must not bring a revoked key back")
	reload("workspaces: [{id: test, no_such_field: 1}]", `"reload"`)
	require.Equal(t, 201, status(trackKey))
	require.Equal(t, 401, status(newKey))
	require.Contains(t, refused(t, nil, "admin", "--server", "http://"+s.admin, "--token", "wrong-token-0123456789", "workspaces", "list"), "401")

	p.kill()
	require.NoError(t, os.WriteFile(s.bootstrap, []byte(more), 0o600))
	p = s.start(t)
	require.Equal(t, 401, status(newKey))
	require.Equal(t, 201, status(trackKey))
	for _, key := range []string{allKey, trackKey, newKey} {
		require.NotContains(t, p.log.String(), key)
		require.NotContains(t, p.out.String(), key)
	}
	p.stop()
	require.Equal(t, 4, func() int { p = s.start(t); defer p.stop(); return s.events(t, "ann") }())
}

// A bootstrap file that can't be read, like a pipe that nobody writes into, keeps nobody waiting: on SIGHUP the server
// goes on, and it stops when it is told to, also at its start.
func TestBootstrapFileThatHangs(t *testing.T) {
	s := newSite(t)
	isRead := func() { // until the server has opened the pipe, it can't be opened for writing without waiting
		require.Eventually(t, func() bool {
			f, err := os.OpenFile(s.bootstrap, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			if err == nil {
				t.Cleanup(func() { f.Close() }) // the server waits for what never comes
			}
			return err == nil
		}, testPatience, time.Millisecond)
	}
	p := s.start(t, "--drain-timeout", "100ms")
	require.NoError(t, os.Remove(s.bootstrap))
	require.NoError(t, syscall.Mkfifo(s.bootstrap, 0o600))
	p.signal(syscall.SIGHUP)
	isRead()
	require.Equal(t, 201, s.track(t, "ann").status)
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "SIGHUP: a file can't be read; until") },
		testPatience, time.Millisecond)
	p.stop()

	p = startProcess(t, binary, s.args()...)
	isRead()
	p.stop()
}

// A SIGHUP that comes before the server has read its settings does no harm.
func TestEarlySIGHUP(t *testing.T) {
	s := newSite(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, syscall.Mkfifo(config, 0o600))
	p := startProcess(t, binary, s.args("--config", config)...)
	var f *os.File
	require.Eventually(t, func() (open bool) {
		var err error
		f, err = os.OpenFile(config, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	}, testPatience, time.Millisecond)
	p.signal(syscall.SIGHUP)
	require.NoError(t, f.Close())
	p.waitReady(s.url("/readyz"))
	p.stop()
}

// makeCertificate writes a self-signed one for an address and returns it for a client to trust.
func makeCertificate(t *testing.T, name, addr, certFile, keyFile string) *x509.Certificate {
	host, _, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.ParseIP(host)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// TLS serves, takes a new certificate on SIGHUP without a restart, keeps the old one when the new is broken, and
// refuses what is outdated.
func TestTLS(t *testing.T) {
	s := newSite(t)
	s.admin = testaddr.Free(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := makeCertificate(t, "first", s.addr, certFile, keyFile)
	client := func(trusted *x509.Certificate, change func(*tls.Config)) *http.Client {
		pool := x509.NewCertPool()
		pool.AddCert(trusted)
		c := &tls.Config{RootCAs: pool}
		if change != nil {
			change(c)
		}
		return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	}
	console := testaddr.Free(t)
	p := startProcess(t, binary, s.args("--tls-cert", certFile, "--tls-key", keyFile, "--console", console)...)
	body := `{"events":[{"external_id":"ann","name":"e","time":"2026-01-31T09:30:00Z"}]}`
	post := func(c *http.Client) (reply, error) {
		return call(c, http.MethodPost, "https://"+s.addr+"/users/track", allKey, body)
	}
	require.Eventually(t, func() bool { a, err := post(client(first, nil)); return err == nil && a.status == 201 }, testPatience, 5*time.Millisecond)
	_, err := post(client(first, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11; c.MinVersion = tls.VersionTLS10 }))
	require.Error(t, err)
	if plain, err := call(patient, http.MethodPost, s.url("/users/track"), allKey, body); err == nil {
		require.NotEqual(t, 201, plain.status, "served without TLS")
	}

	signIn, err := client(first, nil).Get("https://" + console + "/")
	require.NoError(t, err)
	signIn.Body.Close()
	require.Equal(t, "/console/sign-in?next=%2Fconsole%2F", signIn.Request.URL.RequestURI())
	require.NotEmpty(t, signIn.Header.Get("Strict-Transport-Security"))
	for _, path := range []string{"/metrics", "/admin/workspaces", "/debug/pprof/"} {
		other, err := client(first, nil).Get("https://" + console + path)
		require.NoError(t, err)
		other.Body.Close()
		require.Equal(t, 404, other.StatusCode, "this listener has the console alone")
	}

	second := makeCertificate(t, "second", s.addr, certFile, keyFile)
	_, err = post(client(second, nil))
	require.Error(t, err, "not yet")
	p.signal(syscall.SIGHUP)
	require.Eventually(t, func() bool { a, err := post(client(second, nil)); return err == nil && a.status == 201 }, testPatience, 5*time.Millisecond)
	_, err = post(client(first, nil))
	require.Error(t, err)
	expiry := fmt.Sprintf("\nmillrace_certificate_expiry_time_seconds{use=\"api\"} %d\n", second.NotAfter.Unix())
	require.Eventually(t, func() bool { return strings.Contains(s.metrics(t), expiry) }, testPatience, 50*time.Millisecond)

	require.NoError(t, os.WriteFile(certFile, []byte("rubbish"), 0o600))
	p.signal(syscall.SIGHUP)
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), `"reload"`) }, testPatience, time.Millisecond)
	a, err := post(client(second, nil))
	require.NoError(t, err)
	require.Equal(t, 201, a.status)
	p.stop()
	require.Equal(t, 1, strings.Count(p.log.String(), `"reloaded"`), "the broken one was not")
	require.Equal(t, 3, strings.Count(p.log.String(), "a certificate in use expires"), "at the start and on each SIGHUP")
}

// A certificate that no client accepts never takes the place of another one. A server that has no other one starts with
// it, and says so.
func TestCertificateThatClientsRefuse(t *testing.T) {
	dir := t.TempDir()
	authority := newAuthority(t, dir, "own")
	c := serveCommand{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}
	start := func() (*api.TLS, string) {
		log := new(testlog.Buffer)
		certificate, err := c.tls(slog.New(slog.NewTextHandler(log, nil)))
		require.NoError(t, err)
		return certificate, log.String()
	}
	authority.issue(2, c.TLSCert, c.TLSKey)
	used, logged := start()
	require.Empty(t, logged)
	good := used.Certificate()
	for says, edit := range map[string]func(*x509.Certificate){
		"expired":       func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) },
		"not yet valid": func(c *x509.Certificate) { c.NotBefore = c.NotAfter.Add(-time.Minute) },
		"key usage":     func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
	} {
		authority.issue(3, c.TLSCert, c.TLSKey, edit)
		require.ErrorContains(t, used.Reload(), says)
		require.Same(t, good, used.Certificate())
		alone, logged := start()
		require.Contains(t, logged, "clients refuse this certificate")
		require.Contains(t, logged, says)
		require.NotNil(t, alone.Certificate())
		authority.issue(4, c.TLSCert, c.TLSKey)
		require.NoError(t, alone.Reload())
	}
	require.NoError(t, os.Remove(c.TLSCert))
	_, err := c.tls(slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "--tls-cert, --tls-key: ")
}

// readMetrics reads metrics as a reader does that wants each family at one place, after its type.
func readMetrics(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return families
}

// The second listener: health and metrics for all, the rest for holders of the token.
func TestAdminListener(t *testing.T) {
	s := newSite(t)
	s.admin = testaddr.Free(t)
	p := s.start(t)
	require.Equal(t, 201, s.track(t, "ann").status)
	admin := "http://" + s.admin
	get := func(path, key string) reply {
		a, err := call(patient, http.MethodGet, admin+path, key, "")
		require.NoError(t, err)
		return a
	}
	require.Equal(t, 200, get("/livez", "").status)
	require.Equal(t, 200, get("/readyz", "").status)
	metrics := get("/metrics", "")
	require.Equal(t, 200, metrics.status)
	for _, name := range []string{"millrace_wal_records_total", "millrace_profiles_created_total 1", "go_goroutines", "process_open_fds", "process_max_fds"} {
		require.Contains(t, metrics.body, name)
	}
	families := readMetrics(t, metrics.body)
	for name, want := range map[string]string{
		"millrace_wal_sync_seconds": "HISTOGRAM", "millrace_wal_records_total": "COUNTER", "millrace_store_cache_hits_total": "COUNTER", "millrace_ready": "GAUGE",
	} {
		require.Equal(t, want, families[name].GetType().String(), name)
	}
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	for _, path := range []string{"/admin/workspaces", "/debug/pprof/"} {
		require.Equal(t, 401, get(path, "").status, path)
		require.Equal(t, 401, get(path, allKey).status, path)
		require.Equal(t, 200, get(path, strings.TrimSpace(string(token))).status, path)
	}
	// A client that sends its whole body before it reads gets the answer all the same.
	const size = 32 << 20 // more than buffers of sockets hold
	for auth, want := range map[string]string{strings.TrimSpace(string(token)): "HTTP/1.1 413 ", "wrong": "HTTP/1.1 401 "} {
		c, err := net.Dial("tcp", s.admin)
		require.NoError(t, err)
		_, err = fmt.Fprintf(c, "POST /admin/workspaces HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", s.admin, auth, size)
		require.NoError(t, err)
		_, err = c.Write(make([]byte, size))
		require.NoError(t, err)
		status, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, status, want)
		require.NoError(t, c.Close())
	}
	info, err := os.Stat(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NotContains(t, p.log.String(), strings.TrimSpace(string(token)))
	p.stop()
}
