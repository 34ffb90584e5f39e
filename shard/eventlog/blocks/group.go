package blocks

import (
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
	// identifiers as they were sent, each once, similar ones together: n, (workspace as a difference, kind and marks) …
	colUsers    = 6
	colNumbers  = 7  // sum of all their numbers; numbers of those with the mark ownNumber: 8 bytes each
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

// groupWriter turns rows into columns. It reuses its memory from group to group.
type groupWriter struct {
	buf  []byte
	emit func(column uint32, b []byte) error
	err  error

	// What collect has found: of each row, and the columns that need nothing of other columns. It goes over the rows
	// once, since those of a group take more memory than the processor's caches have.
	times                                    []int64
	ordinals, indexes, events, apps, shapeOf []uint32
	records, accepted, kinds                 []byte
	purchases                                purchaseColumns
	fields                                   []field // of all rows, in the order of rows

	// The group's names: newName has the new index plus one by old index, oldName the reverse.
	newName []uint32
	oldName []uint32
	counts  []int // of values, by new index

	shapes      []byte
	shapeAt     map[string]uint32
	shapeFields []int  // how many fields a shape has
	shape       []byte // scratch

	values  valueColumns
	byName  []op.Value // values of all rows, ordered by name
	nameEnd []int

	users userColumns

	low, high []uint32 // scratch
	plane     []byte
}

// field is where the value of a name is in the properties of its row.
type field struct{ name, begin, end uint32 }

// columns calls emit with each column of the rows, which are in the order of the log. The bytes are valid during the
// call.
func (w *groupWriter) columns(list []Row, n *names, emit func(column uint32, b []byte) error) error {
	w.emit, w.err = emit, nil
	w.collect(list, n)
	w.put(colRecords, w.records)
	w.putPlanes(colOrdinal, w.ordinals)
	w.putPlanes(colIndex, w.indexes)
	w.put(colAccepted, w.accepted)
	w.putTimes()
	w.putUsers(list)
	w.putNames(n)
	w.putPlanes(colName, w.events)
	w.putPlanes(colApp, w.apps)
	w.put(colKind, w.kinds)
	w.putPurchases()
	w.putProperties(list)
	return w.err
}

func (w *groupWriter) put(column uint32, b []byte) {
	if w.err == nil && len(b) > 0 {
		w.err = w.emit(column, b)
	}
	w.buf = w.buf[:0]
}

// putPlanes writes one number for each row.
func (w *groupWriter) putPlanes(column uint32, v []uint32) {
	w.plane = planesOf(v, w.plane, func(plane int, b []byte) { w.put(column+256*uint32(plane), b) })
}

func (w *groupWriter) u(v uint64) { w.buf = binary.AppendUvarint(w.buf, v) }
func (w *groupWriter) i(v int64)  { w.buf = binary.AppendVarint(w.buf, v) }

// collect goes over the rows.
func (w *groupWriter) collect(list []Row, n *names) {
	w.reset(n)
	var position uint64
	var stamp int64
	for i := range list {
		r := &list[i]
		ordinal := r.Ordinal
		if i > 0 && r.Position == position {
			ordinal -= list[i-1].Ordinal
		} else {
			w.records = binary.AppendUvarint(w.records, r.Position-position)
			w.records = binary.AppendVarint(w.records, r.Stamp-stamp)
			w.records = binary.AppendUvarint(w.records, uint64(recordEnd(list, i)-i))
			position, stamp = r.Position, r.Stamp
		}
		w.ordinals = append(w.ordinals, ordinal)
		w.indexes = append(w.indexes, r.Index)
		w.accepted = binary.AppendVarint(w.accepted, r.Accepted-r.Stamp-int64(r.Ordinal))
		w.times = append(w.times, r.Time)
		w.events = append(w.events, w.use(r.Name))
		app := uint32(0)
		if r.App > 0 {
			app = w.use(r.App-1) + 1
		}
		w.apps = append(w.apps, app)
		w.kinds = append(w.kinds, byte(r.Kind))
		if r.Kind == op.Purchase {
			w.purchases.add(r)
		}
		w.shapeOf = append(w.shapeOf, w.shapeIn(r.Properties))
	}
}

func (w *groupWriter) reset(n *names) {
	w.times, w.ordinals, w.indexes, w.events = w.times[:0], w.ordinals[:0], w.indexes[:0], w.events[:0]
	w.apps, w.shapeOf = w.apps[:0], w.shapeOf[:0]
	w.records, w.accepted, w.kinds, w.fields = w.records[:0], w.accepted[:0], w.kinds[:0], w.fields[:0]
	w.purchases.reset()
	w.newName = append(w.newName[:0], make([]uint32, len(n.list)+1)...)
	w.oldName, w.counts = w.oldName[:0], w.counts[:0]
	if w.shapeAt == nil {
		w.shapeAt = make(map[string]uint32)
	}
	clear(w.shapeAt)
	w.shapes, w.shapeFields = w.shapes[:0], w.shapeFields[:0]
}

// recordEnd returns where the rows of the i-th row's record end.
func recordEnd(list []Row, i int) int {
	end := i + 1
	for end < len(list) && list[end].Position == list[i].Position {
		end++
	}
	return end
}

// use returns the number that a name has in the group.
func (w *groupWriter) use(name uint32) uint32 {
	if w.newName[name] == 0 {
		w.oldName = append(w.oldName, name)
		w.counts = append(w.counts, 0)
		w.newName[name] = uint32(len(w.oldName))
	}
	return w.newName[name] - 1
}

// shapeIn notes the fields of properties, and returns the number of their shape.
func (w *groupWriter) shapeIn(properties []byte) uint32 {
	shape, fields := w.shape[:0], len(w.fields)
	for rest := properties; len(rest) > 0; {
		name, v, behind, ok := op.NextField(rest)
		if !ok {
			break
		}
		rest = behind
		name = w.use(name)
		w.counts[name]++
		shape = binary.AppendUvarint(shape, uint64(name))
		end := len(properties) - len(rest)
		w.fields = append(w.fields, field{name, uint32(end - len(v)), uint32(end)})
	}
	w.shape = shape
	at, ok := w.shapeAt[string(shape)]
	if !ok {
		at = uint32(len(w.shapeAt))
		w.shapeAt[string(shape)] = at
		w.shapeFields = append(w.shapeFields, len(w.fields)-fields)
		w.shapes = append(binary.AppendUvarint(w.shapes, uint64(len(w.fields)-fields)), shape...)
	}
	return at
}

// putTimes writes when events happened: in whole seconds if all times are such.
func (w *groupWriter) putTimes() {
	unit := int64(1000)
	if slices.ContainsFunc(w.times, func(t int64) bool { return t%1000 != 0 }) {
		unit = 1
	}
	last := w.times[0] / unit
	w.u(uint64(unit))
	w.i(last)
	w.put(colTimes, w.buf)
	w.low, w.high = w.low[:0], w.high[:0]
	for _, t := range w.times {
		t /= unit
		later := uint64(t-last)<<1 ^ uint64((t-last)>>63)
		w.low, w.high = append(w.low, uint32(later)), append(w.high, uint32(later>>32))
		last = t
	}
	w.putPlanes(colTime, w.low)
	w.putPlanes(colTimeHigh, w.high)
}

func (w *groupWriter) putUsers(list []Row) {
	c := &w.users
	c.gather(list)
	w.u(uint64(c.n))
	w.buf = append(w.buf, c.kinds...)
	w.put(colUsers, w.buf)
	w.buf = append(binary.LittleEndian.AppendUint64(w.buf, c.sum), c.numbers...)
	w.put(colNumbers, w.buf)
	w.put(colShared, c.shared)
	w.put(colKeySizes, c.sizes)
	w.put(colKeys, c.keys)
	w.putPlanes(colUser, c.of)
}

func (w *groupWriter) putNames(n *names) {
	var text []byte
	w.u(uint64(len(w.oldName)))
	for _, i := range w.oldName {
		w.u(uint64(len(n.list[i])))
		text = append(text, n.list[i]...)
	}
	w.put(colNames, w.buf)
	w.put(colNameText, text)
}

// How a purchase's price and total are written: the lowest 3 bits are the price's scale when it is a decimal; the next
// 3 are the power of ten by which mantissa × quantity gives the total.
const (
	moneyRaw      = 0x80 // price is 8 bytes
	moneyTotal    = 0x40 // total is written
	moneyFactor   = 3    // shift of the power
	maxMoneyPower = 4
)

// purchaseColumns are the columns that only purchases have.
type purchaseColumns struct{ currencies, modes, prices, totals, quantities []byte }

func (c *purchaseColumns) reset() {
	*c = purchaseColumns{c.currencies[:0], c.modes[:0], c.prices[:0], c.totals[:0], c.quantities[:0]}
}

func (c *purchaseColumns) add(r *Row) {
	c.currencies = append(c.currencies, r.Currency[:]...)
	c.quantities = binary.AppendUvarint(c.quantities, uint64(r.Quantity))
	m, scale, ok := decimal(math.Float64frombits(r.Price))
	if !ok {
		c.modes = append(c.modes, moneyRaw|moneyTotal)
		c.prices = binary.LittleEndian.AppendUint64(c.prices, r.Price)
		c.totals = binary.AppendVarint(c.totals, r.Total)
		return
	}
	c.prices = binary.AppendVarint(c.prices, m)
	mode := byte(moneyTotal)
	for power := range maxMoneyPower + 1 {
		if totalOf(m, r.Quantity, power) == r.Total {
			mode = byte(power) << moneyFactor
			break
		}
	}
	if mode == moneyTotal {
		c.totals = binary.AppendVarint(c.totals, r.Total)
	}
	c.modes = append(c.modes, mode|byte(scale))
}

// totalOf is mantissa × quantity × 10^power. It may overflow, in the same way on writing and on reading.
func totalOf(mantissa int64, quantity uint32, power int) int64 {
	total := mantissa * int64(quantity)
	for range power {
		total *= 10
	}
	return total
}

func (w *groupWriter) putPurchases() {
	c := &w.purchases
	w.put(colCurrency, c.currencies)
	w.put(colMoney, c.modes)
	w.put(colPrice, c.prices)
	w.put(colTotal, c.totals)
	w.put(colQuantity, c.quantities)
}

func (w *groupWriter) putProperties(list []Row) {
	w.u(uint64(len(w.shapeAt)))
	w.buf = append(w.buf, w.shapes...)
	w.put(colShapes, w.buf)
	w.putPlanes(colShape, w.shapeOf)

	w.sortValues(list)
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

// sortValues orders the values of all rows by name.
func (w *groupWriter) sortValues(list []Row) {
	w.nameEnd = w.nameEnd[:0]
	total := 0
	for _, n := range w.counts {
		w.nameEnd = append(w.nameEnd, total)
		total += n
	}
	w.byName = slices.Grow(w.byName[:0], total)[:total]
	rest := w.fields
	for i := range list {
		n := w.shapeFields[w.shapeOf[i]]
		for _, f := range rest[:n] {
			at := &w.nameEnd[f.name]
			w.byName[*at] = list[i].Properties[f.begin:f.end]
			*at++
		}
		rest = rest[n:]
	}
}
