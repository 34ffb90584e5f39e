package event

import (
	"slices"

	"millrace/shard/op"
)

// Kinds of rows for which there is no kind of op. Blocks have these codes: none is given to another kind.
const (
	EmailState op.Kind = 128 + iota // the email state of a user, or of an address, has changed
	GroupState                      // the same for a subscription group
	Merged                          // a user was merged into another one
	Identified                      // a user who had no external id has got one
)

// kindNames are the external names of kinds.
var kindNames = [256]string{op.Attributes: "attributes", op.Event: "event", op.Purchase: "purchase",
	op.Delete:  "deletion",
	EmailState: "email_subscription", GroupState: "subscription_group", Merged: "merge", Identified: "identify"}

// KindName is the external name of a kind of event.
func KindName(k op.Kind) string { return kindNames[k] }

// kindTexts are the same names as bytes, which nobody may change.
var kindTexts = func() (texts [256][]byte) {
	for k, name := range kindNames {
		texts[k] = []byte(name)
	}
	return texts
}()

// KindNamed returns the kind with an external name.
func KindNamed(name string) (op.Kind, bool) {
	k := slices.Index(kindNames[:], name)
	return op.Kind(max(k, 0)), k >= 0 && name != ""
}

// IsEvent reports whether a kind is something that users do. Exports have these kinds, and only they have names.
func IsEvent(k op.Kind) bool { return k == op.Event || k == op.Purchase }

// HasProperties reports whether rows of a kind have properties, that is, what was sent.
func HasProperties(k op.Kind) bool { return IsEvent(k) || k == op.Attributes }

// isState reports whether a kind is a change of a state.
func isState(k op.Kind) bool { return k == EmailState || k == GroupState }

// ChannelName is the name of a group's channel; empty: it is not known.
func ChannelName(channel byte) string {
	switch channel {
	case op.ChannelEmail:
		return "email"
	case op.ChannelSMS:
		return "sms"
	case op.ChannelWhatsApp:
		return "whatsapp"
	}
	return ""
}

// IsNoted reports whether the engine notes a kind (shard.Noted).
func IsNoted(k op.Kind) bool { return k >= EmailState }
