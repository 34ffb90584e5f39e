package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	viewersTarget = 0.98 // part of the track rate without viewers
	viewers       = 20
	searchTarget  = 50  // ms
	paintTarget   = 200 // ms
	searches      = 200 // by each identifier
)

// consoleViewers compares requests while people watch everything that is applied with requests alone.
func consoleViewers(ctx context.Context, s *settings) (_ []Figure, err error) {
	note("console: %d viewers beside requests", viewers)
	var sides []*httpSide
	for _, name := range []string{"watched", "alone"} {
		server, side, err := s.startWarm(ctx, name, 128, s.bodies(mix225))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.stop()) }()
		sides = append(sides, side)
	}
	audience, err := watch(ctx, sides[0].processes[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, audience.stop()) }()
	rates, err := inTurns(ctx, s.Rounds, sides[0].turn(ctx), sides[1].turn(ctx))
	if err != nil {
		return nil, err
	}
	return []Figure{newFigure(fmt.Sprintf("requests beside %d live viewers ÷ alone, 225 objects, 128 connections",
		viewers),
		"", ratios(rates[0], rates[1]),
		Detail{"beside", median(rates[0]), "objects/s"}, Detail{"alone", median(rates[1]), "objects/s"},
		Detail{"CPU beside", median(sides[0].cpu), "s per million objects"},
		Detail{"CPU alone", median(sides[1].cpu), "s per million objects"},
		Detail{"shown", float64(audience.lines.Load()), "lines, to all viewers"}).want(atLeast, viewersTarget)}, nil
}

// audience is the people who watch.
type audience struct {
	end   context.CancelFunc
	group sync.WaitGroup
	lines atomic.Int64

	mu  sync.Mutex
	err error // why somebody's stream has ended too early
}

// watch opens the streams of events that the live page shows.
func watch(ctx context.Context, server *process) (*audience, error) {
	a := new(audience)
	ctx, a.end = context.WithCancel(ctx)
	for range viewers {
		answer, err := server.operate(ctx, http.MethodGet, "/admin/live?workspace=bench", nil)
		if err != nil {
			return nil, errors.Join(err, a.stop())
		}
		if answer.StatusCode != http.StatusOK {
			return nil, errors.Join(fmt.Errorf("GET /admin/live: %s", answer.Status), answer.Body.Close(), a.stop())
		}
		a.group.Go(func() { a.read(ctx, answer.Body) })
	}
	return a, nil
}

func (a *audience) read(ctx context.Context, stream io.ReadCloser) {
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		a.lines.Add(1)
	}
	if ctx.Err() == nil {
		a.mu.Lock()
		a.err = errors.Join(errors.New("a viewer's stream has ended"), lines.Err())
		a.mu.Unlock()
	}
}

// stop has the viewers leave. It returns an error when somebody's stream has ended before.
func (a *audience) stop() error {
	a.end()
	a.group.Wait()
	return a.err
}

// consolePages measures how long a person who is signed in waits for a user whom they look for, and for a page with
// everything that it loads, among as many users as -cold-profiles says.
func consolePages(ctx context.Context, s *settings) (figures []Figure, err error) {
	note("console: pages beside %d users", s.ColdProfiles)
	server, err := startServer(ctx, s, "people")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if err := makePeople(ctx, server, s.ColdProfiles); err != nil {
		return nil, err
	}
	b := &browser{base: "http://" + server.admin, cookies: map[string]string{}}
	if err := b.signIn(ctx, server); err != nil {
		return nil, err
	}
	slowest, details, err := b.search(ctx, s.ColdProfiles)
	if err != nil {
		return nil, err
	}
	figures = append(figures,
		newFigure("look-up of a user by any identifier, until the user's page is there, p99", "ms", []float64{slowest},
			details...).want(atMost, searchTarget))
	slowest, details = 0, nil
	for _, page := range []string{"", "w/bench", "w/bench/users", "w/bench/live", "w/bench/refused",
		"w/bench/consent"} {
		page = "/console/" + page
		var times []float64
		for range 20 {
			took, err := b.paint(ctx, page)
			if err != nil {
				return figures, err
			}
			times = append(times, took)
		}
		details = append(details, Detail{page, median(times), "ms"})
		slowest = max(slowest, slices.Max(times))
	}
	return append(figures,
		newFigure("load of a page of the console, the slowest", "ms", []float64{slowest},
			details...).want(atMost, paintTarget)), nil
}

// firstPhone is a number of seven digits, as an office in the United States may have.
const firstPhone = 2_000_000

// aliased is one in how many users has an alias alone; the others have all other identifiers.
const aliased = 5

