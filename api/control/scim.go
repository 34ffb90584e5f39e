package control

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"strings"

	"millrace/api/control/document"
	"millrace/api/keys"
)

// maxSCIMTokens is how many tokens are valid at once: the old and the new one of a rotation.
const maxSCIMTokens = 2

// FindSCIMToken returns the valid SCIM token with this text, or nil. The text is only read.
func (s *Snapshot) FindSCIMToken(token []byte) (found *document.SCIMToken) {
	if s.SCIM == nil || len(token) == 0 || len(token) > keys.MaxTokenBytes {
		return nil
	}
	digest := []byte(keys.DigestOf(token).Hex())
	for _, t := range s.SCIM.Tokens {
		if t.RevokedAt == 0 && subtle.ConstantTimeCompare([]byte(t.Digest), digest) == 1 {
			found = t
		}
	}
	return found
}

// UpdateSCIM changes the settings of the SCIM access: edit gets them and changes some of them.
func (c *Control) UpdateSCIM(by Actor, edit func(*document.SCIMSettings) error) error {
	return c.do(by, func(d *draft) error { return d.updateSCIM(edit) })
}

func (d *draft) updateSCIM(edit func(*document.SCIMSettings) error) error {
	s, err := read[document.SCIMSettings](d, joinKey(kindSCIM, "", ""), "SCIM access")
	if err != nil {
		return err
	}
	s = cmp.Or(s, new(document.SCIMSettings))
	if err := edit(s); err != nil {
		return err
	}
	if s.DefaultPermissions != nil {
		p := *s.DefaultPermissions
		d.c.Snapshot().resolve(&p)
		s.DefaultPermissions = &p
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if s.DefaultPermissions != nil {
		if err := d.c.Snapshot().resolved(s.DefaultPermissions, "scim.default_permissions"); err != nil {
			return err
		}
	}
	return d.replace("SCIM access changed", kindSCIM, "", "", s, "request_origin", s.RequestOrigin,
		"ip_allowlist", strings.Join(s.IPAllowList, " "),
		"rate_limit", s.RateLimit, "default_department", s.DefaultDepartment)
}

// CreateSCIMToken makes a token for the SCIM access and returns it; it can't be read again. Two may be valid at once,
// so that one can replace the other.
func (c *Control) CreateSCIMToken(by Actor) (t document.SCIMToken, token string, err error) {
	err = c.do(by, func(d *draft) error {
		token = keys.Make(keys.SCIMPrefix)
		t, err = d.createSCIMToken(token)
		if err == nil {
			err = c.checkSCIMTokens()
		}
		return err
	})
	return t, token, err
}

func (c *Control) checkSCIMTokens() error {
	s := c.Snapshot().SCIM
	if s == nil {
		return nil
	}
	var valid []string
	for _, t := range s.Tokens {
		if t.RevokedAt == 0 {
			valid = append(valid, t.ID)
		}
	}
	if len(valid) >= maxSCIMTokens {
		return fmt.Errorf("%w: the SCIM tokens %s are valid: revoke one first", ErrConflict,
			strings.Join(valid, " and "))
	}
	return nil
}

func (d *draft) createSCIMToken(token string) (t document.SCIMToken, err error) {
	t = document.SCIMToken{Issued: d.issued(token)}
	return t, d.replace("SCIM token created", kindSCIMToken, "", t.ID, t)
}

// RevokeSCIMToken ends a token: from now on requests with it are refused. It can't be undone.
func (c *Control) RevokeSCIMToken(by Actor, id string) error {
	return c.do(by, func(d *draft) error {
		t, err := read[document.SCIMToken](d, joinKey(kindSCIMToken, "", id), "SCIM token "+id)
		if t == nil {
			return cmp.Or(err, fmt.Errorf("SCIM token %q %w", id, ErrNotFound))
		}
		if t.RevokedAt != 0 {
			return nil
		}
		t.RevokedAt = c.options.Now()
		return d.replace("SCIM token revoked", kindSCIMToken, "", id, t)
	})
}
