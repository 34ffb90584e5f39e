package ingest

import "golang.org/x/sys/cpu"

// waysToMark are all ways to mark stops on this machine.
func waysToMark() map[string]func(dst, src, stops *byte, blocks int) {
	ways := map[string]func(dst, src, stops *byte, blocks int){"SSE2": markStopsSSE2, "by word": markStopsByWord}
	if cpu.X86.HasAVX2 {
		ways["AVX2"] = markStopsAVX2
	}
	return ways
}
