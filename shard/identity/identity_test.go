package identity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

func TestNumbers(t *testing.T) {
	h, other := NewHasher([32]byte{1}), NewHasher([32]byte{2})
	seen := map[uint64]string{}
	var perPartition [Partitions]int
	for workspace := range uint32(2) {
		for _, kind := range []op.IDKind{op.NoID, op.ExternalID, op.Alias, op.Email, op.Phone} {
			for i := range 2000 {
				key := fmt.Sprint("user-", i)
				n := h.Number(workspace, kind, []byte(key))
				require.Equal(t, n, h.Number(workspace, kind, []byte(key)))
				require.NotEqual(t, n, other.Number(workspace, kind, []byte(key)), "the secret does not matter")
				what := fmt.Sprint(workspace, kind, key)
				require.Empty(t, seen[n], what)
				seen[n] = what
				perPartition[Partition(n)]++
			}
		}
	}
	for p, n := range perPartition { // 20,000 over 256: 78 each
		require.InDelta(t, 78, n, 60, p)
	}
}

// Next and Profile stay in the partition and never come to its number 0, which the partition's books have.
func TestNextStaysInPartition(t *testing.T) {
	h := NewHasher([32]byte{3})
	for _, n := range []uint64{1, 0xffffffffffffff, 0xAB00000000000001, 0xABffffffffffffff, 0xFFffffffffffffff} {
		for range 3 {
			next := Next(n)
			require.Equal(t, Partition(n), Partition(next))
			require.NotEqual(t, n, next)
			require.NotZero(t, next&numberMask)
			require.Equal(t, Partition(n), Partition(h.Profile(n)))
			require.NotZero(t, h.Profile(n)&numberMask)
			require.NotEqual(t, n, h.Profile(n))
			n = next
		}
	}
}

// Profiles beside one another are in the partition of their address, each at a number of its own.
func TestBeside(t *testing.T) {
	h := NewHasher([32]byte{3})
	key := []byte("ann@example.com")
	row := h.Number(1, op.Email, key)
	numbers := map[uint64]bool{row: true, h.Profile(row): true}
	for salt := range int64(1000) {
		n := h.Beside(1, op.Email, key, salt+1)
		require.Equal(t, Partition(row), Partition(n))
		require.NotZero(t, n&numberMask)
		require.False(t, numbers[n])
		numbers[n] = true
	}
}

// Whatever of the secret numbers and tags are made with shows in the fingerprint.
func TestFingerprint(t *testing.T) {
	h := NewHasher([32]byte{5})
	require.Equal(t, h.Fingerprint(), NewHasher([32]byte{5}).Fingerprint())
	for i := range 24 {
		secret := [32]byte{5}
		secret[i] ^= 1
		require.NotEqual(t, h.Fingerprint(), NewHasher(secret).Fingerprint(), i)
	}
}

func TestSvcID(t *testing.T) {
	h := NewHasher([32]byte{4})
	id := h.AppendSvcID(nil, 7, 0x1234567890ABCDEF)
	require.Len(t, id, svcIDBytes)
	n, ok := h.ParseSvcID(7, id)
	require.True(t, ok)
	require.EqualValues(t, 0x1234567890ABCDEF, n)
	_, ok = h.ParseSvcID(8, id)
	require.False(t, ok, "of another workspace")
	for _, at := range []int{8, 16} {
		other := [32]byte{4}
		other[at] = 1
		_, ok = NewHasher(other).ParseSvcID(7, id)
		require.False(t, ok, "of another store")
	}
	for i := range id {
		bad := append([]byte{}, id...)
		bad[i] ^= 1
		_, ok = h.ParseSvcID(7, bad)
		require.False(t, ok, i)
	}
	for _, bad := range []string{"", "00", string(id[1:]), string(id) + "0", "zz" + string(id[2:])} {
		_, ok = h.ParseSvcID(7, []byte(bad))
		require.False(t, ok, bad)
	}
}
