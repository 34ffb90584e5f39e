package api

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"millrace/api/control"
	"millrace/api/ratelimit"
	"millrace/api/refused"
	"millrace/api/store"
)

// TrackFunc decodes a body of /users/track, or of a sibling with other limits, into batch and appends the answer to
// dst. It neither commits nor keeps body. With a status other than 201 the batch is dropped. note, if not nil, is
// called for each fault that the answer reports.
type TrackFunc func(dst, body []byte, ws *control.Workspace, limits Limits, batch store.Batch, nowMillis int64,
	note func(Fault)) (reply []byte, status int)

// Limits bound the objects of a request: see ingest.Limits.
type Limits struct{ Combined, PerUser int }

// Fault is something that the answer to /users/track reports: see ingest.Fault.
type Fault struct {
	Array      string
	Index      int
	Object     []byte // lent, as long as the body is
	Rule, Text string
	IsRefused  bool
}

// Options of a Server.
type Options struct {
	// Store is the engine. Required.
	Store store.Store
	// Control holds keys and workspaces; started before the Server. Required.
	Control *control.Control
	// Track serves /users/track. Required.
	Track TrackFunc
	// Rules are the names of the rules that Track finds broken. Required where refused objects are kept: they are not
	// looked for under another name.
	Rules []string
	// AppendPhoneKey appends the engine's key of a phone number as a caller sent it (E.164); ok is false for anything
	// else. Required: the rules are those of the track function.
	AppendPhoneKey func(dst, phone []byte) (key []byte, ok bool)

	// Limiter makes the rate limits hold for all nodes of a cluster together. Default: they hold for this process
	// alone.
	Limiter *ratelimit.Limiter

	// MaxBodyBytes bounds a body, decompressed (D1). Default 4 MiB.
	MaxBodyBytes int
	// MaxBulkBodyBytes bounds the same for /users/track/bulk, within MaxBodyBytes. Default 2 MiB.
	MaxBulkBodyBytes int
	// MaxBodiesBytes bounds the memory of the bodies of all requests under way, as received and decompressed, except
	// for the first 32 KiB of each; beyond it: 503. Default 256 MiB, or the size of two bodies if that is more.
	MaxBodiesBytes int64
	// MaxAnswersBytes bounds the memory of the answers of all requests under way, except for the first 32 KiB of each,
	// until they have been sent; beyond it reads are answered 503. One workspace may take three quarters of it. The
	// profiles that are read for answers may take half as much besides. Default 256 MiB.
	MaxAnswersBytes int64
	// ReadTimeout bounds the time for a whole request to arrive, WriteTimeout the time for its answer to leave, and
	// IdleTimeout the time between requests of a connection. Each may end an eighth later, at most a second. Defaults
	// 10 s, 10 s, 60 s.
	ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes bounds request line and headers together; beyond it: 431. Default 8192.
	MaxHeaderBytes int
	// MaxHeaders bounds the number of headers; beyond it: 400. Default 64.
	MaxHeaders int
	// MaxConns bounds the connections; beyond it: 503 and close. Default 16384.
	MaxConns int
	// MaxConnsPerIP bounds the connections from one address (IPv6: from one /64); beyond it: 429 and close. Default
	// 4096; negative: no bound.
	MaxConnsPerIP int
	// MaxRequestsPerConn closes a connection after that many requests. Default 0: no bound.
	MaxRequestsPerConn int
	// MaxBadKeysPerMinute is how many requests with a wrong key from one address get a 401; beyond it: 429. Requests
	// with valid keys are still served, since many clients may share an address. Default 300.
	MaxBadKeysPerMinute int
	// PublicURL is the beginning of links to hosted pages: the public address of this server, http or https, perhaps
	// with a path. Default: the Host of the request for the link, if it is the address at which the request has arrived
	// or one of PublicHosts.
	PublicURL string
	// PublicHosts are hosts that links may begin with although the server doesn't listen on them, with their ports
	// unless these are 80 or 443. Default: none.
	PublicHosts []string
	// PreferenceLinkLife is how long a link to a hosted page is valid. Default 90 days: laws require links to
	// unsubscribe in mails to work for 30 or 60.
	PreferenceLinkLife time.Duration
	// MaxPagesPerMinute is how many requests for hosted pages, and how many forms, one address may send in a minute;
	// beyond it: 429. Many people, and mail programs that unsubscribe for their users, may share an address. Default
	// 600.
	MaxPagesPerMinute int
	// TrustedProxies are the addresses whose X-Forwarded-For is believed. Default: none.
	TrustedProxies []netip.Prefix
	// AccessLog logs a line per request, without body, key or identifiers. Default off.
	AccessLog bool

	// Refused keeps objects that are refused. nil: they are not kept.
	Refused refused.Feed

	// Now is the clock, Unix milliseconds. Default: the system's.
	Now func() int64
	// Logger gets log messages. Default: slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 4<<20)
	o.MaxBulkBodyBytes = cmp.Or(o.MaxBulkBodyBytes, 2<<20)
	o.MaxBodiesBytes = cmp.Or(o.MaxBodiesBytes, max(256<<20, 2*int64(o.MaxBodyBytes)))
	o.MaxAnswersBytes = cmp.Or(o.MaxAnswersBytes, 256<<20)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 60*time.Second)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 8192)
	o.MaxHeaders = cmp.Or(o.MaxHeaders, 64)
	o.MaxConns = cmp.Or(o.MaxConns, 16384)
	o.MaxConnsPerIP = cmp.Or(o.MaxConnsPerIP, 4096)
	o.MaxBadKeysPerMinute = cmp.Or(o.MaxBadKeysPerMinute, 300)
	o.PreferenceLinkLife = cmp.Or(o.PreferenceLinkLife, 90*24*time.Hour)
	o.MaxPagesPerMinute = cmp.Or(o.MaxPagesPerMinute, 600)
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// hostPattern is a name or an address, and a port.
const hostPattern = `([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?`

