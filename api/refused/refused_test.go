package refused

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/wal/durable"
)

// desk is a store with a clock of its own.
type desk struct {
	*Store
	t   testing.TB
	now *atomic.Int64
	o   Options
}

func openDesk(t testing.TB, edit func(*Options)) *desk {
	d := &desk{t: t, now: new(atomic.Int64), o: Options{Dir: filepath.Join(t.TempDir(), "refused")}}
	d.now.Store(time.Date(2026, 11, 23, 10, 30, 0, 0, time.UTC).UnixMilli())
	d.o.Now = d.now.Load
	if edit != nil {
		edit(&d.o)
	}
	d.open()
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func (d *desk) open() {
	d.t.Helper()
	var err error
	d.Store, err = Open(d.o)
	require.NoError(d.t, err)
}

func (d *desk) reopen() {
	d.t.Helper()
	require.NoError(d.t, d.Close())
	d.open()
}

// offer offers one object of workspace 1 that broke a rule.
func (d *desk) offer(rule, object string, edit ...func(*Entry)) {
	e := Entry{At: d.now.Load(), Workspace: 1, Key: 3, Request: "r-1", Array: "attributes", Index: 2, IsRefused: true, Object: []byte(object),
		Faults: []Fault{{rule, "text of " + rule}}}
	for _, f := range edit {
		f(&e)
	}
	d.Offer(e)
}

func (d *desk) list(q Query) (objects []string) {
	d.t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	page, err := d.List(context.Background(), q)
	require.NoError(d.t, err)
	for _, e := range page.Entries {
		objects = append(objects, string(e.Object))
	}
	return objects
}

func TestKeeps(t *testing.T) {
	d := openDesk(t, nil)
	sent := []byte(`{"external_id":"ada"}`)
	e := Entry{At: d.now.Load(), Workspace: 1, Key: 3, Request: "r-1", Array: "events", Index: 7, IsRefused: true, Faults: []Fault{{"required", "'name' is required"}, {"x", "y"}}, Object: sent}
	d.Offer(e)
	copy(sent, "????????") // it was lent
	check := func() {
		t.Helper()
		page, err := d.List(t.Context(), Query{Limit: 10})
		require.NoError(t, err)
		require.False(t, page.More)
		require.Len(t, page.Entries, 1)
		want := e
		want.Seq, want.Size, want.Object = page.Entries[0].Seq, 21, []byte(`{"external_id":"ada"}`)
		require.Equal(t, []Entry{want}, page.Entries)
		got, ok, err := d.Get(t.Context(), 1, want.ID())
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, got)
		for _, of := range []struct{ workspace, seq uint64 }{{2, want.Seq}, {1, want.Seq + 1}, {1, want.Seq - 1}} {
			_, ok, err = d.Get(t.Context(), uint32(of.workspace), ID{Seq: of.seq})
			require.NoError(t, err)
			require.False(t, ok)
		}
	}
	check()
	d.reopen()
	check()
	d.offer("a", `{"x":1}`)
	require.Equal(t, []string{`{"x":1}`, `{"external_id":"ada"}`}, d.list(Query{}), "newest first, over files")
}

