package model

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Request is one request of a sequence, for no population in particular: "~" begins the names of its own, "phone#<n>"
// is a phone number, and "svc#<birth>" the svc_id of the user who was born then.
type Request struct {
	Step  int
	Path  string
	Body  map[string]any
	Query url.Values // of a GET
	Key   int        // which of the API keys
	Once  string     // Idempotency-Key
	Note  string     // what became of it: a kill, a retry
}

// IsRead says whether a request changes nothing.
func (r *Request) IsRead() bool { return r.Query != nil || r.Path == exportPath }

// Wire is a request as it is sent.
type Wire struct {
	Method, Path   string
	Text           []byte
	Body           map[string]any
	Query          url.Values
	APIKey         string
	IdempotencyKey string
}

// Population fills in what a Request leaves open.
type Population struct {
	Prefix string // of names
	Number int    // no two of a workspace have the same
	Keys   []string
}

var marks = regexp.MustCompile(`~|phone#\d+|svc#\d+\.\d+`)

// wire makes the request about a population. svc returns the svc_id of the user who was born then.
func (p *Population) wire(r *Request, svc func(birth string) string) *Wire {
	fill := func(text string) string {
		return marks.ReplaceAllStringFunc(text, func(mark string) string {
			switch {
			case mark == "~":
				return p.Prefix
			case strings.HasPrefix(mark, "phone#"):
				n, _ := strconv.Atoi(mark[len("phone#"):])
				return p.phone(n)
			}
			return svc(mark[len("svc#"):])
		})
	}
	w := &Wire{Method: "POST", Path: r.Path, APIKey: p.Keys[r.Key%len(p.Keys)]}
	if r.Once != "" {
		w.IdempotencyKey = p.Prefix + r.Once
	}
	if r.Query != nil {
		w.Method, w.Query = "GET", url.Values{}
		for name, list := range r.Query {
			for _, v := range list {
				w.Query.Add(name, fill(v))
			}
		}
		return w
	}
	text, err := json.Marshal(r.Body)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	w.Text = []byte(fill(string(text)))
	v, err := decode(w.Text)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	w.Body, _ = v.(map[string]any)
	return w
}

// areaCodes are areas of the American plan in which the numbers of populations lie.
var areaCodes = []string{"212", "213", "303", "305", "310", "312", "404", "415", "503", "512", "602", "612", "617",
	"702", "713", "718", "773", "801", "816", "917"}

// phone returns a number that no other population of the workspace has.
func (p *Population) phone(n int) string {
	at := p.Number*4 + n
	area := areaCodes[at/10_000/8%len(areaCodes)]
	return fmt.Sprintf("+1%s%d34%04d", area, 2+at/10_000%8, at%10_000)
}

func birthName(step, n int) string { return strconv.Itoa(step) + "." + strconv.Itoa(n) }

// String shows the request to a reader.
func (r *Request) String() string {
	text, _ := json.Marshal(r.Body)
	if r.Query != nil {
		text = []byte("?" + r.Query.Encode())
	}
	line := fmt.Sprintf("%3d %s %s", r.Step, r.Path, text)
	if r.Once != "" {
		line += " Idempotency-Key: " + r.Once
	}
	if r.Key != 0 {
		line += " (second API key)"
	}
	if r.Note != "" {
		line += " [" + r.Note + "]"
	}
	return line
}

// do applies a request: it returns what the answer must be, and the states that the request may lead to.
func (s *State) do(step int, w *Wire) (Answer, []*State) {
	next := s.clone()
	next.step, next.born = step, 0
	if w.Path == "/users/merge" {
		return next.merge(w.Body)
	}
	verbs := map[string]func(map[string]any) Answer{
		"/users/alias/new": next.aliasNew, "/users/alias/update": next.aliasUpdate, "/users/identify": next.identify,
		"/users/external_ids/rename": next.rename, "/users/external_ids/remove": next.removeIDs,
		"/users/delete":            next.delete,
		"/subscription/status/set": next.statusSet, "/v2/subscription/status/set": next.statusSet,
		"/email/blocklist": next.block, "/email/blacklist": next.block, "/email/bounce/remove": next.unbounce,
		"/email/spam/remove": next.unspam,
		"/email/status": func(body map[string]any) Answer {
			return next.emailStatus(body,
				text(body, "subscription_state"))
		},
		"/users/track": func(map[string]any) Answer { return next.trackOnce(w) },
	}
	verb, ok := verbs[w.Path]
	if !ok {
		panic("BUG: the model does not know " + w.Path)
	}
	return verb(w.Body), []*State{next}
}
