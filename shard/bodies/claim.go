// Package bodies encodes and decodes the bodies of ops that the engine itself makes: claims of names, merges, states of
// addresses, control documents, what a deletion erases. Whoever makes such an op writes its body; apply reads it.
package bodies

import (
	"encoding/binary"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Claim is the body of a Claim and of the Grant that answers it; the key is the name.
//
//	profile u64 | kind u8 | merge mode u8 | row u8 | reference u16 | old name …
type Claim struct {
	Profile uint64            // that wants the name (0: a new profile); in a Grant, to which the row leads for it
	Kind    byte              // ClaimAlias, …
	Mode    profile.MergeMode // of ClaimIdentify
	// Row, in a Grant, is what the name's row said before the claim.
	Row RowAnswer
	Ref uint16 // of the outcome
	Old []byte // the old name: the alias's key, or the external id
}

// RowAnswer is the answer of a name's row to a claim.
type RowAnswer byte

const (
	// RowPromises: nobody had the name; the row leads to the profile from now on.
	RowPromises RowAnswer = iota
	// RowConfirms: the row led to the profile already, so the profile should have the name.
	RowConfirms
	// RowDenies: the row leads to another profile. The profile may have the name nevertheless, when one of the two was
	// merged into the other and the row has yet to hear of it.
	RowDenies
)

// Kinds of claims.
const (
	ClaimAlias       = 1
	ClaimAliasRename = 2
	ClaimIdentify    = 3
	ClaimExternalID  = 4 // gives another external id to a user who has one

	claimHeader = 8 + 1 + 1 + 1 + 2
)

// Append encodes a claim.
func (c *Claim) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, c.Profile)
	dst = append(dst, c.Kind, byte(c.Mode), byte(c.Row))
	dst = binary.LittleEndian.AppendUint16(dst, c.Ref)
	return append(dst, c.Old...)
}

// ParseClaim reads a claim, which is a view of b.
func ParseClaim(b []byte) (c Claim, err error) {
	if len(b) < claimHeader || RowAnswer(b[10]) > RowDenies {
		return c, op.ErrMalformed
	}
	return Claim{
		Profile: binary.LittleEndian.Uint64(b), Kind: b[8], Mode: profile.MergeMode(b[9]), Row: RowAnswer(b[10]),
		Ref: binary.LittleEndian.Uint16(b[11:]), Old: b[claimHeader:],
	}, nil
}