func TestQueries(t *testing.T) {
	d := openDesk(t, nil)
	for i := range 10 {
		d.offer(fmt.Sprint("rule", i%2), fmt.Sprint(i), func(e *Entry) {
			e.Workspace, e.Key, e.IsRefused = uint32(1+i/8), uint32(3+i%3), i != 4
			if i == 5 {
				e.Array = ""
			}
		})
		d.now.Add(time.Minute.Milliseconds() * 10)
	}
	began := d.now.Load() - 100*time.Minute.Milliseconds()
	require.Equal(t, strings.Fields("9 8"), d.list(Query{Workspace: 2}))
	require.Equal(t, []string{"7", "", "3", "1"}, d.list(Query{Workspace: 1, Rule: "rule1"}), "of a request there is no object")
	require.Equal(t, strings.Fields("8 2"), d.list(Query{Key: 5, Array: "attributes"}))
	require.Equal(t, []string{""}, d.list(Query{Array: Request}))
	require.Equal(t, strings.Fields("6 2 0"), d.list(Query{Workspace: 1, Rule: "rule0", OnlyRefused: true}))
	require.Equal(t, strings.Fields("4 3"), d.list(Query{Since: began + 30*60_000, Until: began + 50*60_000}))

	var pages []string
	for q := (Query{Limit: 3}); ; {
		page, err := d.List(t.Context(), q)
		require.NoError(t, err)
		for _, e := range page.Entries {
			pages = append(pages, fmt.Sprint(string(e.Object)))
		}
		if !page.More {
			break
		}
		q.Before = page.Entries[len(page.Entries)-1].Seq
	}
	require.Equal(t, []string{"9", "8", "7", "6", "", "4", "3", "2", "1", "0"}, pages)

	counts, _, err := d.Counts(t.Context(), Query{Workspace: 1, Rule: "rule0"})
	require.NoError(t, err)
	var lines []string
	for _, c := range counts {
		lines = append(lines, fmt.Sprintf("%s key %d %s %d %d", time.UnixMilli(c.Hour).UTC().Format("15:04"), c.Key, c.Rule, c.Refused, c.LeftOut))
	}
	require.Equal(t, []string{"11:00 key 3 rule0 1 0", "11:00 key 4 rule0 0 1", "10:00 key 3 rule0 1 0", "10:00 key 5 rule0 1 0"}, lines)
	d.reopen()
	again, _, err := d.Counts(t.Context(), Query{Workspace: 1, Rule: "rule0"})
	require.NoError(t, err)
	require.Equal(t, counts, again)
}

// A user who is deleted takes his entries along, however the object names him, from all files, and from the disk.
func TestErase(t *testing.T) {
	d := openDesk(t, nil)
	objects := []string{
		`{"external_id":"ada","x":1}`, `{"external_id":7}`, `{"x":{"external_id":"ada"}}`, `{"external_id":"eve","external_id":"ada"}`, `{"external_id":"\u0061da"}`,
		`{"user_alias":{"alias_label":"l","alias_name":"n"}}`, `{"email":"Ada@Example.com"}`, `{"phone":"+1 (415) 555-2671"}`, `{"svc_id":"s1"}`, `{"braze_id":"s1"}`,
		`{"phone":"(415) 555-2671"}`, `{"phone":"+44 (0)20 7183 8750"}`, `{"svc_id":"S1"}`,
		`{"external_id":"bob"}`, `"ada"`, `{"user_alias":"ada"}`, `{"external_id":["ada"]}`,
	}
	for i, o := range objects {
		if d.offer("r", o); i == 3 {
			d.reopen()
		}
	}
	of := func(kind op.IDKind, key string) uint64 { return Identifier(1, kind, []byte(key)) }
	n, err := d.Erase(t.Context(), []uint64{of(op.ExternalID, "ada"), of(op.ExternalID, "7"), of(op.Alias, string(op.AppendAliasKey(nil, []byte("l"), []byte("n")))),
		of(op.Email, string(op.AppendEmailKey(nil, []byte("ada@example.com")))), of(op.Phone, "+14155552671"), of(op.Phone, "+442071838750"), of(op.SvcID, "s1"), Identifier(2, op.ExternalID, []byte("bob"))})
	require.NoError(t, err)
	require.Equal(t, 12, n)
	want := []string{`{"external_id":["ada"]}`, `{"user_alias":"ada"}`, `"ada"`, `{"external_id":"bob"}`, `{"x":{"external_id":"ada"}}`}
	require.Equal(t, want, d.list(Query{}))
	counts, _, err := d.Counts(t.Context(), Query{})
	require.NoError(t, err)
	require.Equal(t, 5, counts[0].Refused, "they are not counted any more")
	d.offer("r", `{"external_id":"ada"}`)
	require.Len(t, d.list(Query{}), 6, "what comes later is somebody new")
	n, err = d.Erase(t.Context(), []uint64{of(op.ExternalID, "ada")})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	d.reopen()
	require.Equal(t, want, d.list(Query{}))
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NotContains(t, string(text), "Example.com")
	}
}

