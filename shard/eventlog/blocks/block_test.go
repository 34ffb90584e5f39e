package blocks

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/event"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal/durable"
)

var testHasher = identity.NewHasher([32]byte{1})

func newTestWriter() *Writer {
	w := NewWriter()
	w.Hasher, w.Rest = testHasher, func() error { return nil }
	return w
}

func put(t *testing.T, fs vfs.FS, path string, data []byte) {
	t.Helper()
	require.NoError(t, durable.ReplaceFileOn(fs, path, data))
}

// randomRows are rows with everything over which the format could stumble.
func randomRows(r *rand.Rand, n int) *Rows {
	rs := &Rows{}
	text := func() []byte {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	number := func() uint64 { return r.Uint64() >> r.IntN(64) }
	for range n {
		w := Row{
			Position: 100 + r.Uint64N(uint64(n)/4+1), Time: int64(number()), Number: number(), Ordinal: uint32(r.IntN(1 << r.IntN(20))), Workspace: uint32(number()),
			Name: rs.Intern(text()), Kind: op.Event, ID: op.IDKind(r.IntN(6)), Resolved: r.IntN(2) == 0, Key: text(),
		}
		if r.IntN(2) == 0 {
			w.Number = usual(&w)
		}
		w.Stamp = int64(w.Position) * 1000 // one for each position
		w.Accepted = w.Stamp + int64(w.Ordinal)
		if r.IntN(4) == 0 {
			w.Accepted = int64(number())
		}
		if r.IntN(2) == 0 {
			w.App = rs.Intern(text()) + 1
		}
		if r.IntN(2) == 0 {
			w.Kind, w.Price, w.Total, w.Quantity, w.Currency = op.Purchase, number(), int64(number()), uint32(number()), [3]byte{byte(r.Uint32()), 'U', 0}
			if r.IntN(2) == 0 {
				w.Price = math.Float64bits(float64(r.IntN(10_000)) / 100)
			}
		}
		for range r.IntN(4) {
			w.Properties = binary.AppendUvarint(w.Properties, uint64(rs.Intern(fmt.Append(nil, r.IntN(1+r.IntN(50))))))
			w.Properties = randomValue(r, w.Properties, text)
		}
		rs.List = append(rs.List, w)
	}
	return rs
}

// usual is the number that takes no bytes.
func usual(w *Row) uint64 {
	n := testHasher.Number(w.Workspace, w.ID, w.Key)
	if w.Resolved && w.ID != op.ExternalID {
		return testHasher.Profile(n)
	}
	return n
}

func randomValue(r *rand.Rand, dst []byte, text func() []byte) []byte {
	switch t := op.Tag(r.IntN(int(op.ArrayEdit) + 1)); t {
	case op.Null, op.False, op.True:
		return append(dst, byte(t))
	case op.Int, op.Increment:
		return binary.AppendVarint(append(dst, byte(t)), int64(r.Uint64()>>r.IntN(64)))
	case op.Float:
		special := []float64{0, math.Copysign(0, -1), math.Inf(1), math.NaN(), 0.1, 1e300, 12.34, 5e-324, r.NormFloat64()}
		return op.AppendFloat(dst, special[r.IntN(len(special))])
	case op.Time:
		return op.AppendTime(dst, int64(r.Uint64()))
	default:
		return op.AppendBlock(dst, t, text())
	}
}

// plainRow is a row that needs no dictionary.
type plainRow struct {
	Row
	key, name, app, properties string
}

func plain(rs *Rows) (list []plainRow) {
	for _, w := range rs.List {
		p := plainRow{Row: w, key: string(w.Key), name: string(rs.Name(w.Name))}
		if w.App > 0 {
			p.app = "+" + string(rs.Name(w.App-1))
		}
		for name, v := range op.Fields(w.Properties) {
			p.properties += fmt.Sprintf("%q=%x ", rs.Name(name), v)
		}
		p.Row.Key, p.Row.Properties, p.Row.Name, p.Row.App = nil, nil, 0, 0
		list = append(list, p)
	}
	return list
}

// eachRows calls f with all rows of a block, some at a time.
func eachRows(b *Reader, g *Group, f func(*Rows)) error {
	for i := range b.Info.Groups {
		if err := b.Load(i, g); err != nil {
			return err
		}
		for {
			rs, err := g.Next()
			if err != nil {
				return err
			}
			if rs == nil {
				break
			}
			f(rs)
		}
	}
	return nil
}

// Each identifier is written once, however similar others are.
func TestUsersAreWrittenOnce(t *testing.T) {
	seed := testseed.Of(t)
	fs := vfs.NewMem()
	w := newTestWriter()
	for i := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, i))
		rs, users := &Rows{}, map[string]bool{}
		prefix := [...]string{"", "u", "user-00000"}[r.IntN(3)]
		for k := range 1 + r.IntN(10*fewKeys>>r.IntN(8)) {
			u := Row{Position: 100 + uint64(k), Name: rs.Intern(nil), Kind: op.Event, ID: op.IDKind(1 + r.IntN(2)), Resolved: r.IntN(3) == 0,
				Workspace: uint32(r.IntN(2)), Number: uint64(r.IntN(2)) << r.IntN(64)}
			if r.IntN(4) > 0 {
				u.Key = []byte(prefix)
			}
			for range r.IntN(1 + r.IntN(12)) {
				u.Key = append(u.Key, "\x00a"[r.IntN(2)])
			}
			if r.IntN(2) == 0 {
				u.Number = usual(&u)
			}
			users[fmt.Sprint(u.Workspace, u.ID, u.Resolved, u.Number, u.Key)] = true
			rs.List = append(rs.List, u)
		}
		data, _, err := w.Write(rs, 100, 100+uint64(len(rs.List)))
		require.NoError(t, err)
		want := plain(rs)
		put(t, fs, "b", data)
		b, err := Open(fs, "b", testHasher)
		require.NoError(t, err)
		var back Group
		var got []plainRow
		require.NoError(t, eachRows(b, &back, func(rs *Rows) { got = append(got, plain(rs)...) }))
		require.Equal(t, want, got)
		require.Len(t, back.users, len(users))
		require.NoError(t, b.Close())
	}
}

