package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"millrace/shard/eventlog"
	"millrace/shard/replica"
)

// An archive is a tar, which may be compressed as a whole with zstd. Its first file is BACKUP (About, as JSON), its
// last is MANIFEST: a manifest as JSON in one line, then a line with the SHA-256 of the first line. Only the end of a
// tar follows.
const (
	formatVersion = 1
	aboutName     = "BACKUP"
	manifestName  = "MANIFEST"
	// copyBytes is how many bytes of a file are in memory at once.
	copyBytes = 256 << 10
	// maxAboutBytes and maxManifestBytes bound what is read into memory; the manifest has room for some million files.
	maxAboutBytes    = 64 << 10
	maxManifestBytes = 512 << 20
)

// directories are the directories of the files in an archive.
var directories = []string{"log", "state", "events"}

// groupsDir has those of a cluster's groups, each group's under its number.
const groupsDir = "groups"

var (
	// ErrArchive is wrapped by errors about an archive that is not whole: cut short, changed, or something else. The
	// text names the file in it.
	ErrArchive = errors.New("the archive is not as it was written")
	// ErrFormat is wrapped by errors about an archive of another format than this program's. Restore it with the
	// program that wrote it.
	ErrFormat = errors.New("the archive has another format")
)

// About is what an archive says about itself.
type About struct {
	Format   int       `json:"format"`
	Program  string    `json:"program"` // version of the server that wrote it
	Created  time.Time `json:"created"`
	Position uint64    `json:"position"` // of the last record in the archive
	// The versions of store, records and event log, of which a program reads only its own. 0: the archive is of a build
	// that did not say.
	Store   int `json:"store_version,omitempty"`
	Records int `json:"record_version,omitempty"`
	Events  int `json:"event_log_version,omitempty"`
	// Replica: it is the state of a group's replica up to Position, without a log.
	Replica bool `json:"replica,omitempty"`
	// Cluster: it is the state of all groups of a cluster. Position is the greatest of theirs.
	Cluster *AboutCluster `json:"cluster,omitempty"`
}

// AboutCluster is what a cluster has besides the states of its groups.
type AboutCluster struct {
	Groups   int    `json:"groups"`
	Replicas int    `json:"replicas"`
	Secret   string `json:"secret"` // hexadecimal; numbers are made with it
}

// manifest lists the files of an archive in order, BACKUP included.
type manifest struct {
	Files []entry `json:"files"`
	// Before is the XXH3 (128 bits, hex) of all bytes of the archive before the manifest. It covers the bytes that
	// belong to no file.
	Before string `json:"before"`
}

type entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Writer writes an archive, file by file. The archive is not whole until Close has returned nil.
type Writer struct {
	out     *summed
	tar     *tar.Writer
	alive   func() error
	created time.Time
	files   []entry
	buf     []byte
}

// NewWriter begins an archive. It sets about.Format and the other versions. An error of alive ends the writing of files
// early.
func NewWriter(w io.Writer, about About, alive func() error) (*Writer, error) {
	about.Format = formatVersion
	about.Store, about.Records, about.Events = replica.StoreVersion, replica.RecordVersion, eventlog.Version()
	a := &Writer{out: &summed{w: w, sum: xxh3.New128()}, alive: alive, created: about.Created,
		buf: make([]byte, copyBytes)}
	a.tar = tar.NewWriter(a.out)
	text, err := json.Marshal(about)
	if err != nil {
		return a, err
	}
	return a, a.add(aboutName, int64(len(text)), bytes.NewReader(text))
}

// Written is how many bytes the archive has so far.
func (a *Writer) Written() int64 { return a.out.n }

func (a *Writer) header(name string, size int64) error {
	return a.tar.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: a.created,
		Typeflag: tar.TypeReg})
}