func TestRemove(t *testing.T) {
	d := openDesk(t, nil)
	for i := range 6 {
		if d.offer("r", fmt.Sprint(i)); i%2 == 1 {
			d.reopen()
		}
	}
	page, err := d.List(t.Context(), Query{Limit: 10})
	require.NoError(t, err)
	n, err := d.Remove(t.Context(), 2, page.Entries[0].ID())
	require.NoError(t, err)
	require.Zero(t, n, "it is another workspace's")
	n, err = d.Remove(t.Context(), 1, page.Entries[0].ID(), page.Entries[1].ID(), page.Entries[3].ID(), ID{Seq: 77})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, strings.Fields("3 1 0"), d.list(Query{}))
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 2, "a file without entries goes")
}

// Too old, or too much: the oldest go.
func TestBounds(t *testing.T) {
	d := openDesk(t, func(o *Options) { o.MaxBytes, o.Retention, o.MaxObjectBytes = 1<<20, 32*time.Hour, 20_000 })
	d.offer("r", `"too old"`)
	d.now.Add(2 * time.Hour.Milliseconds())
	d.offer("r", `"kept"`)
	d.now.Add(31 * time.Hour.Milliseconds())
	require.Equal(t, []string{`"kept"`}, d.list(Query{}), "what is too old is not shown")
	d.offer("r", `"new"`)
	require.Equal(t, []string{`"new"`, `"kept"`}, d.list(Query{}))
	counts, _, err := d.Counts(t.Context(), Query{})
	require.NoError(t, err)
	require.Len(t, counts, 2, "the file is gone")

	filler := strings.Repeat("x", 10_000)
	for i := range 200 {
		d.offer("r", fmt.Sprintf("%d %s", i, filler))
		d.now.Add(1)
		require.NoError(t, d.do(func() error { return nil })) // so that the queue has room
	}
	require.LessOrEqual(t, d.Bytes(), int64(1<<20))
	list := d.list(Query{})
	require.Greater(t, len(list), 80)
	require.True(t, strings.HasPrefix(list[0], "199 "))

	d.offer("r", strings.Repeat("y", 20_001))
	page, err := d.List(t.Context(), Query{Limit: 1})
	require.NoError(t, err)
	require.Nil(t, page.Entries[0].Object)
	require.Equal(t, 20_001, page.Entries[0].Size)
}

func TestWithoutObjects(t *testing.T) {
	d := openDesk(t, func(o *Options) { o.WithoutObjects = true })
	d.offer("r", `{"external_id":"ada"}`)
	page, err := d.List(t.Context(), Query{Limit: 1})
	require.NoError(t, err)
	require.Nil(t, page.Entries[0].Object)
	require.Equal(t, []Fault{{"r", "text of r"}}, page.Entries[0].Faults)
	require.NoError(t, d.do(func() error {
		require.Empty(t, d.ring[0].ids, "nothing of it says whose it is")
		return nil
	}))
}

// When nothing is kept any more, what there is can be read until it is too old.
func TestWithoutEntries(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", `"before"`)
	d.o.WithoutEntries = true
	d.reopen()
	d.offer("r", `"after"`)
	require.Equal(t, []string{`"before"`}, d.list(Query{}))
	d.now.Add((8 * 24 * time.Hour).Milliseconds())
	require.NoError(t, d.do(func() error { d.tend(); return nil }))
	require.Zero(t, d.Entries())
}

// What has no room in the queue is dropped, and nobody waits.
func TestQueue(t *testing.T) {
	d := openDesk(t, func(o *Options) { o.QueueBytes = 10_000 })
	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		_ = d.do(func() error { close(held); <-release; return nil })
	}()
	<-held
	before := dropped.Get()
	for range 100 {
		d.offer("r", strings.Repeat("z", 1000))
	}
	require.Positive(t, dropped.Get()-before)
	close(release)
	require.Equal(t, 100, len(d.list(Query{}))+int(dropped.Get()-before))
	d.offer("r", "later")
	require.Equal(t, "later", d.list(Query{})[0])
	require.NoError(t, d.do(func() error { require.Zero(t, d.queued.Load()); return nil }))
}

