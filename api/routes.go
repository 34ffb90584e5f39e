package api

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/call"
	"millrace/api/center"
	"millrace/api/consent"
	"millrace/api/ratelimit"
	"millrace/api/translation"
	"millrace/api/users"
	"millrace/api/value"
)

// A route is one line of the table below. A request reaches a handler only through a route: known path, right method, a
// key with the permission, a free place in the bucket, and, unless the handler reads no control documents, a barrier. A
// route without a permission must say that it is open, or that it requires the SCIM token.
type route struct {
	method     string
	path       string // exact, or with segments in braces: /scim/v2/Users/{id}
	permission string
	bucket     ratelimit.Bucket
	open       bool // served without a key
	scim       bool // served to the holder of the company's SCIM token, to no API key; the bucket is the company's
	page       bool // open, for people: answers with HTML, takes forms
	rest       bool // the last segment stands for the rest of the path, slashes included; see exchange.LastSegment
	// noBarrier says that the handler reads no control document but its workspace. All other handlers see what any node
	// has acknowledged before: exchange.barrier
	noBarrier bool
	limits    Limits // of objects
	maxBody   int    // of a body, decompressed, within Options.MaxBodyBytes; 0: that
	// answer puts Reply, of a request that was accepted, into the form of the endpoint; nil: it has that form.
	answer  func(*call.Call)
	handler func(*exchange)

	metrics *routeMetrics
}

// routes is the whole public surface. A resource of the companion API is a file with handlers, in the package of its
// family, and its lines here.
func (s *Server) routes() []route {
	return slices.Concat(s.keyRoutes(), scimRoutes("/scim/v2/Users", s.scim, ratelimit.SCIM),
		scimRoutes("/scim/v2/Groups", s.scimGroups, ratelimit.SCIMProvisioning), discoveryRoutes(), []route{
			{method: "GET", path: "/preferences/{token}", open: true, page: true, handler: called(s.pages.Show)},
			{method: "POST", path: "/preferences/{token}", open: true, page: true, handler: called(s.pages.SendForm)},

			{method: "GET", path: "/livez", open: true, noBarrier: true, handler: s.livez},
			{method: "GET", path: "/readyz", open: true, noBarrier: true, handler: s.readyz},
			{method: "GET", path: "/openapi.json", open: true, noBarrier: true, handler: s.openAPI},
		})
}

