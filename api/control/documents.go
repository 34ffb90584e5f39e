package control

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"gopkg.in/yaml.v3"

	"millrace/api/keys"
	"millrace/api/ratelimit"
	"millrace/ingest/field"
)

// ErrInvalid is wrapped by every refusal of control data; the text is for operators and names the field.
var ErrInvalid = errors.New("invalid")

// ErrExists is wrapped when something is created that already exists, and ErrNotFound when something is changed that
// does not. ErrConflict is wrapped when a change can't be made as things are: others change the same document all the
// time, a key is revoked, a limit is reached.
var (
	ErrExists   = errors.New("already exists")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
)

// ErrNoRoom is an ErrConflict: the document has no room beside the others (Options.MaxBytes).
var ErrNoRoom = fmt.Errorf("%w: there is no room for more documents (--max-documents)", ErrConflict)

// ErrUnknown is wrapped when a change may have been made: a node of the cluster was lost meanwhile.
var ErrUnknown = errors.New("whether the change was made is unknown")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

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

// Braze reports whether answers call a user's id braze_id.
func (s *Settings) Braze() bool { return s.ProfileIDName == "braze_id" }

// Patch changes the settings that text, a JSON object, names; lists and maps are replaced as a whole, and null stands
// for the default.
func (s *Settings) Patch(text []byte) error { return PatchStrict(text, s) }

// Decimal is a number kept as the text that was written.
type Decimal string

var decimalForm = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)

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

