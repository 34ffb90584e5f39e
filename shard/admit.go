package shard

// admitShare: the last of so many parts of Options.MaxInflightBytes is for those who were let in before and have not
// committed yet. It is more than a usual record.
const admitShare = 64

// Admit is nil when a change may be begun. Else it is what Commit would return if nothing ended meanwhile: that as much
// is under way as may be, or that the engine is closing or has failed. Whoever asks before it decodes a request sheds
// overload while that costs little; what is let in may still be refused.
func (c *Coordinator) Admit() error {
	if err := c.ended(); err != nil {
		return err
	}
	if m := c.opts.MaxInflightBytes; c.inflight.Load() > m-m/admitShare {
		RefusedBusy.Inc()
		return ErrBusy
	}
	return nil
}