// keyRoutes are the routes for holders of API keys.
func (s *Server) keyRoutes() []route {
	return []route{
		{method: "POST", path: "/users/track", permission: "users.track", bucket: ratelimit.UsersTrack, noBarrier: true,
			handler: s.track},
		{method: "POST", path: "/users/track/bulk", permission: "users.track.bulk", bucket: ratelimit.UsersTrackBulk,
			noBarrier: true, limits: Limits{Combined: 1_000, PerUser: 100}, maxBody: s.options.MaxBulkBodyBytes,
			handler: s.track},
		{method: "POST", path: "/users/track/sync", permission: "users.track.sync", bucket: ratelimit.UsersTrackSync,
			noBarrier: true, limits: Limits{Combined: 1}, answer: users.AnswerSync, handler: s.track},
		{method: "POST", path: "/users/export/ids", permission: "users.export.ids", bucket: ratelimit.UsersExportIDs,
			noBarrier: true, handler: withBody(users.Export)},
		{method: "POST", path: "/users/delete", permission: "users.delete",
			bucket: ratelimit.UsersMerge, noBarrier: true, handler: withBody(users.Delete)},
		{method: "POST", path: "/users/alias/new", permission: "users.alias.new", bucket: ratelimit.UsersMerge,
			noBarrier: true, handler: withBody(users.NewAliases)},
		{method: "POST", path: "/users/alias/update", permission: "users.alias.update", bucket: ratelimit.UsersMerge,
			noBarrier: true, handler: withBody(users.UpdateAliases)},
		{method: "POST", path: "/users/identify", permission: "users.identify",
			bucket: ratelimit.UsersMerge, noBarrier: true, handler: withBody(users.Identify)},
		{method: "POST", path: "/users/merge", permission: "users.merge", bucket: ratelimit.UsersMerge, noBarrier: true,
			handler: withBody(users.Merge)},
		{method: "POST", path: "/users/external_ids/rename", permission: "users.external_ids.rename",
			bucket: ratelimit.UsersExternalIDsRename, noBarrier: true,
			handler: withBody(users.RenameExternalIDs)},
		{method: "POST", path: "/users/external_ids/remove", permission: "users.external_ids.remove",
			bucket: ratelimit.UsersExternalIDsRemove, noBarrier: true,
			handler: withBody(users.RemoveExternalIDs)},

		{method: "POST", path: "/subscription/status/set", permission: "subscription.status.set",
			bucket: ratelimit.SubscriptionStatusSet, noBarrier: true, handler: withBody(consent.SetStatus)},
		{method: "POST", path: "/v2/subscription/status/set", permission: "subscription.status.set",
			bucket: ratelimit.SubscriptionStatusSet, noBarrier: true, handler: withBody(consent.SetStatusV2)},
		{method: "GET", path: "/subscription/status/get", permission: "subscription.status.get",
			bucket: ratelimit.SubscriptionStatusGet, noBarrier: true, handler: called(consent.Status)},
		{method: "GET", path: "/subscription/user/status", permission: "subscription.groups.get",
			bucket: ratelimit.SubscriptionGroupsGet, noBarrier: true, handler: called(consent.UserStatus)},
		{method: "POST", path: "/email/status", permission: "email.status",
			bucket: ratelimit.EmailStatus, noBarrier: true, handler: withBody(consent.EmailStatus)},
		{method: "POST", path: "/email/blacklist", permission: "email.blacklist", bucket: ratelimit.EmailBlacklist,
			noBarrier: true, handler: withBody(consent.BlockEmails)},
		{method: "POST", path: "/email/blocklist", permission: "email.blacklist", bucket: ratelimit.EmailBlacklist,
			noBarrier: true, handler: withBody(consent.BlockEmails)},
		{method: "POST", path: "/email/bounce/remove", permission: "email.bounce.remove",
			bucket: ratelimit.EmailBounceRemove, noBarrier: true, handler: withBody(consent.RemoveBounces)},
		{method: "POST", path: "/email/spam/remove", permission: "email.spam.remove", bucket: ratelimit.EmailSpamRemove,
			noBarrier: true, handler: withBody(consent.RemoveSpamMarks)},
		{method: "GET", path: "/email/hard_bounces", permission: "email.hard_bounces",
			bucket: ratelimit.EmailHardBounces, noBarrier: true, handler: called(consent.HardBounces)},
		{method: "GET", path: "/email/unsubscribes", permission: "email.unsubscribe",
			bucket: ratelimit.EmailUnsubscribe, noBarrier: true, handler: called(consent.Unsubscribes)},

		{method: "GET", path: "/campaigns/translations", permission: "campaigns.translations.get",
			bucket: ratelimit.CampaignsTranslationsGet, handler: called(translation.Campaign)},
		{method: "GET", path: "/campaign/translations", permission: "campaigns.translations.get",
			bucket: ratelimit.CampaignsTranslationsGet, handler: called(translation.Campaign)},
		{method: "PUT", path: "/campaigns/translations", permission: "campaigns.translations.update",
			bucket: ratelimit.CampaignsTranslationsUpdate, handler: withBody(translation.PutCampaign)},
		{method: "PUT", path: "/campaign/translations", permission: "campaigns.translations.update",
			bucket: ratelimit.CampaignsTranslationsUpdate, handler: withBody(translation.PutCampaign)},
		{method: "GET", path: "/campaigns/translations/source", permission: "campaigns.translations.get",
			bucket: ratelimit.CampaignsTranslationsGet, handler: called(translation.CampaignSource)},
		{method: "GET", path: "/campaign/translations/source", permission: "campaigns.translations.get",
			bucket: ratelimit.CampaignsTranslationsGet, handler: called(translation.CampaignSource)},
		{method: "GET", path: "/canvases/translations", permission: "canvas.translations.get",
			bucket: ratelimit.CanvasTranslationsGet, handler: called(translation.Canvas)},
		{method: "GET", path: "/canvas/translations", permission: "canvas.translations.get",
			bucket: ratelimit.CanvasTranslationsGet, handler: called(translation.Canvas)},
		{method: "PUT", path: "/canvases/translations", permission: "canvas.translations.update",
			bucket: ratelimit.CanvasTranslationsUpdate, handler: withBody(translation.PutCanvas)},
		{method: "PUT", path: "/canvas/translations", permission: "canvas.translations.update",
			bucket: ratelimit.CanvasTranslationsUpdate, handler: withBody(translation.PutCanvas)},
		{method: "GET", path: "/canvases/translations/source", permission: "canvas.translations.get",
			bucket: ratelimit.CanvasTranslationsGet, handler: called(translation.CanvasSource)},
		{method: "GET", path: "/canvas/translations/source", permission: "canvas.translations.get",
			bucket: ratelimit.CanvasTranslationsGet, handler: called(translation.CanvasSource)},

		{method: "GET", path: "/preference_center/v1/list", permission: "preference_center.list",
			bucket: ratelimit.PreferenceCenterList, handler: called(center.List)},
		{method: "POST", path: "/preference_center/v1", permission: "preference_center.update",
			bucket: ratelimit.PreferenceCenterUpdate, handler: withBody(center.Create)},
		{method: "GET", path: "/preference_center/v1/{id}", permission: "preference_center.get",
			bucket: ratelimit.PreferenceCenterList, handler: called(center.Get)},
		{method: "PUT", path: "/preference_center/v1/{id}", permission: "preference_center.update",
			bucket: ratelimit.PreferenceCenterUpdate, handler: withBody(center.Update)},
		{method: "POST", path: "/preference_center/v1/{id}", permission: "preference_center.update",
			bucket: ratelimit.PreferenceCenterUpdate, handler: withBody(center.Update)},
		{method: "GET", path: "/preference_center/v1/{id}/url/{user}", rest: true,
			permission: "preference_center.user.get", bucket: ratelimit.PreferenceCenterList,
			handler: called(s.pages.Link)},
		{method: "POST", path: "/preference_center/v1/{id}/url/{user}", rest: true,
			permission: "preference_center.user.get", bucket: ratelimit.PreferenceCenterList,
			handler: called(s.pages.Link)},
	}
}