var (
	slugForm     = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	nameForm     = regexp.MustCompile(`^[a-z0-9_.*]{1,64}$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
)

// Limits on control data: it is small by nature, and every node holds it in memory.
const (
	maxNameBytes   = 255
	maxIDBytes     = 255
	maxBlocked     = 10_000
	maxNetworks    = 1000
	maxArrayLength = 500
	// DefaultMaxArrayLength is how many elements a custom array keeps (D9).
	DefaultMaxArrayLength = 25
	// DefaultCurrency is the currency of total_revenue (D9).
	DefaultCurrency = "USD"
)

// ensureDefaults fills in what was left out.
func (s *Settings) ensureDefaults() {
	s.Name = cmp.Or(s.Name, s.ID)
	s.Plan = cmp.Or(s.Plan, "base")
	s.RequestErrorShape = cmp.Or(s.RequestErrorShape, "strings")
	s.ProfileIDName = cmp.Or(s.ProfileIDName, "svc_id")
	s.Currency = cmp.Or(s.Currency, DefaultCurrency)
	s.MaxArrayLength = cmp.Or(s.MaxArrayLength, DefaultMaxArrayLength)
}

// isCurrency says whether purchases can have the currency: of those in another one total_revenue would be 0.
func isCurrency(code string) bool {
	canonical, _, ok := field.Currency([]byte(code))
	return ok && string(canonical[:]) == code
}

func (s *Settings) validate() error {
	if !slugForm.MatchString(s.ID) {
		return invalid("workspace id %q: want lower-case letters, digits, - and _, at most 63", s.ID)
	}
	if err := checkName("name", s.Name); err != nil {
		return err
	}
	if s.Plan != "base" && s.Plan != "mau" {
		return invalid("plan %q: want base or mau", s.Plan)
	}
	if s.RequestErrorShape != "strings" && s.RequestErrorShape != "objects" {
		return invalid("request_error_shape %q: want strings or objects", s.RequestErrorShape)
	}
	if s.ProfileIDName != "svc_id" && s.ProfileIDName != "braze_id" {
		return invalid("profile_id_name %q: want svc_id or braze_id", s.ProfileIDName)
	}
	if !isCurrency(s.Currency) {
		return invalid("currency %q: want a code of ISO 4217 in capital letters, such as USD", s.Currency)
	}
	for code, rate := range s.ExchangeRates { // profiles from elsewhere may have revenue in a currency that is no more
		if !currencyForm.MatchString(code) {
			return invalid("exchange_rates: currency %q: want three capital letters", code)
		}
		if v, err := strconv.ParseFloat(string(rate), 64); !decimalForm.MatchString(string(rate)) ||
			err != nil || v <= 0 {
			return invalid("exchange_rates: %s: %q is not a positive decimal number", code, string(rate))
		}
	}
	if s.MaxArrayLength < 1 || s.MaxArrayLength > maxArrayLength {
		return invalid("max_custom_array_length %d: want 1 to %d", s.MaxArrayLength, maxArrayLength)
	}
	if len(s.BlockedExternalIDs) > maxBlocked {
		return invalid("blocked_external_ids: %d are given, at most %d are allowed", len(s.BlockedExternalIDs),
			maxBlocked)
	}
	for _, id := range s.BlockedExternalIDs {
		if id == "" || len(id) > 987 {
			return invalid("blocked_external_ids: %q: want 1 to 987 bytes", id)
		}
	}
	if _, err := ratelimit.ParseLimits(s.Plan == "mau", s.RateLimits); err != nil {
		return invalid("rate_limits: %v", err)
	}
	return checkLocales("locales", s.Locales)
}

// App is an app of a workspace, named by app_id in events and purchases.
type App struct {
	ID   string `json:"id" yaml:"id"`
	Name string `json:"name" yaml:"name"`
}

func (a *App) ensureDefaults() {
	ensureID(&a.ID)
	a.Name = cmp.Or(a.Name, a.ID)
}

func (a *App) documentID() *string { return &a.ID }

func (a *App) validate() error {
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

func (g *Group) ensureDefaults() {
	ensureID(&g.ID)
	if u, err := uuid.Parse(g.ID); err == nil && len(g.ID) == 36 {
		g.ID = u.String()
	}
}

func (g *Group) documentID() *string { return &g.ID }

// archive is done to a group instead of removing it: the states that users have in it belong to its channel.
func (g *Group) archive() { g.Archived = true }

// keep keeps what the bootstrap file can't set.
func (g *Group) keep(old *Group) { g.Archived = old.Archived }

// replaces reports why g may not replace old.
func (g *Group) replaces(old *Group) error {
	if old.Channel != g.Channel {
		return invalid("channel: subscription group %s has the channel %s, which can't be changed", g.ID, old.Channel)
	}
	return nil
}

func (g *Group) validate() error {
	if _, err := uuid.Parse(g.ID); err != nil || len(g.ID) != 36 {
		return invalid("subscription group id %q: want a UUID", g.ID)
	}
	if err := checkName("name", g.Name); err != nil {
		return err
	}
	if g.Channel != "email" && g.Channel != "sms" && g.Channel != "whatsapp" {
		return invalid("channel %q: want email, sms or whatsapp", g.Channel)
	}
	return nil
}

// KeySpec is what an operator says of a key.
type KeySpec struct {
	Name        string   `json:"name" yaml:"name"`
	Token       string   `json:"-" yaml:"key"` // from the bootstrap file only; empty: a new one is made
	Permissions []string `json:"permissions" yaml:"permissions"`
	IPAllowList []string `json:"ip_allowlist,omitempty" yaml:"ip_allowlist"`
}

func (k *KeySpec) validate() error {
	if err := checkName("name", k.Name); err != nil {
		return err
	}
	if len(k.Permissions) > 200 {
		return invalid("permissions: %d are given, at most 200 are allowed", len(k.Permissions))
	}
	for _, p := range k.Permissions {
		if !nameForm.MatchString(p) || p != "*" && strings.Contains(p, "*") {
			return invalid("permissions: %q: want a name such as users.track, or *", p)
		}
	}
	if len(k.IPAllowList) > maxNetworks {
		return invalid("ip_allowlist: %d are given, at most %d are allowed", len(k.IPAllowList), maxNetworks)
	}
	if _, err := keys.ParseNetworks(k.IPAllowList); err != nil {
		return invalid("ip_allowlist: %v", err)
	}
	if len(k.Token) > keys.MaxTokenBytes || strings.ContainsAny(k.Token, " \t\r\n") ||
		!keys.WellFormed([]byte(k.Token)) {
		return invalid("key of %q: want at most %d characters without spaces (and the right checksum, when it "+
			"begins with %s)", k.Name, keys.MaxTokenBytes, keys.Prefix)
	}
	return nil
}

// KeyDocument is a key in its stored form.
type KeyDocument struct {
	KeySpec
	ID        string `json:"id"`
	Number    uint32 `json:"number"` // the actor of records; never reused
	Digest    string `json:"sha256"` // of the token, hexadecimal
	Hint      string `json:"hint"`   // first and last characters
	CreatedAt int64  `json:"created_at"`
	RevokedAt int64  `json:"revoked_at,omitempty"` // Unix ms; the document stays, so its number does too
}

// Campaign and Canvas hold messages with translations (service.md 2.15).
type Campaign struct {
	ID       string    `json:"id" yaml:"id"`
	Name     string    `json:"name,omitempty" yaml:"name"`
	Messages []Message `json:"messages" yaml:"messages"`
}

// Canvas has its messages in steps.
type Canvas struct {
	ID    string `json:"id" yaml:"id"`
	Name  string `json:"name,omitempty" yaml:"name"`
	Steps []Step `json:"steps" yaml:"steps"`
}

// Step is a step of a canvas.
type Step struct {
	ID       string    `json:"id" yaml:"id"`
	Name     string    `json:"name,omitempty" yaml:"name"`
	Messages []Message `json:"messages" yaml:"messages"`
}

// Message is a message of a campaign or a step.
type Message struct {
	ID            string `json:"id" yaml:"id"`
	Name          string `json:"name,omitempty" yaml:"name"`
	Channel       string `json:"channel" yaml:"channel"`
	MultiLanguage bool   `json:"multi_language" yaml:"multi_language"`
	// Source holds the texts to translate, by translation id. A message may omit it; its ids are then unknown.
	Source       map[string]string `json:"source,omitempty" yaml:"source"`
	Translations []Translation     `json:"translations,omitempty" yaml:"translations"`
}

// Translation is the translation of a message into a locale.
type Translation struct {
	Locale Locale            `json:"locale" yaml:"locale"`
	Map    map[string]string `json:"translation_map" yaml:"translation_map"`
}

func (c *Campaign) ensureDefaults() { ensureID(&c.ID) }

func (c *Campaign) documentID() *string { return &c.ID }

func (c *Campaign) validate() error {
	return cmp.Or(checkID("id", c.ID), checkMessages(c.Messages, set{}))
}

func (c *Canvas) ensureDefaults() { ensureID(&c.ID) }

func (c *Canvas) documentID() *string { return &c.ID }

func (c *Canvas) validate() error {
	if err := checkID("id", c.ID); err != nil {
		return err
	}
	seen := set{}
	for i, s := range c.Steps {
		if err := cmp.Or(checkID("id", s.ID), once(seen, "step", s.ID)); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
		if err := checkMessages(s.Messages, seen); err != nil {
			return fmt.Errorf("steps[%d]: %w", i, err)
		}
	}
	return nil
}

// once refuses an id that occurs twice in one document.
func once(seen set, what, id string) error {
	if seen.add(what, id) != nil {
		return invalid("%s id %q appears twice", what, id)
	}
	return nil
}

func checkMessages(messages []Message, seen set) error {
	for i, m := range messages {
		if err := cmp.Or(checkID("id", m.ID), once(seen, "message", m.ID)); err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
		if m.Channel == "" {
			return fmt.Errorf("messages[%d]: %w", i, invalid("channel is required"))
		}
		locales := make([]Locale, 0, len(m.Translations))
		for _, t := range m.Translations {
			locales = append(locales, t.Locale)
		}
		if err := checkLocales("translations", locales); err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
	}
	return nil
}

func ensureID(id *string) {
	if *id == "" {
		*id = uuid.NewString()
	}
}

func checkID(field, id string) error {
	if id == "" || len(id) > maxIDBytes || !Printable(id) {
		return invalid("%s %q: want 1 to %d bytes without control characters", field, id, maxIDBytes)
	}
	if id == "." || id == ".." {
		return invalid("%s %q: it can't be a part of a path", field, id)
	}
	return nil
}

func checkName(field, name string) error {
	if name == "" || len(name) > maxNameBytes || !Printable(name) {
		return invalid("%s %q: want 1 to %d bytes without control characters", field, name, maxNameBytes)
	}
	return nil
}

// Printable says whether a text has no control characters, and is UTF-8.
func Printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
