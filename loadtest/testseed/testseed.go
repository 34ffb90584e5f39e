// Package testseed gives tests their random input, so that a failure can be had again. Tests import it, nothing else
// does.
package testseed

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Of is the number in MILLRACE_SEED, or a new one. The test's output has the line that repeats it.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("MILLRACE_SEED: %v", err)
		}
	}
	t.Logf("again: MILLRACE_SEED=%d go test %s -run '^%s$'", seed, folder(), t.Name())
	return seed
}

// Rand is a random source of Of(t). It belongs to one goroutine.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 0))
}

// folder is the package under test as `go test` takes it at the root of the module: tests run in the folder of their
// package.
func folder() string {
	here, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := here; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			relative, _ := filepath.Rel(root, here)
			return "./" + filepath.ToSlash(relative)
		}
		if root == filepath.Dir(root) {
			return "."
		}
	}
}