// scimRoutes are the routes of a type; bucket is that of all but PATCH.
func scimRoutes(path string, of scimStore, bucket ratelimit.Bucket) []route {
	one := path + "/{id}"
	return []route{
		{method: "GET", path: path, scim: true, bucket: bucket, handler: listSCIM(of)},
		{method: "POST", path: path, scim: true, bucket: bucket, handler: createSCIM(of)},
		{method: "GET", path: one, scim: true, bucket: bucket, handler: getSCIM(of)},
		{method: "PUT", path: one, scim: true, bucket: bucket, handler: changeSCIM(of, of.Replace)},
		{method: "PATCH", path: one, scim: true, bucket: ratelimit.SCIMProvisioning, handler: changeSCIM(of, of.Patch)},
		{method: "DELETE", path: one, scim: true, bucket: bucket, handler: deleteSCIM(of)},
	}
}

// discoveryRoutes are the routes of documents that never change.
func discoveryRoutes() (list []route) {
	for _, name := range []string{"ServiceProviderConfig", "ResourceTypes", "ResourceTypes/{id}", "Schemas",
		"Schemas/{id}"} {
		list = append(list, route{method: "GET", path: "/scim/v2/" + name, scim: true, bucket: ratelimit.SCIMDiscovery,
			noBarrier: true, handler: discoverSCIM})
	}
	return list
}

// called makes a handler of a function that needs only the call.
func called(handler func(*call.Call)) func(*exchange) { return func(x *exchange) { handler(&x.Call) } }

// withBody makes a handler of a function that also needs the body, a JSON object.
func withBody(handler func(*call.Call, value.Value)) func(*exchange) {
	return func(x *exchange) {
		if body, ok := x.object(); ok {
			handler(&x.Call, body)
		}
	}
}

// router finds routes. It is immutable.
type router struct {
	exact    map[string]*resource
	patterns []*resource
}

// resource is a path with its methods.
type resource struct {
	segments []string
	rest     bool // as in its routes
	methods  []*route
	allow    string
}

func newRouter(routes []route) *router {
	r := &router{exact: map[string]*resource{}}
	for i := range routes {
		rt := &routes[i]
		if rt.credentials() != 1 || rt.page && !rt.open || rt.open != (rt.bucket == ratelimit.None) ||
			rt.handler == nil || !strings.HasPrefix(rt.path, "/") {
			panic(fmt.Sprintf("BUG: route %s %s must have a permission or want the SCIM token, and have a bucket, "+
				"or be open",
				rt.method, rt.path))
		}
		rt.metrics = newRouteMetrics(rt.path)
		r.add(rt)
	}
	return r
}

