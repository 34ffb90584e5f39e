package document

import (
	"crypto/subtle"
	"net/netip"
	"slices"
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
	Issued

	// Usage records when the token was last used. In a Snapshot only.
	Usage *keys.Usage `json:"-"`
}

// Validate implements Of.
func (s *SCIM) Validate() error {
	if len(s.Token) > keys.MaxTokenBytes || strings.ContainsAny(s.Token, " \t\r\n") ||
		!keys.WellFormed([]byte(s.Token)) {
		return Invalid("scim.token: want at most %d characters without spaces (and the right checksum, when it "+
			"begins with %s)", keys.MaxTokenBytes, keys.SCIMPrefix)
	}
	return s.SCIMSettings.Validate()
}

// Validate implements Of.
func (s *SCIMSettings) Validate() error {
	if len(s.RequestOrigin) > maxNameBytes || !Printable(s.RequestOrigin) {
		return Invalid("scim.request_origin: want at most %d bytes without control characters", maxNameBytes)
	}
	if len(s.IPAllowList) > maxNetworks {
		return Invalid("scim.ip_allowlist: %d are given, at most %d are allowed", len(s.IPAllowList), maxNetworks)
	}
	if _, err := keys.ParseNetworks(s.IPAllowList); err != nil {
		return Invalid("scim.ip_allowlist: %v", err)
	}
	if _, err := ratelimit.Parse(s.RateLimit); s.RateLimit != "" && err != nil {
		return Invalid("scim.rate_limit: %v", err)
	}
	if s.DefaultDepartment != "" && !slices.Contains(Departments, s.DefaultDepartment) {
		return Invalid("scim.default_department: want one of %s", strings.Join(Departments, ", "))
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
