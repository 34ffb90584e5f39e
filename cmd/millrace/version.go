package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// version is set by the Makefile.
var version = "dev"

type versionCommand struct{}

// Run prints version, revision and Go version.
func (versionCommand) Run(stdout io.Writer) error {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	_, err := fmt.Fprintf(stdout, "millrace %s (%s, %s)\n", version, revision, runtime.Version())
	return err
}
