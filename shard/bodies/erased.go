package bodies

import (
	"encoding/binary"
	"fmt"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Erased says which events of the log are a user's, for a Delete that tells the log to erase them, or for a reader:
// those under Number from Since to before Until. A zero Until is the place of the Delete itself; for a reader it is no
// end.
type Erased struct {
	Number       uint64        // that the events have
	By           ErasedBy      // where they have it from
	Since, Until profile.Place // in the log
}

// ErasedBy says where an event has its number from.
type ErasedBy uint8

const (
	ByProfile    ErasedBy = 1 // the op named the profile by its number
	ByIdentifier ErasedBy = 2 // the op's number is the home number of the identifier that was sent
)

// erasedBytes is the size of one entry.
const erasedBytes = 8 + 1 + 2*(8+4)

// EachErased calls f for each entry of a Delete's body.
func EachErased(body []byte, f func(Erased)) error {
	if len(body)%erasedBytes != 0 {
		return fmt.Errorf("%w: delete of %d bytes", op.ErrMalformed, len(body))
	}
	place := func(b []byte) profile.Place {
		return profile.Place{Position: binary.LittleEndian.Uint64(b), Ordinal: binary.LittleEndian.Uint32(b[8:])}
	}
	for ; len(body) > 0; body = body[erasedBytes:] {
		f(Erased{binary.LittleEndian.Uint64(body), ErasedBy(body[8]), place(body[9:]), place(body[21:])})
	}
	return nil
}

// Append encodes one entry.
func (x Erased) Append(dst []byte) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, x.Number), byte(x.By))
	for _, at := range [...]profile.Place{x.Since, x.Until} {
		dst = binary.LittleEndian.AppendUint64(dst, at.Position)
		dst = binary.LittleEndian.AppendUint32(dst, at.Ordinal)
	}
	return dst
}

// AppendErased appends where the log has the events of a profile, up to until. In a cluster that is the log of the
// profile's group; other groups are told by messages (EachFormer).
func AppendErased(dst, blob []byte, number uint64, until profile.Place, h *identity.Hasher, groups Groups) []byte {
	eachOwn(blob, number, until, h, func(x Erased) { dst = x.Append(dst) })
	return appendFormers(dst, blob, number, groups)
}

// EachOfUser calls f with where the logs have the events of a profile.
func EachOfUser(blob []byte, number uint64, h *identity.Hasher, f func(Erased)) {
	eachOwn(blob, number, profile.Place{}, h, f)
	EachFormer(blob, f)
}

// eachOwn calls f with where there are events of a profile up to until, apart from those of EachFormer.
func eachOwn(blob []byte, number uint64, until profile.Place, h *identity.Hasher, f func(Erased)) {
	f(Erased{Number: number, By: ByProfile, Until: until})
	if id, key := profile.HomeID(blob); id != op.NoID {
		since, born := profile.Born(blob)
		if born && id != op.ExternalID { // only the op that made it: later ones were resolved by the directory
			until = since.Next()
		}
		f(Erased{h.Number(profile.Workspace(blob), id, key), ByIdentifier, since, until})
	}
}

// appendFormers appends where the log that has number has events of profiles that were merged into this one, or events
// under an identifier that this profile no longer has. The places of a Former are in the log of the Former's number,
// and mean nothing in another one.
func appendFormers(dst, blob []byte, number uint64, groups Groups) []byte {
	EachFormer(blob, func(x Erased) {
		if OneLog(number, x.Number, groups) {
			dst = x.Append(dst)
		}
	})
	return dst
}

// EachFormer calls f with where there are events of profiles that were merged into this one, or events under an
// identifier that this profile no longer has.
func EachFormer(blob []byte, f func(Erased)) {
	profile.Formers(blob, func(x profile.Former) {
		if x.Number != 0 {
			f(Erased{Number: x.Number, By: ByProfile})
		}
		if x.Home != 0 {
			f(Erased{x.Home, ByIdentifier, x.Since, x.Until})
		}
	})
}

// Groups knows which group holds a partition.
type Groups interface{ GroupOf(partition uint8) int }

// OneLog says whether two numbers are in the same group's log.
func OneLog(a, b uint64, groups Groups) bool {
	return groups.GroupOf(identity.Partition(a)) == groups.GroupOf(identity.Partition(b))
}
