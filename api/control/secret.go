package control

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Secret returns the secret of this store with this name, and whether there is one. Secrets are documents, as
// hexadecimal digits in quotes, so they survive restarts and are the same on every node. No listing, no answer, no log
// line and no entry of the audit log has them; a backup does.
func (c *Control) Secret(name string) (secret [32]byte, ok bool) {
	doc := c.document(kindSecret, "", name)
	if len(doc) != 2+2*len(secret) {
		return secret, false
	}
	_, err := hex.Decode(secret[:], doc[1:len(doc)-1])
	return secret, err == nil
}

// EnsureSecret returns the secret of this store with this name. The first call makes it; from then on it is the same
// for ever.
func (c *Control) EnsureSecret(name string) (secret [32]byte, err error) {
	if secret, ok := c.Secret(name); ok {
		return secret, nil
	}
	err = c.do(Actor{}, func(d *draft) error {
		if d.get(joinKey(kindSecret, "", name)) != nil {
			return nil
		}
		var random [32]byte
		_, _ = rand.Read(random[:]) // never fails
		d.set(joinKey(kindSecret, "", name), fmt.Appendf(nil, "%q", hex.EncodeToString(random[:])))
		return nil
	})
	if err != nil {
		return secret, err
	}
	secret, ok := c.Secret(name)
	if !ok {
		return secret, fmt.Errorf("the secret %q can't be read", name)
	}
	return secret, nil
}
