package shard

// Merge queues a merge of the profile gone into the profile keep (service.md 4.2): durable when Commit returns, applied later. It happens once or,
// when one of them is not there by then, not at all.
func (b *Batch) Merge(gone, keep uint64) { panic("not built") }
