package marker

import (
	"encoding/binary"
	"errors"
	"io"

	"millrace/wal/quorum/host"
)

// locator is the content of a snapshot: it says where the state can be fetched.
type locator struct {
	io.Reader
	close func() // may be called again
}

// snapshotBytes is what raft takes for the size of a snapshot. Raft allows ten seconds for each byte, so a restore may
// take eleven hours.
const snapshotBytes = 4096

const locatorMagic = "millfetch1"

func newLocator(from host.Node) []byte {
	b := append(make([]byte, 0, snapshotBytes), locatorMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(from))
	return b[:snapshotBytes]
}

func parseLocator(b []byte) (from host.Node, err error) {
	if len(b) < len(locatorMagic)+4 || string(b[:len(locatorMagic)]) != locatorMagic {
		return 0, errors.New("quorum: the leader's snapshot is of another format")
	}
	return host.Node(binary.LittleEndian.Uint32(b[len(locatorMagic):])), nil
}

// Close says that the receiver is done with the snapshot.
func (t *locator) Close() error {
	t.close()
	return nil
}
