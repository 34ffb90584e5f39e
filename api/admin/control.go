package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"

	"millrace/api/admin/answers"
	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/ratelimit"
	"millrace/shard"
)

// The admin API of the control data (decisions.md D7). It does what the bootstrap file can do, in the same shapes and
// by the same verbs of package control.

// bootstrap applies a bootstrap file, YAML, sent as the body; the answer has the keys that were made, also when it is
// that of an error: nobody can read them again.
func (s *Server) bootstrap(by control.Actor, _ *http.Request, text []byte) (any, error) {
	file, err := document.ParseBootstrap(text)
	if err != nil {
		return nil, err
	}
	before := s.common.Control.Snapshot()
	made, err := s.common.Control.Bootstrap(context.Background(), by, file) // also when the client goes
	if err != nil && s.common.Control.Snapshot() != before {
		if call.FailureOf(err) != nil { // its text may be that nothing was done
			err = fmt.Errorf("%w: %w", shard.ErrUnknown, err)
		}
		err = incomplete{err, made}
	}
	return map[string]any{"made_keys": orEmpty(made)}, err
}

// taking makes a handler of one that takes the body of the request.
func (s *Server) taking(f func(by control.Actor, r *http.Request, body []byte) (any, error)) handler {
	return func(by control.Actor, r *http.Request) (any, error) {
		body, err := s.readAll(r)
		if err != nil {
			return nil, err
		}
		return f(by, r, body)
	}
}

// sent makes a handler of one that takes what the body of the request says.
func sent[T any](s *Server, f func(by control.Actor, r *http.Request, sent T) (any, error)) handler {
	return func(by control.Actor, r *http.Request) (any, error) {
		v, err := read[T](s, r)
		if err != nil {
			return nil, err
		}
		return f(by, r, v)
	}
}

func read[T any](s *Server, r *http.Request) (v T, err error) {
	text, err := s.readAll(r)
	if err != nil {
		return v, err
	}
	return v, document.DecodeStrict(text, &v)
}

// Workspaces.

func (s *Server) workspaceRoutes() []route {
	c := s.common.Control
	return []route{
		{"GET /admin/workspaces", func(_ control.Actor, r *http.Request) (any, error) {
			return pageOf(r, "workspaces", c.Snapshot().Workspaces(),
				func(w *control.Workspace) string { return w.ID },
				func(w *control.Workspace) any { return w.Settings })
		}},
		{"POST /admin/workspaces", sent(s, func(by control.Actor, _ *http.Request, v document.Settings) (any, error) {
			w, err := c.CreateWorkspace(by, v)
			if err != nil {
				return nil, err
			}
			return describeWorkspace(w, true), nil
		})},
		{"GET /admin/workspaces/{workspace}", s.within(
			func(_ control.Actor, _ *http.Request, w *control.Workspace) (any, error) {
				return describeWorkspace(w, false), nil
			})},
		{"PATCH /admin/workspaces/{workspace}", s.taking(
			func(by control.Actor, r *http.Request, text []byte) (any, error) {
				w, err := c.UpdateSettings(by, r.PathValue("workspace"), func(settings *document.Settings) error {
					if err := checkMatch(r, settings); err != nil {
						return err
					}
					return settings.Patch(text)
				})
				if err != nil {
					return nil, err
				}
				return describeWorkspace(w, false), nil
			})},
	}
}

func describeWorkspace(w *control.Workspace, isNew bool) tagged {
	limits := map[string]string{}
	for b := ratelimit.None + 1; !b.OfCompany(); b++ {
		limits[b.String()] = w.Limits[b].String()
		if w.Limits[b].Burst != 0 {
			limits[b.String()+".burst"] = w.Limits[b].BurstString()
		}
	}
	return tagged{v: answers.Workspace{Settings: w.Settings, Limits: limits}, tag: w.Settings, isNew: isNew}
}

func (s *Server) workspace(r *http.Request) (*control.Workspace, error) {
	if w := s.common.Control.Snapshot().Lookup(r.PathValue("workspace")); w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("workspace %q %w", r.PathValue("workspace"), control.ErrNotFound)
}

// workspaceHandler is a handler about the workspace in the path.
type workspaceHandler func(control.Actor, *http.Request, *control.Workspace) (any, error)

func (s *Server) within(f workspaceHandler) handler {
	return func(by control.Actor, r *http.Request) (any, error) {
		w, err := s.workspace(r)
		if err != nil {
			return nil, err
		}
		return f(by, r, w)
	}
}

// Apps, subscription groups, preference centers, campaigns, canvases: documents that are changed as a whole.

// Path prefixes of the routes of documents.
const (
	ofWorkspace = "/admin/workspaces/{workspace}/"
	ofCompany   = "/admin/"
)

