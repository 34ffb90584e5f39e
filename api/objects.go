package api

import (
	"bytes"
	"fmt"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/control"
)

// objectCounts count the objects of /users/track of one workspace.
type objectCounts struct{ accepted, refused, ignored *metrics.Counter }

// objectsOf has the counts of each workspace, by the workspace's id.
var objectsOf = xsync.NewMapOf[string, *objectCounts]()

func countsOf(ws *control.Workspace) *objectCounts {
	if counts, ok := objectsOf.Load(ws.ID); ok {
		return counts
	}
	of := func(result string) *metrics.Counter {
		return metrics.GetOrCreateCounter(fmt.Sprintf(`millrace_objects_total{workspace=%q,result=%q}`, ws.ID, result))
	}
	counts, _ := objectsOf.LoadOrStore(ws.ID, &objectCounts{of("accepted"), of("refused"), of("ignored")})
	return counts
}

// count counts what an answer reports: the accepted objects, its errors as refused, and its warnings as values left
// out.
func (c *objectCounts) count(accepted int, answer []byte) {
	c.accepted.Add(accepted)
	if i := bytes.Index(answer, errorsMember); i >= 0 { // not in a string: there, a quote has a backslash
		answer = answer[i:]
		errors, _, _ := bytes.Cut(answer, warningsMember)
		c.refused.Add(bytes.Count(errors, elementMember))
	}
	if _, warnings, ok := bytes.Cut(answer, warningsMember); ok {
		c.ignored.Add(bytes.Count(warnings, elementMember))
	}
}

var (
	errorsMember   = []byte(`"errors":[`)
	warningsMember = []byte(`"warnings":[`)
	elementMember  = []byte(`"input_array":`)
)