// A file that ends anywhere, or is damaged anywhere, has what is before that; the rest of the ring is as it was.
func TestTornAndDamaged(t *testing.T) {
	d := openDesk(t, nil)
	for i := range 4 {
		d.offer("r", fmt.Sprintf(`{"n":%d}`, i))
	}
	require.NoError(t, d.Close())
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	whole, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var ends []int
	for at := len(magic); at < len(whole); {
		_, err := eachFrame(append([]byte(magic), whole[at:]...), func(e *stored) bool { at += len(e.frame); return false })
		require.NoError(t, err)
		ends = append(ends, at)
	}
	require.Len(t, ends, 4)
	check := func(text []byte, upTo int) {
		t.Helper()
		require.NoError(t, os.WriteFile(files[0], text, 0o600))
		d.open()
		require.Len(t, d.list(Query{}), slices.IndexFunc(append(ends, 1<<30), func(end int) bool { return end > upTo }))
		d.offer("r", "more")
		require.Equal(t, "more", d.list(Query{})[0])
		require.NoError(t, d.Close())
		left, _ := filepath.Glob(filepath.Join(d.o.Dir, "*"))
		for _, f := range left {
			require.NoError(t, os.Remove(f))
		}
	}
	for _, n := range []int{0, 3, len(magic), len(magic) + 5, ends[0] - 1, ends[0], ends[1] + 1, ends[2] + frameBytes, len(whole) - 1, len(whole)} {
		check(whole[:n], n)
	}
	for _, n := range []int{ends[0] + 1, ends[1] + 5, ends[2] + frameBytes + 2} {
		damaged := slices.Clone(whole)
		damaged[n] ^= 0x40
		check(damaged, n)
	}
	require.NoError(t, os.WriteFile(files[0], []byte("millrace refused 2\n…"), 0o600))
	_, err = Open(d.o)
	require.ErrorContains(t, err, "another version")
	require.NoError(t, os.Remove(files[0]))
	d.open()
}

// Writing that fails loses what it was about and no more; some time later it is tried again.
func TestFailure(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", "1")
	require.Len(t, d.list(Query{}), 1)
	require.NoError(t, d.do(func() error { return d.ring[0].file.Close() }))
	before := dropped.Get()
	d.offer("r", "2")
	d.offer("r", "3")
	require.Equal(t, []string{"1"}, d.list(Query{}))
	require.EqualValues(t, 2, dropped.Get()-before)
	d.now.Add(11_000)
	d.offer("r", "4")
	require.Equal(t, []string{"4", "1"}, d.list(Query{}))
	require.NoError(t, d.do(func() error { return d.ring[len(d.ring)-1].file.Close() }))
	d.offer("r", "5")
	require.Equal(t, []string{"4", "1"}, d.list(Query{}))
	d.now.Add(-time.Hour.Milliseconds())
	d.offer("r", "6")
	require.Equal(t, []string{"6", "4", "1"}, d.list(Query{}), "a clock that is put back doesn't make it wait for an hour")
}

// What an interrupted rewriting has left behind has objects of people who may be deleted by now: it goes.
func TestUnfinishedFilesGo(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", `{"external_id":"ada"}`)
	d.reopen()
	d.offer("r", `{"external_id":"bob"}`)
	require.NoError(t, d.Close())
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.NoError(t, os.Rename(files[1], files[1]+durable.Temporary))
	d.open()
	require.NoFileExists(t, files[1]+durable.Temporary)
	require.Equal(t, []string{`{"external_id":"ada"}`}, d.list(Query{}))
}

// A directory's name is a name, whatever it means in patterns: what is below it is found again after a start.
func TestDirectoryNamedLikeAPattern(t *testing.T) {
	d := openDesk(t, func(o *Options) { o.Dir = filepath.Join(t.TempDir(), `node[1]*\?`, "refused") })
	d.offer("r", `{"external_id":"ada"}`)
	d.reopen()
	unfinished := filepath.Join(d.o.Dir, "0"+suffix+durable.Temporary)
	require.NoError(t, os.WriteFile(unfinished, nil, 0o600))
	d.reopen()
	require.NoFileExists(t, unfinished)
	require.Equal(t, []string{`{"external_id":"ada"}`}, d.list(Query{}))
	n, err := d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte("ada"))})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A loss of power may leave a file whose length alone has reached the disk. It doesn't keep the server from starting.
