package millrace

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The documents name what the code has: docs/operations.md each metric and each flag of the server, docs/import.md each
// flag of the import of files, docs/http.md each rule. The metrics, flags and rules that they name are in the code.
func TestDocuments(t *testing.T) {
	operations, protocol := text(t, "docs/operations.md"), text(t, "docs/http.md")
	same(t, "metrics", metricsOf(t), names(`\b(millrace_[a-z_]+?[a-z])(?:_bucket)?\b`, operations))
	require.Empty(t, regexp.MustCompile(`(?m)^\| `+"`millrace_.*"+`\| *\|$`).FindAllString(operations, -1), "metrics without a description")
	walk(t, ".go", func(file, source string) { // their buckets have no le, so Prometheus can't read them
		require.NotRegexp(t, `metrics\.(New|GetOrCreate)Histogram\(`, source, file)
	})
	flag := `--[a-z][a-z0-9-]+`
	flags := func(file, command string) map[string]bool {
		return names(`.+`, strings.Join(slices.Collect(maps.Keys(flagsOf(t, file, command))), "\n"))
	}
	same(t, "flags of serve", flags("serve.go", "serveCommand"), names(flag, section(t, operations, "## Settings", "## Files")))
	ofFiles := flags("import.go", "importFiles")
	delete(ofFiles, "--config") // said of the server
	same(t, "flags of import files", ofFiles, names(flag,
		firstColumn(section(t, text(t, "docs/import.md"), "## Running it", "## What is not there yet"))))
	fault := text(t, "ingest/fault.go")
	rules := names(`: +"([a-z-]+)"`, section(t, fault, "var ruleNames", "\n}\n")+section(t, text(t, "api/faults.go"), "var unmetRules", "\n}\n"))
	for name := range names(`= "([a-z-]+)"`, section(t, fault, "const (", ")")) {
		rules[name] = true
	}
	same(t, "rules", rules, names("`([a-z]+(?:-[a-z]+)*)`", firstColumn(section(t, protocol, "### Rules", "### Idempotency-Key"))))
	require.Contains(t, text(t, ".ci/run"), "make test")
	require.True(t, strings.Contains(text(t, "README.md"), "\nmake test "), "the README names the command of .ci/run")
}

// firstColumn is the first column of the tables in a text.
func firstColumn(markdown string) string {
	return strings.Join(regexp.MustCompile(`(?m)^\|[^|]*\|`).FindAllString(markdown, -1), "\n")
}

// TestDefaults checks that each flag of the server has the default that docs/operations.md gives it.
func TestDefaults(t *testing.T) {
	settings := section(t, text(t, "docs/operations.md"), "## Settings", "## Files")
	documented := map[string]string{"--config": ""}
	for _, row := range regexp.MustCompile("(?m)^\\| (`--[^|]*`) \\| ?([^|]*?) ?\\|").FindAllStringSubmatch(settings, -1) {
		values := strings.Split(strings.NewReplacer("`", "", "none", "").Replace(row[2]), ", ")
		for i, flag := range strings.Split(strings.ReplaceAll(row[1], "`", ""), ", ") {
			documented[flag] = values[min(i, len(values)-1)]
		}
	}
	require.Equal(t, flagsOf(t, "serve.go", "serveCommand"), documented)
}

// TestLinks checks that the files and headings that the documents link to exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`)
	walk(t, ".md", func(file, content string) {
		dir := file[:strings.LastIndexByte(file, '/')+1]
		for _, m := range link.FindAllStringSubmatch(content, -1) {
			target := dir + m[1]
			if m[1] == "" {
				target = file
			}
			_, err := os.Stat(target)
			require.NoError(t, err, file)
			if m[2] != "" {
				require.Contains(t, anchors(text(t, target)), m[2], "%s links to a heading of %s", file, target)
			}
		}
	})
}

// anchors are the names that headings can be linked by.
func anchors(markdown string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(markdown, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(name, " ", "-"))
	}
	return list
}

// Each decision has its context, the choice and what was given up, and a line in the list of decisions.
func TestDecisions(t *testing.T) {
	list := text(t, "docs/decisions/README.md")
	walk(t, ".md", func(file, content string) {
		name, is := strings.CutPrefix(file, "docs/decisions/2")
		if !is {
			return
		}
		for _, part := range []string{"# ", "\n**Context.** ", "\n**Choice.**", "\n**Given up.**"} {
			require.Contains(t, content, part, file)
		}
		require.Contains(t, list, "](2"+name+") | ", "docs/decisions/README.md lacks %s", file)
	})
}