// credentials returns how many ways of access a route has: each must have exactly one.
func (rt *route) credentials() (n int) {
	for _, way := range []bool{rt.permission != "", rt.scim, rt.open} {
		if way {
			n++
		}
	}
	return n
}

func (r *router) add(rt *route) {
	res := r.exact[rt.path]
	for _, p := range r.patterns {
		if strings.Join(p.segments, "/") == rt.path[1:] {
			res = p
		}
	}
	if res == nil {
		res = &resource{segments: strings.Split(rt.path[1:], "/"), rest: rt.rest}
		if strings.Contains(rt.path, "{") {
			r.patterns = append(r.patterns, res)
		} else {
			r.exact[rt.path] = res
		}
	}
	res.methods = append(res.methods, rt)
	if res.allow != "" {
		res.allow += ", "
	}
	res.allow += rt.method
	if rt.method == "GET" {
		res.allow += ", HEAD"
	}
}

// find returns the resource of a path as it was sent, with or without one trailing slash, or nil.
func (r *router) find(path []byte) *resource {
	if res := r.exact[string(path)]; res != nil {
		return res
	}
	if n := len(path); n > 1 && path[n-1] == '/' {
		path = path[:n-1]
		if res := r.exact[string(path)]; res != nil {
			return res
		}
	}
	for _, res := range r.patterns {
		if res.matches(string(path)) {
			return res
		}
	}
	return nil
}

func (res *resource) matches(path string) bool {
	rest, more := strings.CutPrefix(path, "/")
	for i, want := range res.segments {
		if !more {
			return false
		}
		all := res.rest && i == len(res.segments)-1
		segment := rest
		if more = false; !all {
			segment, rest, more = strings.Cut(rest, "/")
		}
		if want[0] == '{' && !isParam(segment, all) || want[0] != '{' && segment != want {
			return false
		}
	}
	return !more
}

// isParam reports whether text can be a segment in place of braces, possibly percent-encoded. It must not be something
// that a proxy would take for another path than we do: empty or dot segments, and an encoded slash unless the route
// takes slashes.
func isParam(text string, slashes bool) bool {
	plain, err := url.PathUnescape(text)
	if err != nil || !slashes && strings.Contains(plain, "/") || slices.Contains(strings.Split(text, "/"), "") {
		return false
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// Permissions returns all permissions that an API key may have: those of the routes.
func Permissions() (names []string) {
	for _, rt := range new(Server).routes() {
		if rt.permission != "" {
			names = append(names, rt.permission)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// method returns the route of a method, or nil. HEAD is served as GET; fasthttp omits the body.
func (res *resource) method(method []byte) *route {
	for _, rt := range res.methods {
		if string(method) == rt.method || rt.method == "GET" && string(method) == "HEAD" {
			return rt
		}
	}
	return nil
}

// param returns the segment of path, which is the route's, at the place of name ({id}) in the route.
func (rt *route) param(path, name string) string {
	want, have := strings.Split(rt.path, "/"), strings.Split(path, "/")
	for i := range want {
		if want[i] == name && i < len(have) {
			text, _ := url.PathUnescape(have[i]) // isParam has checked that it can be unescaped
			return text
		}
	}
	return ""
}

// routeMetrics counts a route's requests by status, and their latency. Their number depends on routes and statuses
// alone, not on what callers send.
type routeMetrics struct {
	name    string
	latency func() *metrics.PrometheusHistogram // made by the first request: it has many lines
	status  [600]atomic.Pointer[metrics.Counter]
}

func newRouteMetrics(name string) *routeMetrics {
	return &routeMetrics{name: name, latency: sync.OnceValue(func() *metrics.PrometheusHistogram {
		return metrics.GetOrCreatePrometheusHistogramExt(fmt.Sprintf(`millrace_http_request_seconds{route=%q}`, name),
			metrics.ExponentialBuckets(25e-6, 2, 20))
	})}
}

func (m *routeMetrics) count(status int) {
	if status < 0 || status >= len(m.status) {
		status = 0
	}
	c := m.status[status].Load()
	if c == nil {
		c = metrics.GetOrCreateCounter(fmt.Sprintf(`millrace_http_requests_total{route=%q,status="%d"}`, m.name,
			status))
		m.status[status].Store(c)
	}
	c.Inc()
}
