package blocks

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/event"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// Group is a group of a block in memory. Next makes rows out of its columns, a few records at a time, so that the rows
// are still in the processor's caches when they are looked at. Reader.Load fills a Group. It belongs to one goroutine
// and reuses its memory for the next group.
type Group struct {
	// JSON, set before a group is loaded, makes properties JSON (Rows.JSON). That is done by columns, which costs less
	// than row by row.
	JSON bool

	path    string
	hasher  *identity.Hasher
	block   *Info
	info    *GroupInfo
	ok      bool
	columns [numCols][4][]byte
	packed  []byte // the current column as it is in the file

	// The content of the whole group. kept holds the bytes; rows has the names.
	kept   pages
	users  []user
	shapes [][]uint32
	texts  valueReader // properties as JSON
	fields valueReader // properties in the form of the log
	next   []int       // for each name, the value that comes next

	// What the last call of Next has made, and where the next one begins.
	rows                                    Rows
	made                                    int // rows made by all calls
	records, accepted                       cursor.Cursor
	position                                uint64
	stamp                                   int64
	unit, time                              int64 // unit of times; the last time in units
	currencies, money, price, total, bought cursor.Cursor
	numbers                                 []uint32 // memory of planes
}

// rowsAtOnce is how many rows Next makes, apart from the rest of the last record.
const rowsAtOnce = 512

func (g *Group) begin(path string, h *identity.Hasher, block *Info, info *GroupInfo) {
	g.path, g.hasher, g.block, g.info, g.ok, g.made = path, h, block, info, true, 0
	for i := range g.columns {
		for plane, b := range g.columns[i] {
			g.columns[i][plane] = b[:0]
		}
	}
	g.kept.reset()
	g.rows.Reset()
	g.rows.JSON = g.JSON
}

func (g *Group) corrupt() error {
	return fmt.Errorf("%w: block %q: the group of position %d makes no sense", ErrCorrupt, g.path, g.info.First)
}

// column returns where the bytes of a column belong; nil when there is no such column.
func (g *Group) column(column uint32) *[]byte {
	if c, plane := column%256, column/256; c < numCols && plane < 4 {
		return &g.columns[c][plane]
	}
	return nil
}

func (g *Group) cursor(column int) cursor.Cursor { return cursor.Cursor{Rest: g.columns[column][0]} }

// end notes whether a column was read to its end.
func (g *Group) end(c *cursor.Cursor) { g.ok = g.ok && c.Done() }

// count reads how many things a column lists, each of at least one byte.
func (g *Group) count(c *cursor.Cursor) int {
	n := c.Uvarint()
	if n > uint64(len(c.Rest)) {
		g.ok = false
		c.Fail()
		return 0
	}
	return int(n)
}

// planes reads one number for each of n rows, all below limit. The result is valid until the next call.
func (g *Group) planes(column, row, n, limit int) []uint32 {
	v := slices.Grow(g.numbers[:0], n)[:n]
	clear(v)
	g.numbers = v
	for plane, b := range g.columns[column] {
		if len(b) == 0 {
			continue
		}
		if len(b) != g.info.rows {
			g.ok = false
			break
		}
		for i, x := range b[row : row+n] {
			v[i] |= uint32(x) << (8 * plane)
		}
	}
	for i, x := range v {
		if int64(x) >= int64(limit) {
			g.ok, v[i] = false, 0
		}
	}
	return v
}

// open reads the content of the whole group. Its input has already been checked against checksums. Nothing panics here
// or in Next, and what makes no sense is refused.
func (g *Group) open() error {
	g.ok = len(g.columns[colKind][0]) == g.info.rows
	g.records, g.accepted = g.cursor(colRecords), g.cursor(colAccepted)
	g.position, g.stamp = 0, 0
	times := g.cursor(colTimes)
	g.unit, g.time = int64(times.Uvarint()), times.Varint()
	g.end(&times)
	g.currencies, g.money, g.price = g.cursor(colCurrency), g.cursor(colMoney), g.cursor(colPrice)
	g.total, g.bought = g.cursor(colTotal), g.cursor(colQuantity)
	for _, read := range [...]func(){g.readUsers, g.readNames, g.readShapes, g.readValues} {
		if !g.ok {
			break
		}
		read()
	}
	if !g.ok {
		return g.corrupt()
	}
	return nil
}

