package event

import (
	"slices"

	"millrace/shard/op"
)

// Kinds of rows that no kind of op stands for. Blocks have them: a code is never given anew.
const (
	EmailState op.Kind = 128 + iota // the email state of a user, or of an address, has another value
	GroupState                      // the same of a subscription group
	Merged                          // a user was merged into another one
	Identified                      // a user who had no external id has got one
)

// kindNames are what kinds are called outside.
var kindNames = [256]string{op.Attributes: "attributes", op.Event: "event", op.Purchase: "purchase",
	op.Delete:  "deletion",
	EmailState: "email_subscription", GroupState: "subscription_group", Merged: "merge", Identified: "identify"}

// KindName is what a kind of event is called outside.
func KindName(k op.Kind) string { return kindNames[k] }

// kindTexts are the same as bytes, which nobody may change.
var kindTexts = func() (texts [256][]byte) {
	for k, name := range kindNames {
		texts[k] = []byte(name)
	}
	return texts
}()

// KindNamed is the kind that is called so.
func KindNamed(name string) (op.Kind, bool) {
	k := slices.Index(kindNames[:], name)
	return op.Kind(max(k, 0)), k >= 0 && name != ""
}

// IsEvent says whether a kind is what users do, which exports have and which has names.
func IsEvent(k op.Kind) bool { return k == op.Event || k == op.Purchase }

// HasProperties says whether rows of a kind have properties: what was sent.
func HasProperties(k op.Kind) bool { return IsEvent(k) || k == op.Attributes }

// isState says whether a kind is a change of a state.
func isState(k op.Kind) bool { return k == EmailState || k == GroupState }

// ChannelName is what the channel of a group is called; empty: it is not known.
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

// OfAddress says whether the event is a change of a state that an address itself has, which names no user.
func (e *Event) OfAddress() bool { return isState(e.Kind) && !e.Resolved }

// IsNoted says whether a kind is what the engine notes (books.Noted).
func IsNoted(k op.Kind) bool { return k >= EmailState }
