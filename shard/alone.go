package shard

import (
	"time"

	"millrace/shard/identity"
	"millrace/shard/stamp"
)

// Open opens a node that is alone: a coordinator over one replica with all partitions, on what Options.Dir holds. It
// recovers: the store, then the log behind it.
func Open(o Options) (*Coordinator, error) {
	if o.Patience <= 0 { // coordinator and replica end together
		o.Patience = time.Minute
	}
	o.EnsureDefaults()
	clock := &stamp.Clock{Now: o.Now, MaxOffset: o.MaxClockOffset, Logger: o.Logger}
	co := CoordinatorOptions{
		Clock: clock, MaxInflightBytes: o.MaxInflightBytes, MaxMergesWaiting: o.MaxMergesWaiting, Now: o.Now,
		Logger: o.Logger,
	}
	co.ensureBounds()
	c := newCoordinator(co)
	c.nodes = alone{c}
	onDocument := o.OnDocument
	o.OnDocument = func(key string, doc []byte) {
		if !c.TakeDocument(key, doc) {
			onDocument(key, doc)
		}
	}
	r, err := OpenOwn(ReplicaOptions{
		Options: o, Count: identity.Partitions, Clock: clock, Carrier: alone{c}, Readdress: c.Readdress, FlushAll: c.FlushAll,
	})
	if err != nil {
		return nil, err
	}
	c.sole, c.hasher = r, r.Hasher()
	c.resumed = r.Resume()
	return c, nil
}

// alone is the Nodes of a coordinator over one replica that holds all partitions and always leads. There is nobody to
// call.
type alone struct{ c *Coordinator }

func (a alone) GroupOf(uint8) int                             { return ControlGroup }
func (a alone) Self() NodeID                                  { return 0 }
func (a alone) Leader(int, time.Time, bool) (NodeID, error)   { return 0, a.c.ended() }
func (a alone) Resigned(int, NodeID, uint64)                  {}
func (a alone) Replica(int) *Replica                          { return a.c.sole }
func (a alone) Local(uint8) *Replica                          { return a.c.sole }
func (a alone) Control() *Replica                             { return a.c.sole }
func (a alone) Barrier() error                                { return nil }
func (a alone) BarrierOf(...uint8) error                      { return nil }
func (a alone) BarrierControl() error                         { return nil }
func (a alone) Spread()                                       {}
func (a alone) Take(NodeID, []*Part, int, time.Time)          { panic("BUG: there is no other node") }
func (a alone) Deliver([]Message) error                       { panic("BUG: there is no other group") }
func (a alone) Entry(number uint64) ([]byte, error)           { return a.c.sole.Entry(number) }
func (a alone) TrailOf(number uint64) (Trail, error)          { return a.c.sole.TrailOf(number) }
func (a alone) Flush(_ uint8, owner uint64) ([]uint64, error) { return a.c.sole.Flush(owner, nil) }

func (a alone) Release(NodeID, uint64, time.Time) (Effects, error) {
	panic("BUG: there is no other node")
}

func (a alone) BlockedPage(workspace uint32, partition uint8, after uint64) ([]uint64, bool, error) {
	return a.c.sole.BlockedPage(workspace, partition, after)
}
