package blocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// The columns of a group. Those marked * are planes (column.go): 256 × plane is added to the column's number. Empty
// columns are left out. Columns are part of the file format: they are never given anew.
const (
	colTime     = 1 // first time, then how much each is later; ms
	colRecords  = 2 // the records that events came in: n, (position as a difference, stamp as a difference) …
	colRecord   = 3 // * which of them
	colOrdinal  = 4 // *
	colAccepted = 5 // when the event was accepted, as a difference to its record's stamp + ordinal; 0 but for messages
	// identifiers as they were sent, each once, sorted: n, (workspace as a difference, kind and whether resolved) …
	colUsers    = 6
	colNumbers  = 7  // their numbers, 8 bytes each
	colShared   = 8  // how many bytes of its key an identifier shares with the one before
	colKeySizes = 9  // how long the whole key is
	colKeys     = 10 // the rest of it
	colUser     = 11 // * which of them
	colNames    = 12 // the names: n, length …
	colNameText = 13
	colName     = 14 // * event name or product id
	colApp      = 15 // * index plus one
	colKind     = 16 // a byte each

	// Of purchases alone.
	colCurrency = 17 // 3 bytes each
	colMoney    = 18 // a byte each; see appendMoney
	colPrice    = 19
	colTotal    = 20
	colQuantity = 21

	// The names of an event's properties, in order, are its shape.
	colShapes = 22 // shapes: n, (n, index …) …
	colShape  = 23 // *
	colTags   = 24 // valueColumns
	colModes  = 25
	colInts   = 26
	colRaws   = 27
	colSizes  = 28
	colText   = 29
	colRefs   = 30

	colIndex = 31 // * of changes of states
	numCols  = 32
)

// isUserColumn says whether a column is needed for the users of a group.
func isUserColumn(column uint32) bool { return column >= colUsers && column <= colKeys }

// user is an identifier with the number that it stood for.
type user struct {
	workspace uint32
	id        op.IDKind
	resolved  bool
	number    uint64
	key       []byte
}

func compareUsers(a, b *user) int {
	return cmp.Or(cmp.Compare(a.workspace, b.workspace), cmp.Compare(a.id, b.id),
		cmp.Compare(flag(a.resolved), flag(b.resolved)),
		bytes.Compare(a.key, b.key), cmp.Compare(a.number, b.number))
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// groupWriter turns rows into columns. It keeps its memory from group to group.
type groupWriter struct {
	buf    []byte
	planes []uint32
	emit   func(column uint32, b []byte) error
	err    error

	// The group's names: new index by old one, plus one; and the reverse.
	newName []uint32
	oldName []uint32

	values  valueColumns
	byName  []op.Value // values of all rows, those of one name after another
	nameEnd []int
	shapes  map[string]uint32
	userAt  map[string]uint32
}

// columns calls emit with each column of the rows, which are sorted. The bytes are valid during the call.
func (w *groupWriter) columns(list []Row, n *names, emit func(column uint32, b []byte) error) error {
	w.emit, w.err = emit, nil
	w.collectNames(list, n)
	w.times(list)
	w.records(list)
	w.users(list)
	w.namesAndKinds(list, n)
	w.purchases(list)
	w.properties(list)
	return w.err
}

func (w *groupWriter) put(column uint32, b []byte) {
	if w.err == nil && len(b) > 0 {
		w.err = w.emit(column, b)
	}
	w.buf = w.buf[:0]
}

// putPlanes writes one number for each row.
func (w *groupWriter) putPlanes(column uint32, list []Row, of func(i int) uint32) {
	w.planes = w.planes[:0]
	for i := range list {
		w.planes = append(w.planes, of(i))
	}
	planesOf(w.planes, func(plane int, b []byte) { w.put(column+256*uint32(plane), b) })
}

func (w *groupWriter) u(v uint64) { w.buf = binary.AppendUvarint(w.buf, v) }
func (w *groupWriter) i(v int64)  { w.buf = binary.AppendVarint(w.buf, v) }

func (w *groupWriter) times(list []Row) {
	last := int64(0)
	for i := range list {
		if i == 0 {
			w.i(list[i].Time)
		} else {
			w.u(uint64(list[i].Time - last))
		}
		last = list[i].Time
	}
	w.put(colTime, w.buf)
}

func (w *groupWriter) records(list []Row) {
	type record struct {
		position uint64
		stamp    int64
	}
	records := make([]record, 0, len(list)/16+1)
	for i := range list {
		if i == 0 || list[i].Position != list[i-1].Position {
			records = append(records, record{list[i].Position, list[i].Stamp})
		}
	}
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.position, b.position) })
	records = slices.CompactFunc(records, func(a, b record) bool { return a.position == b.position })
	w.u(uint64(len(records)))
	var last record
	for _, r := range records {
		w.u(r.position - last.position)
		w.i(r.stamp - last.stamp)
		last = r
	}
	w.put(colRecords, w.buf)
	w.putPlanes(colRecord, list, func(i int) uint32 {
		at, _ := slices.BinarySearchFunc(records, list[i].Position,
			func(r record, p uint64) int { return cmp.Compare(r.position, p) })
		return uint32(at)
	})
	w.putPlanes(colOrdinal, list, func(i int) uint32 { return list[i].Ordinal })
	w.putPlanes(colIndex, list, func(i int) uint32 { return list[i].Index })
	for i := range list {
		w.i(list[i].Accepted - list[i].Stamp - int64(list[i].Ordinal))
	}
	w.put(colAccepted, w.buf)
}

