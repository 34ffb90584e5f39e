package control

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"millrace/api/keys"
	"millrace/api/ratelimit"
)

// SCIMSettings are the settings of the company's access for provisioning dashboard users (D6).
type SCIMSettings struct {
	// the required X-Request-Origin; empty: it is not checked
	RequestOrigin string   `json:"request_origin" yaml:"request_origin"`
	IPAllowList   []string `json:"ip_allowlist" yaml:"ip_allowlist"`
	// for all operations on users together; empty: 5000/24h
	RateLimit string `json:"rate_limit,omitempty" yaml:"rate_limit"`
	// What a user gets who is created without department or permissions, as identity providers do. Default: nothing.
	DefaultDepartment  string           `json:"default_department,omitempty" yaml:"default_department"`
	DefaultPermissions *SCIMPermissions `json:"default_permissions,omitempty" yaml:"default_permissions"`
}

// SCIM is the company's SCIM access, as the bootstrap file has it and in a Snapshot.
type SCIM struct {
	SCIMSettings `yaml:",inline"`
	Token        string `json:"-" yaml:"token"` // from the bootstrap file only; empty: a new one is made

	// Tokens are all tokens ever made, in order of their numbers, including revoked ones. In a Snapshot only.
	Tokens []*SCIMToken `json:"-" yaml:"-"`
}

// SCIMToken is a token of the company's SCIM access, in its stored form.
type SCIMToken struct {
	ID        string `json:"id"`
	Number    uint32 `json:"number"` // the actor of records; from the sequence of the API keys
	Digest    string `json:"sha256"` // of the token, hexadecimal
	Hint      string `json:"hint"`   // first and last characters
	CreatedAt int64  `json:"created_at"`
	RevokedAt int64  `json:"revoked_at,omitempty"` // Unix ms

	// Usage records when the token was last used. In a Snapshot only.
	Usage *keys.Usage `json:"-"`
}

// maxSCIMTokens is how many tokens are valid at once: the old and the new one of a rotation.
const maxSCIMTokens = 2

func (s *SCIM) validate() error {
	if len(s.Token) > keys.MaxTokenBytes || strings.ContainsAny(s.Token, " \t\r\n") ||
		!keys.WellFormed([]byte(s.Token)) {
		return invalid("scim.token: want at most %d characters without spaces (and the right checksum, when it "+
			"begins with %s)", keys.MaxTokenBytes, keys.SCIMPrefix)
	}
	return s.SCIMSettings.validate()
}

func (s *SCIMSettings) validate() error {
	if len(s.RequestOrigin) > maxNameBytes || !Printable(s.RequestOrigin) {
		return invalid("scim.request_origin: want at most %d bytes without control characters", maxNameBytes)
	}
	if len(s.IPAllowList) > maxNetworks {
		return invalid("scim.ip_allowlist: %d are given, at most %d are allowed", len(s.IPAllowList), maxNetworks)
	}
	if _, err := keys.ParseNetworks(s.IPAllowList); err != nil {
		return invalid("scim.ip_allowlist: %v", err)
	}
	if _, err := ratelimit.Parse(s.RateLimit); s.RateLimit != "" && err != nil {
		return invalid("scim.rate_limit: %v", err)
	}
	if s.DefaultDepartment != "" && !slices.Contains(Departments, s.DefaultDepartment) {
		return invalid("scim.default_department: want one of %s", strings.Join(Departments, ", "))
	}
	if s.DefaultPermissions == nil {
		return nil
	}
	return s.DefaultPermissions.validate("scim.default_permissions")
}

// AllowsOrigin reports whether a request may have these X-Request-Origin headers: exactly one, equal to the one that is
// set. When none is set, because identity providers can't send it (D6), they are not checked.
func (s *SCIM) AllowsOrigin(origins [][]byte) bool {
	if s.RequestOrigin == "" {
		return true
	}
	return len(origins) == 1 && subtle.ConstantTimeCompare(origins[0], []byte(s.RequestOrigin)) == 1
}

// NewUser returns what a dashboard user gets who is created without department or permissions. s may be nil.
func (s *SCIM) NewUser() (department string, permissions SCIMPermissions) {
	if s == nil || s.DefaultPermissions == nil {
		permissions = SCIMPermissions{Company: []string{}, AppGroups: []SCIMAppGroup{}}
	} else {
		permissions = *s.DefaultPermissions
	}
	if s != nil {
		department = s.DefaultDepartment
	}
	return department, permissions
}

