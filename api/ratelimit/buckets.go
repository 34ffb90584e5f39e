package ratelimit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bucket is one of the limits of service.md 8. Buckets are named after the permission; one that several endpoints share
// is named after its first member (D9).
type Bucket uint8

// The buckets. None is for what is not limited.
const (
	None Bucket = iota
	UsersTrack
	UsersTrackBulk
	UsersTrackSync
	UsersMerge // with users.delete, users.alias.new, users.alias.update and users.identify
	UsersExternalIDsRename
	UsersExternalIDsRemove
	UsersExportIDs
	SubscriptionStatusSet // v1 and v2
	SubscriptionStatusGet
	SubscriptionGroupsGet
	EmailStatus
	EmailBlacklist // both spellings of the path
	EmailBounceRemove
	EmailSpamRemove
	EmailHardBounces
	EmailUnsubscribe
	CanvasTranslationsGet
	CanvasTranslationsUpdate
	CampaignsTranslationsGet
	CampaignsTranslationsUpdate
	PreferenceCenterList // with preference_center.get
	PreferenceCenterUpdate
	// The last three are per company: OfCompany.
	SCIM // the operations on users that are in the contract
	SCIMDiscovery
	SCIMProvisioning // groups, and PATCH of users
	bucketCount
)

var buckets = [bucketCount]struct {
	name  string
	limit Limit
}{
	UsersTrack:                  {"users.track", Limit{Requests: 3_000, Window: 3 * time.Second}},
	UsersTrackBulk:              {"users.track.bulk", Limit{Requests: 50, Window: time.Second}},
	UsersTrackSync:              {"users.track.sync", Limit{Requests: 500, Window: time.Minute}},
	UsersMerge:                  {"users.merge", Limit{Requests: 20_000, Window: time.Minute}},
	UsersExternalIDsRename:      {"users.external_ids.rename", Limit{Requests: 1_000, Window: time.Minute}},
	UsersExternalIDsRemove:      {"users.external_ids.remove", Limit{Requests: 1_000, Window: time.Minute}},
	UsersExportIDs:              {"users.export.ids", Limit{Requests: 2_500, Window: time.Minute}},
	SubscriptionStatusSet:       {"subscription.status.set", Limit{Requests: 5_000, Window: time.Minute}},
	SubscriptionStatusGet:       {"subscription.status.get", Limit{Requests: 250_000, Window: time.Hour}},
	SubscriptionGroupsGet:       {"subscription.groups.get", Limit{Requests: 250_000, Window: time.Hour}},
	EmailStatus:                 {"email.status", Limit{Requests: 250_000, Window: time.Hour}},
	EmailBlacklist:              {"email.blacklist", Limit{Requests: 250_000, Window: time.Hour}},
	EmailBounceRemove:           {"email.bounce.remove", Limit{Requests: 250_000, Window: time.Hour}},
	EmailSpamRemove:             {"email.spam.remove", Limit{Requests: 250_000, Window: time.Hour}},
	EmailHardBounces:            {"email.hard_bounces", Limit{Requests: 250_000, Window: time.Hour}},
	EmailUnsubscribe:            {"email.unsubscribe", Limit{Requests: 250_000, Window: time.Hour}},
	CanvasTranslationsGet:       {"canvas.translations.get", Limit{Requests: 250_000, Window: time.Hour}},
	CampaignsTranslationsGet:    {"campaigns.translations.get", Limit{Requests: 250_000, Window: time.Hour}},
	CanvasTranslationsUpdate:    {"canvas.translations.update", Limit{Requests: 250_000, Window: time.Hour}},
	CampaignsTranslationsUpdate: {"campaigns.translations.update", Limit{Requests: 250_000, Window: time.Hour}},
	PreferenceCenterList:        {"preference_center.list", Limit{Requests: 1_000, Window: time.Minute}},
	PreferenceCenterUpdate:      {"preference_center.update", Limit{Requests: 10, Window: time.Minute}},
	SCIM:                        {"scim", Limit{Requests: 5_000, Window: 24 * time.Hour}},
	SCIMDiscovery:               {"scim.discovery", Limit{Requests: 5_000, Window: 24 * time.Hour}},
	SCIMProvisioning:            {"scim.provisioning", Limit{Requests: 3_000, Window: time.Minute}},
}

// The mau plan's users.track, unless a workspace has its own: an hourly limit and a burst per second (service.md 8
// leaves the figures open).
var mauTrack = Limit{Requests: 250_000, Window: time.Hour, Burst: 250, BurstWindow: time.Second}

// burstSuffix is the suffix of the override of a burst: "users.track.burst: 500/1s".
const burstSuffix = ".burst"

func (b Bucket) String() string { return buckets[b].name }

// OfCompany reports whether b counts the requests of the company rather than those of each workspace.
func (b Bucket) OfCompany() bool { return b >= SCIM }

func named(name string) Bucket {
	for b := None + 1; b < bucketCount; b++ {
		if b.String() == name {
			return b
		}
	}
	return None
}

// Limits are the limits of one workspace. They are immutable after ParseLimits.
type Limits [bucketCount]Limit

// Defaults are the limits of service.md 8; mau chooses the plan.
func Defaults(mau bool) (l Limits) {
	for b := range buckets {
		l[b] = buckets[b].limit
	}
	if mau {
		l[UsersTrack] = mauTrack
	}
	return l
}

// ParseLimits applies a workspace's overrides (bucket name → "3000/3s"; "users.track.burst" → "500/1s") to the defaults
// of its plan.
func ParseLimits(mau bool, overrides map[string]string) (Limits, error) {
	l := Defaults(mau)
	for name, text := range overrides {
		base, isBurst := strings.CutSuffix(name, burstSuffix)
		b := named(base)
		if b.OfCompany() {
			return l, fmt.Errorf("rate limit %q is not a workspace's but the company's", name)
		}
		if b == None {
			var known []string
			for b := None + 1; !b.OfCompany(); b++ {
				known = append(known, b.String())
			}
			slices.Sort(known)
			return l, fmt.Errorf("rate limit %q is unknown; there are %s", name, strings.Join(known, ", "))
		}
		v, err := Parse(text)
		if err != nil {
			return l, fmt.Errorf("%s: %w", name, err)
		}
		if isBurst {
			l[b].Burst, l[b].BurstWindow = v.Requests, v.Window
		} else {
			l[b].Requests, l[b].Window = v.Requests, v.Window
		}
	}
	return l, nil
}

// Windows are the counts of one workspace; they outlive changes of its Limits.
type Windows [bucketCount]Window
