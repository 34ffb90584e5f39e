//go:build linux && cgo

package main

/*
#include <malloc.h>
#include <unistd.h>

// The store's memtables and cached blocks are in memory of the C library. With an arena for each thread and thresholds
// that grow, as is usual, the library keeps several times their size. This runs before there are threads: the Go
// runtime's own would have made arenas before any init function runs.
__attribute__((constructor)) static void keep_little(void) {
#ifdef __GLIBC__
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	mallopt(M_ARENA_MAX, cores > 8 ? cores / 4 : 2);
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_TRIM_THRESHOLD, 16 << 20);
#endif
}
*/
import "C"
