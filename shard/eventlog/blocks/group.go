package blocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"millrace/shard/op"
)

// The columns of a group. Those marked * are planes (column.go): 256 × plane is added to the column's number. Empty
// columns are left out. Column numbers are part of the file format: within a version none is given to another column.
const (
	// the records that events came in: (position as a difference, stamp as a difference, rows) …
	colRecords  = 1
	colOrdinal  = 2 // * in the record, as a difference to the previous row
	colTimes    = 3 // unit of times, ms; the first time in units
	colTime     = 4 // * in units, as a difference to the previous row, zigzag: the lower 32 bits
	colAccepted = 5 // when it was accepted, as a difference to its record's stamp + ordinal; 0 except for messages
	// identifiers as they were sent, each once, sorted: n, (workspace as a difference, kind and whether resolved) …
	colUsers    = 6
	colNumbers  = 7  // numbers of the identifiers, 8 bytes each
	colShared   = 8  // how many bytes of its key an identifier shares with the previous one
	colKeySizes = 9  // length of the whole key
	colKeys     = 10 // the rest of the key
	colUser     = 11 // * index of the row's identifier
	colNames    = 12 // the names: n, length …
	colNameText = 13
	colName     = 14 // * event name or product id
	colApp      = 15 // * index plus one
	colKind     = 16 // a byte each

	// Only for purchases.
	colCurrency = 17 // 3 bytes each
	colMoney    = 18 // a byte each; see moneyRaw
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

	colIndex    = 31 // * of changes of states
	colTimeHigh = 32 // * the upper bits of colTime
	numCols     = 33
)

// isUserColumn reports whether a column is needed to know the users of a group.
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

// groupWriter turns rows into columns. It reuses its memory from group to group.
type groupWriter struct {
	buf    []byte
	planes []uint32
	emit   func(column uint32, b []byte) error
	err    error

	// The group's names: newName has the new index plus one by old index, oldName the reverse.
	newName []uint32
	oldName []uint32

	values  valueColumns
	byName  []op.Value // values of all rows, ordered by name
	nameEnd []int
	shapes  map[string]uint32
	userAt  map[string]uint32
}

// columns calls emit with each column of the rows, which are in the order of the log. The bytes are valid during the
// call.
func (w *groupWriter) columns(list []Row, n *names, emit func(column uint32, b []byte) error) error {
	w.emit, w.err = emit, nil
	w.collectNames(list, n)
	w.records(list)
	w.times(list)
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

// records writes what rows have in common with the other rows of their record. Rows are in the log's order, so each
// record is written once, with the number of its rows.
func (w *groupWriter) records(list []Row) {
	var position uint64
	var stamp int64
	for rest := list; len(rest) > 0; {
		n := recordEnd(rest, 0)
		w.u(rest[0].Position - position)
		w.i(rest[0].Stamp - stamp)
		w.u(uint64(n))
		position, stamp, rest = rest[0].Position, rest[0].Stamp, rest[n:]
	}
	w.put(colRecords, w.buf)
	w.putPlanes(colOrdinal, list, func(i int) uint32 {
		if i > 0 && list[i].Position == list[i-1].Position {
			return list[i].Ordinal - list[i-1].Ordinal
		}
		return list[i].Ordinal
	})
	w.putPlanes(colIndex, list, func(i int) uint32 { return list[i].Index })
	for i := range list {
		w.i(list[i].Accepted - list[i].Stamp - int64(list[i].Ordinal))
	}
	w.put(colAccepted, w.buf)
}

// recordEnd returns where the rows of the i-th row's record end.
func recordEnd(list []Row, i int) int {
	end := i + 1
	for end < len(list) && list[end].Position == list[i].Position {
		end++
	}
	return end
}

// times writes when events happened: in whole seconds if all times are such.
func (w *groupWriter) times(list []Row) {
	unit := int64(1000)
	for i := range list {
		if list[i].Time%unit != 0 {
			unit = 1
			break
		}
	}
	w.u(uint64(unit))
	w.i(list[0].Time / unit)
	w.put(colTimes, w.buf)
	later := func(i int) uint64 {
		d := list[i].Time/unit - list[max(i-1, 0)].Time/unit
		return uint64(d)<<1 ^ uint64(d>>63)
	}
	w.putPlanes(colTime, list, func(i int) uint32 { return uint32(later(i)) })
	w.putPlanes(colTimeHigh, list, func(i int) uint32 { return uint32(later(i) >> 32) })
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
// 3 are the power of ten by which mantissa × quantity gives the total.
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

// totalOf is mantissa × quantity × 10^power. It may overflow, in the same way on writing and on reading.
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
