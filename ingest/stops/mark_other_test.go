//go:build !amd64

package stops

// waysToMark are all ways to mark stops on this machine.
func waysToMark() map[string]func(dst, src, stops *byte, blocks int) {
	return map[string]func(dst, src, stops *byte, blocks int){"by word": markByWord}
}
