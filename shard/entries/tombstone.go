package entries

import (
	"encoding/binary"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A tombstone is where a profile was that was deleted, or merged into another one. It stays for ever, so that the
// profile's number is never given again, and a walk (findHome) goes on behind it:
//
//	header | number that it leads to u64, 0: none | first number behind it that isn't a tombstone's u64, 0: the next
//	       | for a merged profile, its addresses' home numbers u64 u64
//
// What is missing at the end is 0. An identifier whose users are deleted again and again leaves tombstones in a row.
// The first of them remembers where the row ended at the last walk. Since tombstones stay, nothing that is passed over
// can ever be what a walk looks for, and a walk takes three steps however long the row is.
//
// The tombstone of a merged profile says what the profile was among the users of its addresses (Departed). For that it
// also uses the header: the place of the identifier's kind, and the time of the last update.

// Forward is the number of the profile that a merged one has gone into.
func Forward(entry []byte) (number uint64, ok bool) {
	if profile.Kind(entry) != KindTombstone {
		return 0, false
	}
	number = tombstoneField(entry, 0)
	return number, number != 0
}

// Behind is the number to which a walk goes on from the entry at n.
func Behind(entry []byte, n uint64) uint64 {
	if profile.Kind(entry) == KindTombstone {
		if to := tombstoneField(entry, 1); to != 0 {
			return to
		}
	}
	return identity.Next(n)
}

func tombstoneField(tombstone []byte, i int) uint64 {
	if len(tombstone) < profile.HeaderBytes+8*(i+1) {
		return 0
	}
	return binary.LittleEndian.Uint64(tombstone[profile.HeaderBytes+8*i:])
}

// AppendShortened appends a tombstone from which a walk goes on to behind.
func AppendShortened(dst, tombstone []byte, behind uint64) []byte {
	at := len(dst)
	dst = append(dst, tombstone...)
	for len(dst)-at < profile.HeaderBytes+16 {
		dst = binary.LittleEndian.AppendUint64(dst, 0)
	}
	binary.LittleEndian.PutUint64(dst[at+profile.HeaderBytes+8:], behind)
	return dst
}

// AppendTombstone appends the tombstone of a profile that is deleted.
func AppendTombstone(dst []byte, workspace uint32, stamp int64) []byte {
	return profile.AppendHeader(dst, KindTombstone, op.NoID, nil, workspace, stamp)
}

// Departed is what a merged profile was among the users of its addresses.
type Departed struct {
	Identified bool                   // it had an external id
	Updated    int64                  // Unix µs
	Rows       [len(Addresses)]uint64 // home numbers of the addresses that it had, 0 for none
	Brings     [len(Addresses)]bool   // a profile without an address of this kind gets this one's
}

const departedIdentified = 1 // in the header; the next bits are Brings

// AppendForward appends the tombstone of a merged profile, which leads to another one.
func AppendForward(dst []byte, workspace uint32, d *Departed, to uint64) []byte {
	at := len(dst)
	dst = AppendTombstone(dst, workspace, d.Updated)
	if d.Identified {
		dst[at+1] = departedIdentified
	}
	dst = binary.LittleEndian.AppendUint64(dst, to)
	dst = binary.LittleEndian.AppendUint64(dst, 0)
	for i, row := range d.Rows {
		if d.Brings[i] {
			dst[at+1] |= departedIdentified << (i + 1)
		}
		dst = binary.LittleEndian.AppendUint64(dst, row)
	}
	return dst
}

// ReadDeparted reads the Departed that AppendForward was given.
func ReadDeparted(tombstone []byte) (d Departed) {
	d.Updated, d.Identified = profile.Updated(tombstone), tombstone[1]&departedIdentified != 0
	for i := range d.Rows {
		d.Rows[i], d.Brings[i] = tombstoneField(tombstone, i+2), tombstone[1]&(departedIdentified<<(i+1)) != 0
	}
	return d
}