func TestFileOfZeros(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", "1")
	require.NoError(t, d.Close())
	path := filepath.Join(d.o.Dir, fmt.Sprintf("%016x%s", d.next(d.now.Load()), suffix))
	require.NoError(t, os.WriteFile(path, make([]byte, 500), 0o600))
	d.open()
	require.Equal(t, []string{"1"}, d.list(Query{}))
	require.NoFileExists(t, path)
}

// Taking entries out of the file that is written doesn't end it: else as many files as deletions would come together.
func TestFilesStayFew(t *testing.T) {
	d := openDesk(t, nil)
	var want []string
	for i := range 20 {
		d.offer("r", fmt.Sprintf(`{"external_id":"stays%d"}`, i))
		d.offer("r", fmt.Sprintf(`{"external_id":"goes%d"}`, i))
		n, err := d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, fmt.Appendf(nil, "goes%d", i))})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		want = append(want, fmt.Sprintf(`{"external_id":"stays%d"}`, i))
	}
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	slices.Reverse(want)
	require.Equal(t, want, d.list(Query{}))
	d.reopen()
	require.Equal(t, want, d.list(Query{}))
}

// An object may break rules without end; people read a few.
func TestManyFaults(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", "1", func(e *Entry) {
		for i := range 10_000 {
			e.Faults = append(e.Faults, Fault{"r", fmt.Sprint(i)})
		}
	})
	page, err := d.List(t.Context(), Query{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, maxFaults, len(page.Entries[0].Faults))
}