func TestBlockGivesBackItsRows(t *testing.T) {
	seed := testseed.Of(t)
	fs := vfs.NewMem()
	w := newTestWriter()
	var back Group
	for i := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, i))
		n := 1 + r.IntN(1<<r.IntN(11))
		w.GroupRows = 1 + r.IntN(2*n)
		rs := randomRows(r, n)
		data, info, err := w.Write(rs, 100, 100+uint64(n))
		require.NoError(t, err)
		want := plain(rs)
		put(t, fs, "b", data)
		b, err := Open(fs, "b", testHasher)
		require.NoError(t, err)
		require.Equal(t, info, b.Info)
		var got []plainRow
		require.NoError(t, eachRows(b, &back, func(rs *Rows) {
			require.True(t, len(got) == 0 || got[len(got)-1].Position < rs.List[0].Position, "whole records")
			got = append(got, plain(rs)...)
		}))
		require.Equal(t, want, got, "case %d", i)
		require.NoError(t, b.Close())
	}
}

// Rows that are read as JSON have the texts in which their fields are written; rows of kinds without properties have
// their fields. They are read into the memory of rows that were read before.
func TestRowsAsJSON(t *testing.T) {
	seed := testseed.Of(t)
	fs := vfs.NewMem()
	w := newTestWriter()
	fields, texts := Group{}, Group{JSON: true}
	for i := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, i))
		n := 1 + r.IntN(1<<r.IntN(11))
		rs := randomRows(r, n)
		kinds := []op.Kind{op.Event, op.Purchase, op.Attributes, event.GroupState, event.Merged}
		kinds = kinds[r.IntN(len(kinds)):]
		for i := range rs.List {
			rs.List[i].Kind = kinds[r.IntN(len(kinds))]
		}
		data, _, err := w.Write(rs, 100, 100+uint64(n))
		require.NoError(t, err)
		put(t, fs, "b", data)
		b, err := Open(fs, "b", testHasher)
		require.NoError(t, err)
		for i := range b.Info.Groups {
			require.NoError(t, b.Load(i, &fields))
			require.NoError(t, b.Load(i, &texts))
			for {
				encoded, err := fields.Next()
				require.NoError(t, err)
				asText, err := texts.Next()
				require.NoError(t, err)
				if encoded == nil {
					require.Nil(t, asText)
					break
				}
				want, got := plain(encoded), plain(asText)
				for i := range want {
					from, w := &encoded.List[i], &asText.List[i]
					if event.HasProperties(w.Kind) && len(w.Properties) > 0 {
						require.Equal(t, string(encoded.Fields(from).AppendJSON(nil)), string(w.Properties))
						want[i].properties, got[i].properties = "", ""
					}
					require.Equal(t, len(from.Properties) > 0, len(w.Properties) > 0)
				}
				require.Equal(t, want, got)
			}
		}
		require.NoError(t, b.Close())
	}
}

