package field

import (
	"sync"
	"unicode"

	"golang.org/x/text/language"
	"golang.org/x/text/language/display"
	"golang.org/x/text/unicode/norm"
)

// Country returns the ISO 3166-1 alpha-2 code, in upper case, of a country that is given by its alpha-2 code, its
// alpha-3 code or its English name, in any case (reference.md 2: names on a best-effort basis). Kosovo's XK, which is
// in use everywhere but not in the standard, is taken; UK is read as GB. A code costs no allocation; a name may.
func Country(b []byte) (alpha2 [2]byte, ok bool) {
	t := countries()
	switch len(b) {
	case 2:
		if x, y := upper(b[0])-'A', upper(b[1])-'A'; x < 26 && y < 26 {
			alpha2 = t.short[x][y]
			ok = alpha2[0] != 0
		}
	case 3:
		alpha2, ok = t.codes[[3]byte{upper(b[0]), upper(b[1]), upper(b[2])}]
	}
	if ok || len(b) > maxCountryNameBytes {
		return alpha2, ok
	}
	var buf [maxCountryNameBytes]byte
	alpha2, ok = t.names[string(appendNameKey(buf[:0], b))]
	return alpha2, ok
}

const maxCountryNameBytes = 80

type countryTable struct {
	short [26][26][2]byte     // alpha-2; zeros: none
	codes map[[3]byte][2]byte // alpha-3
	names map[string][2]byte  // by appendNameKey
}

var countries = sync.OnceValue(func() *countryTable {
	t := &countryTable{codes: map[[3]byte][2]byte{}, names: map[string][2]byte{}}
	english := display.English.Regions()
	for i := 0; i < len(alpha2Codes); i += 3 {
		code := alpha2Codes[i : i+2]
		alpha2 := [2]byte{code[0], code[1]}
		t.short[code[0]-'A'][code[1]-'A'] = alpha2
		region := language.MustParseRegion(code)
		if alpha3 := region.ISO3(); len(alpha3) == 3 {
			t.codes[[3]byte([]byte(alpha3))] = alpha2
		}
		t.names[string(appendNameKey(nil, []byte(english.Name(region))))] = alpha2
	}
	t.short['U'-'A']['K'-'A'] = [2]byte{'G', 'B'}
	for code, names := range otherCountryNames {
		for _, name := range names {
			t.names[string(appendNameKey(nil, []byte(name)))] = [2]byte{code[0], code[1]}
		}
	}
	delete(t.names, "") // from a name without a Latin letter, if there ever is one
	return t
})

// appendNameKey reduces a name to its letters: lower case, without accents, blanks and marks, with & as "and", and
// without a leading "the".
func appendNameKey(dst, name []byte) []byte {
	start := len(dst)
	for i, c := range name {
		switch {
		case c >= 0x80:
			dst = appendLettersOf(dst, name[i:])
			return withoutThe(dst, start)
		case c == '&':
			dst = append(dst, "and"...)
		case lower(c)-'a' < 26:
			dst = append(dst, lower(c))
		}
	}
	return withoutThe(dst, start)
}

func appendLettersOf(dst, name []byte) []byte {
	for _, r := range norm.NFD.String(string(name)) {
		switch {
		case r == '&':
			dst = append(dst, "and"...)
		case unicode.IsLetter(r):
			dst = append(dst, string(unicode.ToLower(r))...)
		}
	}
	return dst
}

func withoutThe(dst []byte, start int) []byte {
	if key := dst[start:]; len(key) > 3 && string(key[:3]) == "the" {
		return append(dst[:start], key[3:]...)
	}
	return dst
}

// alpha2Codes are the 249 officially assigned codes and XK.
const alpha2Codes = "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ " +
	"BR BS BT BV BW BY BZ " +
	"CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET " +
	"FI FJ FK FM FO FR " +
	"GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT " +
	"JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY " +
	"MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM " +
	"PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR " +
	"SS ST SV SX SY SZ " +
	"TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW "

// otherCountryNames are names in use besides the one that x/text displays.
var otherCountryNames = map[string][]string{
	"AE": {"UAE", "Emirates"},
	"BA": {"Bosnia"},
	"BN": {"Brunei Darussalam"},
	"BO": {"Plurinational State of Bolivia"},
	"BQ": {"Bonaire, Sint Eustatius and Saba"},
	"BY": {"Belorussia"},
	"CD": {"Democratic Republic of the Congo", "DR Congo", "DRC", "Congo (DRC)", "Congo, Democratic Republic of the",
		"Zaire"},
	"CG": {"Congo", "Republic of the Congo", "Congo (Republic)"},
	"CI": {"Ivory Coast", "Cote d'Ivoire"},
	"CN": {"People's Republic of China", "Mainland China"},
	"CV": {"Cabo Verde"},
	"CZ": {"Czech Republic", "Czechia"},
	"DE": {"Federal Republic of Germany", "Deutschland"},
	"ES": {"España"},
	"FK": {"Falkland Islands (Malvinas)"},
	"FM": {"Federated States of Micronesia"},
	"GB": {"Great Britain", "England", "Scotland", "Wales", "Northern Ireland",
		"United Kingdom of Great Britain and Northern Ireland", "U.K."},
	"GM": {"Gambia"},
	"HK": {"Hong Kong", "Hong Kong SAR"},
	"IR": {"Islamic Republic of Iran"},
	"KN": {"Saint Kitts and Nevis"},
	"KP": {"Democratic People's Republic of Korea", "DPRK"},
	"KR": {"Korea", "Republic of Korea", "Korea, Republic of"},
	"LA": {"Lao People's Democratic Republic", "Lao PDR"},
	"LC": {"Saint Lucia"},
	"MD": {"Republic of Moldova"},
	"MF": {"Saint Martin"},
	"MK": {"Macedonia"},
	"MM": {"Myanmar", "Burma"},
	"MO": {"Macau", "Macao", "Macao SAR"},
	"NL": {"Holland", "The Netherlands"},
	"PM": {"Saint Pierre and Miquelon"},
	"PS": {"Palestine", "State of Palestine"},
	"RU": {"Russian Federation"},
	"SH": {"Saint Helena"},
	"ST": {"Sao Tome and Principe"},
	"SY": {"Syrian Arab Republic"},
	"SZ": {"Swaziland"},
	"TL": {"East Timor"},
	"TR": {"Turkey", "Türkiye", "Turkiye"},
	"TW": {"Republic of China", "Taiwan, Province of China"},
	"TZ": {"United Republic of Tanzania"},
	"US": {"United States of America", "U.S.", "U.S.A.", "America"},
	"VA": {"Vatican", "Holy See"},
	"VC": {"Saint Vincent and the Grenadines"},
	"VE": {"Bolivarian Republic of Venezuela"},
	"VI": {"US Virgin Islands", "Virgin Islands, U.S."},
	"VG": {"Virgin Islands, British"},
	"VN": {"Viet Nam"},
}
