package blocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
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
	// identifiers as they were sent, each once, similar ones together: n, (workspace as a difference, kind and whether
	// resolved) …
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
	counts  []int // of values, by new index

	shapes  []byte
	shapeAt map[string]uint32
	shapeOf []uint32 // by row

	values  valueColumns
	byName  []op.Value // values of all rows, ordered by name
	nameEnd []int

	keys, spare []rowKey
}

// columns calls emit with each column of the rows, which are in the order of the log. The bytes are valid during the
// call.
func (w *groupWriter) columns(list []Row, n *names, emit func(column uint32, b []byte) error) error {
	w.emit, w.err = emit, nil
	w.collect(list, n)
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
	userOf := make([]uint32, len(list))
	var numbers, shared, sizes, keys []byte
	users, last := uint32(0), user{}
	eachRun(w.sortedByWords(list), func(same []rowKey) {
		sortUsers(list, same, w.spare)
		for i, k := range same {
			if r := &list[k.row]; i == 0 || k.number != last.number || !bytes.Equal(r.Key, last.key) {
				w.u(uint64(r.Workspace - last.workspace))
				w.buf = append(w.buf, byte(r.ID)|flag(r.Resolved)<<7)
				n := sharedPrefix(last.key, r.Key)
				numbers = binary.LittleEndian.AppendUint64(numbers, r.Number)
				shared = binary.AppendUvarint(shared, uint64(n))
				sizes = binary.AppendUvarint(sizes, uint64(len(r.Key)))
				keys = append(keys, r.Key[n:]...)
				users++
				last = user{workspace: r.Workspace, number: r.Number, key: r.Key}
			}
			userOf[k.row] = users - 1
		}
	})
	w.put(colUsers, append(binary.AppendUvarint(nil, uint64(users)), w.buf...))
	w.put(colNumbers, numbers)
	w.put(colShared, shared)
	w.put(colKeySizes, sizes)
	w.put(colKeys, keys)
	w.putPlanes(colUser, list, func(i int) uint32 { return userOf[i] })
}

// rowKey is what a row is sorted by for the identifiers. words are 8 bytes of its own, behind what those of its kind
// have in common, and its workspace and kind and whether it is resolved.
type rowKey struct {
	words  [2]uint64
	number uint64
	row    uint32
}

// sortedByWords returns the keys of all rows, by their words.
func (w *groupWriter) sortedByWords(list []Row) []rowKey {
	var first [128]*Row // by kind
	var common [128]int // bytes that the keys of a kind begin with
	for i := range list {
		r := &list[i]
		id := r.ID & 127
		if first[id] == nil {
			first[id], common[id] = r, len(r.Key)
		}
		common[id] = sharedPrefix(first[id].Key[:common[id]], r.Key)
	}
	keys := slices.Grow(w.keys[:0], len(list))[:len(list)]
	var differ [2]uint64 // bits
	for i := range list {
		r := &list[i]
		words := [2]uint64{wordAt(r.Key, common[r.ID&127]),
			uint64(r.Workspace)<<8 | uint64(r.ID)<<1 | uint64(flag(r.Resolved))}
		if len(r.Key) == 0 {
			words[0] = r.Number
		}
		keys[i] = rowKey{words: words, number: r.Number, row: uint32(i)}
		differ[0] |= words[0] ^ keys[0].words[0]
		differ[1] |= words[1] ^ keys[0].words[1]
	}
	w.keys, w.spare = sortKeys(keys, slices.Grow(w.spare[:0], len(list))[:len(list)], differ)
	return w.keys
}

// wordAt is 8 bytes of a key, which sort as those of the key do.
func wordAt(key []byte, from int) uint64 {
	var part [8]byte
	copy(part[:], key[from:])
	return binary.BigEndian.Uint64(part[:])
}

// fewKeys are sorted faster by comparing them than byte by byte.
const fewKeys = 256