// TestColumns checks that lines of product code end at 120 columns, with a tab counted as four. Text that can't be
// broken may be longer: text and tags in backquotes, and parts of comments behind a tab, such as tables.
func TestColumns(t *testing.T) {
	aside := regexp.MustCompile(`^\s*//\t`)
	walk(t, ".go", func(file, source string) {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(source, "\n// Code generated ") {
			return
		}
		raw := linesOfRawStrings(source)
		for i, line := range strings.Split(source, "\n") {
			if columns(line) > 120 && !raw[i+1] && !aside.MatchString(line) {
				t.Errorf("%s:%d ends at column %d", file, i+1, columns(line))
			}
		}
	})
}

// columns is the width of a line in an editor with a tab stop every four columns.
func columns(line string) (n int) {
	for _, r := range line {
		if n++; r == '\t' {
			n = (n + 3) &^ 3
		}
	}
	return n
}

// linesOfRawStrings are the numbers of the lines on which there is a part of a raw string.
func linesOfRawStrings(source string) map[int]bool {
	var s scanner.Scanner
	set, lines := token.NewFileSet(), map[int]bool{}
	file := set.AddFile("", -1, len(source))
	s.Init(file, []byte(source), nil, 0)
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.STRING && text[0] == '`' {
			first := file.Line(pos)
			for n := first; n <= first+strings.Count(text, "\n"); n++ {
				lines[n] = true
			}
		}
	}
}

func metricsOf(t *testing.T) map[string]bool {
	all := map[string]bool{}
	walk(t, ".go", func(file, source string) {
		if !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "bench/") && !strings.HasPrefix(file, "loadtest/") {
			for name := range names("[\"`](millrace_[a-z_]+[a-z])(?:[\"`]|\\{)", source) {
				all[name] = true
			}
		}
	})
	return all
}

// flagsOf are the flags of a command with their defaults; of a flag that is given nothing, that is what its help says.
// It reads the fields of the command's struct, from which kong makes the flags' names.
func flagsOf(t *testing.T, file, command string) map[string]string {
	source := section(t, text(t, "cmd/millrace/"+file), "type "+command+" struct {", "\n}\n")
	flags := map[string]string{"--config": ""}
	for _, m := range regexp.MustCompile(`(?m)^\t([A-Z]\w+)\s+(\S+)\s.*help:.*$`).FindAllStringSubmatch(source, -1) {
		if strings.Contains(m[0], `arg:""`) {
			continue
		}
		value := ""
		for _, pattern := range []string{`default:"([^"]*)"`, `(required):""`, `default: (\S+ in --data)\.`} {
			if found := regexp.MustCompile(pattern).FindStringSubmatch(m[0]); found != nil {
				value = found[1]
			}
		}
		if m[2] == "bool" && value == "" {
			value = "off"
		}
		flags["--"+kebab(m[1])] = value
	}
	return flags
}

// kebab turns MaxConnsPerIP into max-conns-per-ip, and TLSCert into tls-cert.
func kebab(name string) string {
	name = regexp.MustCompile(`([A-Z]+)([A-Z][a-z])`).ReplaceAllString(name, "$1-$2")
	return strings.ToLower(regexp.MustCompile(`([a-z0-9])([A-Z])`).ReplaceAllString(name, "$1-$2"))
}

func same(t *testing.T, what string, code, documents map[string]bool) {
	t.Helper()
	require.NotEmpty(t, code, what)
	for name := range code {
		if !documents[name] {
			t.Errorf("%s: the documents lack %s", what, name)
		}
	}
	for name := range documents {
		if !code[name] {
			t.Errorf("%s: the documents have %s, the code doesn't", what, name)
		}
	}
}

// names are the matches of a pattern: its first group, or the whole match when the pattern has no group.
func names(pattern, in string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
		found[m[len(m)-1]] = true
	}
	return found
}

func section(t *testing.T, in, begin, end string) string {
	_, rest, ok := strings.Cut(in, begin)
	require.True(t, ok, begin)
	part, _, ok := strings.Cut(rest, end)
	require.True(t, ok, end)
	return part
}

func text(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

func walk(t *testing.T, suffix string, f func(file, content string)) {
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (file == "bin" || file == "data" || file == ".git" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(file, suffix) {
			f(file, text(t, file))
		}
		return nil
	}))
}
