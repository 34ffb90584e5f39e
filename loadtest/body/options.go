package body

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// MaxPerArray is the most objects that one array of /users/track may hold (section 8 of the contract, base plan).
const MaxPerArray = 75

// MaxUsers is the most users that fit the nine digits of a user number.
const MaxUsers = 1_000_000_000

// Skew names the distribution that users are drawn from.
type Skew string

const (
	// Uniform draws every user equally often.
	Uniform Skew = "uniform"
	// Zipf draws user k with a frequency of 1/(k+1)^Exponent.
	Zipf Skew = "zipf"
	// Hot draws user 0 always.
	Hot Skew = "hot"
)

// Options say what the bodies look like. The zero value with EnsureDefaults is the typical request: 75 + 75 + 75
// objects in 55 to 60 KB.
type Options struct {
	// Seed fixes everything that is random; equal options and seeds give equal bytes.
	Seed uint64 `json:"seed"`
	// Mix is how many objects each array holds. Default 75 each; when one is set the others stay as they are.
	Mix Mix `json:"mix"`
	// Prefix begins each user identifier: lower-case letters and digits, up to 24. Default "user".
	Prefix string `json:"prefix"`
	// Users is how many users there are, 1 to MaxUsers. Default 100,000.
	Users int `json:"users"`
	// Skew is how users are drawn. Default Uniform.
	Skew Skew `json:"skew"`
	// Exponent of Zipf, above 0. Default 0.99.
	Exponent float64 `json:"exponent"`

	// EmailShare and AliasShare are the shares of objects addressed by email and by user_alias instead of external_id.
	// Default 0. Those users are others than the ones with an external_id, and there are Users × share of them.
	EmailShare float64 `json:"email_share"`
	AliasShare float64 `json:"alias_share"`
	// JoinEmails makes objects addressed by email reach users that have an external_id and that address, once an
	// attribute object gave it to them. Otherwise both kinds of users have different addresses.
	JoinEmails bool `json:"join_emails"`
	// Plain leaves addresses, states and operators out of attribute objects: what is left replaces values, or removes
	// them.
	Plain bool `json:"plain"`
	// UpdateShare is the share of objects by external_id that update existing users alone.
	UpdateShare float64 `json:"update_share"`
	// ErrorShare is the share of objects that a server must refuse. Default 0.
	ErrorShare float64 `json:"error_share"`

	// Properties is how many properties an event or purchase has, and how many custom attributes an attribute object.
	// Default 4, none: -1.
	Properties int `json:"properties"`
	// UnicodeShare and EscapeShare are the shares of text values with characters outside ASCII and with JSON escapes.
	// Default 0.
	UnicodeShare float64 `json:"unicode_share"`
	EscapeShare  float64 `json:"escape_share"`
	// EventNames and Products are how many different names and product ids occur. Default 24 and 200.
	EventNames int `json:"event_names"`
	Products   int `json:"products"`
	// Currencies of purchases. Default USD three times, EUR, GBP and JPY.
	Currencies []string `json:"currencies"`
	// MaxQuantity of purchases, 1 to 100. Default 3.
	MaxQuantity int `json:"max_quantity"`
	// AppID of events and purchases. Default the app of the bootstrap example; "-" leaves it out.
	AppID string `json:"app_id"`
	// Marker, when set, names an integer attribute (and property) that every object of a body carries, with a value
	// that Template.SetSequence exchanges.
	Marker string `json:"marker"`
	// Now is the time of the newest event; the others lie within the hour before. Default 2026-11-01T00:00:00Z, a
	// constant, so that bodies depend on nothing but the options.
	Now time.Time `json:"now"`
}

// EnsureDefaults fills in what is unset.
func (o *Options) EnsureDefaults() {
	if o.Mix == (Mix{}) {
		o.Mix = Mix{MaxPerArray, MaxPerArray, MaxPerArray}
	}
	o.Prefix = cmp.Or(o.Prefix, "user")
	o.Users = cmp.Or(o.Users, 100_000)
	o.Skew = cmp.Or(o.Skew, Uniform)
	o.Exponent = cmp.Or(o.Exponent, 0.99)
	o.Properties = cmp.Or(o.Properties, 4)
	o.EventNames = cmp.Or(o.EventNames, len(eventNames))
	o.Products = cmp.Or(o.Products, 200)
	o.MaxQuantity = cmp.Or(o.MaxQuantity, 3)
	o.AppID = cmp.Or(o.AppID, "11ae5b4b-2445-4440-a04f-bf537764c9ad")
	if len(o.Currencies) == 0 {
		o.Currencies = []string{"USD", "USD", "USD", "EUR", "GBP", "JPY"}
	}
	if o.Now.IsZero() {
		o.Now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	}
}

