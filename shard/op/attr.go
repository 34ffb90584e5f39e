package op

// ReservedCodes is how many codes of attribute fields are for reserved attributes; custom ones begin there.
const ReservedCodes = 64

// AttrOperators is no attribute. It comes after all others: an Array of pairs of Ints. The first is an index into the
// composite values of custom attributes in the body (Array, Object, Increment, Update, ArrayEdit), from 0 on; the
// second is the reference under which apply reports that this operator could not be applied.
const AttrOperators = 0

// Codes of reserved attributes (reference.md 2). They are part of the file format: a code is never given anew.
const (
	AttrFirstName             = 1  // String
	AttrLastName              = 2  // String
	AttrHomeCity              = 3  // String
	AttrImageURL              = 4  // String
	AttrCountry               = 5  // String, ISO 3166-1 alpha-2
	AttrLanguage              = 6  // String, ISO 639-1
	AttrGender                = 7  // String, M F O N P
	AttrDateOfBirth           = 8  // String, YYYY-MM-DD
	AttrDateOfFirstSession    = 9  // Time
	AttrDateOfLastSession     = 10 // Time
	AttrCurrentLocation       = 11 // Object {longitude, latitude}: Floats
	AttrEmail                 = 12 // String, as sent
	AttrEmailSubscribe        = 13 // String: opted_in, subscribed, unsubscribed
	AttrEmailOpenTrackingOff  = 14 // bool  email_open_tracking_disabled
	AttrEmailClickTrackingOff = 15 // bool  email_click_tracking_disabled
	AttrMarkedEmailAsSpamAt   = 16 // Time
	AttrPushSubscribe         = 17 // String: opted_in, subscribed, unsubscribed
	AttrPushTokens            = 18 // Array of Objects {app_id, token, device_id}
	AttrPhone                 = 19 // String, E.164
	// Array: (String: 16 raw bytes of the group's id, 1 of its channel; True = subscribed or False)…
	AttrSubscriptionGroups = 20
	AttrTimeZone           = 21 // String, IANA
	AttrFacebook           = 22 // Object
	AttrTwitter            = 23 // Object
	// The two below have no public name: the engine's own ops set them, and they are kept as states, not as attributes.
	AttrHardBounce = 24 // bool: the user's email is marked as a hard bounce, or no longer
	AttrSpam       = 25 // bool: marked_email_as_spam_at of the user's email is set to now, or cleared
	// Array of Objects. It has no public name either, since the import of profiles sets it: for /users/track, `devices`
	// is a custom attribute like any other.
	AttrDevices = 26
)

// Channels of a subscription group, the 17th byte of its id in an AttrSubscriptionGroups; 0 where it is unknown
// (decisions.md D7).
const (
	ChannelEmail    = 1
	ChannelSMS      = 2
	ChannelWhatsApp = 3
)

// AttrName is the public name of a reserved attribute, "" for a code without one.
func AttrName(code uint32) string {
	if int(code) < len(attrNames) {
		return attrNames[code]
	}
	return ""
}

// AttrCode is the code of a reserved attribute's name, 0 for a custom attribute.
func AttrCode(name []byte) uint32 { return attrCodes[string(name)] }

var attrNames = [...]string{
	AttrFirstName: "first_name", AttrLastName: "last_name", AttrHomeCity: "home_city", AttrImageURL: "image_url",
	AttrCountry:  "country",
	AttrLanguage: "language", AttrGender: "gender", AttrDateOfBirth: "dob",
	AttrDateOfFirstSession: "date_of_first_session",
	AttrDateOfLastSession:  "date_of_last_session", AttrCurrentLocation: "current_location", AttrEmail: "email",
	AttrEmailSubscribe: "email_subscribe", AttrEmailOpenTrackingOff: "email_open_tracking_disabled",
	AttrEmailClickTrackingOff: "email_click_tracking_disabled", AttrMarkedEmailAsSpamAt: "marked_email_as_spam_at",
	AttrPushSubscribe: "push_subscribe", AttrPushTokens: "push_tokens", AttrPhone: "phone",
	AttrSubscriptionGroups: "subscription_groups",
	AttrTimeZone:           "time_zone", AttrFacebook: "facebook", AttrTwitter: "twitter",
}

var attrCodes = func() map[string]uint32 {
	m := make(map[string]uint32, len(attrNames))
	for code, name := range attrNames {
		if name != "" {
			m[name] = uint32(code)
		}
	}
	return m
}()
