package host

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// handshake is the first thing that both sides send:
//
//	 0  8  "millrace"
//	 8  1  version
//	 9  1  purpose
//	10  1  status; 0 from the side that dials
//	11  1  length of the cluster's id
//	12  4  from, to, group, version of records, little endian
//	28     the cluster's id
type handshake struct {
	purpose, status byte
	from, to        Node
	group, records  uint32
	cluster         string
}

const (
	handshakeTimeout = 5 * time.Second

	handshakeMagic   = "millrace"
	handshakeVersion = 5
	handshakeBytes   = 28
	maxClusterBytes  = 255

	purposeCalls    = 1
	purposeRaft     = 2
	purposeState    = 3
	purposeRequests = 4

	statusWelcome         = 0
	statusUnauthenticated = 1
	statusAbsent          = 2
)

func (m handshake) append(b []byte) []byte {
	b = append(b, handshakeMagic...)
	b = append(b, handshakeVersion, m.purpose, m.status, byte(len(m.cluster)))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.from))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.to))
	b = binary.LittleEndian.AppendUint32(b, m.group)
	b = binary.LittleEndian.AppendUint32(b, m.records)
	return append(b, m.cluster...)
}

// readHandshake reads no byte beyond the handshake.
func readHandshake(r io.Reader) (m handshake, err error) {
	var b [handshakeBytes + maxClusterBytes]byte
	if _, err := io.ReadFull(r, b[:handshakeBytes]); err != nil {
		return m, err
	}
	switch {
	case string(b[:8]) != handshakeMagic:
		return m, fmt.Errorf("%w: it is no node", ErrUnauthenticated)
	case b[8] != handshakeVersion:
		return m, fmt.Errorf("%w: it speaks version %d of the protocol between nodes, and this program speaks version "+
			"%d", ErrUnauthenticated, b[8], handshakeVersion)
	}
	m.purpose, m.status = b[9], b[10]
	m.from, m.to = Node(binary.LittleEndian.Uint32(b[12:])), Node(binary.LittleEndian.Uint32(b[16:]))
	m.group, m.records = binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:])
	id := b[handshakeBytes : handshakeBytes+int(b[11])]
	if _, err := io.ReadFull(r, id); err != nil {
		return m, err
	}
	m.cluster = string(id)
	return m, nil
}

// checkRecords refuses a node whose records are of another version.
func (h *Host) checkRecords(in handshake) error {
	if in.records == h.opts.Records {
		return nil
	}
	return fmt.Errorf("%w: node %d has records of version %d, and this program reads version %d", ErrUnauthenticated,
		in.from, in.records, h.opts.Records)
}
