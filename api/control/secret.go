package control

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Secret returns this store's secret with this name, and whether there is one. Secrets are documents, as hexadecimal
// digits in quotes, so they survive restarts and are the same on every node. No listing, answer, log line or entry of
// the audit log contains them; a backup does.
func (c *Control) Secret(name string) (secret [32]byte, ok bool) {
	doc := c.document(kindSecret, "", name)
	if len(doc) != 2+2*len(secret) {
		return secret, false
	}
	_, err := hex.Decode(secret[:], doc[1:len(doc)-1])
	return secret, err == nil
}

// EnsureSecret returns this store's secret with this name. The first call makes it; from then on it never changes.
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
