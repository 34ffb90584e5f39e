// Package stdlog silences the standard logger until the server has a log of its own: what libraries write there is no
// line of JSON, and other commands print their answers alone. VictoriaMetrics/metrics does so while it is initialized,
// on machines without pressure stall information.
//
// Go initializes, of the packages whose imports are initialized, the one whose path comes first. What this one imports
// makes it come after capnslog, which gives the standard logger an output of its own, and before all that need
// net/http, as that library does.
package stdlog

import (
	"io"
	"log"

	_ "github.com/coreos/pkg/capnslog"
)

func init() { log.SetOutput(io.Discard) }