// Add writes the file that open opens. It returns an error when the file has another size.
func (a *Writer) Add(name string, size int64, open func() (io.ReadCloser, error)) error {
	if !isOurs(name) {
		return fmt.Errorf("BUG: backup: %q has no place in an archive", name)
	}
	r, err := open()
	if err == nil {
		err = errors.Join(a.add(name, size, attentive{r, a.alive}), r.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// attentive is a reader that ends early when there is a reason to.
type attentive struct {
	io.Reader
	alive func() error
}

// Read reads, unless there is a reason not to.
func (r attentive) Read(p []byte) (int, error) {
	if err := r.alive(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (a *Writer) add(name string, size int64, r io.Reader) error {
	if err := a.header(name, size); err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(onlyWriter{a.tar}, sum), onlyReader{io.LimitReader(r, size)}, a.buf)
	if err == nil && n != size {
		err = fmt.Errorf("it has %d bytes, not %d", n, size)
	}
	a.files = append(a.files, entry{name, size, hex.EncodeToString(sum.Sum(nil))})
	return err
}

// Close writes the manifest and the end of the tar.
func (a *Writer) Close() error {
	m := manifest{Files: a.files, Before: strings.Repeat("0", 32)}
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := errors.Join(a.tar.Flush(), a.header(manifestName, int64(len(text)))); err != nil {
		return err
	}
	m.Before = a.out.hex()
	if text, err = m.encode(); err != nil { // of the same length as before
		return err
	}
	if _, err := a.tar.Write(text); err != nil {
		return err
	}
	return a.tar.Close()
}

func (m *manifest) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return fmt.Appendf(text, "\n%x\n", sum), nil
}

func decodeManifest(text []byte) (m manifest, err error) {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	sum := sha256.Sum256(line)
	if string(rest) != hex.EncodeToString(sum[:])+"\n" {
		return m, fmt.Errorf("%w: %s fails its checksum", ErrArchive, manifestName)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrArchive, manifestName, err)
	}
	return m, nil
}

// summed is a writer or a reader that counts and hashes what passes.
type summed struct {
	w   io.Writer
	r   io.Reader
	sum *xxh3.Hasher128
	n   int64
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.note(p[:n])
	return n, err
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.note(p[:n])
	return n, err
}

func (s *summed) note(p []byte) {
	_, _ = s.sum.Write(p) // never fails
	s.n += int64(len(p))
}

func (s *summed) hex() string {
	sum := s.sum.Sum128().Bytes()
	return hex.EncodeToString(sum[:])
}

// onlyWriter and onlyReader hide other methods, so that io.CopyBuffer uses its buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// read reads an archive to its end, passes each file to create, and in the end says whether the archive was as it was
// written. Until then, what create got may be anything. A nil create only checks.
func read(ctx context.Context, r io.Reader, create func(name string) (io.WriteCloser, error)) (about About, err error) {
	src := &source{r: r, ctx: ctx}
	defer func() {
		if src.err != nil { // all other errors come from this one
			err = src.err
		}
	}()
	plain, err := decompress(src)
	if err != nil {
		return about, err
	}
	defer plain.Close()
	a := &reader{in: &summed{r: plain, sum: xxh3.New128()}, create: create, buf: make([]byte, copyBytes),
		seen: map[string]struct{}{}}
	a.tar = tar.NewReader(a.in)
	if err := a.begin(&about); err != nil {
		return about, err
	}
	for {
		end, err := a.next()
		if err != nil || end {
			return about, err
		}
	}
}

// source reads until its context ends, and remembers an error that is not about the archive.
type source struct {
	r   io.Reader
	ctx context.Context
	err error
}

func (s *source) Read(p []byte) (n int, err error) {
	if err = s.ctx.Err(); err == nil {
		n, err = s.r.Read(p)
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// decompress tells from the first bytes whether the archive is compressed.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, copyBytes)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(magic) != "\x28\xb5\x2f\xfd" {
		return io.NopCloser(b), nil
	}
	d, err := zstd.NewReader(b)
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// reader reads an archive, file by file.
type reader struct {
	in     *summed
	tar    *tar.Reader
	create func(name string) (io.WriteCloser, error)
	files  []entry
	seen   map[string]struct{}
	buf    []byte
}

// last is the file that was read last, for error texts.
func (a *reader) last() string {
	if len(a.files) == 0 {
		return "its beginning"
	}
	return fmt.Sprintf("%q", a.files[len(a.files)-1].Name)
}

// damaged is the error for an archive that ends early or can't be read.
func damaged(where string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends early, %s", ErrArchive, where)
	}
	return fmt.Errorf("%w: %s: %w", ErrArchive, where, err)
}

func (a *reader) begin(about *About) error {
	h, err := a.tar.Next()
	if err != nil {
		return damaged("at its beginning", err)
	}
	if h.Name != aboutName || h.Size > maxAboutBytes {
		return fmt.Errorf("%w: it begins with %q, so it is no backup of this server", ErrArchive, h.Name)
	}
	text, err := a.take(h)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, about); err != nil || about.Format == 0 {
		return fmt.Errorf("%w: %s can't be read", ErrArchive, aboutName)
	}
	if about.Format != formatVersion {
		return fmt.Errorf("%w: version %d, this program reads version %d", ErrFormat, about.Format, formatVersion)
	}
	return about.checkVersions()
}

// checkVersions refuses what a server couldn't start from.
func (a *About) checkVersions() error {
	for _, of := range []struct {
		what       string
		has, reads int
	}{
		{"state store", a.Store, replica.StoreVersion}, {"log of records", a.Records, replica.RecordVersion},
		{"event log", a.Events, eventlog.Version()},
	} {
		if of.has != 0 && of.has != of.reads {
			return fmt.Errorf("%w: its %s has version %d, this program reads version %d: restore it with the "+
				"version that wrote it, %q", ErrFormat, of.what, of.has, of.reads, a.Program)
		}
	}
	return nil
}

// take reads a file into memory.
func (a *reader) take(h *tar.Header) ([]byte, error) {
	var text bytes.Buffer
	err := a.copy(h, &text)
	return text.Bytes(), err
}

// copy reads a file and notes its name, size and hash.
func (a *reader) copy(h *tar.Header, w io.Writer) error {
	sum := sha256.New()
	if err := a.copyEntry(h, w, sum); err != nil {
		return err
	}
	a.files = append(a.files, entry{h.Name, h.Size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

func (a *reader) copyEntry(h *tar.Header, w io.Writer, sum hash.Hash) error {
	for left := h.Size; left > 0; {
		n, err := a.tar.Read(a.buf[:min(left, copyBytes)])
		_, _ = sum.Write(a.buf[:n]) // never fails
		if _, err := w.Write(a.buf[:n]); err != nil {
			return err // an error of the file's receiver, not of the archive
		}
		if left -= int64(n); err != nil && left > 0 {
			return damaged(fmt.Sprintf("in %q", h.Name), err)
		}
	}
	return nil
}

// next reads one more file; end is true after the last one.
func (a *reader) next() (end bool, err error) {
	h, err := a.tar.Next()
	if err != nil {
		return false, damaged("behind "+a.last(), err)
	}
	if h.Name == manifestName {
		return true, a.finish(h)
	}
	if _, twice := a.seen[h.Name]; twice || h.Typeflag != tar.TypeReg || !isOurs(h.Name) {
		return false, fmt.Errorf("%w: %q does not belong there", ErrArchive, h.Name)
	}
	a.seen[h.Name] = struct{}{}
	if a.create == nil {
		return false, a.copy(h, io.Discard)
	}
	w, err := a.create(h.Name)
	if err != nil {
		return false, err
	}
	return false, errors.Join(a.copy(h, w), w.Close())
}

// isOurs says whether a path is that of a file in one of the directories: of a node, or of a group of a cluster.
func isOurs(name string) bool {
	if !fs.ValidPath(name) {
		return false
	}
	parts := strings.Split(name, "/")
	if len(parts) == 4 && parts[0] == groupsDir {
		number, err := strconv.ParseUint(parts[1], 10, 16)
		if err != nil || strconv.FormatUint(number, 10) != parts[1] {
			return false
		}
		parts = parts[2:]
	}
	return len(parts) == 2 && slices.Contains(directories, parts[0])
}

// isOfGroup says whether a path is that of a file of a group of a cluster.
func isOfGroup(name string) bool { return strings.HasPrefix(name, groupsDir+"/") }

// finish reads the manifest, compares it with what was read, and checks that the archive ends behind it.
func (a *reader) finish(h *tar.Header) error {
	if h.Size > maxManifestBytes {
		return fmt.Errorf("%w: %s of %d bytes", ErrArchive, manifestName, h.Size)
	}
	before, found := a.in.hex(), a.files
	text, err := a.take(h)
	if err != nil {
		return err
	}
	m, err := decodeManifest(text)
	if err != nil {
		return err
	}
	for i, want := range m.Files {
		switch {
		case i >= len(found):
			return fmt.Errorf("%w: %q is missing", ErrArchive, want.Name)
		case found[i].Name != want.Name:
			return fmt.Errorf("%w: %q stands where %q should", ErrArchive, found[i].Name, want.Name)
		case found[i] != want:
			return fmt.Errorf("%w: %q has other contents (SHA-256 %s instead of %s)", ErrArchive,
				want.Name, found[i].SHA256, want.SHA256)
		}
	}
	if len(found) > len(m.Files) {
		return fmt.Errorf("%w: %q is one too many", ErrArchive, found[len(m.Files)].Name)
	}
	if m.Before != before {
		return fmt.Errorf("%w: bytes between its files were changed", ErrArchive)
	}
	return a.end(h.Size)
}

// end checks what a tar ends with: zeros up to the end of the block, and two blocks of zeros.
func (a *reader) end(size int64) error {
	const block = 512
	want := int((block-size%block)%block) + 2*block
	rest, err := io.ReadAll(io.LimitReader(a.in, int64(want)+1))
	if err != nil {
		return damaged("behind "+manifestName, err)
	}
	if len(rest) < want {
		return damaged("behind "+manifestName, io.ErrUnexpectedEOF)
	}
	if len(rest) > want || len(bytes.Trim(rest, "\x00")) > 0 {
		return fmt.Errorf("%w: there is more behind %s", ErrArchive, manifestName)
	}
	return nil
}
