package api_test

import (
	"net/http"

	"millrace/api"
	"millrace/api/admin"
)

func init() {
	api.NewOperator = func(s *api.Server, o *api.OperatorOptions) (*http.Server, []string) {
		cluster, _ := o.Cluster.(admin.Cluster)
		door := admin.New(admin.Options{Public: s, Token: o.Token, Live: o.Live, Census: o.Census, Cluster: cluster})
		return door.HTTPServer(nil), door.Patterns()
	}
}
