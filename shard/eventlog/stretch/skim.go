package stretch

import (
	"fmt"

	"millrace/shard/eventlog/erased"
	"millrace/shard/op"
)

// Skimmer finds the deletions in a part of the log.
type Skimmer struct {
	Deletions erased.Collector
	// Bytes is the size of the records, and Events what their events and purchases would count for in a Stretch (Size),
	// but for their names.
	Bytes, Events int64

	recNames, innerNames op.Names
}

// AddRecord looks through a record.
func (k *Skimmer) AddRecord(position uint64, payload []byte) error {
	rec, err := op.ParseRecord(payload, k.recNames)
	if err != nil {
		return err
	}
	k.recNames = rec.Names
	stamp, ordinal := rec.Stamp, uint32(0)
	for rest := rec.Ops; len(rest) > 0; ordinal++ {
		var o op.Op
		o, rest = op.Next(rest)
		of := &rec
		rec.Stamp = stamp + int64(ordinal)
		if o.Kind() == op.Message {
			inner, innerOp, err := message(o, k.innerNames)
			if err != nil {
				return err
			}
			k.innerNames, o, of = inner.Names, innerOp, &inner
		}
		switch o.Kind() {
		case op.Event, op.Purchase:
			k.Events += rowBytes(o)
		case op.Delete:
			if _, err := k.Deletions.Add(position, ordinal, of, o); err != nil {
				return fmt.Errorf("position %d op %d: %w", position, ordinal, err)
			}
		}
	}
	k.Bytes += int64(len(payload))
	return nil
}
