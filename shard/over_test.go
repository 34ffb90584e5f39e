package shard

import (
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
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
	c.sitOver(r)
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

func (e *Engine) Failed() error                { return e.Coordinator.Failed() }
func (e *Engine) Ready() error                 { return e.Coordinator.Ready() }
func (e *Engine) Stats() replica.Stats         { return e.Coordinator.Stats() }
func (e *Engine) Document(key string) []byte   { return e.Coordinator.Document(key) }
func (e *Engine) AuditEnd() (uint64, [32]byte) { return e.Coordinator.AuditEnd() }

// isHere says whether an entry can be read without asking another node.
func (e *Engine) isHere(number uint64) bool { return e.nodes.Local(identity.Partition(number)) != nil }

// lend lends the entry at number, wherever it is.
func (e *Engine) lend(number uint64) (replica.Lent, error) {
	if local := e.nodes.Local(identity.Partition(number)); local != nil && local.Enter() {
		defer local.Leave()
		return local.Lend(number, replica.ToRead)
	}
	blob, err := e.nodes.Entry(number)
	return replica.Lent{Blob: blob}, err
}

// view calls f with the entry at number, if there is one.
func (e *Engine) view(number uint64, f func(blob []byte)) error {
	l, err := e.lend(number)
	if err == nil && l.Blob != nil {
		l.Show(number, func(_ uint64, blob []byte) { f(blob) })
	}
	return err
}

// hasTakenIn says whether a profile has taken in the profile with this number.
func hasTakenIn(blob []byte, number uint64) (has bool) {
	profile.Merged(blob, func(n, _ uint64) { has = has || n == number })
	return has
}

// members are the numbers in the directory row that lies at the home number of an identifier.
func (e *Engine) members(workspace uint32, id op.IDKind, key []byte) (numbers []uint64, err error) {
	err = e.view(e.hasher.Number(workspace, id, key), func(blob []byte) {
		if profile.Kind(blob) == entries.KindRow && entries.IsOf(blob, workspace, id, key) {
			m := entries.Members(blob)
			for i := range len(m) / 8 {
				numbers = append(numbers, entries.Member(m, i))
			}
		}
	})
	return numbers, err
}
