package shard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// above are the files of the coordinator's side. All others are of the replica's, below.
var above = []string{
	"batch.go", "commit.go", "consent.go", "control.go", "coordinator.go", "deferral.go", "keyed.go", "names.go", "nodes.go", "owner.go", "reads.go", "resolve.go",
	"unchanged.go", "view.go",
}

// Nothing below speaks of what is declared above, so that a replica can be read, and moved, without its coordinator.
func TestReplicaKnowsNoCoordinator(t *testing.T) {
	files := map[string]*ast.File{}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files[name], err = parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
		}
	}
	declared := map[string]string{} // names of the package that are declared above, and where
	for _, name := range above {
		require.Contains(t, files, name)
		for _, d := range files[name].Decls {
			for _, id := range declaredBy(d) {
				declared[id.Name] = name
			}
		}
	}
	require.Contains(t, declared, "Coordinator")
	for name, f := range files {
		if slices.Contains(above, name) {
			continue
		}
		for _, id := range f.Unresolved { // what the file doesn't declare itself
			if where := declared[id.Name]; where != "" {
				t.Errorf("%s speaks of %s, which is declared above, in %s", name, id.Name, where)
			}
		}
	}
}

// declaredBy are what a declaration declares in the package.
func declaredBy(d ast.Decl) (ids []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			ids = append(ids, d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				ids = append(ids, s.Name)
			case *ast.ValueSpec:
				ids = append(ids, s.Names...)
			}
		}
	}
	return ids
}
