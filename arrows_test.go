package millrace

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arrows are the packages of ours that each package imports ("/..." stands for all packages below); ARCHITECTURE.md
// says what each package holds. A package that is not listed here fails the test, and so does an arrow that nothing
// needs. Add a new package with as few arrows as possible.
var arrows = map[string][]string{
	"cmd/millrace": {"..."}, // joins the rooms, and is alone in that
	"bench":        {"..."}, // measures any of them, and nobody imports it

	"cmd/millrace/importer": {"api/bounded", "api/s3", "ingest/files", "wal/durable", "wal/pause"},
	"cmd/millrace/stdlog":   {},
	"cmd/millrace/operate":  {"api/admin/answers", "api/bounded", "api/control", "api/control/document", "shard/cluster/placement", "wal/durable", "wal/pause", "wal/quorum"}, // its answers' types alone

	"api":             {"api/bounded", "api/call", "api/center", "api/consent", "api/control", "api/control/document", "api/keys", "api/openapi", "api/ratelimit", "api/refused", "api/scim", "api/store", "api/translation", "api/users", "api/value", "ingest/field", "shard", "wal/throttle"},
	"api/admin":       {"api", "api/admin/answers", "api/bounded", "api/call", "api/census", "api/consent", "api/control", "api/control/document", "api/keys", "api/live", "api/openapi", "api/ratelimit", "api/refused", "api/store", "api/users", "ingest/field", "shard", "shard/op", "shard/profile", "wal/durable"},
	"api/call":        {"api/control", "api/keys", "api/refused", "api/store", "shard"},
	"api/census":      {"api/peers", "shard", "shard/profile", "wal/pause"},
	"api/center":      {"api/call", "api/consent", "api/control", "api/control/document", "api/preference", "api/ratelimit", "api/store", "api/value", "shard", "shard/jsonvalue", "shard/op", "shard/profile"},
	"api/consent":     {"api/call", "api/control", "api/control/document", "api/value", "ingest/field", "shard", "shard/op", "shard/profile"},
	"api/console":     {"api/admin/answers", "api/call", "api/console/chart", "api/console/figures", "api/console/rights", "api/console/signin", "api/control", "api/control/document", "api/openapi", "api/preference", "ingest/field", "shard/cluster/placement", "wal/pause"}, // of openapi and placement the types of answers alone
	"api/bounded":     {},
	"api/control":     {"api/control/document", "api/keys", "api/ratelimit", "ingest/field"},
	"api/keys":        {},
	"api/live":        {"shard", "shard/jsonvalue", "shard/op", "shard/profile", "wal/pause"},
	"api/openapi":     {},
	"api/preference":  {},
	"api/peers":       {},
	"api/ratelimit":   {},
	"api/refused":     {"api/peers", "ingest/field", "shard/cursor", "shard/op", "wal/durable", "wal/pause", "wal/throttle"},
	"api/s3":          {"api/bounded"},
	"api/scim":        {"api/control", "api/control/document", "shard/op"},
	"api/store":       {"api/control", "shard", "shard/bodies", "shard/op", "shard/profile"},
	"api/translation": {"api/call", "api/control", "api/control/document", "api/value"},
	"api/users":       {"api/call", "api/control", "api/refused", "api/store", "api/value", "ingest/field", "shard", "shard/op", "shard/profile"},
	"api/value":       {"ingest/field", "ingest/grammar", "shard/jsonvalue"},
	"api/stream":      {"api/admin/answers", "api/bounded", "api/control", "api/control/document", "api/s3", "api/stream/currents", "shard/eventlog", "shard/eventlog/event", "shard/op", "wal/durable", "wal/pause"},

	"api/admin/answers":    {"api/control", "api/control/document"},
	"api/console/chart":    {},
	"api/console/figures":  {},
	"api/console/rights":   {"api/control", "api/control/document"},
	"api/console/signin":   {"api/bounded", "api/console/rights", "api/control", "api/control/document", "api/scim", "wal/throttle"},
	"api/control/document": {"api/keys", "api/ratelimit", "ingest/field"},
	"api/stream/currents":  {"shard", "shard/eventlog/event", "shard/jsonvalue", "shard/op", "shard/profile"},

	"ingest":         {"ingest/field", "ingest/grammar", "ingest/stops", "shard/op"},
	"ingest/field":   {},
	"ingest/files":   {"ingest/field", "ingest/grammar"},
	"ingest/grammar": {"ingest/stops"},
	"ingest/stops":   {},

	"shard":                   {"shard/bodies", "shard/books", "shard/effect", "shard/entries", "shard/identity", "shard/lookup", "shard/op", "shard/procs", "shard/profile", "shard/replica", "shard/stamp", "wal", "wal/pause"},
	"shard/lookup":            {"shard/bodies", "shard/books", "shard/entries", "shard/identity", "shard/op", "shard/procs", "shard/profile", "shard/replica", "shard/stamp", "wal"},
	"shard/replica":           {"shard/arena", "shard/bodies", "shard/books", "shard/effect", "shard/entries", "shard/identity", "shard/machine", "shard/op", "shard/outgoing", "shard/procs", "shard/profile", "shard/stamp", "shard/store", "wal", "wal/pause"},
	"shard/machine":           {"shard/arena", "shard/bodies", "shard/books", "shard/effect", "shard/entries", "shard/identity", "shard/op", "shard/procs", "shard/profile", "shard/store"},
	"shard/arena":             {},
	"shard/bodies":            {"shard/identity", "shard/op", "shard/profile"},
	"shard/books":             {"shard/bodies", "shard/identity", "shard/op", "shard/profile", "shard/store"},
	"shard/cursor":            {},
	"shard/effect":            {"shard/bodies", "shard/identity", "shard/op"},
	"shard/entries":           {"shard/arena", "shard/identity", "shard/op", "shard/profile"},
	"shard/store":             {"shard/entries", "shard/identity", "shard/profile", "wal/throttle"},
	"shard/backup":            {"shard/eventlog", "shard/replica", "wal", "wal/pause"},
	"shard/cluster":           {"shard", "shard/backup", "shard/bodies", "shard/books", "shard/cluster/calls", "shard/cluster/cut", "shard/cluster/facts", "shard/cluster/image", "shard/cluster/placement", "shard/cluster/promise", "shard/cluster/routes", "shard/effect", "shard/eventlog", "shard/eventlog/event", "shard/op", "shard/replica", "shard/stamp", "shard/store", "wal", "wal/pause", "wal/quorum", "wal/quorum/disk", "wal/quorum/host", "wal/throttle"},
	"shard/cluster/calls":     {"shard/cluster/placement", "shard/cursor", "shard/effect", "shard/eventlog", "shard/eventlog/event", "shard/op", "shard/replica", "shard/stamp", "wal/quorum/host"},
	"shard/cluster/cut":       {"shard/cluster/calls", "shard/replica", "wal/quorum", "wal/quorum/host"},
	"shard/cluster/facts":     {"shard/cluster/calls", "shard/cluster/placement", "shard/identity", "shard/replica", "wal/durable", "wal/pause", "wal/quorum/host"},
	"shard/cluster/founding":  {"shard", "shard/backup", "shard/cluster/facts", "shard/cluster/image", "shard/cluster/placement", "shard/eventlog", "shard/identity", "shard/replica", "wal/durable", "wal/quorum"},
	"shard/cluster/image":     {"shard/cluster/calls", "shard/replica", "wal", "wal/quorum/host"},
	"shard/cluster/placement": {"shard", "shard/bodies", "wal/quorum"},
	"shard/cluster/promise":   {"shard/cluster/calls", "shard/effect", "shard/replica", "wal/pause", "wal/quorum/host"},
	"shard/cluster/routes":    {"shard/cluster/facts", "shard/cluster/placement", "shard/replica", "wal/quorum"},
	"shard/eventlog":          {"shard/bodies", "shard/books", "shard/eventlog/blocks", "shard/eventlog/erased", "shard/eventlog/event", "shard/eventlog/files", "shard/eventlog/stretch", "shard/identity", "shard/op", "shard/profile", "wal", "wal/durable", "wal/pause"},
	"shard/eventlog/erased":   {"shard/bodies", "shard/books", "shard/cursor", "shard/eventlog/blocks", "shard/op", "shard/profile", "wal/durable"},
	"shard/eventlog/blocks":   {"shard/cursor", "shard/eventlog/event", "shard/identity", "shard/op"},
	"shard/eventlog/columns":  {},
	"shard/eventlog/event":    {"shard/eventlog/columns", "shard/jsonvalue", "shard/op"},
	"shard/eventlog/files":    {"shard/cursor", "shard/eventlog/blocks", "shard/eventlog/erased", "wal/durable"},
	"shard/eventlog/stretch":  {"shard/bodies", "shard/books", "shard/effect", "shard/eventlog/blocks", "shard/eventlog/erased", "shard/eventlog/event", "shard/op", "shard/profile"},
	"shard/identity":          {"shard/op"},
	"shard/op":                {},
	"shard/outgoing":          {"shard/effect", "shard/identity"},
	"shard/procs":             {},
	"shard/jsonvalue":         {"shard/op"},
	"shard/profile":           {"shard/jsonvalue", "shard/op"},
	"shard/stamp":             {"wal/throttle"},
	"wal":                     {"wal/durable"},
	"wal/durable":             {},
	"wal/pause":               {},
	"wal/throttle":            {},
	"wal/memlog":              {"wal"}, // nobody but tests
	"wal/quorum":              {"wal", "wal/durable", "wal/pause", "wal/quorum/disk", "wal/quorum/frames", "wal/quorum/host", "wal/quorum/marker", "wal/quorum/store", "wal/throttle"},
	"wal/quorum/disk":         {},
	"wal/quorum/frames":       {"wal/pause"},
	"wal/quorum/host":         {"wal/throttle"},
	"wal/quorum/host/testnet": {}, // nobody but tests
	"wal/quorum/marker":       {"wal", "wal/durable", "wal/quorum/host", "wal/quorum/store"},
	"wal/quorum/store":        {"wal", "wal/durable"},

	"loadtest":             {"api/bounded", "loadtest/body", "wal/durable", "wal/pause"}, // knows the server by HTTP only
	"loadtest/body":        {},
	"loadtest/history":     {}, // nobody but tests
	"loadtest/model":       {}, // nobody but tests
	"loadtest/testaddr":    {}, // nobody but tests
	"loadtest/testbrowser": {}, // nobody but tests
	"loadtest/testlog":     {}, // nobody but tests
	"loadtest/testseed":    {}, // nobody but tests
	"loadtest/testsize":    {}, // nobody but tests

	"loadtest/testengine": {"shard/op", "shard/profile"}, // nobody but tests
}

