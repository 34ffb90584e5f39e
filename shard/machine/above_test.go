package machine_test

import (
	"io"
	"log/slog"

	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal"
)

// above is the real coordinator and replica, in the form in which tests of the package below them know them.
type above struct {
	*shard.Coordinator
	replica *replica.Replica
}

func init() {
	machine.OpenAlone = func(o machine.EngineOptions) (*machine.Machine, machine.Above, error) {
		c, err := shard.Open(shard.Options{
			FS: o.FS, Dir: "data", Workers: o.Workers, MemoryBytes: o.MemoryBytes, StoreCacheBytes: 1 << 20,
			MaxDeltaChanges: o.MaxDeltaChanges, Limits: o.Limits,
			StoreMemTableBytes: 1 << 20, // larger ones cost the race detector more than all that happens in them
			Log:                wal.Options{SegmentBytes: o.SegmentBytes, MinFreeBytes: -1, MinFreePercent: -1},
			Logger:             slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err != nil {
			return nil, nil, err
		}
		return c.Replica().Machine, above{c, c.Replica()}, nil
	}
}

func (a above) Checkpoint() error { return a.replica.Checkpoint() }

func (a above) Failed() error { return a.replica.Failed() }

func (a above) NewBatch(workspace, actor uint32) *testengine.Batch {
	b := a.Coordinator.NewBatch(workspace, actor)
	return &testengine.Batch{Builder: &b.Builder, Request: b}
}

func (a above) Find(workspace uint32, id op.IDKind, key []byte) (users []testengine.User, err error) {
	found, err := a.Coordinator.Find(workspace, id, key)
	for _, u := range found {
		users = append(users, testengine.User(u))
	}
	return users, err
}
