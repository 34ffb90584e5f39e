package replica_test

import (
	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// coordinator is the real coordinator, in the form in which tests of the package below it know it.
type coordinator struct{ *shard.Coordinator }

func init() {
	replica.OpenAlone = func(o replica.EngineOptions) (replica.Coordinator, error) {
		c, err := shard.Open(o)
		if err != nil {
			return nil, err
		}
		return coordinator{c}, nil
	}
}

func (c coordinator) NewBatch(workspace, actor uint32) *testengine.Batch {
	b := c.Coordinator.NewBatch(workspace, actor)
	return &testengine.Batch{Builder: &b.Builder, Request: b}
}

func (c coordinator) Find(workspace uint32, id op.IDKind, key []byte) (users []testengine.User, err error) {
	found, err := c.Coordinator.Find(workspace, id, key)
	for _, u := range found {
		users = append(users, testengine.User(u))
	}
	return users, err
}
