package wal

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Floor is how much of a disk must stay free. Zero and negative values mean no floor.
type Floor struct {
	// MinFreeBytes and MinFreePercent: with less free space than either, the disk has no room.
	MinFreeBytes   int64
	MinFreePercent float64
}

func (f Floor) isReached(free, total uint64) bool {
	return float64(free) < float64(f.MinFreeBytes) || float64(free)*100 < f.MinFreePercent*float64(total)
}

// Check returns an error that wraps ErrDiskFull when the disk with the given directory of this machine has no room.
// When the free space is unknown, the disk does not count as full.
func (f Floor) Check(dir string) error {
	u, err := vfs.Default.GetDiskUsage(dir)
	if err == nil && f.isReached(u.AvailBytes, u.TotalBytes) {
		return fmt.Errorf("%w: %d bytes of %d are free where %q lies", ErrDiskFull, u.AvailBytes, u.TotalBytes, dir)
	}
	return nil
}

// Room says whether the disk of a log has room for more records.
type Room struct {
	Floor
	Logger *slog.Logger

	full atomic.Bool
}

// IsFull reports whether the disk had no room when Note was last called.
func (r *Room) IsFull() bool { return r.full.Load() }

// Note records how much of the disk is free, and logs when the disk becomes full or has room again.
func (r *Room) Note(free, total uint64) {
	full := r.isReached(free, total)
	switch {
	case r.full.Swap(full) == full:
	case full:
		r.Logger.Warn("the disk is full; records are refused", "available", free, "total", total,
			"min_free_bytes", r.MinFreeBytes, "min_free_percent", r.MinFreePercent)
	default:
		r.Logger.Info("the disk has room again", "available", free, "total", total)
	}
}
