// Package testsize says how much a test does: what every run has time for, less under -short, and far more in the long
// versions. What is random has numbers of its own in each run, so a few rounds of it do. Tests import it, nothing else
// does.
package testsize

import (
	"os"
	"testing"
)

// Stress says that this is the run of the long versions, for hours (`make stress`).
func Stress() bool { return os.Getenv("MILLRACE_STRESS") != "" }

// Of is stress in the long versions, with -short or without; else short under -short, and usual in every other run.
func Of[T any](stress, usual, short T) T {
	if Stress() {
		return stress
	}
	return Short(usual, short)
}

// Short is Of for what has no long version.
func Short[T any](usual, short T) T {
	if testing.Short() {
		return short
	}
	return usual
}

// SkipSerial leaves a test out of -short, which is the run under the race detector, because it does one thing after the
// other: requests, commands, or a sweep over every byte or step. What servers do behind it others see as well.
func SkipSerial(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing comes at the same time")
	}
}
