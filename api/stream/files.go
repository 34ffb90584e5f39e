package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// files is a destination that gets files. The files of a delivery are written into a directory of unfinished files, and
// are put on the shelf when they are complete.
type files struct {
	folders     *folders
	spool       string                 // the directory of unfinished files
	unfinished  string                 // prefix of their names
	isLeft      func(name string) bool // whether one of another stream is left that no carrier removes
	format      event.Format
	compression string // empty: the default
	layout      layout
	svcID       event.SvcIDFunc
	columns     []event.Column
	users       *currents.Reader // nil: rows have the svc_id if the event log knows it
	every       pace
	to          shelf
}

// shelf is where finished files are seen.
type shelf interface {
	// hasRoom is called before each write of an unfinished file: an error ends the delivery.
	hasRoom() error
	// open makes the shelf ready.
	open(ctx context.Context) error
	// put shows the file at path under a name, as a whole, and may remove it from path. again says that an earlier
	// attempt may have shown it.
	put(ctx context.Context, path, name string, again bool) error
	// settle returns when everything that was put is there for good.
	settle() error
}

const unfinishedDir = document.UnfinishedDir

func (f *files) pace() pace    { return f.every }
func (f *files) notes() bool   { return true }
func (f *files) looksUp() bool { return f.users != nil }
func (f *files) answers() bool { return true }
func (f *files) letGo()        {}
func (f *files) close()        {}

// open removes what a crash has left unfinished, also of streams that are gone.
func (f *files) open(ctx context.Context) error {
	f.folders.forget()
	if err := f.folders.make(f.spool); err != nil {
		return err
	}
	own := func(name string) bool { return strings.HasPrefix(name, f.unfinished) }
	if err := f.clean(own); err != nil {
		return err
	}
	return f.to.open(ctx)
}

