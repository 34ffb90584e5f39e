//go:build !amd64

package stops

// Mark is described in mark_amd64.go.
func Mark(dst, src, stops *byte, blocks int) { markByWord(dst, src, stops, blocks) }
