package admin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"millrace/api/census"
	"millrace/api/control"
)

// How many users have which state, counted when an operator asks for it (package census).

func (s *Server) censusRoutes() []route {
	const path = "/admin/workspaces/{workspace}/consent/counts"
	return []route{
		{"GET " + path, s.counting(s.showCensus)},
		{"POST " + path, s.counting(s.startCensus)},
		{"DELETE " + path, s.counting(s.stopCensus)},
	}
}

// counting is within, if counting is enabled.
func (s *Server) counting(f workspaceHandler) handler {
	if s.options.Census != nil {
		return s.within(f)
	}
	return func(control.Actor, *http.Request) (any, error) {
		return nil, fmt.Errorf("count of consent %w: it is switched off", control.ErrNotFound)
	}
}

// censusAnswer is what is known: the counts of the last time, the count under way, and why the last one has failed.
type censusAnswer struct {
	Counts  *consentCounts `json:"counts,omitempty"`
	Running *censusRunning `json:"running,omitempty"`
	Failed  *censusFailed  `json:"failed,omitempty"`
}

type consentCounts struct {
	CountedAt string        `json:"counted_at"`
	Took      float64       `json:"took_seconds"`
	Users     int64         `json:"users"`
	Email     stateCounts   `json:"email_subscribe"`
	Groups    []groupCounts `json:"subscription_groups"`
}

type stateCounts struct {
	OptedIn      *int64 `json:"opted_in,omitempty"` // of the email state only
	Subscribed   int64  `json:"subscribed"`
	Unsubscribed int64  `json:"unsubscribed"`
	Unknown      int64  `json:"unknown"` // users who have never stated anything
}

type groupCounts struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Channel    string `json:"channel"`
	IsArchived bool   `json:"archived,omitempty"`
	stateCounts
}

type censusRunning struct {
	Began string  `json:"began_at"`
	Done  float64 `json:"done"` // of 1
	Users int64   `json:"users"`
}

type censusFailed struct {
	At  string `json:"at"`
	Why string `json:"why"`
}

func (s *Server) showCensus(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	return s.describeCensus(w, s.options.Census.Status(r.Context(), w.Number)), nil
}

// startCensus begins a count, with an entry of the audit log, since it takes a share of the machine.
func (s *Server) startCensus(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	err := s.options.Census.Start(r.Context(), w.Number)
	if errors.Is(err, census.ErrBusy) {
		return nil, fmt.Errorf("%w: %w", control.ErrConflict, err)
	}
	if err != nil {
		return nil, err
	}
	return success{}, s.common.Control.Audit(by, "count of consent begun", w.ID)
}

func (s *Server) stopCensus(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	if !s.options.Census.Stop(r.Context(), w.Number) {
		return nil, fmt.Errorf("running count %w", control.ErrNotFound)
	}
	return success{}, s.common.Control.Audit(by, "count of consent stopped", w.ID)
}

func (s *Server) describeCensus(w *control.Workspace, known census.Status) (a censusAnswer) {
	if r := known.Running; r != nil {
		a.Running = &censusRunning{r.Began.UTC().Format(time.RFC3339), r.Done, r.Users}
	}
	if r := known.Failed; r != nil {
		a.Failed = &censusFailed{r.Ended.UTC().Format(time.RFC3339), r.Failed}
	}
	if r := known.Counted; r != nil {
		counts := describeTally(r.Counts.Email, r.Counts.Users)
		counts.OptedIn = &r.Counts.Email.OptedIn
		a.Counts = &consentCounts{CountedAt: r.Ended.UTC().Format(time.RFC3339), Took: r.Took.Seconds(),
			Users: r.Counts.Users, Email: counts, Groups: s.describeGroupCounts(w, r.Counts)}
	}
	return a
}

// describeGroupCounts returns all groups of the workspace, including archived ones, by name.
func (s *Server) describeGroupCounts(w *control.Workspace, counts census.Counts) []groupCounts {
	groups := []groupCounts{}
	for _, g := range s.common.Control.Groups.List(w.ID) {
		tally := counts.Group(uuid.MustParse(g.ID))
		groups = append(groups, groupCounts{g.ID, g.Name, g.Channel, g.Archived, describeTally(tally, counts.Users)})
	}
	slices.SortFunc(groups, func(a, b groupCounts) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return groups
}

func describeTally(t census.Tally, users int64) stateCounts {
	return stateCounts{Subscribed: t.Subscribed, Unsubscribed: t.Unsubscribed, Unknown: t.Unknown(users)}
}
