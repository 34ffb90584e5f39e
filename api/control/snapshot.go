package control

import (
	"github.com/benbjohnson/immutable"

	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/ratelimit"
)

// Workspace is a decoded workspace. It is immutable, apart from the counts that Windows points to.
type Workspace struct {
	document.Settings
	Number  uint32
	Apps    map[string]*document.App
	Groups  map[string]*document.Group // by id, lower case; without archived ones
	Keys    []*document.Key            // in order of their numbers, including revoked ones
	Blocked map[string]struct{}
	Limits  ratelimit.Limits
	Windows *ratelimit.Windows
	// StreamsAttributes says that a stream carries attributes out.
	StreamsAttributes bool
	// Prepared returns the result of Options.Prepare, which is called when it is first asked for.
	Prepared func() any
}

// Snapshot is all control data at one time. It is immutable; the next one shares with it what stays the same.
type Snapshot struct {
	Keys       keys.Set
	SCIM       *document.SCIM // nil: not set up
	workspaces immutable.Map[uint32, *Workspace]
	slugs      immutable.SortedMap[string, *Workspace]

	// The highest numbers in use: of a workspace, of an API key or SCIM token.
	lastWorkspace, lastKey uint32
}

// Workspace returns a workspace by its number, nil when there is none.
func (s *Snapshot) Workspace(number uint32) *Workspace {
	w, _ := s.workspaces.Get(number)
	return w
}

// Lookup returns a workspace by its id, nil when there is none.
func (s *Snapshot) Lookup(id string) *Workspace {
	w, _ := s.slugs.Get(id)
	return w
}

// Workspaces returns all workspaces, in order of their ids.
func (s *Snapshot) Workspaces() (list []*Workspace) {
	for i := s.slugs.Iterator(); !i.Done(); {
		_, w, _ := i.Next()
		list = append(list, w)
	}
	return list
}

// set sets the workspace with this slug in a Snapshot that is being made.
func (s *Snapshot) set(slug string, w *Workspace) {
	s.workspaces, s.slugs = *s.workspaces.Set(w.Number, w), *s.slugs.Set(slug, w)
	s.lastWorkspace = max(s.lastWorkspace, w.Number)
}

type workspaceDocument struct {
	document.Settings
	Number uint32 `json:"number"`
}