// makePeople makes users who can be found by any identifier.
func makePeople(ctx context.Context, server *process, users int) error {
	const each = 75
	requests, going := errgroup.WithContext(ctx)
	requests.SetLimit(32)
	for i := 0; i < users && going.Err() == nil; {
		text := []byte(`{"attributes":[`)
		for n := 0; n < each && i < users; n++ {
			if n > 0 {
				text = append(text, ',')
			}
			form := `{"external_id":"p%[1]d","email":"p%[1]d@example.com","phone":"+1212%[2]d","first_name":"P"}`
			if i%aliased == 0 {
				form = `{"user_alias":{"alias_label":"crm","alias_name":"a%[1]d"},"_update_existing_only":false,"first_name":"P%[2]d"}`
			}
			text = fmt.Appendf(text, form, i, firstPhone+i)
			i++
		}
		requests.Go(func() error { return post(server, "/users/track", append(text, `]}`...)) })
	}
	return errors.Join(requests.Wait(), ctx.Err())
}

// browser is a person at the console. It handles cookies itself, because they are marked for https, which loopback does
// without.
type browser struct {
	base    string
	cookies map[string]string
}

// do loads a page or sends a form, and follows redirects.
func (b *browser) do(ctx context.Context, method, path string, form url.Values) (page string, err error) {
	for range 5 {
		r, err := http.NewRequestWithContext(ctx, method, b.base+path, strings.NewReader(form.Encode()))
		if err != nil {
			return "", err
		}
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Origin", b.base)
		}
		for name, value := range b.cookies {
			r.AddCookie(&http.Cookie{Name: name, Value: value})
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil {
			return "", err
		}
		for _, c := range answer.Cookies() {
			b.cookies[c.Name] = c.Value
		}
		if to := answer.Header.Get("Location"); to != "" && answer.StatusCode/100 == 3 {
			method, path, form = http.MethodGet, to, nil
			continue
		}
		if answer.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s %s: %s", method, path, answer.Status)
		}
		return string(text), nil
	}
	return "", fmt.Errorf("%s has too many redirects", path)
}

var formToken = regexp.MustCompile(`name="form" value="([^"]*)"`)

func (b *browser) signIn(ctx context.Context, server *process) error {
	token, err := server.adminToken()
	if err != nil {
		return err
	}
	page, err := b.do(ctx, http.MethodGet, "/console/sign-in", nil)
	if err != nil {
		return err
	}
	form := url.Values{"token": {token}}
	if found := formToken.FindStringSubmatch(page); found != nil {
		form.Set("form", found[1])
	}
	_, err = b.do(ctx, http.MethodPost, "/console/sign-in", form)
	return err
}

var serviceID = regexp.MustCompile(`/console/w/bench/users/([0-9a-f-]+)`)

// search looks for users drawn at random, by each kind of identifier, and times each search until the user's page is
// there. slowest is the largest p99, in ms.
func (b *browser) search(ctx context.Context, users int) (slowest float64, details []Detail, err error) {
	r := rand.New(rand.NewPCG(1, 1))
	var ids []string
	for _, by := range []struct{ name, form string }{
		{"external_id", "p%[1]d"}, {"email", "P%[1]d@example.com"}, {"phone", "+1212%[2]d"},
		{"alias", "a%[1]d"}, {"svc_id", ""},
	} {
		var times []float64
		for n := range searches {
			user := r.IntN(users/aliased) * aliased
			if by.name != "alias" {
				user += 1 + r.IntN(aliased-1)
			}
			query := url.Values{"by": {by.name},
				"value": {fmt.Sprintf(by.form, user, firstPhone+user)}, "label": {"crm"}}
			if by.form == "" {
				query.Set("value", ids[n])
			}
			begun := time.Now()
			page, err := b.do(ctx, http.MethodGet, "/console/w/bench/users?"+query.Encode(), nil)
			if err != nil {
				return 0, nil, err
			}
			times = append(times, float64(time.Since(begun).Microseconds())/1e3)
			found := serviceID.FindStringSubmatch(page)
			if found == nil {
				return 0, nil, fmt.Errorf("the console finds nobody by %v", query)
			}
			ids = append(ids, found[1])
		}
		slices.Sort(times)
		p99 := times[len(times)*99/100]
		slowest = max(slowest, p99)
		details = append(details, Detail{by.name + ", p50", median(times), "ms"}, Detail{"p99", p99, "ms"})
	}
	return slowest, details, nil
}

var loaded = regexp.MustCompile(`(?:src|href)="(/console/static/[^"]*)"`)

// paint loads a page and everything that the page loads, as a browser with an empty cache does, and returns the time
// that takes, in ms.
func (b *browser) paint(ctx context.Context, path string) (float64, error) {
	begun := time.Now()
	page, err := b.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	assets := loaded.FindAllStringSubmatch(page, -1)
	if len(assets) == 0 {
		return 0, fmt.Errorf("%s loads nothing", path)
	}
	for _, asset := range assets {
		if _, err := b.do(ctx, http.MethodGet, asset[1], nil); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(begun).Microseconds()) / 1e3, nil
}
