//go:build !amd64

package ingest

// markStops is described in stops_amd64.go.
func markStops(dst, src, stops *byte, blocks int) { markStopsByWord(dst, src, stops, blocks) }