func (w *groupWriter) users(list []Row) {
	if w.userAt == nil {
		w.userAt = make(map[string]uint32)
	}
	clear(w.userAt)
	var users []user
	ofRow := make([]uint32, len(list))
	var key []byte
	for i := range list {
		r := &list[i]
		key = binary.LittleEndian.AppendUint32(key[:0], r.Workspace)
		key = append(key, byte(r.ID)|flag(r.Resolved)<<7)
		key = binary.LittleEndian.AppendUint64(key, r.Number)
		key = append(key, r.Key...)
		at, ok := w.userAt[string(key)]
		if !ok {
			at = uint32(len(users))
			w.userAt[string(key)] = at
			users = append(users, user{r.Workspace, r.ID, r.Resolved, r.Number, r.Key})
		}
		ofRow[i] = at
	}
	order := make([]uint32, len(users))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return compareUsers(&users[a], &users[b]) })
	place := make([]uint32, len(users))
	var numbers, shared, sizes, keys []byte
	w.u(uint64(len(users)))
	var last user
	for i, at := range order {
		u := users[at]
		place[at] = uint32(i)
		w.u(uint64(u.workspace - last.workspace))
		w.buf = append(w.buf, byte(u.id)|flag(u.resolved)<<7)
		n := sharedPrefix(last.key, u.key)
		numbers = binary.LittleEndian.AppendUint64(numbers, u.number)
		shared = binary.AppendUvarint(shared, uint64(n))
		sizes = binary.AppendUvarint(sizes, uint64(len(u.key)))
		keys = append(keys, u.key[n:]...)
		last = u
	}
	w.put(colUsers, w.buf)
	w.put(colNumbers, numbers)
	w.put(colShared, shared)
	w.put(colKeySizes, sizes)
	w.put(colKeys, keys)
	w.putPlanes(colUser, list, func(i int) uint32 { return place[ofRow[i]] })
}

func sharedPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// collectNames numbers the names that the group uses.
func (w *groupWriter) collectNames(list []Row, n *names) {
	w.newName = append(w.newName[:0], make([]uint32, len(n.list)+1)...)
	w.oldName = w.oldName[:0]
	for i := range list {
		w.use(list[i].Name)
		if list[i].App > 0 {
			w.use(list[i].App - 1)
		}
		op.EachField(list[i].Properties, func(name uint32, _ op.Value) { w.use(name) })
	}
}

func (w *groupWriter) use(name uint32) {
	if w.newName[name] == 0 {
		w.oldName = append(w.oldName, name)
		w.newName[name] = uint32(len(w.oldName))
	}
}

func (w *groupWriter) namesAndKinds(list []Row, n *names) {
	var text []byte
	w.u(uint64(len(w.oldName)))
	for _, i := range w.oldName {
		w.u(uint64(len(n.list[i])))
		text = append(text, n.list[i]...)
	}
	w.put(colNames, w.buf)
	w.put(colNameText, text)
	w.putPlanes(colName, list, func(i int) uint32 { return w.newName[list[i].Name] - 1 })
	w.putPlanes(colApp, list, func(i int) uint32 {
		if list[i].App == 0 {
			return 0
		}
		return w.newName[list[i].App-1]
	})
	for i := range list {
		w.buf = append(w.buf, byte(list[i].Kind))
	}
	w.put(colKind, w.buf)
}

// How a purchase's price and total are written: the lowest 3 bits are the price's scale when it is a decimal; the next
// 3 the power of ten by which mantissa × quantity is the total.
const (
	moneyRaw      = 0x80 // price is 8 bytes
	moneyTotal    = 0x40 // total is written
	moneyFactor   = 3    // shift of the power
	maxMoneyPower = 4
)