// The format allows an event to have a name twice, and the second value may be larger than the rest of a page.
func TestNameTwice(t *testing.T) {
	fs, rs := vfs.NewMem(), &Rows{}
	w := Row{Position: 105, Kind: op.Event, Name: rs.Intern([]byte("event"))}
	for _, n := range []int{1, 3 * pageBytes} {
		w.Properties = binary.AppendUvarint(w.Properties, uint64(rs.Intern([]byte("name"))))
		w.Properties = op.AppendBlock(w.Properties, op.String, make([]byte, n))
	}
	rs.List = append(rs.List, w, w)
	rs.List[1].Ordinal = 1
	data, _, err := newTestWriter().Write(rs, 100, 110)
	require.NoError(t, err)
	put(t, fs, "b", data)
	b, err := Open(fs, "b", testHasher)
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, eachRows(b, new(Group), func(back *Rows) { require.Equal(t, plain(rs), plain(back)) }))
	require.NoError(t, eachRows(b, &Group{JSON: true}, func(back *Rows) {
		for i := range rs.List {
			require.Equal(t, rs.Fields(&rs.List[i]).AppendJSON(nil), back.List[i].Properties)
		}
	}))
}

// A number that follows from its identifier takes no bytes; any other takes 8, once for an identifier.
func TestUsualNumbersAreNotStored(t *testing.T) {
	fs, w := vfs.NewMem(), newTestWriter()
	rs := &Rows{}
	for i := range 3300 {
		of := i % 3000 // the first 300 come again
		u := Row{Position: 100 + uint64(i), Name: rs.Intern(nil), Kind: op.Event, ID: []op.IDKind{op.ExternalID, op.Alias, op.Email}[of%3],
			Workspace: 1 + uint32(of/3%2), Resolved: of/6%2 == 0, Key: fmt.Appendf(nil, "user-%d", of/3)}
		u.Number = usual(&u)
		rs.List = append(rs.List, u)
	}
	var g Group
	write := func(own int) *Reader {
		data, _, err := w.Write(rs, 100, 3400)
		require.NoError(t, err)
		want := plain(rs)
		put(t, fs, "b", data)
		b, err := Open(fs, "b", testHasher)
		require.NoError(t, err)
		var got []plainRow
		require.NoError(t, eachRows(b, &g, func(rs *Rows) { got = append(got, plain(rs)...) }))
		require.Equal(t, want, got)
		require.Len(t, g.columns[colNumbers][0], 8*(1+own))
		return b
	}
	b := write(0)
	require.NoError(t, b.Close())
	for _, i := range []int{7, 3007, 10, 500} {
		rs.List[i].Number ^= 1
	}
	b = write(3)
	defer b.Close()
	for i, usualToo := range map[int]bool{7: false, 10: true, 500: false} {
		u := &rs.List[i]
		for number, want := range map[uint64]bool{u.Number: true, u.Number ^ 1: usualToo, u.Number ^ 2: false} {
			has, err := b.Touches(0, &g, func(workspace uint32, n uint64) bool { return workspace == u.Workspace && n == number })
			require.NoError(t, err)
			require.Equal(t, want, has, "%d: %d", i, number^u.Number)
		}
	}
}

// A block is read only with the secret that its numbers are made with: any other would make others of them.
func TestBlockOfAnotherStore(t *testing.T) {
	fs := vfs.NewMem()
	data, info, err := newTestWriter().Write(randomRows(rand.New(rand.NewPCG(1, 2)), 50), 100, 200)
	require.NoError(t, err)
	back, err := Check(data, "the file", testHasher, 100, 200)
	require.NoError(t, err)
	require.Equal(t, info, back)
	put(t, fs, "the file", data)
	other := identity.NewHasher([32]byte{2})
	_, err = Open(fs, "the file", other)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, `"the file": it is of another store`)
	_, err = Check(data, "the file", other, 100, 200)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "another store")
}

