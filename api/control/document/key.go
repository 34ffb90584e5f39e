package document

import (
	"strings"

	"millrace/api/keys"
)

// KeySpec is what an operator says of a key.
type KeySpec struct {
	Name        string   `json:"name" yaml:"name"`
	Token       string   `json:"-" yaml:"key"` // from the bootstrap file only; empty: a new one is made
	Permissions []string `json:"permissions" yaml:"permissions"`
	IPAllowList []string `json:"ip_allowlist,omitempty" yaml:"ip_allowlist"`
}

// Validate implements Of.
func (k *KeySpec) Validate() error {
	if err := checkName("name", k.Name); err != nil {
		return err
	}
	if len(k.Permissions) > 200 {
		return Invalid("permissions: %d are given, at most 200 are allowed", len(k.Permissions))
	}
	for _, p := range k.Permissions {
		if !nameForm.MatchString(p) || p != "*" && strings.Contains(p, "*") {
			return Invalid("permissions: %q: want a name such as users.track, or *", p)
		}
	}
	if len(k.IPAllowList) > maxNetworks {
		return Invalid("ip_allowlist: %d are given, at most %d are allowed", len(k.IPAllowList), maxNetworks)
	}
	if _, err := keys.ParseNetworks(k.IPAllowList); err != nil {
		return Invalid("ip_allowlist: %v", err)
	}
	if len(k.Token) > keys.MaxTokenBytes || strings.ContainsAny(k.Token, " \t\r\n") ||
		!keys.WellFormed([]byte(k.Token)) {
		return Invalid("key of %q: want at most %d characters without spaces (and the right checksum, when it "+
			"begins with %s)", k.Name, keys.MaxTokenBytes, keys.Prefix)
	}
	return nil
}

// Key is a key in its stored form.
type Key struct {
	KeySpec
	Issued
}

// Issued is what is kept of a token that was given out: of an API key, or of the SCIM access.
type Issued struct {
	ID        string `json:"id"`
	Number    uint32 `json:"number"` // the actor of records; never reused
	Digest    string `json:"sha256"` // of the token, hexadecimal
	Hint      string `json:"hint"`   // first and last characters
	CreatedAt int64  `json:"created_at"`
	RevokedAt int64  `json:"revoked_at,omitempty"` // Unix ms; the document stays, so its number does too
}