// documentRoutes returns the routes of a Collection: list, create, read, replace or create, change the members that are
// sent, remove. summarise, if not nil, makes the list's form of a document.
func documentRoutes[T any](
	s *Server, base, name string, l *control.Collection[T], summarise func(*T) any,
) []route {
	all, one := base+name, base+name+"/{id}"
	if summarise == nil {
		summarise = func(v *T) any { return shown(v) }
	}
	return []route{
		{"GET " + all, func(_ control.Actor, r *http.Request) (any, error) {
			if err := s.checkWorkspace(r); err != nil {
				return nil, err
			}
			return pageOf(r, name, l.List(r.PathValue("workspace")), func(v *T) string { return *l.ID(v) }, summarise)
		}},
		{"POST " + all, sent(s, func(by control.Actor, r *http.Request, v T) (any, error) {
			made, err := l.Create(by, r.PathValue("workspace"), v)
			return documentOf(made, true, err)
		})},
		{"GET " + one, func(_ control.Actor, r *http.Request) (any, error) {
			if err := s.checkWorkspace(r); err != nil {
				return nil, err
			}
			v := l.Get(r.PathValue("workspace"), r.PathValue("id"))
			if v == nil {
				return nil, notFound(l, r)
			}
			return documentOf(v, false, nil)
		}},
		{"PUT " + one, sent(s, func(by control.Actor, r *http.Request, sent T) (any, error) {
			if id := l.ID(&sent); *id == "" {
				*id = r.PathValue("id")
			}
			isNew := false
			v, err := l.Change(by, r.PathValue("workspace"), r.PathValue("id"), func(old *T) (*T, error) {
				isNew = old == nil
				next := sent
				return &next, checkMatch(r, old)
			})
			return documentOf(v, isNew, err)
		})},
		{"PATCH " + one, s.taking(func(by control.Actor, r *http.Request, text []byte) (any, error) {
			v, err := l.Change(by, r.PathValue("workspace"), r.PathValue("id"), func(old *T) (*T, error) {
				if old == nil {
					return nil, notFound(l, r)
				}
				if err := checkMatch(r, old); err != nil {
					return nil, err
				}
				return old, document.PatchStrict(text, old)
			})
			return documentOf(v, false, err)
		})},
		{"DELETE " + one, func(by control.Actor, r *http.Request) (any, error) {
			return success{}, l.Remove(by, r.PathValue("workspace"), r.PathValue("id"),
				func(old *T) error { return checkMatch(r, old) })
		}},
	}
}

// documentOf returns the answer with a document.
func documentOf[T any](v *T, isNew bool, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return tagged{v: shown(v), tag: v, isNew: isNew}, nil
}

// shown returns the form in which operators see a document: times are ISO 8601.
func shown(v any) any {
	switch d := v.(type) {
	case *document.PreferenceCenter:
		return struct {
			*document.PreferenceCenter
			CreatedAt string `json:"created_at"`
			UpdatedAt string `json:"updated_at"`
		}{d, d.CreatedAt.Text(), d.UpdatedAt.Text()}
	case *document.PermissionSet:
		return struct {
			*document.PermissionSet
			CreatedAt string `json:"created_at"`
			UpdatedAt string `json:"updated_at"`
		}{d, d.CreatedAt.Text(), d.UpdatedAt.Text()}
	case *document.Stream:
		return struct {
			*document.Stream
			StartedAt string `json:"started_at"`
		}{d, d.StartedAt.Text()}
	}
	return v
}

// checkWorkspace returns an error when the request's path names a workspace that doesn't exist.
func (s *Server) checkWorkspace(r *http.Request) error {
	if r.PathValue("workspace") == "" {
		return nil
	}
	_, err := s.workspace(r)
	return err
}

func notFound[T any](l *control.Collection[T], r *http.Request) error {
	return fmt.Errorf("%s %q %w", l.Noun(), r.PathValue("id"), control.ErrNotFound)
}

func summariseCenter(p *document.PreferenceCenter) any {
	return struct {
		ID    string `json:"id"`
		Name  string `json:"name"`
		State string `json:"state"`
	}{p.ID, p.Name, p.State}
}

func summariseSet(p *document.PermissionSet) any { return nameOfSet(p) }

func nameOfSet(p *document.PermissionSet) answers.PermissionSetName {
	return answers.PermissionSetName{ID: p.ID, Name: p.Name}
}

func summariseCampaign(c *document.Campaign) any {
	return answers.CampaignSummary{ID: c.ID, Name: c.Name, Messages: len(c.Messages)}
}

func summariseCanvas(c *document.Canvas) any {
	summary := answers.CanvasSummary{ID: c.ID, Name: c.Name, Steps: len(c.Steps)}
	for _, step := range c.Steps {
		summary.Messages += len(step.Messages)
	}
	return summary
}

// API keys.

