package document

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"gopkg.in/yaml.v3"

	"millrace/api/ratelimit"
	"millrace/ingest/field"
)

// Settings are those of a workspace (decisions.md D2, D3, D7, D9). The document has the same shape, plus the number.
type Settings struct {
	ID   string `json:"id" yaml:"id"`
	Name string `json:"name" yaml:"name"`
	// base | mau
	Plan string `json:"plan" yaml:"plan"`
	// translations are on
	MultiLanguage bool `json:"multi_language" yaml:"multi_language"`
	// bucket → "3000/3s"
	RateLimits map[string]string `json:"rate_limits,omitempty" yaml:"rate_limits"`
	// refused by /users/track
	BlockedExternalIDs []string `json:"blocked_external_ids,omitempty" yaml:"blocked_external_ids"`
	// strings (default) | objects
	RequestErrorShape string `json:"request_error_shape,omitempty" yaml:"request_error_shape"`
	// svc_id (default) | braze_id: what answers call a user's id
	ProfileIDName string `json:"profile_id_name,omitempty" yaml:"profile_id_name"`
	// of total_revenue; default USD
	Currency string `json:"currency,omitempty" yaml:"currency"`
	// currency → units of Currency for one of it
	ExchangeRates map[string]Decimal `json:"exchange_rates,omitempty" yaml:"exchange_rates"`
	// default 25, at most 500
	MaxArrayLength int      `json:"max_custom_array_length,omitempty" yaml:"max_custom_array_length"`
	Locales        []Locale `json:"locales,omitempty" yaml:"locales"` // of translations
}

// Limits and defaults of Settings.
const (
	maxBlocked     = 10_000
	maxArrayLength = 500
	// defaultMaxArrayLength is how many elements a custom array keeps (D9).
	defaultMaxArrayLength = 25
	// defaultCurrency is the currency of total_revenue (D9).
	defaultCurrency = "USD"
)

// Braze reports whether answers call a user's id braze_id.
func (s *Settings) Braze() bool { return s.ProfileIDName == "braze_id" }

// Patch changes the settings that text, a JSON object, names; lists and maps are replaced as a whole, and null stands
// for the default.
func (s *Settings) Patch(text []byte) error { return PatchStrict(text, s) }

// Decimal is a number kept as the text that was written.
type Decimal string

var (
	decimalForm  = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
)

// UnmarshalJSON takes a number or a string.
func (d *Decimal) UnmarshalJSON(text []byte) error {
	*d = Decimal(strings.Trim(string(text), `"`))
	return nil
}

// MarshalJSON writes a number.
func (d Decimal) MarshalJSON() ([]byte, error) { return []byte(d), nil }

// UnmarshalYAML takes a number or a string, as written.
func (d *Decimal) UnmarshalYAML(n *yaml.Node) error {
	*d = Decimal(n.Value)
	return nil
}

// EnsureDefaults fills in what was left out.
func (s *Settings) EnsureDefaults() {
	s.Name = cmp.Or(s.Name, s.ID)
	s.Plan = cmp.Or(s.Plan, "base")
	s.RequestErrorShape = cmp.Or(s.RequestErrorShape, "strings")
	s.ProfileIDName = cmp.Or(s.ProfileIDName, "svc_id")
	s.Currency = cmp.Or(s.Currency, defaultCurrency)
	s.MaxArrayLength = cmp.Or(s.MaxArrayLength, defaultMaxArrayLength)
}

// isCurrency says whether purchases can have the currency: of those in another one total_revenue would be 0.
func isCurrency(code string) bool {
	canonical, _, ok := field.Currency([]byte(code))
	return ok && string(canonical[:]) == code
}

// Validate implements Of.
func (s *Settings) Validate() error {
	if !slugForm.MatchString(s.ID) {
		return Invalid("workspace id %q: want lower-case letters, digits, - and _, at most 63", s.ID)
	}
	return cmp.Or(checkName("name", s.Name), oneOf("base", "mau")("plan", s.Plan),
		oneOf("strings", "objects")("request_error_shape", s.RequestErrorShape),
		oneOf("svc_id", "braze_id")("profile_id_name", s.ProfileIDName),
		s.validateMoney(), s.validateLimits(), checkLocales("locales", s.Locales))
}

