package books

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Deferred has the records that wait for the effects of what came before them, in the order of their sequences.
type Deferred struct {
	waiting  []*DeferredRecord
	released []uint64 // sequences of rows to delete
}

// DeferredRecord is the rest of a request that must see the effects of the ops before it.
type DeferredRecord struct {
	Seq    uint64
	Owner  uint64 // of a request with an Idempotency-Key, in a cluster: the key's home number; else 0
	Record []byte
	stored bool
}

// Len is how many records wait.
func (d *Deferred) Len() int { return len(d.waiting) }

// All are the records that wait. The slice must not be kept.
func (d *Deferred) All() []*DeferredRecord { return d.waiting }

// Find is the record with this sequence, nil when it is gone.
func (d *Deferred) Find(seq uint64) *DeferredRecord {
	for _, r := range d.waiting {
		if r.Seq == seq {
			return r
		}
	}
	return nil
}

// Add makes a record wait. record is copied.
func (d *Deferred) Add(seq, owner uint64, record []byte) {
	d.waiting = append(d.waiting, &DeferredRecord{Seq: seq, Owner: owner, Record: append([]byte{}, record...)})
}

// Remove takes a record out and returns it; nil when it is gone.
func (d *Deferred) Remove(seq uint64) *DeferredRecord {
	r := d.Find(seq)
	if r == nil {
		return nil
	}
	if r.stored {
		d.released = append(d.released, seq)
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(x *DeferredRecord) bool { return x == r })
	return r
}

// save writes rows of owner u64 and record.
func (d *Deferred) save(partition uint8, batch *pebble.Batch) error {
	for _, seq := range d.released {
		if err := batch.Delete(store.AppendBookKey(nil, partition, store.BookDeferred, seq), nil); err != nil {
			return err
		}
	}
	d.released = d.released[:0]
	for _, r := range d.waiting {
		if r.stored {
			continue
		}
		row := append(binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(r.Record)), r.Owner), r.Record...)
		if err := batch.Set(store.AppendBookKey(nil, partition, store.BookDeferred, r.Seq), row, nil); err != nil {
			return err
		}
		r.stored = true
	}
	return nil
}

func (d *Deferred) load(seq uint64, v []byte) error {
	if len(v) < 8 {
		return fmt.Errorf("%w: deferred record of %d bytes", store.ErrStore, len(v))
	}
	d.waiting = append(d.waiting,
		&DeferredRecord{Seq: seq, Owner: binary.LittleEndian.Uint64(v), Record: bytes.Clone(v[8:]), stored: true})
	return nil
}
