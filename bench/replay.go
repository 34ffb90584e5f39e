package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"millrace/loadtest"
)

// replay fills the log of a server that never writes a checkpoint, kills the server, and measures the time from exec to
// the first good answer of /readyz. Before that, the log is dropped from the page cache, as far as the system does so.
// The server is killed again after each round, so that each round replays the whole log.
func replay(ctx context.Context, s *settings) ([]Figure, error) {
	const name = "data"
	never := []string{"--checkpoint-bytes", "1000TB", "--checkpoint-interval", "1000h"}
	server, err := startServer(ctx, s, name, never...)
	if err != nil {
		return nil, err
	}
	logged, err := fillLog(ctx, s, server)
	server.kill()
	if err != nil {
		return nil, err
	}
	var seconds, perGB []float64
	for range s.Rounds {
		if err := dropCache(filepath.Join(s.dir, name, "log")); err != nil {
			return nil, err
		}
		start := time.Now()
		server, err := startServer(ctx, s, name, never...)
		if err != nil {
			return nil, err
		}
		_, err = get(ctx, "http://"+server.address+"/readyz")
		took := time.Since(start).Seconds()
		server.kill()
		if err != nil {
			return nil, fmt.Errorf("not ready after recovery: %w", err)
		}
		seconds, perGB = append(seconds, took), append(perGB, took/logged*1e9)
	}
	return []Figure{newFigure("kill -9 until ready, for each GB of log", "s", perGB,
		Detail{"took", median(seconds), "s"}, Detail{"log", logged, "bytes"}).want(atMost, 2.5)}, nil
}

// fillLog sends load until the log has s.ReplayBytes, and returns the bytes that it has.
func fillLog(ctx context.Context, s *settings, server *process) (float64, error) {
	o := s.bodies(mix225)
	o.Users = 1_000_000
	side := s.side(64, o, server)
	for requests := int64(64); ; {
		if _, err := side.run(ctx, loadtest.Options{Duration: time.Hour, Requests: requests}); err != nil {
			return 0, err
		}
		logged, err := server.metric(ctx, walBytes)
		if err != nil || logged >= float64(s.ReplayBytes) {
			return logged, err
		}
		sent := float64(side.requests)
		requests = min(int64((float64(s.ReplayBytes)-logged)/(logged/sent))+1, 100*requests)
	}
}

// dropCache writes the files of a directory back and asks the system to forget their pages, so that the files are read
// from the disk.
func dropCache(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		if err := forgetPages(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// forgetPages is dropCache of one file.
func forgetPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	_ = unix.Fsync(fd)
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // only a hint to the system
	return f.Close()
}