// testArrows are the packages that tests import besides. The tests of all packages may import loadtest/testaddr,
// loadtest/testbrowser, loadtest/testengine, loadtest/testlog, loadtest/testseed and loadtest/testsize.
var testArrows = map[string][]string{
	"api/console":             {"api", "api/admin", "api/census", "api/live", "api/refused", "api/scim", "api/store", "ingest", "ingest/field", "shard", "shard/op"},
	"api":                     {"api/admin", "api/census", "api/live", "ingest", "ingest/field", "shard/bodies", "shard/op", "shard/profile", "shard/cluster", "shard/cluster/facts", "shard/cluster/placement", "wal", "wal/quorum"},
	"api/stream":              {"ingest", "shard", "shard/bodies", "shard/identity", "shard/profile", "shard/stamp", "wal"},
	"api/census":              {"shard/op"},
	"api/live":                {"ingest"},
	"ingest":                  {"loadtest/body"},
	"shard":                   {"ingest", "loadtest/body", "shard/store", "wal/memlog"},
	"shard/replica":           {"shard", "wal/memlog"},
	"shard/machine":           {"shard", "shard/replica", "wal"},
	"shard/cluster/placement": {"shard/replica"},
	"shard/backup":            {"shard", "shard/bodies", "shard/eventlog/event", "shard/identity", "shard/op", "shard/profile", "shard/stamp"},
	"shard/cluster":           {"shard/cluster/founding", "shard/identity", "shard/profile"},
	"shard/eventlog":          {"ingest", "shard", "loadtest/body", "shard/effect", "shard/identity", "shard/replica", "shard/stamp"},
	"shard/eventlog/blocks":   {"wal/durable"},
	"loadtest":                {"..."},
}

