package document

import (
	"cmp"
	"fmt"

	"golang.org/x/text/language"
)

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

// EnsureDefaults implements Of.
func (c *Campaign) EnsureDefaults() { ensureID(&c.ID) }

// DocumentID implements Of.
func (c *Campaign) DocumentID() *string { return &c.ID }

// Validate implements Of.
func (c *Campaign) Validate() error {
	return cmp.Or(checkID("id", c.ID), checkOptionalName("name", c.Name), checkMessages(c.Messages, set{}))
}

// EnsureDefaults implements Of.
func (c *Canvas) EnsureDefaults() { ensureID(&c.ID) }

// DocumentID implements Of.
func (c *Canvas) DocumentID() *string { return &c.ID }

// Validate implements Of.
func (c *Canvas) Validate() error {
	if err := cmp.Or(checkID("id", c.ID), checkOptionalName("name", c.Name)); err != nil {
		return err
	}
	seen := set{}
	for i, s := range c.Steps {
		err := cmp.Or(checkID("id", s.ID), once(seen, "step", s.ID), checkOptionalName("name", s.Name))
		if err != nil {
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
		return Invalid("%s id %q appears twice", what, id)
	}
	return nil
}

func checkMessages(messages []Message, seen set) error {
	for i, m := range messages {
		err := cmp.Or(checkID("id", m.ID), once(seen, "message", m.ID), checkOptionalName("name", m.Name),
			checkOptionalName("channel", m.Channel))
		if err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
		if m.Channel == "" {
			return fmt.Errorf("messages[%d]: %w", i, Invalid("channel is required"))
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

// Locale is the locale of a translation. Name is its code, such as es-MX; Country and Language are the operator's
// names, by default the parts of the code.
type Locale struct {
	Name     string `json:"name" yaml:"name"`
	Country  string `json:"country" yaml:"country"`
	Language string `json:"language" yaml:"language"`
}

// LocaleKey returns the spelling that stands for all spellings of a locale code (es_mx, es-MX: es-MX). ok is false for
// what is not a code of BCP 47.
func LocaleKey(code string) (key string, ok bool) {
	if code == "" || len(code) > maxLocaleBytes {
		return "", false
	}
	tag, err := language.Parse(code)
	if err != nil || tag == language.Und {
		return "", false
	}
	return tag.String(), true
}

const maxLocaleBytes = 64

// Described returns the locale with the country and language that its code names, where it doesn't have its own.
func (l Locale) Described() Locale {
	tag, err := language.Parse(l.Name)
	if err != nil {
		return l
	}
	if base, sure := tag.Base(); l.Language == "" && sure != language.No {
		l.Language = base.String()
	}
	if region, sure := tag.Region(); l.Country == "" && sure == language.Exact {
		l.Country = region.String()
	}
	return l
}

// checkLocales refuses an invalid locale, and one that occurs twice.
func checkLocales(field string, list []Locale) error {
	seen := map[string]struct{}{}
	for i, l := range list {
		key, ok := LocaleKey(l.Name)
		if !ok {
			return Invalid("%s[%d]: locale name %q: want a code of BCP 47 such as es-MX", field, i, l.Name)
		}
		if len(l.Country) > maxNameBytes || len(l.Language) > maxNameBytes || !Printable(l.Country) ||
			!Printable(l.Language) {
			return Invalid("%s[%d]: country and language: want at most %d bytes without control characters", field, i,
				maxNameBytes)
		}
		if _, twice := seen[key]; twice {
			return Invalid("%s[%d]: the locale %s appears twice", field, i, key)
		}
		seen[key] = struct{}{}
	}
	return nil
}
