package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"millrace/shard/identity"
	"millrace/shard/store"
)

// books is what a partition keeps beside its entries.
type books struct {
	applied      uint64
	nextMessage  uint64 // sequence of the next message to any partition; the first is 1
	nextDeferred uint64
	inbox        [identity.Partitions]uint64 // last sequence taken from each sender
}

func (b *books) encodeApplied() []byte {
	v := binary.LittleEndian.AppendUint64(nil, b.applied)
	v = binary.LittleEndian.AppendUint64(v, b.nextMessage)
	return binary.LittleEndian.AppendUint64(v, b.nextDeferred)
}

func (b *books) encodeInbox() []byte {
	var v []byte
	for sender, seq := range b.inbox {
		if seq != 0 {
			v = binary.AppendUvarint(append(v, byte(sender)), seq)
		}
	}
	return v
}

func (b *books) decode(kind byte, v []byte) error {
	switch kind {
	case store.BookApplied:
		if len(v) != 24 {
			return fmt.Errorf("%w: books of %d bytes", store.ErrStore, len(v))
		}
		b.applied, b.nextMessage, b.nextDeferred = binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:]),
			binary.LittleEndian.Uint64(v[16:])
	case store.BookInbox:
		for len(v) > 0 {
			seq, n := binary.Uvarint(v[1:])
			if n <= 0 {
				return fmt.Errorf("%w: inbox is cut short", store.ErrStore)
			}
			b.inbox[v[0]] = seq
			v = v[1+n:]
		}
	}
	return nil
}

// load reads a whole partition: the books that are held in memory always, its entries when entry is given.
func (p *partition) load(s *store.Store, entry func(number uint64, blob []byte) error) error {
	lower, upper := store.Bounds(p.id)
	if err := s.Scan(lower, store.AppendBookKey(nil, p.id, store.BookLazy), p.loadBook); err != nil || entry == nil {
		return err
	}
	return s.Scan(store.AppendEntryKey(nil, uint64(p.id)<<56|1), upper, func(k, v []byte) error {
		return entry(binary.BigEndian.Uint64(k[1:]), v)
	})
}

func (p *partition) loadBook(k, v []byte) error {
	switch kind, ids := k[9], k[10:]; {
	case kind == store.BookOutbox && len(ids) == 8:
		m, err := parseMessage(bytes.Clone(v))
		if err != nil {
			return err
		}
		m.stored = true
		p.outbox = append(p.outbox, m)
		if m.token {
			p.tokens.Add(1)
		}
	case kind == store.BookDeferred && len(ids) == 8:
		d, err := decodeDeferred(binary.BigEndian.Uint64(ids), v)
		if err != nil {
			return err
		}
		p.deferred = append(p.deferred, d)
	case kind == store.BookMerges:
		return p.decodeHeld(v)
	case kind == store.BookApart && len(ids) == 8:
		p.apart.load(binary.BigEndian.Uint64(ids), v)
	default:
		return p.decode(kind, v)
	}
	return nil
}
