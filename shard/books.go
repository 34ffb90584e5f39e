package shard

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/store"
)

// load reads a whole partition: the books that are held in memory always, its entries when entry is given.
func (p *partition) load(s *store.Store, entry func(number uint64, blob []byte) error) error {
	lower, upper := store.Bounds(p.ID)
	if err := s.Scan(lower, store.AppendBookKey(nil, p.ID, store.BookLazy), p.loadBook); err != nil || entry == nil {
		return err
	}
	return s.Scan(store.AppendEntryKey(nil, uint64(p.ID)<<56|1), upper, func(k, v []byte) error {
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
	case kind == store.BookMerges:
		return p.decodeHeld(v)
	default:
		_, err := p.Load(kind, ids, v)
		return err
	}
	return nil
}
