package refused

import (
	"context"
	"time"
)

// An entry stays until its object was accepted. Whoever is about to send the object again claims the entry first, and
// reads it only then: two requests that found it in a list, on any nodes, would have an event counted twice. The node
// that has the entry decides, in memory: a claim says only that somebody is at it at this moment.

// claimLife is how long a claim lasts that is not released, since the node that made it is gone.
const claimLife = 5 * time.Minute

// Claim claims the entries that nobody has claimed, and returns which: until Release, or claimLife. They may have been
// removed, or never have been there.
func (s *Store) Claim(_ context.Context, ids ...ID) (claimed []ID, err error) {
	err = s.do(func() error {
		now := s.options.Now()
		for seq, until := range s.claims {
			if until <= now {
				delete(s.claims, seq)
			}
		}
		for _, id := range ids {
			if _, is := s.claims[id.Seq]; !is {
				s.claims[id.Seq] = now + claimLife.Milliseconds()
				claimed = append(claimed, id)
			}
		}
		return nil
	})
	return claimed, err
}

// Release ends claims.
func (s *Store) Release(_ context.Context, ids ...ID) error {
	return s.do(func() error {
		for _, id := range ids {
			delete(s.claims, id.Seq)
		}
		return nil
	})
}