// sortUsers sorts the keys of rows, all with the same words, by the rest of the identifiers. Where many have more in
// common than those of all rows, as with an odd one among many alike, it takes words from behind that.
func sortUsers(list []Row, keys, spare []rowKey) {
	first := list[keys[0].row].Key
	common, alike := len(first), true
	for _, k := range keys {
		key := list[k.row].Key
		common = sharedPrefix(first[:common], key)
		alike = alike && common == len(key) && common == len(first) && k.number == keys[0].number
	}
	if alike {
		return
	}
	var differ [2]uint64
	if len(keys) > fewKeys {
		for i, k := range keys {
			keys[i].words[0] = wordAt(list[k.row].Key, common)
			differ[0] |= keys[i].words[0] ^ keys[0].words[0]
		}
	}
	if differ[0] == 0 {
		slices.SortFunc(keys, func(a, b rowKey) int {
			return cmp.Or(bytes.Compare(list[a.row].Key, list[b.row].Key), cmp.Compare(a.number, b.number))
		})
		return
	}
	sorted, _ := sortKeys(keys, spare[:len(keys)], differ)
	copy(keys, sorted)
	eachRun(keys, func(run []rowKey) { sortUsers(list, run, spare) })
}

// eachRun calls f with each run of keys that have the same words.
func eachRun(keys []rowKey, f func(run []rowKey)) {
	for len(keys) > 0 {
		end := 1
		for end < len(keys) && keys[end].words == keys[0].words {
			end++
		}
		f(keys[:end])
		keys = keys[end:]
	}
}

// sortKeys sorts keys by their words: byte by byte from the lowest on, except those in which no keys differ. It returns
// the sorted keys, and what of the two it has not used for them.
func sortKeys(keys, spare []rowKey, differ [2]uint64) (sorted, unused []rowKey) {
	for word, bit := range differ {
		for shift := 0; shift < 64; shift += 8 {
			if bit>>shift&0xff == 0 {
				continue
			}
			var ends [256]uint32
			for i := range keys {
				ends[byte(keys[i].words[word]>>shift)]++
			}
			at := uint32(0)
			for i, n := range ends {
				ends[i] = at
				at += n
			}
			for i := range keys {
				at := &ends[byte(keys[i].words[word]>>shift)]
				spare[*at] = keys[i]
				*at++
			}
			keys, spare = spare, keys
		}
	}
	return keys, spare
}

func sharedPrefix(a, b []byte) int {
	n := 0
	for ; n+8 <= min(len(a), len(b)); n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// collect numbers the names that the group uses and counts their values, and finds the shape of each row.
func (w *groupWriter) collect(list []Row, n *names) {
	w.newName = append(w.newName[:0], make([]uint32, len(n.list)+1)...)
	w.oldName, w.counts, w.shapeOf, w.shapes = w.oldName[:0], w.counts[:0], w.shapeOf[:0], w.shapes[:0]
	if w.shapeAt == nil {
		w.shapeAt = make(map[string]uint32)
	}
	clear(w.shapeAt)
	var shape []byte
	for i := range list {
		w.use(list[i].Name)
		if list[i].App > 0 {
			w.use(list[i].App - 1)
		}
		shape = shape[:0]
		fields := uint64(0)
		for name := range op.Fields(list[i].Properties) {
			name = w.use(name)
			w.counts[name]++
			shape = binary.AppendUvarint(shape, uint64(name))
			fields++
		}
		at, ok := w.shapeAt[string(shape)]
		if !ok {
			at = uint32(len(w.shapeAt))
			w.shapeAt[string(shape)] = at
			w.shapes = append(binary.AppendUvarint(w.shapes, fields), shape...)
		}
		w.shapeOf = append(w.shapeOf, at)
	}
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
	w.u(uint64(len(w.shapeAt)))
	w.buf = append(w.buf, w.shapes...)
	w.put(colShapes, w.buf)
	w.putPlanes(colShape, list, func(i int) uint32 { return w.shapeOf[i] })

	w.nameEnd = w.nameEnd[:0]
	total := 0
	for _, n := range w.counts {
		w.nameEnd = append(w.nameEnd, total)
		total += n
	}
	w.byName = slices.Grow(w.byName[:0], total)[:total]
	for i := range list {
		for name, v := range op.Fields(list[i].Properties) {
			at := &w.nameEnd[w.newName[name]-1]
			w.byName[*at] = v
			*at++
		}
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
