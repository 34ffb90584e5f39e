package lookup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// A tombstone has no addresses, although the number to which it leads may look like an email that is longer than the
// tombstone.
func TestTombstoneHasNoAddresses(t *testing.T) {
	r := NewReader(Options{Hasher: identity.NewHasher([32]byte{1})})
	for code := range uint64(op.ReservedCodes) {
		number := 0x40 | code | 0x1234<<8
		require.Zero(t, r.addressRows(1, entries.AppendForward(nil, 1, new(entries.Departed), number)))
	}
}