func (s *Settings) validateMoney() error {
	if !isCurrency(s.Currency) {
		return Invalid("currency %q: want a code of ISO 4217 in capital letters, such as USD", s.Currency)
	}
	for code, rate := range s.ExchangeRates { // profiles from elsewhere may have revenue in a currency that is no more
		if !currencyForm.MatchString(code) {
			return Invalid("exchange_rates: currency %q: want three capital letters", code)
		}
		if v, err := strconv.ParseFloat(string(rate), 64); !decimalForm.MatchString(string(rate)) ||
			err != nil || v <= 0 {
			return Invalid("exchange_rates: %s: %q is not a positive decimal number", code, string(rate))
		}
	}
	return nil
}

func (s *Settings) validateLimits() error {
	if s.MaxArrayLength < 1 || s.MaxArrayLength > maxArrayLength {
		return Invalid("max_custom_array_length %d: want 1 to %d", s.MaxArrayLength, maxArrayLength)
	}
	if len(s.BlockedExternalIDs) > maxBlocked {
		return Invalid("blocked_external_ids: %d are given, at most %d are allowed", len(s.BlockedExternalIDs),
			maxBlocked)
	}
	for _, id := range s.BlockedExternalIDs {
		if id == "" || len(id) > 987 {
			return Invalid("blocked_external_ids: %q: want 1 to 987 bytes", id)
		}
	}
	if _, err := ratelimit.ParseLimits(s.Plan == "mau", s.RateLimits); err != nil {
		return Invalid("rate_limits: %v", err)
	}
	return nil
}

// App is an app of a workspace, named by app_id in events and purchases.
type App struct {
	ID   string `json:"id" yaml:"id"`
	Name string `json:"name" yaml:"name"`
}

// EnsureDefaults implements Of.
func (a *App) EnsureDefaults() {
	ensureID(&a.ID)
	a.Name = cmp.Or(a.Name, a.ID)
}

// DocumentID implements Of.
func (a *App) DocumentID() *string { return &a.ID }

// Validate implements Of.
func (a *App) Validate() error {
	return cmp.Or(checkID("app id", a.ID), checkName("name", a.Name))
}

// Group is a subscription group. Its id is a UUID in lower case (D9).
type Group struct {
	ID      string `json:"id" yaml:"id"`
	Name    string `json:"name" yaml:"name"`
	Channel string `json:"channel" yaml:"channel"` // email | sms | whatsapp; can't be changed
	// Archived groups are unknown to the API. The states of users are kept, and are there again when the group is.
	Archived bool `json:"archived,omitempty" yaml:"-"`
}

// EnsureDefaults implements Of.
func (g *Group) EnsureDefaults() {
	ensureID(&g.ID)
	if u, err := uuid.Parse(g.ID); err == nil && len(g.ID) == 36 {
		g.ID = u.String()
	}
}

// DocumentID implements Of.
func (g *Group) DocumentID() *string { return &g.ID }

// Archive is done to a group instead of removing it: the states that users have in it belong to its channel.
func (g *Group) Archive() { g.Archived = true }

// Keep keeps what the bootstrap file can't set.
func (g *Group) Keep(old *Group) { g.Archived = old.Archived }

// Replaces reports why g may not replace old.
func (g *Group) Replaces(old *Group) error {
	if old.Channel != g.Channel {
		return Invalid("channel: subscription group %s has the channel %s, which can't be changed", g.ID, old.Channel)
	}
	return nil
}

// Validate implements Of.
func (g *Group) Validate() error {
	if _, err := uuid.Parse(g.ID); err != nil || len(g.ID) != 36 {
		return Invalid("subscription group id %q: want a UUID", g.ID)
	}
	if err := checkName("name", g.Name); err != nil {
		return err
	}
	if g.Channel != "email" && g.Channel != "sms" && g.Channel != "whatsapp" {
		return Invalid("channel %q: want email, sms or whatsapp", g.Channel)
	}
	return nil
}