var (
	// publicURLForm: the path is put into pages, so it may only have characters that package preference allows there.
	publicURLForm = regexp.MustCompile(`^(https?://` + hostPattern + `(/[A-Za-z0-9._~-]{1,64}){0,8}/?)?$`)
	hostForm      = regexp.MustCompile(`^` + hostPattern + `$`)
)

// Validate reports the first wrong option.
func (o *Options) Validate() error {
	if err := CheckPublicURL(o.PublicURL); err != nil {
		return fmt.Errorf("api: PublicURL is %w", err)
	}
	if err := CheckPublicHosts(o.PublicHosts); err != nil {
		return fmt.Errorf("api: PublicHosts are %w", err)
	}
	switch {
	case o.Store == nil:
		return errors.New("api: Store is not set")
	case o.Control == nil:
		return errors.New("api: Control is not set")
	case o.Track == nil:
		return errors.New("api: Track is not set")
	case o.AppendPhoneKey == nil:
		return errors.New("api: AppendPhoneKey is not set")
	case o.MaxBodyBytes < 1024 || o.MaxBodyBytes > 256<<20:
		return fmt.Errorf("api: MaxBodyBytes is %d, want 1 KiB to 256 MiB", o.MaxBodyBytes)
	case o.MaxBulkBodyBytes < 1024:
		return fmt.Errorf("api: MaxBulkBodyBytes is %d, want 1 KiB at least", o.MaxBulkBodyBytes)
	case o.MaxBodiesBytes < int64(o.MaxBodyBytes):
		return fmt.Errorf("api: MaxBodiesBytes is %d, want that of a body, %d, at least", o.MaxBodiesBytes,
			o.MaxBodyBytes)
	case o.MaxAnswersBytes < 1024:
		return fmt.Errorf("api: MaxAnswersBytes is %d, want 1 KiB at least", o.MaxAnswersBytes)
	case o.MaxHeaderBytes < 1024 || o.MaxHeaderBytes > 1<<20:
		return fmt.Errorf("api: MaxHeaderBytes is %d, want 1 KiB to 1 MiB", o.MaxHeaderBytes)
	case o.PreferenceLinkLife < time.Minute || o.PreferenceLinkLife > 10*365*24*time.Hour:
		return fmt.Errorf("api: PreferenceLinkLife is %v, want a minute to ten years", o.PreferenceLinkLife)
	case o.MaxHeaders < 1 || o.MaxConns < 1 || o.MaxRequestsPerConn < 0:
		return fmt.Errorf("api: MaxHeaders %d, MaxConns %d or MaxRequestsPerConn %d is too small", o.MaxHeaders,
			o.MaxConns, o.MaxRequestsPerConn)
	case o.MaxBadKeysPerMinute < 1 || o.MaxPagesPerMinute < 1:
		return fmt.Errorf("api: MaxBadKeysPerMinute %d or MaxPagesPerMinute %d is not positive", o.MaxBadKeysPerMinute,
			o.MaxPagesPerMinute)
	case o.ReadTimeout < 0 || o.WriteTimeout < 0 || o.IdleTimeout < 0:
		return fmt.Errorf("api: ReadTimeout %v, WriteTimeout %v or IdleTimeout %v is negative", o.ReadTimeout,
			o.WriteTimeout, o.IdleTimeout)
	}
	return nil
}

// CheckPublicURL refuses anything that links to hosted pages can't begin with.
func CheckPublicURL(url string) error {
	if !publicURLForm.MatchString(url) {
		return fmt.Errorf("%q, want http(s)://host[:port][/path]", url)
	}
	return nil
}

// CheckPublicHosts refuses names at which no request for a link can have arrived.
func CheckPublicHosts(hosts []string) error {
	if slices.ContainsFunc(hosts, func(host string) bool { return !hostForm.MatchString(host) }) {
		return fmt.Errorf("%q, want host[:port] each", hosts)
	}
	return nil
}
