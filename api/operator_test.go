package api

import (
	"net/http"

	"millrace/api/census"
	"millrace/api/live"
)

// OperatorOptions are those of the operator's door, package admin. It imports this one, so tests get it by NewOperator.
type OperatorOptions struct {
	Token   string
	Live    *live.Hub
	Census  *census.Counter
	Cluster any // admin.Cluster
}

// NewOperator makes the server of the operator's door, and tells its routes.
var NewOperator func(s *Server, o *OperatorOptions) (server *http.Server, patterns []string)

func (d *door) operatorServer() *http.Server {
	server, _ := NewOperator(d.Server, &d.operator)
	return server
}

func (d *door) operatorPatterns() []string {
	_, patterns := NewOperator(d.Server, &d.operator)
	return patterns
}
