package arena

import "unsafe"

// Marks is a set of marks in bounded memory that forgets: a mark that it has was added, but it may no longer have a
// mark that was added. It belongs to one worker. The zero Marks has no room.
type Marks struct {
	rows [][marksOfRow]uint64
	raw  []byte
}

// marksOfRow is how many marks a row has: a mark can be anywhere in one row, which is a cache line.
const marksOfRow = 8

// Resize gives the set so many bytes, or somewhat less, and empties the set when that changes its size.
func (m *Marks) Resize(bytes int64) error {
	const row = marksOfRow * 8
	if n := bytes / row; n == int64(len(m.rows)) {
		return nil
	} else if m.Close(); n > 0 {
		raw, err := offHeap(int(n * row))
		if err != nil {
			return err
		}
		m.raw = raw
		// page-aligned, pointer-free
		m.rows = unsafe.Slice((*[marksOfRow]uint64)(unsafe.Pointer(unsafe.SliceData(raw))), n)
	}
	return nil
}

// Bytes is how many bytes the set takes.
func (m *Marks) Bytes() int64 { return int64(len(m.raw)) }

// Has says whether a mark, which isn't 0, was added at a number.
func (m *Marks) Has(number, mark uint64) bool {
	if len(m.rows) == 0 {
		return false
	}
	for _, x := range m.row(number) {
		if x == mark {
			return true
		}
	}
	return false
}

// Add adds a mark at a number. In a full row it replaces another mark.
func (m *Marks) Add(number, mark uint64) {
	if len(m.rows) == 0 {
		return
	}
	row := m.row(number)
	at := mark >> 32 % marksOfRow
	for i, x := range row {
		if x == mark {
			return
		}
		if x == 0 {
			at = uint64(i)
			break
		}
	}
	row[at] = mark
}

// row is the row of a number's marks. It ignores the highest byte, the partition, which tells a worker's numbers little
// apart.
func (m *Marks) row(number uint64) *[marksOfRow]uint64 {
	return &m.rows[(number>>24&0xffffffff)*uint64(len(m.rows))>>32]
}

// Close frees the memory, and leaves a set without room.
func (m *Marks) Close() {
	if m.raw != nil {
		freeOffHeap(m.raw)
	}
	m.rows, m.raw = nil, nil
}
