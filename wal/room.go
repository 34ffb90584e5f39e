package wal

import (
	"log/slog"
	"sync/atomic"
)

// Room says whether the disk of a log has room for more.
type Room struct {
	// MinFreeBytes and MinFreePercent: with less free space than either, there is none.
	MinFreeBytes   int64
	MinFreePercent float64
	Logger         *slog.Logger

	full atomic.Bool
}

// IsFull reports whether there was no room when Note was called last.
func (r *Room) IsFull() bool { return r.full.Load() }

// Note takes down how much of the disk is free, and logs when that makes a difference.
func (r *Room) Note(free, total uint64) {
	full := float64(free) < float64(r.MinFreeBytes) || float64(free)*100 < r.MinFreePercent*float64(total)
	switch {
	case r.full.Swap(full) == full:
	case full:
		r.Logger.Warn("the disk is full; records are refused", "available", free, "total", total)
	default:
		r.Logger.Info("the disk has room again", "available", free, "total", total)
	}
}
