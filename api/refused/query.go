package refused

import (
	"context"
	"errors"
	"os"
	"slices"
)

// List returns the entries that a query chooses, including everything that was offered before.
func (s *Store) List(ctx context.Context, q Query) (p Page, err error) {
	var paths []string
	if err := s.do(func() error { paths = s.paths(); return nil }); err != nil {
		return Page{}, err
	}
	q.Since = max(q.Since, s.options.Now()-s.options.Retention.Milliseconds())
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return Page{}, err
		}
		if q.Before != 0 && seqOf(path) > q.Before {
			continue
		}
		found, err := readSegment(path, q)
		if err != nil {
			return Page{}, err
		}
		p.Entries = append(p.Entries, found...)
		if len(p.Entries) > q.Limit {
			return Page{Entries: p.Entries[:q.Limit], More: true}, nil
		}
	}
	return p, nil
}

// readSegment returns the newest entries of a file that a query chooses, at most one more than its limit.
func readSegment(path string, q Query) (found []Entry, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) { // it was removed meanwhile
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var frames [][]byte // of the chosen entries
	_, _ = eachFrame(text, func(e *stored) bool {
		if q.matches(&e.Entry) {
			frames = append(frames, e.frame)
		}
		return true
	})
	var e stored
	for _, frame := range slices.Backward(frames) {
		if len(found) > q.Limit {
			break
		}
		e.read(frame[frameBytes:])
		found = append(found, e.copy())
	}
	return found, nil
}

// Get returns one entry; ok is false when it no longer exists.
func (s *Store) Get(ctx context.Context, workspace uint32, id ID) (e Entry, ok bool, err error) {
	p, err := s.List(ctx, Query{Workspace: workspace, Before: id.Seq + 1, Limit: 1})
	if err != nil || len(p.Entries) == 0 || p.Entries[0].Seq != id.Seq {
		return e, false, err
	}
	return p.Entries[0], true, nil
}

// Remove removes entries of a workspace, and returns how many there were.
func (s *Store) Remove(_ context.Context, workspace uint32, ids ...ID) (n int, err error) {
	seqs := make([]uint64, len(ids))
	for i := range ids {
		seqs[i] = ids[i].Seq
	}
	err = s.do(func() (err error) {
		n, err = s.removeWhere(func(g *segment) bool { return s.mayHold(g, seqs) },
			func(e *stored) bool { return e.Workspace == workspace && slices.Contains(seqs, e.Seq) })
		return err
	})
	return n, err
}

// mayHold reports whether a file may have one of these entries: they lie between its name and the next file's.
func (s *Store) mayHold(g *segment, seqs []uint64) bool {
	from, to := seqOf(g.path), ^uint64(0)
	if i := slices.Index(s.ring, g); i+1 < len(s.ring) {
		to = seqOf(s.ring[i+1].path)
	}
	return slices.ContainsFunc(seqs, func(seq uint64) bool { return seq >= from && seq < to })
}

// Erase removes all entries whose objects name one of the identifiers, and returns how many there were.
func (s *Store) Erase(_ context.Context, ids []uint64) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	wanted := make(map[uint64]struct{}, len(ids))
	for _, id := range ids {
		wanted[id] = struct{}{}
	}
	hit := func(of []uint64) bool {
		return slices.ContainsFunc(of, func(id uint64) bool { _, ok := wanted[id]; return ok })
	}
	err = s.do(func() (err error) {
		n, err = s.removeWhere(func(g *segment) bool { return hit(g.ids) }, func(e *stored) bool { return hit(e.ids) })
		return err
	})
	erased.Add(n)
	return n, err
}

// Counts counts the kept faults that a query chooses by workspace, key, rule and time. The counts are by hour, key and
// rule, newest first.
func (s *Store) Counts(_ context.Context, q Query) (list []Count, missing []uint32, err error) {
	counts := map[counted]*Count{}
	err = s.do(func() error {
		for _, g := range s.ring {
			for _, c := range g.counts {
				if q.counts(c) {
					addCount(counts, c)
				}
			}
		}
		return nil
	})
	return sortedCounts(counts), nil, err
}
