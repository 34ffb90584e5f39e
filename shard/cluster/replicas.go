package cluster

import (
	"slices"
	"time"

	"millrace/shard"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// closeGroup closes this node's replica of a group and removes it from the disk: the group lives elsewhere.
func (n *Node) closeGroup(id uint32) error {
	g := n.replicas[id].Swap(nil)
	if g != nil {
		if err := g.close(); err != nil {
			return err
		}
	}
	if err := n.facts.Note(id, false); err != nil {
		return err
	}
	if err := facts.RemoveGroup(nil, n.opts.Dir, id); err != nil {
		return err
	}
	n.log.Info("a replica was removed from this node", "group", id)
	return nil
}

// openReplicas opens the replicas that were here when the node ended. The control group comes first, since it says
// where nodes are.
func (n *Node) openReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	swept, err := n.facts.SweepGroups(nil)
	if err != nil {
		return err
	}
	for _, id := range swept {
		n.log.Info("removed the remains of a replica", "group", id)
	}
	var voters []quorum.Node
	if all := n.facts.Get().ControlVoters(); slices.Contains(all, n.self) {
		voters = all
	}
	if err := n.openGroup(shard.ControlGroup, voters); err != nil {
		return err
	}
	return together(n.facts.Get().Here, func(id uint32) error {
		if id == shard.ControlGroup {
			return nil
		}
		return n.openGroup(id, nil)
	})
}

// keepReplicas opens and closes replicas as the documents say, until the node is closed.
func (n *Node) keepReplicas() {
	for {
		d, changed := n.documents.Get()
		retry := time.Duration(0)
		if open, shut := n.toChange(d); len(open)+len(shut) > 0 {
			if err := n.changeReplicas(); err != nil && n.context.Err() == nil {
				n.log.Warn("this node's replicas can't be opened or removed as placed; trying again", "error", err)
				retry = time.Second
			}
		}
		n.shareMemory()
		for node := range d.Nodes {
			if d.Nodes[node].Member() && node != n.self {
				n.remote(node)
			}
		}
		n.remotes.Range(func(node quorum.Node, r *remote) bool {
			if known, ok := d.Nodes[node]; ok && known.State == placement.Removed && !d.IsNeeded(node) {
				r.letGo()
			}
			return true
		})
		var again <-chan time.Time
		if retry > 0 {
			again = time.After(retry)
		}
		select {
		case <-changed:
		case <-again:
		case <-n.context.Done():
			return
		}
	}
}

// toChange returns the user groups of which this node shall have a replica but has none, and the other way round.
func (n *Node) toChange(d *placement.Directory) (open, shut []uint32) {
	for i := 1; i < len(n.replicas); i++ {
		id := uint32(i)
		p, known := d.Groups[id]
		has := n.group(id) != nil
		switch {
		case known && p.Holds(n.self) && !has:
			open = append(open, id)
		case known && !p.Holds(n.self) && has:
			shut = append(shut, id)
		}
	}
	return open, shut
}

// changeReplicas opens and closes replicas, by documents that are not old: an empty replica made by an old document
// could take the place of one that has voted.
func (n *Node) changeReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.barrierControl(n.opts.BarrierTimeout); err != nil {
		return err
	}
	d, _ := n.documents.Get()
	open, shut := n.toChange(d)
	return together(slices.Concat(open, shut), func(id uint32) error {
		p := d.Groups[id]
		if !p.Holds(n.self) {
			return n.closeGroup(id)
		}
		if slices.Contains(p.MadeOf, n.self) {
			return n.openGroup(id, p.MadeOf)
		}
		return n.openGroup(id, nil)
	})
}

// closeReplicas closes all replicas.
func (n *Node) closeReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	return together(slices.Collect(n.groups()), func(g *group) error {
		n.replicas[g.id].Store(nil)
		return g.close()
	})
}