// Validate tells the first thing that no body could be made of.
func (o *Options) Validate() error {
	for a, n := range o.Mix {
		if n < 0 || n > MaxPerArray {
			return fmt.Errorf("%d %s: an array holds 0 to %d objects", n, Array(a), MaxPerArray)
		}
	}
	for name, share := range map[string]float64{"update share": o.UpdateShare, "email share": o.EmailShare,
		"alias share": o.AliasShare, "email and alias share": o.EmailShare + o.AliasShare,
		"error share": o.ErrorShare, "unicode share": o.UnicodeShare, "escape share": o.EscapeShare,
		"unicode and escape share": o.UnicodeShare + o.EscapeShare} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("%s %v is not within 0 and 1", name, share)
		}
	}
	switch {
	case o.Mix.Total() == 0:
		return fmt.Errorf("no objects in a body")
	case o.Users < 1 || o.Users > MaxUsers:
		return fmt.Errorf("%d users: want 1 to %d", o.Users, MaxUsers)
	case o.Skew != Uniform && o.Skew != Zipf && o.Skew != Hot:
		return fmt.Errorf("skew %q: want %s, %s or %s", o.Skew, Uniform, Zipf, Hot)
	case !(o.Exponent > 0 && o.Exponent <= 10):
		return fmt.Errorf("zipf exponent %v is not above 0 and up to 10", o.Exponent)
	case len(o.Prefix) == 0 || len(o.Prefix) > 24 ||
		strings.Trim(o.Prefix, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
		return fmt.Errorf("prefix %q: want 1 to 24 lower-case letters and digits", o.Prefix)
	case o.Properties < -1 || o.Properties > 200:
		return fmt.Errorf("%d properties: want -1 to 200", o.Properties)
	case o.EventNames < 1 || o.EventNames > 1_000_000 || o.Products < 1 || o.Products > 1_000_000:
		return fmt.Errorf("%d event names, %d products: want 1 to 1000000", o.EventNames, o.Products)
	case o.MaxQuantity < 1 || o.MaxQuantity > 100:
		return fmt.Errorf("quantity %d: want 1 to 100", o.MaxQuantity)
	}
	return o.validateText()
}

// validateText checks what goes into a body as it is, between quotes.
func (o *Options) validateText() error {
	for _, s := range append([]string{o.AppID, o.Marker}, o.Currencies...) {
		if strings.ContainsAny(s, "\"\\") || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
			return fmt.Errorf("%q: want printable ASCII without quotes", s)
		}
	}
	return nil
}

// Population is how many users of a kind there are.
func (o *Options) Population(kind IDKind) int {
	switch {
	case kind == Email && !o.JoinEmails:
		return max(1, int(float64(o.Users)*o.EmailShare))
	case kind == Alias:
		return max(1, int(float64(o.Users)*o.AliasShare))
	}
	return o.Users
}

// Mix is the number of objects in each array, indexed by Array.
type Mix [numArrays]int

// Total is the number of objects in a body.
func (m Mix) Total() int { return m[Attributes] + m[Events] + m[Purchases] }

// ParseMix reads the names of the arrays that take part, "events" or "attributes,events", each with a weight if wanted
// ("events=3,purchases=1"), and spreads objects over them. With 0 objects an unweighted mix fills its arrays (75 each)
// and a weighted one gives its heaviest array 75.
func ParseMix(text string, objects int) (Mix, error) {
	var weight, m Mix
	total, heaviest := 0, 0
	for part := range strings.SplitSeq(text, ",") {
		name, number, weighted := strings.Cut(strings.TrimSpace(part), "=")
		n := 1
		if weighted {
			if _, err := fmt.Sscanf(number, "%d", &n); err != nil || n < 1 || n > 1000 {
				return m, fmt.Errorf("mix %q: weight %q is not within 1 and 1000", text, number)
			}
		}
		a, ok := parseArray(name)
		if !ok || weight[a] != 0 {
			return m, fmt.Errorf("mix %q: want attributes, events, purchases, each once at most", text)
		}
		weight[a] = n
		total += n
		heaviest = max(heaviest, n)
	}
	if objects == 0 {
		for a := range m {
			m[a] = weight[a] * MaxPerArray / heaviest
		}
		return m, nil
	}
	return spread(weight, total, objects)
}

// spread gives each array its part of the objects, the remainder to the first arrays.
func spread(weight Mix, total, objects int) (Mix, error) {
	var m Mix
	if objects < 1 || objects > numArrays*MaxPerArray {
		return m, fmt.Errorf("%d objects: want 1 to %d", objects, numArrays*MaxPerArray)
	}
	left := objects
	for a := range m {
		m[a] = objects * weight[a] / total
		left -= m[a]
	}
	for a := 0; left > 0; a = (a + 1) % numArrays {
		if weight[a] > 0 {
			m[a]++
			left--
		}
	}
	for a, n := range m {
		if n > MaxPerArray {
			return m, fmt.Errorf("%d objects give %d %s; an array holds %d", objects, n, Array(a), MaxPerArray)
		}
	}
	return m, nil
}
