package document

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"
)

// PreferenceCenter is a hosted subscription-preference page (service.md 2.14), as it is stored and as the bootstrap
// file has it. The pages are the customer's own HTML; package preference renders them.
type PreferenceCenter struct {
	// in paths: letters, digits, and . _ - except as the first character
	ID string `json:"id" yaml:"id"`
	// unique in its workspace, never changed; default: the id
	Name string `json:"name" yaml:"name"`
	// of both pages; default "Preference Center"
	Title            string `json:"preference_center_title" yaml:"preference_center_title"`
	PageHTML         string `json:"preference_center_page_html" yaml:"preference_center_page_html"`
	ConfirmationHTML string `json:"confirmation_page_html" yaml:"confirmation_page_html"`
	// shown instead of the page when a link has expired; nil: the server's own text
	RedirectHTML *string           `json:"redirect_page_html,omitempty" yaml:"redirect_page_html"`
	State        string            `json:"state" yaml:"state"` // active (default) | draft
	Options      PreferenceOptions `json:"options" yaml:"options"`

	CreatedAt Millis `json:"created_at" yaml:"-"`
	UpdatedAt Millis `json:"updated_at" yaml:"-"`
}

// PreferenceOptions are tags for the head of the pages (reference.md 6).
type PreferenceOptions struct {
	// content of <meta name="viewport">; empty: no such tag
	Viewport string    `json:"meta-viewport-content,omitempty" yaml:"meta-viewport-content"`
	Links    []LinkTag `json:"links-tags,omitempty" yaml:"links-tags"` // icons
}

// LinkTag is a <link> to an icon.
type LinkTag struct {
	Rel   string `json:"rel" yaml:"rel"` // icon | shortcut icon | apple-touch-icon
	Type  string `json:"type,omitempty" yaml:"type"`
	Sizes string `json:"sizes,omitempty" yaml:"sizes"`
	Color string `json:"color,omitempty" yaml:"color"`
	Href  string `json:"href" yaml:"href"` // https
}

// Bounds of preference centers. All of them are held in memory on every node.
const (
	// MaxPreferenceCenters is how many a workspace can have.
	MaxPreferenceCenters = 100
	// MaxPageBytes bounds the HTML of one page.
	MaxPageBytes = 256 << 10
	// maxViewportBytes bounds meta-viewport-content.
	maxViewportBytes = 255

	maxTitle     = 255 // characters
	maxLinks     = 10
	maxHrefBytes = 2048
	defaultTitle = "Preference Center"
)

var (
	centerIDForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	centerNameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
	linkTypeForm   = regexp.MustCompile(`^[a-z0-9.+-]{1,32}(/[a-z0-9.+-]{1,64})?$`)
	linkSizesForm  = regexp.MustCompile(`^(any|[0-9]{1,5}[xX][0-9]{1,5})( (any|[0-9]{1,5}[xX][0-9]{1,5})){0,9}$`)
	linkColorForm  = regexp.MustCompile(`^(#[0-9A-Fa-f]{3,8}|[A-Za-z]{1,32})$`)
)

// DocumentID implements Of.
func (p *PreferenceCenter) DocumentID() *string { return &p.ID }

// EnsureDefaults implements Of.
func (p *PreferenceCenter) EnsureDefaults() {
	ensureID(&p.ID)
	p.Name = cmp.Or(p.Name, p.ID)
	p.Title = cmp.Or(p.Title, defaultTitle)
	p.State = cmp.Or(p.State, "active")
}

// Validate names the first wrong field, in the words of the API.
func (p *PreferenceCenter) Validate() error {
	switch {
	case !centerIDForm.MatchString(p.ID) || p.ID == "list":
		return Invalid("'id' must be 1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit " +
			"first, and not \"list\"")
	case !centerNameForm.MatchString(p.Name):
		return Invalid("'name' must be 1 to 100 letters, digits, hyphens and underscores")
	case utf8.RuneCountInString(p.Title) > maxTitle || !Printable(p.Title):
		return Invalid("'preference_center_title' must be a string of at most %d characters", maxTitle)
	case p.State != "active" && p.State != "draft":
		return Invalid("'state' must be 'active' or 'draft'")
	}
	if err := checkPage("preference_center_page_html", p.PageHTML); err != nil {
		return err
	}
	if err := checkPage("confirmation_page_html", p.ConfirmationHTML); err != nil {
		return err
	}
	if p.RedirectHTML != nil {
		if err := checkPage("redirect_page_html", *p.RedirectHTML); err != nil {
			return err
		}
	}
	return p.Options.validate()
}

func checkPage(field, html string) error {
	switch {
	case html == "":
		return Invalid("'%s' is required", field)
	case len(html) > MaxPageBytes:
		return Invalid("'%s' must be at most %d bytes", field, MaxPageBytes)
	case !utf8.ValidString(html) || strings.ContainsRune(html, 0):
		return Invalid("'%s' must be text without NUL", field)
	}
	return nil
}

func (o *PreferenceOptions) validate() error {
	if err := CheckViewport(o.Viewport); err != nil {
		return err
	}
	if len(o.Links) > maxLinks {
		return Invalid("'links-tags' must hold at most %d objects", maxLinks)
	}
	for i, l := range o.Links {
		if err := l.validate(); err != nil {
			return fmt.Errorf("%w ('links-tags' %d)", err, i)
		}
	}
	return nil
}

// CheckViewport judges the content of a viewport meta tag.
func CheckViewport(content string) error {
	if len(content) > maxViewportBytes || !Printable(content) {
		return Invalid("'meta-viewport-content' must be a string of at most %d bytes", maxViewportBytes)
	}
	return nil
}

func (l *LinkTag) validate() error {
	u, err := url.Parse(l.Href)
	switch {
	case l.Rel != "icon" && l.Rel != "shortcut icon" && l.Rel != "apple-touch-icon":
		return Invalid("'rel' must be 'icon', 'shortcut icon' or 'apple-touch-icon'")
	case l.Type != "" && !linkTypeForm.MatchString(l.Type):
		return Invalid("'type' is not valid")
	case l.Sizes != "" && !linkSizesForm.MatchString(l.Sizes):
		return Invalid("'sizes' is not valid")
	case l.Color != "" && !linkColorForm.MatchString(l.Color):
		return Invalid("'color' is not valid")
	case err != nil || u.Scheme != "https" || u.Host == "" || len(l.Href) > maxHrefBytes || !Printable(l.Href):
		return Invalid("'href' must be an https URL")
	}
	return nil
}

// Replaces refuses another name, because links and messages contain it.
func (p *PreferenceCenter) Replaces(old *PreferenceCenter) error {
	if p.Name != old.Name {
		return Invalid("'name' can't be changed: it is %s", old.Name)
	}
	return nil
}

// Stamp sets the times, which are the server's, whatever a change says. What changes nothing else is no update.
func (p *PreferenceCenter) Stamp(old *PreferenceCenter, now int64) {
	if old == nil {
		p.CreatedAt, p.UpdatedAt = Millis(now), Millis(now)
		return
	}
	p.CreatedAt, p.UpdatedAt = old.CreatedAt, old.UpdatedAt
	if !reflect.DeepEqual(p, old) {
		p.UpdatedAt = max(Millis(now), old.UpdatedAt)
	}
}