// libraries are the libraries that only some packages import: HTTP stays out of the engine, and Pebble out of
// everything in front of the engine.
var libraries = map[string][]string{
	"github.com/valyala/fasthttp":       {"api/...", "cmd/millrace/importer", "shard/cluster/calls", "loadtest/...", "bench/..."},
	"net/http":                          {"api/...", "cmd/...", "loadtest/...", "bench/..."},
	"github.com/cockroachdb/pebble/v2":  {"wal", "wal/durable", "shard/...", "bench/..."},
	"github.com/alecthomas/kong":        {"cmd/..."},
	"github.com/minio/minio-go/v7":      {"api/s3", "api/stream", "cmd/millrace/importer"},
	"github.com/twmb/franz-go":          {"api/stream", "bench/..."},
	"github.com/twmb/avro":              {"api/stream/..."},
	"github.com/anishathalye/porcupine": {"loadtest/history"},
	"github.com/coreos/go-oidc/v3":      {"api/console/signin"},
}

func TestArrows(t *testing.T) {
	for pkg, imports := range importsOf(t, false) {
		allowed, known := arrows[pkg]
		if !known {
			t.Errorf("package %q has no arrows: give it some in arrows_test.go, and say in ARCHITECTURE.md what it holds", pkg)
			continue
		}
		checkArrows(t, pkg, imports, allowed)
		checkNeeded(t, pkg, imports, allowed)
		for _, i := range imports {
			if rooms, bound := libraries[libraryOf(i)]; bound && !matches(rooms, pkg) {
				t.Errorf("package %q imports %q, which belongs to %v", pkg, i, rooms)
			}
		}
	}
	for pkg, imports := range importsOf(t, true) {
		checkArrows(t, pkg, imports, slices.Concat([]string{pkg, pkg + "/...", "loadtest/testaddr", "loadtest/testbrowser", "loadtest/testengine", "loadtest/testlog", "loadtest/testseed", "loadtest/testsize"}, arrows[pkg], testArrows[pkg]))
	}
}

