package cluster

import "context"

// reconciler leads from what is to what is wanted. It runs on the leader of the control group, from OnLead to OnFollow.
type reconciler struct {
	*operator
}

// run works until ctx ends.
func (r *reconciler) run(ctx context.Context) { panic("not built") }