// AllowsAddr reports whether a request may come from addr.
func (s *SCIM) AllowsAddr(addr netip.Addr) bool {
	networks, err := keys.ParseNetworks(s.IPAllowList)
	return err == nil && (len(networks) == 0 || keys.Contains(networks, addr))
}

// Limits returns the limits of the company, for the buckets that are not counted per workspace.
func (s *SCIM) Limits() ratelimit.Limits {
	l := ratelimit.Defaults(false)
	if limit, err := ratelimit.Parse(s.RateLimit); err == nil {
		l[ratelimit.SCIM] = limit
	}
	return l
}

// FindSCIMToken returns the valid SCIM token with this text, or nil. The text is only read.
func (s *Snapshot) FindSCIMToken(token []byte) (found *SCIMToken) {
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
func (c *Control) UpdateSCIM(by Actor, edit func(*SCIMSettings) error) error {
	return c.do(by, func(d *draft) error { return d.updateSCIM(edit) })
}

func (d *draft) updateSCIM(edit func(*SCIMSettings) error) error {
	s, err := read[SCIMSettings](d, joinKey(kindSCIM, "", ""), "SCIM access")
	if err != nil {
		return err
	}
	s = cmp.Or(s, new(SCIMSettings))
	if err := edit(s); err != nil {
		return err
	}
	if s.DefaultPermissions != nil {
		p := *s.DefaultPermissions
		p.resolve(d.c.Snapshot())
		s.DefaultPermissions = &p
	}
	if err := s.validate(); err != nil {
		return err
	}
	if s.DefaultPermissions != nil {
		if err := s.DefaultPermissions.resolved(d.c.Snapshot(), "scim.default_permissions"); err != nil {
			return err
		}
	}
	return d.replace("SCIM access changed", kindSCIM, "", "", s, "request_origin", s.RequestOrigin,
		"ip_allowlist", strings.Join(s.IPAllowList, " "),
		"rate_limit", s.RateLimit, "default_department", s.DefaultDepartment)
}

// CreateSCIMToken makes a token for the SCIM access and returns it; it can't be read again. Two may be valid at once,
// so that one can replace the other.
func (c *Control) CreateSCIMToken(by Actor) (t SCIMToken, token string, err error) {
	err = c.do(by, func(d *draft) error {
		token = keys.Make(keys.SCIMPrefix)
		t, err = d.createSCIMToken(token)
		if err == nil {
			err = d.c.checkSCIMTokens()
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

func (d *draft) createSCIMToken(token string) (t SCIMToken, err error) {
	t = SCIMToken{Number: d.keyNumber(), Digest: keys.DigestOf([]byte(token)).Hex(), Hint: keys.Hint(token),
		CreatedAt: d.c.options.Now()}
	t.ID = strconv.FormatUint(uint64(t.Number), 10)
	return t, d.replace("SCIM token created", kindSCIMToken, "", t.ID, t)
}

// RevokeSCIMToken ends a token: from now on requests with it are refused. It can't be undone.
func (c *Control) RevokeSCIMToken(by Actor, id string) error {
	return c.do(by, func(d *draft) error {
		t, err := read[SCIMToken](d, joinKey(kindSCIMToken, "", id), "SCIM token "+id)
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

// rebuildSCIM decodes the company's SCIM access into next. The caller holds c.mu.
func (c *Control) rebuildSCIM(next *Snapshot) {
	s, isSetUp := new(SCIM), false
	for name, text := range c.docs[""] {
		switch kind, _, _ := strings.Cut(name, "/"); kind {
		case kindSCIM:
			isSetUp = c.decode(joinKey(kind, "", ""), text, &s.SCIMSettings) || isSetUp
		case kindSCIMToken:
			if t := new(SCIMToken); c.decode(name, text, t) {
				t.Usage = c.usageOf(t.Number)
				s.Tokens, isSetUp = append(s.Tokens, t), true
			}
		}
	}
	next.SCIM = nil
	if !isSetUp {
		return
	}
	slices.SortFunc(s.Tokens, func(a, b *SCIMToken) int { return int(int64(a.Number) - int64(b.Number)) })
	next.SCIM = s
}
