//go:build linux && cgo

package main

/*
#include <sys/prctl.h>

// The Go runtime's monitor sleeps for 20 µs at a time while goroutines are in system calls, and Linux makes 70 of them.
// So under load it may wake up 14,000 times a second, and took a twentieth of the process's CPU. Threads inherit the
// slack from the first one, and the monitor's is there before any init function runs. Whoever starts the process with
// another slack than the default keeps it.
__attribute__((constructor)) static void sleep_longer(void) {
	if (prctl(PR_GET_TIMERSLACK) == 50000)
		prctl(PR_SET_TIMERSLACK, 150000);
}
*/
import "C"
