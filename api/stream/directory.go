package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// directory is a directory of the machine as a destination:
//
//	<root>/event_type=event/date=2026-01-31/<stream>.<started at>[.<group>].<first>-<last>.parquet
//
// first and last are the positions of the delivery, date is the day (UTC) when the events were accepted. Files that are
// not finished lie in <root>/.millrace.
type directory struct {
	disk       disk
	base       string // the server's; root lies in it
	root       string
	durable    map[string]bool // directories below base that are on disk for sure
	name       string          // begins the names of files
	unfinished string          // begins the names of unfinished ones
	format     eventlog.Format
	svcID      eventlog.SvcIDFunc
	limit      int64
}

const unfinishedDir = ".millrace"

// clean removes what a crash has left unfinished.
func (d *directory) clean() error {
	d.durable = map[string]bool{}
	dir := filepath.Join(d.root, unfinishedDir)
	if err := d.makeDir(dir); err != nil {
		return err
	}
	names, err := d.disk.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, d.unfinished) {
			if err := d.disk.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeDir makes a directory and those that it lies in, durably. One that is there may be of somebody who was killed
// before it was on disk.
func (d *directory) makeDir(dir string) error {
	switch {
	case dir == d.base:
		return makeDir(d.disk, dir)
	case d.durable[dir]:
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.makeDir(parent); err != nil {
		return err
	}
	if err := d.disk.Mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := d.disk.SyncDir(parent); err != nil {
		return err
	}
	d.durable[dir] = true
	return nil
}

func (d *directory) begin() *delivery { return &delivery{to: d, open: map[fileKey]*output{}} }

func (d *directory) suffix() string {
	if d.format == eventlog.Parquet {
		return ".parquet"
	}
	return ".ndjson.zst"
}

// fileKey says which file of a delivery an event goes to.
type fileKey struct {
	kind op.Kind
	day  int64 // since 1970
}

func (k fileKey) path() string {
	kind := "event"
	if k.kind == op.Purchase {
		kind = "purchase"
	}
	return filepath.Join("event_type="+kind, "date="+time.Unix(k.day*secondsOfDay, 0).UTC().Format(time.DateOnly))
}

const secondsOfDay = 24 * 60 * 60

// delivery is a run of positions on its way into files. It belongs to one goroutine.
type delivery struct {
	to      *directory
	endless bool // it ends where it ended before
	full    bool // it has ended before all there was
	events  int64
	size    int64 // of the events, about, before they are encoded
	newest  int64 // when the newest event was accepted, Unix µs
	day     int64 // the latest so far
	files   int
	bytes   int64 // of finished files

	open     map[fileKey]*output
	last     *output // of the event before
	lastKey  fileKey
	finished []string // their directories
}

// ends says whether the delivery ends before an event, which is the first of its position.
func (d *delivery) ends(e *eventlog.Event) bool {
	d.full = !d.endless && d.events > 0 && (d.size >= d.to.limit || dayOf(e) > d.day)
	return d.full
}

func dayOf(e *eventlog.Event) int64 { return e.AcceptedAt.Unix() / secondsOfDay }

// eventOverhead is about what an event has besides its texts.
const eventOverhead = 64

func (d *delivery) write(e *eventlog.Event) error {
	key := fileKey{e.Kind, dayOf(e)}
	if d.last == nil || d.lastKey != key {
		o := d.open[key]
		if o == nil {
			var err error
			if o, err = d.to.create(key); err != nil {
				return err
			}
			d.open[key] = o
		}
		d.last, d.lastKey = o, key
	}
	d.events++
	d.size += int64(eventOverhead + len(e.Key) + len(e.Name) + len(e.App) + len(e.Properties))
	d.newest, d.day = max(d.newest, e.AcceptedAt.UnixMicro()), max(d.day, key.day)
	return d.last.encoder.Write(e)
}

// publish ends the files and shows them under the names of the delivery's positions. Those that a former try has shown
// already stay as they are, when again is set. When it returns nil, all are on disk.
func (d *delivery) publish(first, last uint64, again bool) error {
	for key, o := range d.open {
		dir := filepath.Join(d.to.root, key.path())
		if err := d.to.makeDir(dir); err != nil {
			return err
		}
		path := filepath.Join(dir, fmt.Sprintf("%s.%016x-%016x%s", d.to.name, first, last, d.to.suffix()))
		size, err := o.finish()
		if err != nil {
			return err
		}
		d.files++
		d.bytes += size
		if again && d.to.disk.Exists(path) {
			err = d.to.disk.Remove(o.path)
		} else {
			err = d.to.disk.Rename(o.path, path)
		}
		if err != nil {
			return err
		}
		delete(d.open, key)
		if !slices.Contains(d.finished, dir) {
			d.finished = append(d.finished, dir)
		}
	}
	for _, dir := range d.finished {
		if err := d.to.disk.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// abort removes what is not finished.
func (d *delivery) abort() {
	for _, o := range d.open {
		_ = o.file.Close() // it may have been closed
		_ = d.to.disk.Remove(o.path)
	}
	d.open = nil
}

// output is a file that is being written.
type output struct {
	path    string
	file    io.WriteCloser
	buffer  *bufio.Writer
	counter *counter
	zstd    *zstd.Encoder // nil: the format compresses by itself
	encoder eventlog.Encoder
}

func (d *directory) create(key fileKey) (*output, error) {
	o := &output{path: filepath.Join(d.root, unfinishedDir, d.unfinished+strings.ReplaceAll(key.path(), string(filepath.Separator), "."))}
	var err error
	if o.file, err = d.disk.Create(o.path); err != nil {
		return nil, err
	}
	o.counter = &counter{w: o.file}
	o.buffer = bufio.NewWriterSize(o.counter, 256<<10)
	w := io.Writer(o.buffer)
	if d.format == eventlog.NDJSON {
		if o.zstd, err = zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
			panic("BUG: zstd options: " + err.Error())
		}
		w = o.zstd
	}
	o.encoder = eventlog.NewEncoder(w, d.format, false, d.svcID)
	return o, nil
}

// finish ends the file and brings it to disk, under its unfinished name.
func (o *output) finish() (size int64, err error) {
	err = o.encoder.Close()
	if err == nil && o.zstd != nil {
		err = o.zstd.Close()
	}
	if err == nil {
		err = o.buffer.Flush()
	}
	if f, ok := o.file.(interface{ Sync() error }); err == nil && ok {
		err = f.Sync()
	}
	return o.counter.n, errors.Join(err, o.file.Close())
}

type counter struct {
	w io.Writer
	n int64
}

// Write counts what was written.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
