package field

import (
	_ "embed"
	"strings"
	"sync"
	_ "time/tzdata" // so that every zone this package names can be loaded on a machine without a zone database
)

// TimeZone returns the IANA name of a zone that is given by that name or by its name in Rails, such as "Eastern Time
// (US & Canada)" (reference.md 2). Names are compared exactly. time.LoadLocation knows each name that is returned.
//
// The names are in a list, rather than left to time.LoadLocation, which looks into the file system of the machine: that
// is expensive for a wrong name, and gives another answer on another machine.
func TimeZone(b []byte) (iana string, ok bool) {
	iana, ok = timeZones()[string(b)]
	return iana, ok
}

// zoneNames holds the names in Go's zone database, one per line, without Factory, which is not a place.
//
//go:embed zones.txt
var zoneNames string

var timeZones = sync.OnceValue(func() map[string]string {
	zones := make(map[string]string, 800)
	for line := range strings.Lines(railsZones) {
		iana, names, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for name := range strings.SplitSeq(names, ", ") {
			zones[name] = iana
		}
	}
	for line := range strings.Lines(zoneNames) {
		name := strings.TrimSpace(line)
		zones[name] = name
	}
	return zones
})

// railsZones are the zones in the menus of Rails, from west to east: IANA name, then the name in Rails.
const railsZones = `Etc/GMT+12: International Date Line West
Pacific/Midway: Midway Island
Pacific/Pago_Pago: American Samoa
Pacific/Honolulu: Hawaii
America/Juneau: Alaska
America/Los_Angeles: Pacific Time (US & Canada)
America/Tijuana: Tijuana
America/Denver: Mountain Time (US & Canada)
America/Phoenix: Arizona
America/Chihuahua: Chihuahua
America/Mazatlan: Mazatlan
America/Chicago: Central Time (US & Canada)
America/Regina: Saskatchewan
America/Mexico_City: Mexico City, Guadalajara
America/Monterrey: Monterrey
America/Guatemala: Central America
America/New_York: Eastern Time (US & Canada)
America/Indiana/Indianapolis: Indiana (East)
America/Bogota: Bogota
America/Lima: Lima, Quito
America/Halifax: Atlantic Time (Canada)
America/Caracas: Caracas
America/La_Paz: La Paz
America/Santiago: Santiago
America/Puerto_Rico: Puerto Rico
America/Guyana: Georgetown
America/St_Johns: Newfoundland
America/Asuncion: Asuncion
America/Sao_Paulo: Brasilia
America/Argentina/Buenos_Aires: Buenos Aires
America/Montevideo: Montevideo
America/Nuuk: Greenland
Atlantic/South_Georgia: Mid-Atlantic
Atlantic/Azores: Azores
Atlantic/Cape_Verde: Cape Verde Is.
Europe/London: London, Edinburgh
Europe/Dublin: Dublin
Europe/Lisbon: Lisbon
Africa/Casablanca: Casablanca
Africa/Monrovia: Monrovia
Africa/Algiers: West Central Africa
Europe/Amsterdam: Amsterdam
Europe/Belgrade: Belgrade
Europe/Berlin: Berlin
Europe/Bratislava: Bratislava
Europe/Brussels: Brussels
Europe/Budapest: Budapest
Europe/Copenhagen: Copenhagen
Europe/Ljubljana: Ljubljana
Europe/Madrid: Madrid
Europe/Paris: Paris
Europe/Prague: Prague
Europe/Rome: Rome
Europe/Sarajevo: Sarajevo
Europe/Skopje: Skopje
Europe/Stockholm: Stockholm
Europe/Vienna: Vienna
Europe/Warsaw: Warsaw
Europe/Zagreb: Zagreb
Europe/Zurich: Zurich, Bern
Africa/Cairo: Cairo
Africa/Harare: Harare
Africa/Johannesburg: Pretoria
Asia/Jerusalem: Jerusalem
Europe/Athens: Athens
Europe/Bucharest: Bucharest
Europe/Helsinki: Helsinki
Europe/Kaliningrad: Kaliningrad
Europe/Kiev: Kyiv
Europe/Riga: Riga
Europe/Sofia: Sofia
Europe/Tallinn: Tallinn
Europe/Vilnius: Vilnius
Africa/Nairobi: Nairobi
Asia/Baghdad: Baghdad
Asia/Kuwait: Kuwait
Asia/Riyadh: Riyadh
Europe/Istanbul: Istanbul
Europe/Minsk: Minsk
Europe/Moscow: Moscow, St. Petersburg
Europe/Volgograd: Volgograd
Asia/Tehran: Tehran
Asia/Baku: Baku
Asia/Muscat: Muscat, Abu Dhabi
Asia/Tbilisi: Tbilisi
Asia/Yerevan: Yerevan
Europe/Samara: Samara
Asia/Kabul: Kabul
Asia/Almaty: Almaty, Astana
Asia/Karachi: Karachi, Islamabad
Asia/Tashkent: Tashkent
Asia/Yekaterinburg: Ekaterinburg
Asia/Kolkata: Kolkata, Chennai, Mumbai, New Delhi
Asia/Colombo: Sri Jayawardenepura
Asia/Kathmandu: Kathmandu
Asia/Dhaka: Dhaka
Asia/Urumqi: Urumqi
Asia/Rangoon: Rangoon
Asia/Bangkok: Bangkok, Hanoi
Asia/Jakarta: Jakarta
Asia/Krasnoyarsk: Krasnoyarsk
Asia/Novosibirsk: Novosibirsk
Asia/Chongqing: Chongqing
Asia/Hong_Kong: Hong Kong
Asia/Irkutsk: Irkutsk
Asia/Kuala_Lumpur: Kuala Lumpur
Asia/Shanghai: Beijing
Asia/Singapore: Singapore
Asia/Taipei: Taipei
Asia/Ulaanbaatar: Ulaanbaatar
Australia/Perth: Perth
Asia/Seoul: Seoul
Asia/Tokyo: Tokyo, Osaka, Sapporo
Asia/Yakutsk: Yakutsk
Australia/Adelaide: Adelaide
Australia/Darwin: Darwin
Asia/Vladivostok: Vladivostok
Australia/Brisbane: Brisbane
Australia/Canberra: Canberra
Australia/Hobart: Hobart
Australia/Melbourne: Melbourne
Australia/Sydney: Sydney
Pacific/Guam: Guam
Pacific/Port_Moresby: Port Moresby
Asia/Magadan: Magadan
Asia/Srednekolymsk: Srednekolymsk
Pacific/Guadalcanal: Solomon Is.
Pacific/Noumea: New Caledonia
Asia/Kamchatka: Kamchatka
Pacific/Auckland: Auckland, Wellington
Pacific/Fiji: Fiji
Pacific/Majuro: Marshall Is.
Pacific/Chatham: Chatham Is.
Pacific/Apia: Samoa
Pacific/Fakaofo: Tokelau Is.
Pacific/Tongatapu: Nuku'alofa
`