// TestArrowsPointDown finds cycles in the table. The code has none, since Go refuses them.
func TestArrowsPointDown(t *testing.T) {
	for _, leaf := range []string{"wal/durable", "shard/op", "ingest/field", "api/ratelimit", "loadtest/body"} {
		require.Empty(t, arrows[leaf], "%s stands alone", leaf)
	}
	require.False(t, matches(arrows["api"], "ingest"), "cmd hands api the track function")
	for pkg, allowed := range arrows {
		if strings.HasPrefix(pkg, "shard") || pkg == "wal" {
			require.False(t, matches(allowed, "api") || matches(allowed, "ingest"), "%s must not know who is in front of it", pkg)
		}
		require.False(t, pkg != "cmd/millrace" && pkg != "bench" && matches(allowed, "cmd/millrace"))
	}
}

func checkArrows(t *testing.T, pkg string, imports, allowed []string) {
	t.Helper()
	for _, i := range imports {
		if ours, ok := strings.CutPrefix(i, "millrace/"); ok && !matches(allowed, ours) {
			t.Errorf("package %q must not import %q: it may import %v", pkg, ours, allowed)
		}
	}
}

func checkNeeded(t *testing.T, pkg string, imports, allowed []string) {
	t.Helper()
	for _, a := range allowed {
		if !slices.ContainsFunc(imports, func(i string) bool { return matches([]string{a}, strings.TrimPrefix(i, "millrace/")) }) {
			t.Errorf("package %q no longer imports %q: drop the arrow", pkg, a)
		}
	}
}

// TestPackagesAreTold compares the table of packages in ARCHITECTURE.md with the packages that there are.
func TestPackagesAreTold(t *testing.T) {
	var told []string
	name := regexp.MustCompile("`([a-z0-9/]+)`")
	for line := range strings.Lines(section(t, text(t, "ARCHITECTURE.md"), "## Packages", "\n## ")) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
				told = append(told, m[1])
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(arrows)), told)
}

func matches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, ok := strings.CutSuffix(p, "...")
		return p == pkg || ok && strings.HasPrefix(pkg+"/", below)
	})
}

// libraryOf is the module of an import path, if libraries lists it.
func libraryOf(path string) string {
	for l := range libraries {
		if path == l || strings.HasPrefix(path, l+"/") {
			return l
		}
	}
	return path
}

// importsOf reads the imports of all packages of the module, by folder: those of the tests, or those of the other
// files.
func importsOf(t *testing.T, tests bool) map[string][]string {
	found := map[string]map[string]struct{}{}
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "data") {
				return fs.SkipDir
			}
			return nil
		}
		dir := path.Dir(file)
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") != tests || dir == "." {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(file), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		if found[dir] == nil {
			found[dir] = map[string]struct{}{}
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			found[dir][name] = struct{}{}
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	imports := map[string][]string{}
	for dir, names := range found {
		imports[dir] = slices.Sorted(maps.Keys(names))
	}
	return imports
}
