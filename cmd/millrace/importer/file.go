package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"

	"millrace/ingest/files"
	"millrace/wal/pause"
)

// file takes one file, or the rest of it.
func (i *importer) file(ctx context.Context, from *found) error {
	if i.states.unchanged(from) {
		i.report.Before++
		return nil
	}
	f, err := i.open(ctx, from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	source := steady{io.NewSectionReader(f, 0, info.Size())}
	j := &job{importer: i, found: from, file: f, as: info, source: source, size: info.Size()}
	if err := j.begin(ctx); err != nil || j.state == nil {
		return err
	}
	before := j.state.Counts.Rows
	i.client.taken.Store(false)
	err = j.send(ctx)
	if err != nil && j.isNew && !i.client.taken.Load() {
		err = errors.Join(err, j.forget()) // so that it may be begun with another key
	}
	i.report.add(j.state.Counts)
	i.report.Sent += j.state.Counts.Rows - before
	switch {
	case errors.Is(err, errChanged), errors.Is(err, errGrown), errors.Is(err, errBegunElsewhere):
		return &FileError{from.path, err}
	case err != nil:
		return fmt.Errorf("%s: %w", from.path, err)
	}
	i.report.Files++
	return nil
}

// errChanged: the rows that were sent may be from the file as it was checked, or as it is now.
var errChanged = errors.New("the file changed during its import, which may be partly done: restore the file as it " +
	"was to resume, or import all of the changed file with --changed")

// errGrown: somebody is still writing.
var errGrown = errors.New("the file grew during its import: the rows that it had before were imported; " +
	"as it is now, it counts as a new file, which --changed imports as a whole")

// errOther returns the error for a begun file that can't be completed any more.
func errOther(begun *state) error {
	return fmt.Errorf("it has changed since %s, when its import stopped after %d or more rows: "+
		"restore the file as it was to resume, or import all of it as it is now with --changed",
		begun.Saved.Format(time.RFC3339), begun.Counts.Rows)
}

// checkUnchanged detects that somebody has written into a file while it was taken. A file that has replaced it is
// another file.
func (j *job) checkUnchanged() error {
	if j.isCopied() {
		return nil
	}
	now, err := j.file.Stat()
	if err != nil {
		return err
	}
	if !isSame(j.as, now) {
		h := &hashReader{Source: j.source, hash: xxh3.New()}
		switch hash, err := h.sum(j.size); {
		case err != nil:
			return err
		case hash != j.state.Hash:
			return errChanged
		case now.Size() > j.size:
			return errGrown
		}
	}
	if there, err := os.Stat(j.path); err != nil || !os.SameFile(there, now) {
		j.o.Logger.Warn("the file was replaced during its import, and was imported as it was: "+
			"what is there now counts as a new file", "file", j.path)
	}
	return nil
}

// steady is a file that must not become shorter: half a row would look like a whole one.
type steady struct{ *io.SectionReader }

func (s steady) Read(p []byte) (int, error) {
	n, err := s.SectionReader.Read(p)
	if at, _ := s.Seek(0, io.SeekCurrent); err == io.EOF && at < s.Size() {
		err = errChanged
	}
	return n, err
}

// ReadAt is like Read.
func (s steady) ReadAt(p []byte, at int64) (int, error) {
	n, err := s.SectionReader.ReadAt(p, at)
	if err == io.EOF && at+int64(n) < s.Size() {
		err = errChanged
	}
	return n, err
}

// job is a file that is being taken.
type job struct {
	*importer
	*found
	file   *os.File
	as     os.FileInfo // state of file when it was opened
	source files.Source
	size   int64 // of source
	format files.Format
	total  int64        // rows
	notes  *files.Notes // made by the check

	state   *state
	isNew   bool   // this run has begun it
	keyHead string // of Idempotency-Keys
	refused *refusedFile
	sizes   sizes // of requests; the reader's

	mu    sync.Mutex
	lanes []lane
	begun files.Position // position of the row that last began a request
	dirty bool
}

// begin checks a file and finds its state. It returns no state when the file was taken before.
func (j *job) begin(ctx context.Context) error {
	if j.format = j.o.Format; j.format == "" {
		j.format = files.FormatOf(j.path)
	}
	if j.format == "" {
		return &FileError{j.path, errors.New("its name doesn't tell its format: give --format")}
	}
	switch _, err := os.Lstat(j.refusedPath()); {
	case errors.Is(err, syscall.ENAMETOOLONG):
		return &FileError{j.path, errors.New("its name is too long for the file of its refused rows, which ends with " +
			refusedEnding)}
	case errors.Is(err, syscall.EINVAL): // only an object can have a NUL in its name
		return &FileError{j.path, errors.New("no file can have its name, so there is none for its refused rows")}
	}
	hash, err := j.check(ctx)
	if err != nil {
		return err
	}
	name := j.name()
	s := j.states.of(name, hash)
	switch {
	case s == nil:
		if begun := j.states.leftOff(j.found); begun != nil && !j.o.Changed {
			return &FileError{j.path, errOther(begun)}
		}
		s, j.isNew = j.newState(name, hash), true
		j.states.add(s)
	case s.Done:
		j.report.Before++
	default:
		if err := s.resume(&j.o); err != nil {
			return &FileError{j.path, err}
		}
		if j.states.hasLater(s) {
			s.Refused = -1 // the refused file has another file's rows after its own
		}
		if s.Since = s.since(); s.Settled { // else what was sent then isn't answered by going on
			s.Since, s.Settled = time.Time{}, false
		}
		j.o.Logger.Info("resuming a file", "file", j.path, "row", s.Next.Row)
	}
	s.Path, s.Size, s.Modified, s.ETag = j.path, j.found.size, j.modified, j.etag()
	if s.Done {
		return j.states.save(s)
	}
	j.refused, err = openRefused(j.refusedPath(), s)
	if err != nil {
		return err
	}
	j.state, j.begun = s, s.Next
	j.keyHead = s.keyHead()
	return errors.Join(j.states.save(s), j.refused.forget())
}

// forget has a file be as it was before it was begun.
func (j *job) forget() error {
	j.state.Counts = Counts{}
	j.refused.size = j.refused.before
	return errors.Join(j.refused.forget(), j.states.forget(j.state))
}

func (j *job) newState(name, hash string) *state {
	return &state{Name: name, Hash: hash, Begun: time.Now().UTC().Truncate(time.Millisecond), Kind: j.o.Kind,
		Format: j.format,
		Lanes:  j.o.Connections, Objects: j.o.Objects, RequestBytes: j.o.RequestBytes, Bulk: j.o.Bulk,
		UpdateExistingOnly: j.o.UpdateExistingOnly, APIKey: hashOfKey(j.o.Key), Acked: make([]int64, j.o.Connections),
		Refused: -1}
}

// keyHead is the prefix of the Idempotency-Keys of a file: it identifies the file and what decides how its rows become
// requests.
func (one *state) keyHead() string {
	text := fmt.Sprint(one.Name, "\x00", one.Hash, one.Kind, one.Format, one.Lanes, one.Objects, one.RequestBytes,
		one.UpdateExistingOnly)
	if one.Bulk {
		text += "\x00bulk"
	}
	return "import-" + hashText(xxh3.HashString128(text))
}

// refusedPath returns where the refused rows go.
func (j *job) refusedPath() string {
	switch name := j.name() + refusedEnding; {
	case j.o.Refused != "":
		return filepath.Join(j.o.Refused, name)
	case j.object != nil:
		return filepath.Join(j.o.State, name)
	default:
		return filepath.Join(filepath.Dir(j.path), name)
	}
}

func (j *job) rowOptions(strict bool) files.Options {
	o := j.o.rows()
	o.Strict = strict
	return o
}

// check reads a whole file: it finds out whether it can be taken, how many rows it has, and its hash.
func (j *job) check(ctx context.Context) (hash string, err error) {
	h := &hashReader{Source: j.source, hash: xxh3.New()}
	bad := func(err error) error {
		if _, ok := errors.AsType[*files.Fault](err); ok || errors.Is(err, errChanged) {
			return &FileError{j.path, err}
		}
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.bar.begin("checking "+j.name(), j.size, "bytes")
	j.notes = files.NewNotes(j.o.NoteBytes)
	j.total, err = files.Check(h, j.size, j.format, j.rowOptions(j.o.strict(j.format)), j.notes, func(at int64) error {
		j.bar.set(at)
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", bad(err)
	}
	if hash, err = h.sum(j.size); err != nil {
		return "", bad(err)
	}
	return hash, nil
}

// saveEvery is how often a file's state is saved while it is sent.
const saveEvery = 500 * time.Millisecond

// send sends what isn't answered yet.
func (j *job) send(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, j.refused.close()) }()
	what, before := j.name(), j.state.Counts.Rows
	if before > 0 { // which would count as sent at once
		what += fmt.Sprintf(", after %d rows", before)
	}
	j.bar.begin(what, j.total-before, "rows")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var senders sync.WaitGroup
	j.lanes = make([]lane, j.state.Lanes)
	for n := range j.lanes {
		j.lanes[n].before = j.state.Since
		j.lanes[n].queue, j.lanes[n].free = make(chan *request, laneQueue), make(chan *request, laneQueue+1)
		senders.Go(func() { j.work(ctx, cancel, n) })
	}
	saved := j.saveNowAndThen(ctx, cancel)
	err = j.read(ctx)
	for n := range j.lanes {
		close(j.lanes[n].queue)
	}
	senders.Wait()
	saved()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil {
		err = j.checkUnchanged()
	}
	j.state.Done = err == nil
	if n := j.state.Counts.Refused; n > 0 && err == nil {
		j.o.Logger.Warn("rows were refused", "file", j.path, "rows", n, "refused_file", j.refusedPath())
	}
	j.state.Settled = !slices.ContainsFunc(j.lanes, func(l lane) bool {
		return !l.since.IsZero() || !l.before.IsZero()
	})
	return errors.Join(err, j.save())
}

// saveNowAndThen saves the state regularly until the returned function is called.
func (j *job) saveNowAndThen(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		n := 0
		for range pause.Every(saveEvery, quit) {
			if err := j.save(); err != nil {
				cancel(err)
				return
			}
			if n++; n%20 == 0 && j.o.Terminal == nil {
				j.log(ctx)
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (j *job) log(ctx context.Context) {
	j.mu.Lock()
	rows := j.state.Counts.Rows
	j.mu.Unlock()
	j.o.Logger.InfoContext(ctx, "progress", "file", j.path, "rows", rows, "of", j.total)
}

// save saves what was answered, once the refused file is on disk up to there.
func (j *job) save() error {
	j.mu.Lock()
	if !j.dirty && !j.state.Done && !j.state.Settled {
		j.mu.Unlock()
		return nil
	}
	j.dirty = false
	j.state.Next, j.state.Since = j.oldest(), j.since()
	s := *j.state
	s.Acked = append([]int64(nil), s.Acked...)
	refused := *j.refused
	s.Refused = refused.size
	j.mu.Unlock()
	if err := refused.sync(); err != nil {
		return err
	}
	if err := j.states.save(&s); err != nil {
		return err
	}
	j.mu.Lock()
	j.state.Saved, j.state.Refused = s.Saved, s.Refused
	j.mu.Unlock()
	return nil
}

// oldest returns the position of the first row that is in no answered request. The caller holds the mutex.
func (j *job) oldest() files.Position {
	oldest := j.begun
	for n := range j.lanes {
		if p := j.lanes[n].pending; len(p) > 0 && p[0].Row < oldest.Row {
			oldest = p[0]
		}
	}
	return oldest
}

// since is when the first of what isn't answered was sent at the earliest. The caller has the mutex.
func (j *job) since() time.Time {
	first := time.Now().UTC()
	for n := range j.lanes {
		for _, t := range []time.Time{j.lanes[n].since, j.lanes[n].before} {
			if !t.IsZero() && t.Before(first) {
				first = t
			}
		}
	}
	return first
}

// read gives each row that isn't answered yet to its lane.
func (j *job) read(ctx context.Context) error {
	r, err := j.notes.NewReader(j.source, j.size, j.format, j.state.Next, j.rowOptions(false))
	if err != nil {
		return err
	}
	options := files.ObjectOptions{Kind: j.state.Kind, Time: j.state.Begun.Format("2006-01-02T15:04:05.000Z"),
		UpdateExistingOnly: j.state.UpdateExistingOnly}
	acked := slices.Clone(j.state.Acked) // as it was when this run began, since the senders move on
	var object files.Object
	for row := new(files.Row); ; {
		if err := r.Next(row); err == io.EOF {
			return j.flush(ctx)
		} else if err != nil {
			return err
		}
		fault := row.MakeObject(&object, &options)
		n := 0
		if fault == "" {
			n = int(object.User % uint64(len(j.lanes)))
		}
		if row.Row <= acked[n] {
			continue
		}
		if err := j.put(ctx, n, row, &object, fault); err != nil {
			return err
		}
	}
}

// put gives a row to a lane.
func (j *job) put(ctx context.Context, n int, row *files.Row, object *files.Object, fault string) error {
	l := &j.lanes[n]
	if fault != "" {
		object.Kind = cmp.Or(object.Kind, j.state.Kind) // the refused file may be given as one of another kind
	}
	if l.open != nil && !l.open.takes(object, fault != "", j.state) {
		if err := j.flushLane(ctx, l); err != nil {
			return err
		}
	}
	if l.open == nil {
		l.open = l.newRequest(&j.sizes)
		j.mu.Lock()
		l.pending = append(l.pending, row.Position)
		j.begun = row.Position
		j.mu.Unlock()
	}
	l.open.add(row, object, fault)
	return nil
}

// flush sends the open requests, at the end of the file.
func (j *job) flush(ctx context.Context) error {
	for n := range j.lanes {
		if j.lanes[n].open != nil {
			if err := j.flushLane(ctx, &j.lanes[n]); err != nil {
				return err
			}
		}
	}
	return nil
}
