package lookup

import "github.com/puzpuzpuz/xsync/v3"

// Renames has the workspaces in which external ids were renamed, as far as this node knows. A user may have several
// external ids once one was renamed: the old ones lead to the user until they are removed. Where that has never
// happened, a request that names users by external ids only names each user in one way, and nothing has to be looked
// up. So from its first rename on a workspace has a control document that says so, which every node of a cluster knows.
type Renames struct {
	workspaces *xsync.MapOf[uint32, struct{}]
}

// NewRenames returns Renames without a workspace.
func NewRenames() *Renames { return &Renames{xsync.NewMapOf[uint32, struct{}]()} }

// Add adds a workspace.
func (x *Renames) Add(workspace uint32) { x.workspaces.Store(workspace, struct{}{}) }

// Has says whether a workspace is known to have renamed external ids.
func (x *Renames) Has(workspace uint32) bool {
	_, ok := x.workspaces.Load(workspace)
	return ok
}
