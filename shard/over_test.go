package shard

import (
	"millrace/shard/identity"

	"millrace/shard/replica"
	"millrace/shard/stamp"
)

// Engine is what tests ask: a coordinator and the replica below it. For a node of a cluster there is no such replica.
// For a replica of a group, the coordinator reads this replica alone.
type Engine struct {
	*Coordinator
	*replica.Replica
	hasher *identity.Hasher
	clock  *stamp.Clock
}

func openEngine(o replica.EngineOptions) (*Engine, error) {
	c, err := Open(o)
	if err != nil {
		return nil, err
	}
	return &Engine{c, c.sole, c.hasher, c.clock}, nil
}

// over is a replica of a group, with a coordinator that reads what the replica has.
func over(r *replica.Replica) *Engine {
	c := newCoordinator(CoordinatorOptions{Clock: r.Clock()})
	c.nodes, c.sole, c.hasher = alone{c}, r, r.Hasher()
	return &Engine{c, r, r.Hasher(), r.Clock()}
}

func openGroup(o replica.Options) (*Engine, error) {
	r, err := replica.Open(o)
	if err != nil {
		return nil, err
	}
	return over(r), nil
}

func coord(c *Coordinator) *Engine { return &Engine{Coordinator: c, hasher: c.hasher, clock: c.clock} }

// isCoordinator says whether there is no replica below the coordinator.
func (e *Engine) isCoordinator() bool { return e.Replica == nil }

func (e *Engine) Close() error {
	if e.isCoordinator() || e.resumed != nil {
		return e.Coordinator.Close()
	}
	return e.Replica.Close()
}

func (e *Engine) Failed() error                            { return e.Coordinator.Failed() }
func (e *Engine) Ready() error                             { return e.Coordinator.Ready() }
func (e *Engine) Stats() replica.Stats                     { return e.Coordinator.Stats() }
func (e *Engine) Document(key string) []byte               { return e.Coordinator.Document(key) }
func (e *Engine) AuditEnd() (uint64, [32]byte)             { return e.Coordinator.AuditEnd() }
func (e *Engine) lend(number uint64) (replica.Lent, error) { return e.Coordinator.lend(number) }
