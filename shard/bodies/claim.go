// Package bodies has the bodies of the ops that the engine itself makes: claims of names, merges, states of addresses,
// control documents, what a deletion takes along. Who asks for a change writes them, apply reads them.
package bodies

import (
	"encoding/binary"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Claim is the body of a Claim and of the Grant that answers it; the key is the name.
//
//	profile u64 | kind u8 | merge mode u8 | confirm u8 | reference u16 | old name …
type Claim struct {
	Profile uint64            // who wants the name (0: a new profile); in a Grant, who the row leads to for it
	Kind    byte              // ClaimAlias, …
	Mode    profile.MergeMode // of ClaimIdentify
	// Confirm, in a Grant: the row led to the profile before the claim, so the profile should have the name.
	Confirm bool
	Ref     uint16 // of the outcome
	Old     []byte // of a rename: the alias's key, or the external id
}

// Kinds of claims.
const (
	ClaimAlias       = 1
	ClaimAliasRename = 2
	ClaimIdentify    = 3
	ClaimExternalID  = 4 // a rename

	claimHeader = 8 + 1 + 1 + 1 + 2
)

// Append encodes a claim.
func (c *Claim) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, c.Profile)
	confirm := byte(0)
	if c.Confirm {
		confirm = 1
	}
	dst = append(dst, c.Kind, byte(c.Mode), confirm)
	dst = binary.LittleEndian.AppendUint16(dst, c.Ref)
	return append(dst, c.Old...)
}

// ParseClaim reads a claim: a view of b.
func ParseClaim(b []byte) (c Claim, err error) {
	if len(b) < claimHeader {
		return c, op.ErrMalformed
	}
	return Claim{
		Profile: binary.LittleEndian.Uint64(b), Kind: b[8], Mode: profile.MergeMode(b[9]), Confirm: b[10] == 1,
		Ref: binary.LittleEndian.Uint16(b[11:]), Old: b[claimHeader:],
	}, nil
}
