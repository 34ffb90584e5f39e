package stops

import "golang.org/x/sys/cpu"

// waysToMark are all ways to mark stops on this machine.
func waysToMark() map[string]func(dst, src, stops *byte, blocks int) {
	ways := map[string]func(dst, src, stops *byte, blocks int){"SSE2": markSSE2, "by word": markByWord}
	if cpu.X86.HasAVX2 {
		ways["AVX2"] = markAVX2
	}
	return ways
}