func (w *groupWriter) purchases(list []Row) {
	var modes, prices, totals, quantities []byte
	for i := range list {
		r := &list[i]
		if r.Kind != op.Purchase {
			continue
		}
		w.buf = append(w.buf, r.Currency[:]...)
		quantities = binary.AppendUvarint(quantities, uint64(r.Quantity))
		m, scale, ok := decimal(math.Float64frombits(r.Price))
		if !ok {
			modes = append(modes, moneyRaw|moneyTotal)
			prices = binary.LittleEndian.AppendUint64(prices, r.Price)
			totals = binary.AppendVarint(totals, r.Total)
			continue
		}
		prices = binary.AppendVarint(prices, m)
		mode := byte(moneyTotal)
		for power := range maxMoneyPower + 1 {
			if totalOf(m, r.Quantity, power) == r.Total {
				mode = byte(power) << moneyFactor
				break
			}
		}
		if mode == moneyTotal {
			totals = binary.AppendVarint(totals, r.Total)
		}
		modes = append(modes, mode|byte(scale))
	}
	w.put(colCurrency, w.buf)
	w.put(colMoney, modes)
	w.put(colPrice, prices)
	w.put(colTotal, totals)
	w.put(colQuantity, quantities)
}

// totalOf is mantissa × quantity × 10^power; it may overflow, the same way at writing and at reading.
func totalOf(mantissa int64, quantity uint32, power int) int64 {
	total := mantissa * int64(quantity)
	for range power {
		total *= 10
	}
	return total
}

func (w *groupWriter) properties(list []Row) {
	if w.shapes == nil {
		w.shapes = make(map[string]uint32)
	}
	clear(w.shapes)
	counts := make([]int, len(w.oldName))
	ofRow := make([]uint32, len(list))
	var shapes, shape []byte
	total := 0
	for i := range list {
		shape = shape[:0]
		n := uint64(0)
		op.EachField(list[i].Properties, func(name uint32, _ op.Value) {
			name = w.newName[name] - 1
			counts[name]++
			n++
			shape = binary.AppendUvarint(shape, uint64(name))
		})
		total += int(n)
		at, ok := w.shapes[string(shape)]
		if !ok {
			at = uint32(len(w.shapes))
			w.shapes[string(shape)] = at
			shapes = append(binary.AppendUvarint(shapes, n), shape...)
		}
		ofRow[i] = at
	}
	w.u(uint64(len(w.shapes)))
	w.buf = append(w.buf, shapes...)
	w.put(colShapes, w.buf)
	w.putPlanes(colShape, list, func(i int) uint32 { return ofRow[i] })

	w.byName = slices.Grow(w.byName[:0], total)[:total]
	w.nameEnd = w.nameEnd[:0]
	end := 0
	for _, n := range counts {
		w.nameEnd = append(w.nameEnd, end)
		end += n
	}
	for i := range list {
		op.EachField(list[i].Properties, func(name uint32, v op.Value) {
			at := &w.nameEnd[w.newName[name]-1]
			w.byName[*at] = v
			*at++
		})
	}
	c := &w.values
	c.reset()
	start := 0
	for _, end := range w.nameEnd {
		c.add(w.byName[start:end])
		start = end
	}
	clear(w.byName)
	for i, b := range [...][]byte{c.tags, c.modes, c.ints, c.raws, c.sizes, c.text, c.refs} {
		w.put(colTags+uint32(i), b)
	}
}

// groupReader turns columns back into rows. What it reads is checked against checksums before; here nothing panics and
// what makes no sense is refused.
type groupReader struct {
	columns [numCols][4][]byte
	ok      bool

	texts, encoded valueReader // for their memory
}

func (r *groupReader) begin() { *r = groupReader{ok: true, texts: r.texts, encoded: r.encoded} }

// add takes a column's bytes over.
func (r *groupReader) add(column uint32, b []byte) {
	if c, plane := column%256, column/256; c < numCols && plane < 4 {
		r.columns[c][plane] = b
	} else {
		r.ok = false
	}
}

func (r *groupReader) cursor(column int) cursor.Cursor {
	return cursor.Cursor{Rest: r.columns[column][0]}
}

// end notes whether a column was read to its end.
func (r *groupReader) end(c *cursor.Cursor) { r.ok = r.ok && c.Done() }