// A block of a later version is sound, and its error says which version it has.
func TestBlockOfALaterVersion(t *testing.T) {
	fs := vfs.NewMem()
	data, _, err := newTestWriter().Write(randomRows(rand.New(rand.NewPCG(1, 2)), 50), 100, 200)
	require.NoError(t, err)
	version := len(blockMagic) - 1
	data[version]++
	put(t, fs, "the file", data)
	_, err = Open(fs, "the file", testHasher)
	require.ErrorContains(t, err, `not a block of version 6`, "its end has another one")
	data[len(data)-1]++
	put(t, fs, "the file", data)
	_, err = Open(fs, "the file", testHasher)
	require.ErrorIs(t, err, ErrCorrupt)
	require.EqualError(t, err, `event log: "the file" has version 7, and this program reads version 6: start the program that wrote it`)
}

// Whatever bit is flipped and wherever the file is cut, there is an error that names the file, and never another row.
func TestDamageIsFound(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	fs := vfs.NewMem()
	data, _, err := newTestWriter().Write(randomRows(r, 150), 100, 500)
	require.NoError(t, err)
	readAll := func() error {
		b, err := Open(fs, "the file", testHasher)
		if err != nil {
			return err
		}
		defer b.Close()
		return eachRows(b, new(Group), func(*Rows) {})
	}
	put(t, fs, "the file", data)
	require.NoError(t, readAll())
	for at := range data {
		bad := append([]byte{}, data...)
		bad[at] ^= 1 << r.IntN(8)
		put(t, fs, "the file", bad)
		err := readAll()
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		require.ErrorContains(t, err, `"the file"`)
	}
	for n := 0; n < len(data); n += 1 + r.IntN(40) {
		put(t, fs, "the file", data[:n])
		require.ErrorIs(t, readAll(), ErrCorrupt, "cut at %d", n)
	}
}

// Nobody gets another number when an identifier or its marks were changed, however the checksums are.
func TestForgedNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	rs := randomRows(r, 200)
	load := func() *Group {
		g := &Group{}
		g.begin("forged", testHasher, &Info{}, &GroupInfo{rows: len(rs.List)})
		w := groupWriter{users: userColumns{hasher: testHasher}, emit: func(id uint32, b []byte) error {
			*g.column(id) = append([]byte{}, b...)
			return nil
		}}
		w.putUsers(rs.List)
		return g
	}
	g := load()
	g.readUsers()
	require.True(t, g.ok)
	users := g.users
	require.NotEmpty(t, users)
	for column := colUsers; column <= colKeys; column++ {
		for at := range g.columns[column][0] {
			g := load()
			g.columns[column][0][at] ^= 1 << r.IntN(8)
			if g.readUsers(); !g.ok {
				continue
			}
			require.Len(t, g.users, len(users))
			for i := range users {
				require.Equal(t, users[i].number, g.users[i].number, "byte %d of column %d", at, column)
			}
		}
	}
}

// A block that was changed by somebody who also repaired the checksums is refused or read, but nothing panics.
func TestForgedBlocks(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	rs := randomRows(r, 200)
	rs.Sort()
	type column struct {
		id uint32
		b  []byte
	}
	var columns []column
	w := groupWriter{users: userColumns{hasher: testHasher}}
	require.NoError(t, w.columns(rs.List, &rs.names, func(id uint32, b []byte) error {
		columns = append(columns, column{id, append([]byte{}, b...)})
		return nil
	}))
	refused := 0
	for range 1500 {
		g := Group{JSON: r.IntN(2) == 0}
		g.begin("forged", testHasher, &Info{First: 0, last: math.MaxUint64}, &GroupInfo{rows: len(rs.List), First: rs.List[0].Position})
		hit := r.IntN(len(columns))
		for i, c := range columns {
			b := append([]byte{}, c.b...)
			if i == hit {
				switch r.IntN(3) {
				case 0:
					b[r.IntN(len(b))] = byte(r.Uint32())
				case 1:
					b = b[:r.IntN(len(b))]
				default:
					b = append(b, byte(r.Uint32()))
				}
			}
			*g.column(c.id) = b
		}
		err := g.open()
		for rows := new(Rows); err == nil && rows != nil; {
			rows, err = g.Next()
		}
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			refused++
		}
	}
	require.Greater(t, refused, 300)
}