func (s *Server) describeKey(k *document.Key) answers.APIKey {
	return answers.APIKey{ID: k.ID, Name: k.Name, Hint: k.Hint, Permissions: orEmpty(k.Permissions),
		IPAllowList: orEmpty(k.IPAllowList), CreatedAt: timeText(k.CreatedAt),
		LastUsedAt: timeText(s.common.Control.LastUsed(k.Number) * 60_000), RevokedAt: timeText(k.RevokedAt)}
}

// compareKeys orders keys as they are listed: those that are valid come first, and of these the newest.
func compareKeys(a, b *document.Key) int {
	return cmp.Or(cmp.Compare(revoked(a), revoked(b)), cmp.Compare(b.Number, a.Number))
}

func revoked(k *document.Key) int {
	if k.RevokedAt != 0 {
		return 1
	}
	return 0
}

// placeOfKey is a cursor behind a key: text in the order of compareKeys.
func placeOfKey(k *document.Key) string {
	return fmt.Sprintf("%d%010d", revoked(k), math.MaxUint32-k.Number)
}

func (s *Server) keyRoutes() []route {
	const all, one = "/admin/workspaces/{workspace}/api_keys", "/admin/workspaces/{workspace}/api_keys/{key}"
	c := s.common.Control
	return []route{
		{"GET " + all, s.within(func(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
			list := slices.SortedFunc(slices.Values(w.Keys), compareKeys)
			return pageOf(r, "api_keys", list, placeOfKey, func(k *document.Key) any { return s.describeKey(k) })
		})},
		{"POST " + all, sent(s, func(by control.Actor, r *http.Request, spec document.KeySpec) (any, error) {
			k, token, err := c.CreateKey(by, r.PathValue("workspace"), spec)
			return created{answers.MadeKey{APIKey: s.describeKey(&k), Token: token}}, err
		})},
		{"GET " + one, s.within(func(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
			for _, k := range w.Keys {
				if k.ID == r.PathValue("key") {
					return s.describeKey(k), nil
				}
			}
			return nil, fmt.Errorf("API key %q %w", r.PathValue("key"), control.ErrNotFound)
		})},
		{"PATCH " + one, s.taking(func(by control.Actor, r *http.Request, text []byte) (any, error) {
			k, err := c.UpdateKey(by, r.PathValue("workspace"), r.PathValue("key"), func(spec *document.KeySpec) error {
				return document.PatchStrict(text, spec)
			})
			return s.describeKey(&k), err
		})},
		{"POST " + one + "/rotate", func(by control.Actor, r *http.Request) (any, error) {
			k, token, err := c.RotateKey(by, r.PathValue("workspace"), r.PathValue("key"))
			return created{answers.MadeKey{APIKey: s.describeKey(&k), Token: token}}, err
		}},
		{"DELETE " + one, func(by control.Actor, r *http.Request) (any, error) {
			return success{}, c.RevokeKey(by, r.PathValue("workspace"), r.PathValue("key"))
		}},
	}
}

// SCIM settings and tokens of the company.

func (s *Server) describeToken(t *document.SCIMToken) answers.SCIMToken {
	return answers.SCIMToken{ID: t.ID, Hint: t.Hint, CreatedAt: timeText(t.CreatedAt),
		LastUsedAt: timeText(s.common.Control.LastUsed(t.Number) * 60_000), RevokedAt: timeText(t.RevokedAt)}
}

func (s *Server) scimRoutes() []route {
	c := s.common.Control
	describe := func() any {
		access := c.Snapshot().SCIM
		if access == nil {
			access = new(document.SCIM)
		}
		settings := access.SCIMSettings
		settings.IPAllowList = orEmpty(settings.IPAllowList)
		return answers.SCIMAccess{SCIMSettings: settings, Tokens: mapSlice(access.Tokens, s.describeToken)}
	}
	return []route{
		{"GET /admin/scim", func(control.Actor, *http.Request) (any, error) { return describe(), nil }},
		{"PATCH /admin/scim", s.taking(func(by control.Actor, _ *http.Request, text []byte) (any, error) {
			patch := func(settings *document.SCIMSettings) error { return document.PatchStrict(text, settings) }
			if err := c.UpdateSCIM(by, patch); err != nil {
				return nil, err
			}
			return describe(), nil
		})},
		{"POST /admin/scim/tokens", func(by control.Actor, _ *http.Request) (any, error) {
			t, token, err := c.CreateSCIMToken(by)
			return created{answers.MadeToken{SCIMToken: s.describeToken(&t), Token: token}}, err
		}},
		{"DELETE /admin/scim/tokens/{token}", func(by control.Actor, r *http.Request) (any, error) {
			return success{}, c.RevokeSCIMToken(by, r.PathValue("token"))
		}},
	}
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func mapSlice[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, a := range list {
		out = append(out, f(a))
	}
	return out
}