// planes reads one number for each of n rows, all below limit.
func (r *groupReader) planes(column, n, limit int) []uint32 {
	v := make([]uint32, n)
	for plane, b := range r.columns[column] {
		if b != nil && !joinPlane(v, plane, b) {
			r.ok = false
		}
	}
	for _, x := range v {
		if int64(x) >= int64(limit) {
			r.ok = false
			return make([]uint32, n)
		}
	}
	return v
}

// count reads how many things a column lists, each at least one byte.
func (r *groupReader) count(c *cursor.Cursor) int {
	n := c.Uvarint()
	if n > uint64(len(c.Rest)) {
		r.ok = false
		c.Fail()
		return 0
	}
	return int(n)
}

// rows fills dst; false when the columns make no sense.
func (r *groupReader) rows(g *GroupInfo, dst *Rows) bool {
	dst.List = slices.Grow(dst.List[:0], g.rows)[:g.rows]
	clear(dst.List)
	list := dst.List
	r.kinds(list)
	r.times(list)
	r.records(list)
	users, ok := r.users(&dst.pages)
	if r.ok = r.ok && ok && len(users) > 0; !r.ok {
		return false
	}
	for i, at := range r.planes(colUser, len(list), len(users)) {
		u, w := &users[at], &list[i]
		w.Workspace, w.ID, w.Resolved, w.Number, w.Key = u.workspace, u.id, u.resolved, u.number, u.key
	}
	r.names(list, dst)
	r.purchases(list)
	r.properties(list, dst)
	return r.ok
}

func (r *groupReader) kinds(list []Row) {
	kinds := r.columns[colKind][0]
	if len(kinds) != len(list) {
		r.ok = false
		return
	}
	for i, k := range kinds {
		list[i].Kind = op.Kind(k)
		r.ok = r.ok && event.KindName(op.Kind(k)) != ""
	}
}

func (r *groupReader) times(list []Row) {
	c := r.cursor(colTime)
	t := int64(0)
	for i := range list {
		if i == 0 {
			t = c.Varint()
		} else {
			t += int64(c.Uvarint())
		}
		list[i].Time = t
	}
	r.end(&c)
}

func (r *groupReader) records(list []Row) {
	c := r.cursor(colRecords)
	n := r.count(&c)
	positions, stamps := make([]uint64, n), make([]int64, n)
	var position uint64
	var stamp int64
	for i := range n {
		position += c.Uvarint()
		stamp += c.Varint()
		positions[i], stamps[i] = position, stamp
	}
	r.end(&c)
	if !r.ok || n == 0 {
		r.ok = false
		return
	}
	ordinals, indexes := r.planes(colOrdinal, len(list), math.MaxUint32), r.planes(colIndex, len(list), math.MaxUint32)
	c = r.cursor(colAccepted)
	for i, at := range r.planes(colRecord, len(list), n) {
		w := &list[i]
		w.Position, w.Stamp, w.Ordinal, w.Index = positions[at], stamps[at], ordinals[i], indexes[i]
		w.Accepted = w.Stamp + int64(w.Ordinal) + c.Varint()
	}
	r.end(&c)
}

// users reads the group's users; their keys are kept in p.
func (r *groupReader) users(p *pages) (users []user, ok bool) {
	c, numbers, shared, sizes, keys := r.cursor(colUsers), r.cursor(colNumbers), r.cursor(colShared),
		r.cursor(colKeySizes), r.cursor(colKeys)
	users = make([]user, r.count(&c))
	var key []byte
	workspace := uint32(0)
	for i := range users {
		workspace += uint32(c.Uvarint())
		flags := c.Byte()
		n, size := shared.Uvarint(), sizes.Uvarint()
		if n > uint64(len(key)) || size < n {
			return nil, false
		}
		key = append(key[:n], keys.Take(size-n)...)
		users[i] = user{workspace: workspace, id: op.IDKind(flags & 0x7f), resolved: flags>>7 == 1,
			number: numbers.U64(), key: p.keep(key)}
	}
	for _, c := range [...]*cursor.Cursor{&c, &numbers, &shared, &sizes, &keys} {
		r.end(c)
	}
	return users, r.ok
}

func (r *groupReader) names(list []Row, dst *Rows) {
	c, text := r.cursor(colNames), r.cursor(colNameText)
	n := r.count(&c)
	for range n {
		dst.names.list = append(dst.names.list, dst.pages.keep(text.Take(c.Uvarint())))
	}
	r.end(&c)
	r.end(&text)
	names, apps := r.planes(colName, len(list), n), r.planes(colApp, len(list), n+1)
	for i := range list {
		list[i].Name, list[i].App = names[i], apps[i]
	}
}