// clean removes unfinished files of streams that are gone, and others that also says.
func (f *files) clean(also func(name string) bool) error {
	names, err := f.folders.disk.List(f.spool)
	if err != nil {
		return err
	}
	for _, name := range names {
		if also(name) || f.isLeft(name) {
			if err := f.folders.disk.Remove(filepath.Join(f.spool, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *files) begin(again bool) delivery {
	return &filesDelivery{to: f, again: again, open: map[fileKey]*output{}}
}

// filesDelivery is a delivery on its way into files.
type filesDelivery struct {
	to    *files
	again bool
	slot  int64 // the latest slot so far
	done  sum

	open    map[fileKey]*output
	last    *output // the output of the previous event
	lastKey fileKey
	row     event.Event // the event at hand, with the number of its user
}

func (d *filesDelivery) sent() sum { return d.done }

// confirmed reports nothing: a new attempt does everything again, under the same names.
func (d *filesDelivery) confirmed() (_ uint64, _ tally) { return 0, tally{} }
func (d *filesDelivery) ends(e *event.Event) bool       { return d.to.layout.key(e).slot > d.slot }

func (d *filesDelivery) write(_ context.Context, e *event.Event) error {
	key := d.to.layout.key(e)
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
	d.slot = max(d.slot, key.slot)
	if d.to.users == nil {
		return d.last.encoder.Write(e)
	}
	if err := d.to.users.Read(e); err != nil {
		return err
	}
	if d.to.format == currents.Avro || e.OfAddress() || e.Kind == event.Merged { // which have no use for the number
		return d.last.encoder.Write(e)
	}
	d.row = *e
	d.row.Number, d.row.Resolved = d.to.users.Number(), true
	return d.last.encoder.Write(&d.row)
}

func (d *filesDelivery) finish() error {
	for _, o := range d.open {
		size, err := o.finish()
		if err != nil {
			return err
		}
		d.done.files++
		d.done.bytes += size
	}
	return nil
}

// confirm shows the files under the names of the delivery's positions.
func (d *filesDelivery) confirm(ctx context.Context, first, last uint64) error {
	for key, o := range d.open {
		if err := d.to.to.put(ctx, o.path, d.to.layout.name(key, first, last), d.again); err != nil {
			return err
		}
		delete(d.open, key)
	}
	return d.to.to.settle()
}

// abort removes what is not finished.
func (d *filesDelivery) abort() {
	for _, o := range d.open {
		_ = o.file.Close() // it may already be closed
		_ = d.to.folders.disk.Remove(o.path)
	}
	d.open = nil
}

// output is a file that is being written.
type output struct {
	path       string
	file       io.WriteCloser
	buffer     *bufio.Writer // nil: the encoder writes large pieces
	counter    *counter
	compressor io.WriteCloser // nil: the file as a whole isn't compressed
	encoder    event.Encoder
}

func (f *files) create(key fileKey) (*output, error) {
	o := &output{path: filepath.Join(f.spool, f.unfinished+fmt.Sprintf("%d.%d", key.kind, key.slot))}
	err := f.to.hasRoom() // before there is anything that would have to be removed again
	if err != nil {
		return nil, err
	}
	if o.file, err = f.folders.disk.Create(o.path); err != nil {
		return nil, err
	}
	o.counter = &counter{w: o.file, hasRoom: f.to.hasRoom}
	if f.format == currents.Avro {
		codec := codecs[f.compression]
		if o.encoder, err = currents.NewEncoder(o.counter, key.kind, f.users, f.layout.workspace, codec); err != nil {
			return nil, errors.Join(err, o.file.Close())
		}
		return o, nil
	}
	o.buffer = bufio.NewWriterSize(o.counter, 256<<10)
	w := io.Writer(o.buffer)
	if f.format == event.NDJSON && f.compression != document.CompressionNone {
		o.compressor = newCompressor(w, f.compression)
		w = o.compressor
	}
	o.encoder = event.NewEncoder(w, f.format, key.kind, false, f.svcID, f.columns)
	return o, nil
}

// codecs of Avro by the compression of a stream; the default is that of an empty one.
var codecs = map[string]currents.Codec{
	document.CompressionNone:   currents.Plain,
	document.CompressionSnappy: currents.Snappy,
	document.CompressionZstd:   currents.Zstd,
}

// newCompressor returns a compressor that makes more bytes rather than taking more time.
func newCompressor(w io.Writer, compression string) (c io.WriteCloser) {
	var err error
	if compression == document.CompressionGzip {
		c, err = gzip.NewWriterLevel(w, gzip.BestSpeed)
	} else {
		c, err = zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	}
	if err != nil {
		panic("BUG: options of a compressor: " + err.Error())
	}
	return c
}

// finish ends the file and syncs it to disk, under its unfinished name.
func (o *output) finish() (size int64, err error) {
	err = o.encoder.Close()
	if err == nil && o.compressor != nil {
		err = o.compressor.Close()
	}
	if err == nil && o.buffer != nil {
		err = o.buffer.Flush()
	}
	if f, ok := o.file.(interface{ Sync() error }); err == nil && ok {
		err = f.Sync()
	}
	o.encoder, o.compressor, o.buffer = nil, nil, nil
	return o.counter.n, errors.Join(err, o.file.Close())
}

// counter counts what is written to a file.
type counter struct {
	w       io.Writer
	n       int64
	hasRoom func() error
}

// Write writes, and counts what was written.
func (c *counter) Write(p []byte) (int, error) {
	if err := c.hasRoom(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// layout names the files of a stream. A name says which positions a file has, so a repeated delivery has the same
// names.
//
//	hive      event_type=event/date=2026-01-31/[<workspace>.]<stream>.<started at>[.<group>].<first>-<last>.parquet
//	currents  dataexport.millrace.S3.integration.<workspace>.<stream>/event_type=users.behaviors.CustomEvent/date=2026-01-31-09/1/<started at>/
//	          dataexport.millrace.S3.integration.<workspace>.<stream>+<group>+<first>.parquet
//
// In the second layout first is decimal, and the element that Braze calls the zone says when the stream began.
type layout struct {
	workspace, stream, started, group, suffix string
	currents, shared                          bool
}

func newLayout(ws *control.Workspace, s *document.Stream, p Part) layout {
	return layout{workspace: ws.ID, stream: s.ID,
		started: time.UnixMilli(int64(s.StartedAt)).UTC().Format("20060102T150405.000Z"), group: p.Group,
		suffix: suffixOf(s), currents: s.Destination.Layout == document.LayoutCurrents,
		shared: s.Destination.Prefix != ""}
}

// suffixOf returns the end of the names of a stream's files. It tells readers how a file as a whole is compressed.
func suffixOf(s *document.Stream) string {
	switch {
	case s.Format != document.FormatNDJSON:
		return "." + s.Format
	case s.Compression == document.CompressionNone:
		return ".ndjson"
	case s.Compression == document.CompressionGzip:
		return ".ndjson.gz"
	}
	return ".ndjson.zst"
}

// fileKey identifies the file of a delivery that an event goes to.
type fileKey struct {
	kind op.Kind
	slot int64 // days since 1970, or hours
}

func (l *layout) key(e *event.Event) fileKey {
	return fileKey{e.Kind, e.AcceptedAt.Unix() / l.slotSeconds()}
}

// slotSeconds returns the length of the period whose events share a folder.
func (l *layout) slotSeconds() int64 {
	if l.currents {
		return 60 * 60
	}
	return 24 * 60 * 60
}

// name returns the path of a file, with slashes.
func (l *layout) name(k fileKey, first, last uint64) string {
	group := l.group
	if l.currents {
		if group == "" {
			group = "0"
		}
		return path.Join(l.folder(k), fmt.Sprintf("%s+%s+%d%s", l.integration(), group, first, l.suffix))
	}
	name := l.stream + "." + l.started
	if l.shared {
		name = l.workspace + "." + name
	}
	if group != "" {
		name += "." + group
	}
	return path.Join(l.folder(k), fmt.Sprintf("%s.%016x-%016x%s", name, first, last, l.suffix))
}

func (l *layout) folder(k fileKey) string {
	at := time.Unix(k.slot*l.slotSeconds(), 0).UTC()
	if l.currents {
		return path.Join(l.integration(), "event_type="+currents.TypeOf(k.kind),
			"date="+at.Format("2006-01-02-15"), schemaID, l.started)
	}
	return path.Join("event_type="+event.KindName(k.kind), "date="+at.Format(time.DateOnly))
}

// integration returns what stands for a stream's name in Braze's layout.
func (l *layout) integration() string {
	return "dataexport.millrace.S3.integration." + l.workspace + "." + l.stream
}

// schemaID is increased with every change of a schema.
const schemaID = "1"