func (g *Group) readUsers() {
	c, numbers, shared, sizes, keys := g.cursor(colUsers), g.cursor(colNumbers), g.cursor(colShared),
		g.cursor(colKeySizes), g.cursor(colKeys)
	n := g.count(&c)
	g.users = slices.Grow(g.users[:0], n)[:n]
	var key []byte
	workspace, sum := uint32(0), numbers.U64()
	for i := range g.users {
		workspace += uint32(c.Uvarint())
		marks := c.Byte()
		n, size := shared.Uvarint(), sizes.Uvarint()
		if n > uint64(len(key)) || size < n {
			g.ok = false
			return
		}
		key = append(key[:n], keys.Take(size-n)...)
		u := user{workspace: workspace, id: op.IDKind(marks & kindBits), resolved: marks&resolved != 0,
			key: g.kept.keep(key)}
		if marks&ownNumber != 0 {
			u.number = numbers.U64()
		} else {
			u.number = usualNumber(g.hasher, workspace, marks, key)
		}
		g.users[i] = u
		sum -= u.number
	}
	for _, c := range [...]*cursor.Cursor{&c, &numbers, &shared, &sizes, &keys} {
		g.end(c)
	}
	g.ok = g.ok && len(g.users) > 0 && sum == 0
}

func (g *Group) readNames() {
	c, text := g.cursor(colNames), g.cursor(colNameText)
	names := &g.rows.names.list
	for range g.count(&c) {
		*names = append(*names, g.kept.keep(text.Take(c.Uvarint())))
	}
	g.end(&c)
	g.end(&text)
	g.rows.quote(&g.kept)
}

func (g *Group) readShapes() {
	c := g.cursor(colShapes)
	n := g.count(&c)
	g.shapes = slices.Grow(g.shapes[:0], n)[:n]
	for i := range g.shapes {
		g.shapes[i] = make([]uint32, g.count(&c))
		for k := range g.shapes[i] {
			g.shapes[i][k] = c.Index(len(g.rows.names.list))
		}
	}
	g.end(&c)
	g.ok = g.ok && n > 0
}

// readValues reads the values of all properties, in the forms that are needed.
func (g *Group) readValues() {
	var kinds [256]bool
	for _, k := range g.columns[colKind][0] {
		kinds[k] = true
	}
	text, encoded := false, false
	for k, has := range kinds {
		if has {
			g.ok = g.ok && event.KindName(op.Kind(k)) != ""
			isText := g.rows.isText(op.Kind(k))
			text, encoded = text || isText, encoded || !isText
		}
	}
	counts := make([]int, len(g.rows.names.list))
	for row := 0; row < g.info.rows; row += rowsAtOnce {
		for _, shape := range g.planes(colShape, row, min(rowsAtOnce, g.info.rows-row), len(g.shapes)) {
			for _, name := range g.shapes[shape] {
				counts[name]++
			}
		}
	}
	g.openValues(&g.texts, true)
	g.openValues(&g.fields, false)
	g.ok = g.ok && (!text || g.texts.readAll(counts)) && (!encoded || g.fields.readAll(counts))
	g.next = g.next[:0]
	at := 0
	for _, n := range counts {
		g.next = append(g.next, at)
		at += n
	}
}

// openValues makes v begin with the values of the group, reusing v's memory.
func (g *Group) openValues(v *valueReader, json bool) {
	*v = valueReader{tags: g.cursor(colTags), modes: g.cursor(colModes), ints: g.cursor(colInts),
		raws: g.cursor(colRaws), sizes: g.cursor(colSizes), text: g.cursor(colText), refs: g.cursor(colRefs),
		entries: v.entries[:0], json: json, values: v.values[:0], spans: v.spans[:0], one: v.one[:0]}
}

// Next makes the rows of the next records; it returns nil at the end. The rows are lent until the next call, or the
// next Load. The only error is ErrCorrupt, which only a forged file causes.
func (g *Group) Next() (*Rows, error) {
	if g.made == g.info.rows {
		return nil, nil
	}
	g.rows.pages.reset()
	g.makeRecords()
	list := g.rows.List
	g.makeTimes(list)
	for i, k := range g.columns[colKind][0][g.made : g.made+len(list)] {
		list[i].Kind = op.Kind(k)
	}
	for i, at := range g.planes(colUser, g.made, len(list), len(g.users)) {
		u, w := &g.users[at], &list[i]
		w.Workspace, w.ID, w.Resolved, w.Number, w.Key = u.workspace, u.id, u.resolved, u.number, u.key
	}
	names := len(g.rows.names.list)
	for i, name := range g.planes(colName, g.made, len(list), names) {
		list[i].Name = name
	}
	for i, app := range g.planes(colApp, g.made, len(list), names+1) {
		list[i].App = app
	}
	g.makePurchases(list)
	g.makeProperties(list)
	if g.made += len(list); g.made == g.info.rows {
		for _, c := range [...]*cursor.Cursor{&g.records, &g.accepted, &g.currencies, &g.money, &g.price, &g.total,
			&g.bought} {
			g.end(c)
		}
	}
	if !g.ok {
		return nil, g.corrupt()
	}
	return &g.rows, nil
}

