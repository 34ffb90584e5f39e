package machine

import (
	"millrace/shard/bodies"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

func (w *Worker) appendErased(blob []byte, number uint64, until profile.Place) []byte {
	return bodies.AppendErased(nil, blob, number, until, w.m.hasher, w.m.opts.Groups)
}

// eraseEvents tells the event log of a deletion that is not in the log as such: by a Delete of a number where nobody
// is.
func (w *Worker) eraseEvents(p *Partition, number uint64, body []byte) {
	w.send(p, op.Delete, op.MakeFlags(0, op.SvcID), number, body, nil, false)
}

// eraseElsewhere tells the event logs of other groups of the deletion of a profile: those that have events of its
// formers.
func (w *Worker) eraseElsewhere(p *Partition, blob []byte) {
	var partitions []uint8
	deletes := make(map[uint8][]byte)
	bodies.EachFormer(blob, func(x bodies.Erased) {
		if bodies.OneLog(nobodyIn(p.ID), x.Number, w.m.opts.Groups) {
			return
		}
		to := identity.Partition(x.Number)
		if deletes[to] == nil {
			partitions = append(partitions, to)
		}
		deletes[to] = x.Append(deletes[to])
	})
	for _, to := range partitions {
		w.eraseEvents(p, nobodyIn(to), deletes[to])
	}
}

// nobodyIn is a number in a partition that is never anybody's.
func nobodyIn(partition uint8) uint64 { return uint64(partition) << 56 }