func (r *groupReader) purchases(list []Row) {
	currencies, modes, prices := r.cursor(colCurrency), r.cursor(colMoney), r.cursor(colPrice)
	totals, quantities := r.cursor(colTotal), r.cursor(colQuantity)
	for i := range list {
		w := &list[i]
		if w.Kind != op.Purchase {
			continue
		}
		copy(w.Currency[:], currencies.Take(3))
		quantity := quantities.Uvarint()
		r.ok = r.ok && quantity <= math.MaxUint32
		w.Quantity = uint32(quantity)
		mode := modes.Byte()
		if mode&moneyRaw != 0 {
			w.Price = prices.U64()
			w.Total = totals.Varint()
			continue
		}
		scale, power := int(mode&7), int(mode>>moneyFactor&7)
		if scale >= len(powers) || power > maxMoneyPower {
			r.ok = false
			return
		}
		m := prices.Varint()
		w.Price = math.Float64bits(float64(m) / powers[scale])
		if mode&moneyTotal != 0 {
			w.Total = totals.Varint()
		} else {
			w.Total = totalOf(m, w.Quantity, power)
		}
	}
	for _, c := range [...]*cursor.Cursor{&currencies, &modes, &prices, &totals, &quantities} {
		r.end(c)
	}
}

func (r *groupReader) properties(list []Row, dst *Rows) {
	names := len(dst.names.list)
	c := r.cursor(colShapes)
	shapes := make([][]uint32, r.count(&c))
	for i := range shapes {
		shapes[i] = make([]uint32, r.count(&c))
		for k := range shapes[i] {
			shapes[i][k] = c.Index(names)
		}
	}
	r.end(&c)
	if !r.ok || len(shapes) == 0 {
		r.ok = false
		return
	}
	ofRow := r.planes(colShape, len(list), len(shapes))
	counts := make([]int, names)
	texts, encoded := &r.texts, &r.encoded
	r.openValues(texts, true)
	r.openValues(encoded, false)
	var anyText, anyEncoded bool
	for i, s := range ofRow {
		for _, name := range shapes[s] {
			counts[name]++
		}
		isText := dst.isText(&list[i])
		anyText, anyEncoded = anyText || isText, anyEncoded || !isText
	}
	if anyText && !texts.readAll(counts) || anyEncoded && !encoded.readAll(counts) {
		r.ok = false
		return
	}
	dst.quote()
	next := make([]int, names) // of each name, the value that comes next
	for name, at := 0, 0; name < names; name++ {
		next[name] = at
		at += counts[name]
	}
	for i := range list {
		switch shape, w := shapes[ofRow[i]], &list[i]; {
		case len(shape) == 0:
		case dst.isText(w):
			w.Properties = texts.object(dst, shape, next)
		default:
			w.Properties = encoded.fields(dst, shape, next)
		}
	}
}

// object makes the properties of a row as a JSON object: those with the names in shape, each with the value that comes
// next for it.
func (r *valueReader) object(dst *Rows, shape []uint32, next []int) []byte {
	size := len("{}") + len(shape)
	for _, name := range shape {
		size += len(dst.members[name]) + len(r.at(next[name]))
	}
	p := append(dst.pages.room(size), '{')
	for k, name := range shape {
		if k > 0 {
			p = append(p, ',')
		}
		p = append(append(p, dst.members[name]...), r.at(next[name])...)
		next[name]++
	}
	return dst.pages.fill(append(p, '}'))
}

// fields makes them as the log has them.
func (r *valueReader) fields(dst *Rows, shape []uint32, next []int) []byte {
	size := binary.MaxVarintLen32 * len(shape)
	for _, name := range shape {
		size += len(r.at(next[name]))
	}
	p := dst.pages.room(size)
	for _, name := range shape {
		p = binary.AppendUvarint(p, uint64(name))
		p = append(p, r.at(next[name])...)
		next[name]++
	}
	return dst.pages.fill(p)
}

// openValues has v begin with the values of the group, in its own memory.
func (r *groupReader) openValues(v *valueReader, json bool) {
	*v = valueReader{tags: r.cursor(colTags), modes: r.cursor(colModes), ints: r.cursor(colInts),
		raws: r.cursor(colRaws), sizes: r.cursor(colSizes), text: r.cursor(colText), refs: r.cursor(colRefs),
		entries: v.entries[:0], json: json, values: v.values[:0], spans: v.spans[:0], one: v.one[:0]}
}
