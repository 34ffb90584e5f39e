package millrace

import (
	"cmp"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// filesUp is how many arrows between the files of a package run back up when the files are in their best order. There
// is an arrow when a file uses functions, methods or types of another one. A package below api or shard that is not
// listed here has no arrow back up, so its files can be read from top to bottom. A number may fall, and is then lowered
// here; no number rises.
var filesUp = map[string]int{
	"api":         5,
	"api/census":  1,
	"api/live":    2,
	"api/refused": 1,
	"api/scim":    1,

	"shard":         1,
	"shard/replica": 2,
}

func TestFilesPointDown(t *testing.T) {
	packages := importsOf(t, false)
	for pkg := range filesUp {
		require.Contains(t, packages, pkg)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output() // which a test that is built with -trimpath doesn't know
	require.NoError(t, err)
	build.Default.GOROOT = strings.TrimSpace(string(root))
	std := generics{importer.ForCompiler(token.NewFileSet(), "source", nil)}
	_, err = std.Import("slices")
	require.NoError(t, err)
	for pkg := range packages {
		if matches([]string{"api/...", "shard/..."}, pkg) {
			uses := usesOfFiles(t, pkg, std)
			order := bestOrder(uses)
			if up := arrowsUp(uses, order); len(up) != filesUp[pkg] {
				t.Errorf("package %q: %d arrows between files run back up, filesUp says %d\n\tin the order %v:\n\t%v",
					pkg, len(up), filesUp[pkg], order, strings.Join(up, ", "))
			}
		}
	}
}

// usesOfFiles reads a package and says for each file which other files have what it uses.
func usesOfFiles(t *testing.T, pkg string, imports types.Importer) map[string]map[string]bool {
	set, uses := token.NewFileSet(), map[string]map[string]bool{}
	names, err := filepath.Glob(filepath.FromSlash(pkg + "/*.go"))
	require.NoError(t, err)
	var files []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(set, name, nil, 0)
			require.NoError(t, err)
			files, uses[filepath.Base(name)] = append(files, f), map[string]bool{}
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: imports, Error: func(error) {}}
	p, _ := conf.Check(pkg, set, files, info) // it finds much undefined: what other packages have
	file := func(at token.Pos) string { return filepath.Base(set.Position(at).Filename) }
	for ident, used := range info.Uses {
		f, isFunc := used.(*types.Func)
		isMethod := isFunc && f.Signature().Recv() != nil
		if used.Pkg() == p && (used.Parent() == p.Scope() || isMethod) && file(ident.Pos()) != file(used.Pos()) {
			uses[file(ident.Pos())][file(used.Pos())] = true
		}
	}
	return uses
}

// generics imports in full the packages whose generic types and functions give a package its own types back. Of all
// other packages it knows only the names, which suffices because they can't use the package.
type generics struct{ types.Importer }

func (g generics) Import(name string) (*types.Package, error) {
	if slices.Contains([]string{"cmp", "iter", "maps", "slices", "sync", "sync/atomic"}, name) {
		return g.Importer.Import(name)
	}
	base := path.Base(name)
	if strings.Trim(base, "v0123456789") == "" {
		base = path.Base(path.Dir(name))
	}
	p := types.NewPackage(name, base)
	p.MarkComplete()
	return p, nil
}

// bestOrder is an order in which no move of a single file makes fewer arrows run back up. It may not be the best one,
// but it is always the same.
func bestOrder(uses map[string]map[string]bool) []string {
	order := slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(uses[b]), len(uses[a])), cmp.Compare(a, b))
	})
	for fewest, before := len(arrowsUp(uses, order)), -1; fewest != before; {
		before = fewest
		for _, file := range slices.Sorted(maps.Keys(uses)) {
			rest := slices.DeleteFunc(slices.Clone(order), func(f string) bool { return f == file })
			for at := range order {
				moved := slices.Insert(slices.Clone(rest), at, file)
				if n := len(arrowsUp(uses, moved)); n < fewest {
					order, fewest = moved, n
				}
			}
		}
	}
	return order
}

// arrowsUp are the arrows to files that come before the files that use them.
func arrowsUp(uses map[string]map[string]bool, order []string) (up []string) {
	for at, from := range order {
		for _, to := range order[:at] {
			if uses[from][to] {
				up = append(up, from+" ▸ "+to)
			}
		}
	}
	return up
}
