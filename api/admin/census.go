package admin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"millrace/api/admin/answers"
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

func (s *Server) describeCensus(w *control.Workspace, known census.Status) (a answers.Census) {
	if r := known.Running; r != nil {
		a.Running = &answers.CensusRunning{Began: r.Began.UTC().Format(time.RFC3339), Done: r.Done, Users: r.Users}
	}
	if r := known.Failed; r != nil {
		a.Failed = &answers.CensusFailed{At: r.Ended.UTC().Format(time.RFC3339), Why: r.Failed}
	}
	if r := known.Counted; r != nil {
		a.Counts = &answers.ConsentCounts{CountedAt: r.Ended.UTC().Format(time.RFC3339), Took: r.Took.Seconds(),
			Users: r.Counts.Users, Groups: s.describeGroupCounts(w, r.Counts),
			Email: answers.EmailCounts{OptedIn: r.Counts.Email.OptedIn,
				StateCounts: describeTally(r.Counts.Email, r.Counts.Users)}}
	}
	return a
}

// describeGroupCounts returns all groups of the workspace, including archived ones, by name.
func (s *Server) describeGroupCounts(w *control.Workspace, counts census.Counts) []answers.GroupCounts {
	groups := []answers.GroupCounts{}
	for _, g := range s.common.Control.Groups.List(w.ID) {
		tally := counts.Group(uuid.MustParse(g.ID))
		groups = append(groups, answers.GroupCounts{ID: g.ID, Name: g.Name, Channel: g.Channel, IsArchived: g.Archived,
			StateCounts: describeTally(tally, counts.Users)})
	}
	slices.SortFunc(groups, func(a, b answers.GroupCounts) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return groups
}

func describeTally(t census.Tally, users int64) answers.StateCounts {
	return answers.StateCounts{Subscribed: t.Subscribed, Unsubscribed: t.Unsubscribed, Unknown: t.Unknown(users)}
}
