package consent

import (
	"millrace/api/call"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
)

// The global state of email addresses, the block list and the spam mark: service.md 4.7, 4.8; decisions.md D5;
// reference.md 4.4. All of them are about addresses, known or not: a user gets with an address what was set for it
// beforehand.

// EmailStatus serves POST /email/status.
func EmailStatus(x *call.Call, body value.Value) {
	c := consent{x: x}
	state := shard.State{Kind: shard.EmailState,
		Value: c.required("subscription_state", body.Member("subscription_state"))}
	switch state.Value {
	case "subscribed", "unsubscribed", "opted_in":
	default:
		c.Fail("'subscription_state' must be 'subscribed', 'unsubscribed' or 'opted_in'")
	}
	c.addresses(body, state)
	c.commit(op.SourceEmailStatus)
}

// BlockEmails serves POST /email/blocklist and /email/blacklist: it unsubscribes addresses and marks them as hard
// bounces.
func BlockEmails(x *call.Call, body value.Value) {
	setAddresses(x, body, op.SourceEmailBlocklist, shard.State{Kind: shard.EmailState, Value: "unsubscribed"},
		shard.State{Kind: shard.Bounce, On: true})
}

// RemoveBounces serves POST /email/bounce/remove. The state of the address stays: consent doesn't come back by itself.
func RemoveBounces(x *call.Call, body value.Value) {
	setAddresses(x, body, op.SourceBounceRemove, shard.State{Kind: shard.Bounce})
}

// RemoveSpamMarks serves POST /email/spam/remove.
func RemoveSpamMarks(x *call.Call, body value.Value) {
	setAddresses(x, body, op.SourceSpamRemove, shard.State{Kind: shard.Spam})
}

// setAddresses sets the same states of each address in a body.
func setAddresses(x *call.Call, body value.Value, source op.Source, states ...shard.State) {
	c := consent{x: x}
	c.addresses(body, states...)
	c.commit(source)
}

// addresses reads email: one address, or an array of up to 50.
func (c *consent) addresses(body value.Value, states ...shard.State) {
	v := body.Member("email")
	if !v.Some() {
		c.Fail("'email' is required")
	}
	c.each("email", v, op.Email, states)
}
