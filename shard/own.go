package shard

import (
	"fmt"
	"slices"
	"time"

	"millrace/wal"
)

// OpenOwn opens a replica that has a log of its own on this disk, under log/ in Options.Dir. It always leads once Lead
// was called, and Close waits for what its log has taken.
func OpenOwn(o ReplicaOptions) (*Replica, error) {
	o.ownsLog, o.OpenLog = true, openOwnLog
	o.EnsureDefaults()
	if err := o.findLog(); err != nil {
		return nil, err
	}
	return OpenReplica(o)
}

// findLog makes the log's directory. The store may be made when there was never a log here: it is on disk before the
// log gets its first file.
func (o *ReplicaOptions) findLog() error {
	if err := o.Validate(); err != nil {
		return err
	}
	dir := o.FS.PathJoin(o.Dir, "log")
	if err := wal.MakeDir(o.FS, dir); err != nil {
		return err
	}
	names, err := o.FS.List(dir)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	o.MayMake = !slices.ContainsFunc(names, func(name string) bool { return name != "LOCK" })
	return nil
}

// openOwnLog opens the log of a replica that has one of its own.
func openOwnLog(r *Replica) (Log, error) {
	o := r.opts.Log
	o.Trusted = r.checkpointed.Load()
	o.FS, o.Dir, o.Logger = r.opts.FS, r.opts.FS.PathJoin(r.opts.Dir, "log"), r.opts.Logger
	o.OnDurable, o.OnFailure = r.Dispatch, r.fail
	log, err := wal.Open(o)
	if err != nil {
		return nil, err
	}
	for _, name := range r.opts.Readers {
		log.Hold(name, log.FirstPosition())
	}
	return log, nil
}

// endOwnLog returns when what the replica's own log has taken is durable and dispatched. No other comes: the replica
// leads no more.
func (e *Replica) endOwnLog() {
	for e.dispatched() < e.log.LastPosition() && e.Failed() == nil {
		time.Sleep(time.Millisecond)
	}
}
