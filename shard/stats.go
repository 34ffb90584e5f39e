package shard

// Stats is what an operator watches of the engine. Bytes are bytes, positions are those of the log.
type Stats struct {
	Entries              int   // resident: profiles, directory rows, tombstones, kept answers
	EntryBytes           int64 // their blocks
	EntryMemoryBytes     int64 // what the memory takes that the blocks lie in, free ones included
	TableBytes           int64 // the tables that find them
	InflightBytes        int64 // records between Commit and applied
	LogBytes             int64
	DurablePosition      uint64
	AppliedPosition      uint64
	CheckpointedPosition uint64
	Outbox               int // messages that are not known to be applied
	Deferred             int // records that wait for earlier ones
	MergesWaiting        int // merges of users that have begun and not ended
}

// Stats takes each worker's lock in turn; once a second is often enough.
func (e *Replica) Stats() (s Stats) {
	for _, w := range e.workers {
		w.mu.Lock()
		s.EntryBytes += w.arena.Used
		s.EntryMemoryBytes += w.arena.Resident()
		for _, p := range w.parts {
			p.forgetApplied()
			s.Entries += p.Count
			s.TableBytes += p.Bytes()
			for _, m := range p.outbox {
				if !m.applied.Load() {
					s.Outbox++
				}
			}
			s.Deferred += p.Deferred.Len()
		}
		w.mu.Unlock()
	}
	s.MergesWaiting = int(e.merges.Load())
	s.InflightBytes, s.LogBytes = e.inflight.Load(), e.log.Bytes()
	s.DurablePosition, s.AppliedPosition, s.CheckpointedPosition = e.log.DurablePosition(), e.AppliedPosition(),
		e.CheckpointedPosition()
	return s
}
