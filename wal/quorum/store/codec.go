package store

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
)

// codec writes entries as raft-wal's own codec does, byte for byte, but into memory that is used again. The library
// makes a new buffer for each entry, which is cleared and grows twice, and copies it before StoreLogs returns. Each
// codec reads what the other has written.
type codec struct {
	raftwal.BinaryCodec
	admitted bool
	buf      []byte
}

// maxCodecBytes is how much memory is kept between writes.
const maxCodecBytes = 1 << 20

// ID is asked for twice. First the library rejects a codec whose ID is one of the library's own numbers. Then it
// compares the ID with that of its segments, which always carry the number of the library's own codec.
func (c *codec) ID() uint64 {
	if !c.admitted {
		c.admitted = true
		return raftwal.FirstExternalCodecID
	}
	return c.BinaryCodec.ID()
}

// Encode sets w, which the library has just made, to the entry's bytes. They are valid until written is called.
func (c *codec) Encode(l *raft.Log, w io.Writer) (err error) {
	start := len(c.buf)
	if c.buf, err = appendLog(c.buf, l); err != nil {
		return err
	}
	b := c.buf[start:len(c.buf):len(c.buf)]
	if to, ok := w.(*bytes.Buffer); ok && to.Len() == 0 {
		*to = *bytes.NewBuffer(b)
		return nil
	}
	_, err = w.Write(b)
	return err
}

// written says that nobody uses the results of Encode any more.
func (c *codec) written() {
	if c.buf = c.buf[:0]; cap(c.buf) > maxCodecBytes {
		c.buf = nil
	}
}

func appendLog(b []byte, l *raft.Log) ([]byte, error) {
	b = binary.AppendUvarint(b, l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = binary.AppendUvarint(b, uint64(l.Type))
	b = append(binary.AppendUvarint(b, uint64(len(l.Data))), l.Data...)
	b = append(binary.AppendUvarint(b, uint64(len(l.Extensions))), l.Extensions...)
	return l.AppendedAt.AppendBinary(b)
}
