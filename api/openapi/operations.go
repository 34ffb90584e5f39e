package openapi

import (
	"strings"
	"sync"
)

// Operation is an operation that is served to API keys, ready to be tried.
type Operation struct {
	Method     string `json:"method"`
	Path       string `json:"path"`
	Summary    string `json:"summary"`
	Permission string `json:"permission"`
	Target     string `json:"target"`            // the path with the examples of its parameters
	Example    string `json:"example,omitempty"` // a body, as JSON; empty: there is none
}

// Operations lists the operations in the order of the document. The slice is shared and must not be changed.
func Operations() []Operation { return operations() }

var operations = sync.OnceValue(func() (list []Operation) {
	whole := read()
	link(whole, whole)
	for path, item := range members(member(whole, "paths")) {
		for _, method := range methods {
			n := member(item, method)
			if n == nil || text(n, "x-permission") == "" {
				continue
			}
			o := operation{strings.ToUpper(method), path, n}
			one := Operation{Method: o.Method, Path: path, Summary: text(n, "summary"), Permission: accessOf(n),
				Target: urlOf(o)}
			if examples := examplesOf(member(n, "requestBody")); len(examples) > 0 {
				one.Example = examples[0].Text
			}
			list = append(list, one)
		}
	}
	return list
})
