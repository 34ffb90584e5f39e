package api

import (
	"millrace/shard"
	"millrace/shard/op"
)

// The global state of email addresses, the block list and the spam mark: service.md 4.7, 4.8; decisions.md D5;
// reference.md 4.4. All of them are about addresses, known or not: what is set ahead of a user is what the user gets
// with the address.

// emailStatus serves POST /email/status.
func (s *Server) emailStatus(x *exchange, body value) {
	c := consent{x: x}
	state := shard.State{Kind: shard.EmailState,
		Value: c.required("subscription_state", body.member("subscription_state"))}
	switch state.Value {
	case "subscribed", "unsubscribed", "opted_in":
	default:
		c.fail("'subscription_state' must be 'subscribed', 'unsubscribed' or 'opted_in'")
	}
	c.addresses(body, state)
	c.commit(op.SourceEmailStatus)
}

// blockEmails serves POST /email/blocklist and /email/blacklist: unsubscribed, and marked as a hard bounce.
func (s *Server) blockEmails(x *exchange, body value) {
	x.setAddresses(body, op.SourceEmailBlocklist, shard.State{Kind: shard.EmailState, Value: "unsubscribed"},
		shard.State{Kind: shard.Bounce, On: true})
}

// removeBounces serves POST /email/bounce/remove. The state of the address stays: consent doesn't come back by itself.
func (s *Server) removeBounces(x *exchange, body value) {
	x.setAddresses(body, op.SourceBounceRemove, shard.State{Kind: shard.Bounce})
}

// removeSpamMarks serves POST /email/spam/remove.
func (s *Server) removeSpamMarks(x *exchange, body value) {
	x.setAddresses(body, op.SourceSpamRemove, shard.State{Kind: shard.Spam})
}

// setAddresses sets the same states of each address in a body.
func (x *exchange) setAddresses(body value, source op.Source, states ...shard.State) {
	c := consent{x: x}
	c.addresses(body, states...)
	c.commit(source)
}

// addresses reads email: one address, or an array of up to 50.
func (c *consent) addresses(body value, states ...shard.State) {
	v := body.member("email")
	if !v.some() {
		c.fail("'email' is required")
	}
	c.each("email", v, op.Email, states)
}