// Of an object that names its user more often than anybody does by mistake, or that can't be read, the reasons alone are
// kept: what it names costs more than what it has, and who is deleted would not be found in it.
func TestObjectsOfManyNames(t *testing.T) {
	d := openDesk(t, nil)
	for i, object := range []string{
		`{"phone":"+14155550123"` + strings.Repeat(`,"phone":"+14155550123"`, maxNumbers) + `}`,
		`{"external_id":"ada"` + strings.Repeat(`,"email":"a@example.com"`, maxNamed) + `}`,
		`{"user_alias":{"alias_label":"l"` + strings.Repeat(`,"alias_name":"n"`, maxTwice+1) + `}}`,
		`{"user_alias":{"alias_name":"n"` + strings.Repeat(`,"alias_label":"l"`, maxTwice+1) + `}}`,
		`{"deep":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `,"external_id":"ada"}`, // more than encoding/json reads
	} {
		d.offer("r", object)
		page, err := d.List(t.Context(), Query{Limit: 1})
		require.NoError(t, err)
		require.Empty(t, page.Entries[0].Object, i)
		require.Equal(t, len(object), page.Entries[0].Size, i)
		require.Equal(t, "r", page.Entries[0].Faults[0].Rule, i)
	}
	kept := `{"external_id":"ada","phone":"1","phone":"2"` + strings.Repeat(`,"email":"a@example.com"`, maxNamed-4) + `,"user_alias":{"alias_label":"l"` + strings.Repeat(`,"alias_name":"n"`, maxTwice) + `}}`
	d.offer("r", kept)
	page, err := d.List(t.Context(), Query{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, page.Entries[0].Object)
}

// Rewriting that fails leaves what was there, and later entries aren't lost with it.
func TestRewritingFails(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", `{"external_id":"ada"}`)
	d.offer("r", `{"external_id":"bob"}`)
	require.Len(t, d.list(Query{}), 2)
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(files[0]+durable.Temporary, 0o700)) // nothing can be written there
	_, err = d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte("ada"))})
	require.Error(t, err)
	d.offer("r", `{"external_id":"eve"}`)
	require.Equal(t, []string{`{"external_id":"eve"}`, `{"external_id":"bob"}`, `{"external_id":"ada"}`}, d.list(Query{}))
	require.NoError(t, os.Remove(files[0]+durable.Temporary))
	n, err := d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte("ada"))})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, d.list(Query{}), 2)
}

// What a damaged file has behind the damage can't be read any more, and goes with the next deletion that reads the file:
// it may be about whoever is deleted.
func TestErasingBehindDamage(t *testing.T) {
	d := openDesk(t, nil)
	for _, id := range []string{"bob", "eve", "ada"} {
		d.offer("r", fmt.Sprintf(`{"external_id":%q}`, id))
	}
	require.Len(t, d.list(Query{}), 3)
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	text[strings.Index(string(text), "eve")] ^= 0x40
	require.NoError(t, os.WriteFile(files[0], text, 0o600))
	_, err = d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte("ada"))})
	require.NoError(t, err)
	text, err = os.ReadFile(files[0])
	require.NoError(t, err)
	require.NotContains(t, string(text), "ada")
	require.Equal(t, []string{`{"external_id":"bob"}`}, d.list(Query{}))
	require.EqualValues(t, 1, d.Entries())
	d.offer("r", "more")
	require.Equal(t, []string{"more", `{"external_id":"bob"}`}, d.list(Query{}))
}

// A deletion goes on when the disk is full: a file that has no room for the rest of it goes as a whole.
func TestRewritingOnAFullDisk(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", `{"external_id":"first"}`)
	d.reopen()
	d.offer("r", `{"external_id":"ada"}`)
	d.offer("r", `{"external_id":"bob"}`)
	require.Len(t, d.list(Query{}), 3)
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "*"))
	require.NoError(t, err)
	require.NoError(t, os.Symlink("/dev/full", files[1]+durable.Temporary))
	n, err := d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte("ada"))})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoFileExists(t, files[1])
	require.Equal(t, []string{`{"external_id":"first"}`}, d.list(Query{}))
	d.offer("r", `{"external_id":"eve"}`)
	require.Equal(t, []string{`{"external_id":"eve"}`, `{"external_id":"first"}`}, d.list(Query{}))
}

// Files that somebody has removed, to make room or for good, keep nobody from being deleted, and later entries are kept.
func TestDirectoryIsRemoved(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", `{"external_id":"ada"}`)
	d.reopen()
	d.offer("r", `{"external_id":"bob"}`)
	require.Len(t, d.list(Query{}), 2)
	require.NoError(t, os.RemoveAll(d.o.Dir))
	for _, id := range []string{"ada", "bob"} {
		n, err := d.Erase(t.Context(), []uint64{Identifier(1, op.ExternalID, []byte(id))})
		require.NoError(t, err)
		require.Zero(t, n)
	}
	require.Zero(t, d.Entries())
	d.offer("r", `{"external_id":"eve"}`)
	require.Equal(t, []string{`{"external_id":"eve"}`}, d.list(Query{}))
}

func TestClosed(t *testing.T) {
	d := openDesk(t, nil)
	d.offer("r", "1")
	require.NoError(t, d.Close())
	d.offer("r", "2")
	_, err := d.List(t.Context(), Query{Limit: 1})
	require.ErrorIs(t, err, ErrClosed)
	d.open()
	require.Equal(t, []string{"1"}, d.list(Query{}))
	for _, o := range []Options{{}, {Dir: "x", Retention: time.Minute}, {Dir: "x", MaxBytes: 1}, {Dir: "x", MaxObjectBytes: -1}, {Dir: "x", QueueBytes: 1}} {
		_, err := Open(o)
		require.Error(t, err)
	}
}

func FuzzFrames(f *testing.F) {
	e := Entry{Seq: 1, At: 2, Workspace: 3, Key: 4, Request: "r", Array: "events", Index: 5, Faults: []Fault{{"a", "b"}}, Object: []byte("{}")}
	f.Add(appendFrame(nil, &e, []uint64{1, 2}))
	f.Fuzz(func(t *testing.T, text []byte) {
		end, err := eachFrame(append([]byte(magic), text...), func(e *stored) bool { return true })
		require.True(t, err != nil || end == len(magic)+len(text))
		var s stored
		if s.read(text) {
			frame := appendFrame(nil, &s.Entry, s.ids)
			var again stored
			require.True(t, again.read(frame[frameBytes:]))
			require.Equal(t, s.copy(), again.copy())
		}
		identifiersOf(1, text)
	})
}
