package document

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocaleKey(t *testing.T) {
	for code, want := range map[string]string{"es-MX": "es-MX", "es_mx": "es-MX", "ES-mx": "es-MX", "de": "de", "zh-Hant-TW": "zh-Hant-TW", "zh_hans": "zh-Hans", "es-419": "es-419", "sr-latn": "sr-Latn"} {
		key, ok := LocaleKey(code)
		require.True(t, ok, code)
		require.Equal(t, want, key, code)
	}
	for _, code := range []string{"", "und", "x", "english", "es-MEX-x", "es MX", "xx-YY", "q1", "es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX", "\xff"} {
		_, ok := LocaleKey(code)
		require.False(t, ok, code)
	}
}

func TestDescribedLocale(t *testing.T) {
	for l, want := range map[Locale]Locale{
		{Name: "es-MX"}:                {"es-MX", "MX", "es"},
		{Name: "es_mx"}:                {"es_mx", "MX", "es"},
		{Name: "de"}:                   {"de", "", "de"}, // a language is spoken in more than one country
		{"es-MX", "Mexico", "Spanish"}: {"es-MX", "Mexico", "Spanish"},
		{Name: "zh-Hant-TW", Country: "中華民國"}: {"zh-Hant-TW", "中華民國", "zh"},
		{Name: "no locale"}:                   {Name: "no locale"},
	} {
		require.Equal(t, want, l.Described())
	}
}
