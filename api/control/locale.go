package control

import (
	"golang.org/x/text/language"
)

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
			return invalid("%s[%d]: locale name %q: want a code of BCP 47 such as es-MX", field, i, l.Name)
		}
		if len(l.Country) > maxNameBytes || len(l.Language) > maxNameBytes || !Printable(l.Country) ||
			!Printable(l.Language) {
			return invalid("%s[%d]: country and language: want at most %d bytes without control characters", field, i,
				maxNameBytes)
		}
		if _, twice := seen[key]; twice {
			return invalid("%s[%d]: the locale %s appears twice", field, i, key)
		}
		seen[key] = struct{}{}
	}
	return nil
}
