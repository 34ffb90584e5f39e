package shard

import "millrace/shard/profile"

// Outcome says what became of an element of a request whose fate is known only where it is applied.
type Outcome uint8

const (
	// Done: it took effect, or was so already.
	Done Outcome = iota
	// Nobody: the user that it is about is not there, or not any more.
	Nobody
	// Taken: the alias or external id is another profile's, and stays there.
	Taken
	// LabelTaken: the profile has another name under this label.
	LabelTaken
	// Identified: the user has an external id already, another one.
	Identified
)

// Outcome is what became of the element with this reference (AddAlias, RenameAlias, Identify, RenameExternalID, RemoveExternalID), after a
// Commit that returned nil.
func (b *Batch) Outcome(ref int) Outcome { panic("not built") }

// AddAlias gives an alias to the profile with this number (service.md 4.9). Number 0 makes an alias-only user; when somebody has the alias
// already, the outcome is Taken.
func (b *Batch) AddAlias(number uint64, label, name []byte) (ref int) { panic("not built") }

// RenameAlias gives the alias (label, old) of the profile with this number another name (/users/alias/update, decisions.md D4).
func (b *Batch) RenameAlias(number uint64, label, old, name []byte) (ref int) { panic("not built") }

// Identify gives an external id to the profile with this number, which has none; when another profile has that external id, the first is
// merged into it (service.md 4.10). mode is profile.MergeIdentify or profile.MergeNone.
func (b *Batch) Identify(number uint64, externalID []byte, mode profile.MergeMode) (ref int) {
	panic("not built")
}

// RenameExternalID gives the profile with this number, whose external id is current, another external id. The old one leads to the profile
// still, as a deprecated id, until RemoveExternalID takes it away (reference.md 4.4).
func (b *Batch) RenameExternalID(number uint64, current, id []byte) (ref int) { panic("not built") }

// RemoveExternalID takes a deprecated external id away from the profile with this number. Nobody: the profile has no such deprecated id.
func (b *Batch) RemoveExternalID(number uint64, id []byte) (ref int) { panic("not built") }