// makeRecords begins the rows of the next records with their places.
func (g *Group) makeRecords() {
	list := g.rows.List[:0]
	for left := g.info.rows - g.made; left > 0 && len(list) < rowsAtOnce; {
		g.position += g.records.Uvarint()
		g.stamp += g.records.Varint()
		n := g.records.Uvarint()
		if n == 0 || n > uint64(left) || g.position < g.block.First || g.position > g.block.last {
			g.ok = false
			break
		}
		for range n {
			list = append(list, Row{Position: g.position, Stamp: g.stamp})
		}
		left -= int(n)
	}
	g.rows.List = list
	for i, later := range g.planes(colOrdinal, g.made, len(list), math.MaxUint32) {
		list[i].Ordinal = later
		if i > 0 && list[i].Position == list[i-1].Position {
			list[i].Ordinal += list[i-1].Ordinal
		}
	}
	for i, index := range g.planes(colIndex, g.made, len(list), math.MaxUint32) {
		list[i].Index = index
	}
	for i := range list {
		list[i].Accepted = list[i].Stamp + int64(list[i].Ordinal) + g.accepted.Varint()
	}
}

func (g *Group) makeTimes(list []Row) {
	for i, low := range g.planes(colTime, g.made, len(list), math.MaxUint32+1) {
		list[i].Time = int64(low)
	}
	for i, high := range g.planes(colTimeHigh, g.made, len(list), math.MaxUint32+1) {
		later := uint64(high)<<32 | uint64(list[i].Time)
		g.time += int64(later>>1) ^ -int64(later&1)
		list[i].Time = g.time * g.unit
	}
}

func (g *Group) makePurchases(list []Row) {
	for i := range list {
		w := &list[i]
		if w.Kind != op.Purchase {
			continue
		}
		copy(w.Currency[:], g.currencies.Take(3))
		quantity := g.bought.Uvarint()
		g.ok = g.ok && quantity <= math.MaxUint32
		w.Quantity = uint32(quantity)
		mode := g.money.Byte()
		if mode&moneyRaw != 0 {
			w.Price = g.price.U64()
			w.Total = g.total.Varint()
			continue
		}
		scale, power := int(mode&7), int(mode>>moneyFactor&7)
		if scale >= len(event.Tens) || power > maxMoneyPower {
			g.ok = false
			return
		}
		m := g.price.Varint()
		w.Price = math.Float64bits(float64(m) / event.Tens[scale])
		if mode&moneyTotal != 0 {
			w.Total = g.total.Varint()
		} else {
			w.Total = totalOf(m, w.Quantity, power)
		}
	}
}

func (g *Group) makeProperties(list []Row) {
	for i, s := range g.planes(colShape, g.made, len(list), len(g.shapes)) {
		switch shape, w := g.shapes[s], &list[i]; {
		case len(shape) == 0:
		case g.rows.isText(w.Kind):
			w.Properties = g.texts.object(&g.rows, shape, g.next)
		default:
			w.Properties = g.fields.fields(&g.rows, shape, g.next)
		}
	}
}

// usualRoom is more than the properties of a row usually take: calculating the size would cost as much as writing them.
const usualRoom = 4 << 10

// object makes the properties of a row as a JSON object: those with the names in shape, each with its next value.
func (r *valueReader) object(dst *Rows, shape []uint32, next []int) []byte {
	p := append(dst.pages.room(usualRoom), '{')
	for k, name := range shape {
		if k > 0 {
			p = append(p, ',')
		}
		p = append(append(p, dst.members[name]...), r.at(next[name])...)
		next[name]++
	}
	return dst.pages.fill(append(p, '}'))
}

// fields makes the properties of a row in the form of the log.
func (r *valueReader) fields(dst *Rows, shape []uint32, next []int) []byte {
	p := dst.pages.room(usualRoom)
	for _, name := range shape {
		p = binary.AppendUvarint(p, uint64(name))
		p = append(p, r.at(next[name])...)
		next[name]++
	}
	return dst.pages.fill(p)
}
