package control

import (
	"maps"
	"slices"
	"strings"

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
	// Prepared is the result of Options.Prepare.
	Prepared any

	valid []*keys.Key
}

// Snapshot is all control data at one time. It is immutable.
type Snapshot struct {
	Keys       *keys.Set
	SCIM       *document.SCIM // nil: not set up
	workspaces map[uint32]*Workspace
	slugs      map[string]*Workspace
}

// Workspace returns a workspace by its number, nil when there is none.
func (s *Snapshot) Workspace(number uint32) *Workspace { return s.workspaces[number] }

// Lookup returns a workspace by its id, nil when there is none.
func (s *Snapshot) Lookup(id string) *Workspace { return s.slugs[id] }

// Workspaces returns all workspaces, in order of their ids.
func (s *Snapshot) Workspaces() []*Workspace {
	return slices.SortedFunc(maps.Values(s.workspaces), func(a, b *Workspace) int {
		return strings.Compare(a.ID, b.ID)
	})
}

type workspaceDocument struct {
	document.Settings
	Number uint32 `json:"number"`
}
