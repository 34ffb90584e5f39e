package store

import (
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// repairTail repairs what a crash leaves while the library seals its newest segment: the segment ends with its index,
// or a part of it, but the list of segments does not say so yet. The library would open such a segment and refuse every
// further entry (raft-wal v0.4.1, ErrSealed). repairTail writes the segment's entries to a new segment, which takes its
// place in the list; a crash meanwhile leaves the old one in place.
func repairTail(dir string, meta *metadb.BoltMetaDB) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	old := state.Segments[len(state.Segments)-1]
	if !old.SealTime.IsZero() {
		return nil
	}
	files := segment.NewFiler(dir, fs.New())
	tail, err := files.RecoverTail(old)
	if errors.Is(err, os.ErrNotExist) { // the library creates it
		return nil
	}
	if err != nil {
		return fmt.Errorf("segment %s: %w", segment.FileName(old), err)
	}
	defer tail.Close()
	if sealed, _, err := tail.Sealed(); err != nil || !sealed {
		return err
	}
	next := old
	next.ID, next.BaseIndex = state.NextSegmentID, old.MinIndex
	state.NextSegmentID++
	if entries, size, err := entriesOf(tail, old.MinIndex); err != nil {
		return fmt.Errorf("segment %s: %w", segment.FileName(old), err)
	} else if len(entries) > 0 {
		next.SizeLimit = max(old.SizeLimit, 2*uint32(size))
		if err := writeSegment(files, next, entries); err != nil {
			return err
		}
	}
	state.Segments[len(state.Segments)-1] = next
	return meta.CommitState(state)
}

func entriesOf(tail types.SegmentWriter, from uint64) (entries []types.LogEntry, size int, err error) {
	for index := from; index <= tail.LastIndex(); index++ {
		b, err := tail.GetLog(index)
		if err != nil {
			return nil, 0, err
		}
		entries = append(entries, types.LogEntry{Index: index, Data: append([]byte(nil), b.Bs...)})
		size += len(b.Bs) + segmentFrameBytes
		_ = b.Close()
	}
	return entries, size, nil
}

// segmentFrameBytes is the most that an entry takes in a segment besides its data: the frame's header, padding, and its
// place in the index.
const segmentFrameBytes = 8 + 7 + 4

// writeSegment creates a synced segment with these entries. It deletes what an earlier attempt has left under its name.
func writeSegment(files *segment.Filer, info types.SegmentInfo, entries []types.LogEntry) error {
	if err := files.Delete(info.BaseIndex, info.ID); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	w, err := files.Create(info)
	if err != nil {
		return err
	}
	return errors.Join(w.Append(entries), w.Close())
}
