// Package center has the endpoints of preference centers (service.md 2.14, 4.13–4.15; decisions.md D6) and their hosted
// pages (service.md 3.2). Package preference decides what a page shows.
package center

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-json"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/value"
	"millrace/shard/jsonvalue"
)

const textNoCenter = "Preference center not found"

// List serves GET /preference_center/v1/list.
func List(x *call.Call) {
	x.Reply = append(x.Reply[:0], `{"preference_centers":[`...)
	for _, p := range x.Control.PreferenceCenters.List(x.Workspace.ID) {
		x.Reply = append(value.AppendQuoted(append(value.WithComma(x.Reply), `{"name":`...), p.Name), ',')
		x.Reply = append(appendCenter(x.Reply, p), '}')
	}
	x.Reply = append(x.Reply, `],"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}

// appendCenter appends the members that all answers about a center share.
func appendCenter(dst []byte, p *document.PreferenceCenter) []byte {
	dst = value.AppendQuoted(append(dst, `"preference_center_api_id":`...), p.ID)
	dst = append(jsonvalue.AppendTime(append(dst, `,"created_at":"`...), int64(p.CreatedAt)), '"')
	return append(jsonvalue.AppendTime(append(dst, `,"updated_at":"`...), int64(p.UpdatedAt)), '"')
}

// Get serves GET /preference_center/v1/{id}.
func Get(x *call.Call) {
	p := x.Control.PreferenceCenters.Get(x.Workspace.ID, x.Param("{id}"))
	if p == nil {
		x.Fail(fasthttp.StatusNotFound, textNoCenter)
		return
	}
	options, err := json.Marshal(p.Options)
	if err != nil {
		x.FailEngine(err)
		return
	}
	x.Reply = append(value.AppendQuoted(append(x.Reply[:0], `{"name":`...), p.Name), ',')
	x.Reply = appendCenter(x.Reply, p)
	x.Reply = value.AppendQuoted(append(x.Reply, `,"preference_center_title":`...), p.Title)
	x.Reply = value.AppendQuoted(append(x.Reply, `,"preference_center_page_html":`...), p.PageHTML)
	x.Reply = value.AppendQuoted(append(x.Reply, `,"confirmation_page_html":`...), p.ConfirmationHTML)
	x.Reply = append(x.Reply, `,"redirect_page_html":`...)
	if p.RedirectHTML != nil {
		x.Reply = value.AppendQuoted(x.Reply, *p.RedirectHTML)
	} else {
		x.Reply = append(x.Reply, "null"...)
	}
	x.Reply = append(append(x.Reply, `,"preference_center_options":`...), options...)
	x.Reply = value.AppendQuoted(append(x.Reply, `,"state":`...), p.State)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}

// Create serves POST /preference_center/v1.
func Create(x *call.Call, body value.Value) {
	r := readPreferenceCenter(body, true)
	if r.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, r.Bad)
		return
	}
	p, err := x.Control.PreferenceCenters.Create(x.Actor(), x.Workspace.ID, r.center)
	if err != nil {
		fail(x, err)
		return
	}
	x.Reply = value.AppendQuoted(append(x.Reply[:0], `{"preference_center_api_id":`...), p.ID)
	x.Reply = append(jsonvalue.AppendTime(append(x.Reply, `,"created_at":"`...), int64(p.CreatedAt)), '"')
	x.Reply = value.AppendQuoted(append(x.Reply, `,"liquid_tag":`...), "{{preference_center.${"+p.Name+"}}}")
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.Send(fasthttp.StatusCreated, x.Reply)
}

// Update serves PUT and POST /preference_center/v1/{id}. A missing title becomes the default (service.md 4.15); missing
// state, options and redirect page stay as they are.
func Update(x *call.Call, body value.Value) {
	r := readPreferenceCenter(body, false)
	if r.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, r.Bad)
		return
	}
	p, err := x.Control.PreferenceCenters.Change(x.Actor(), x.Workspace.ID, x.Param("{id}"),
		func(p *document.PreferenceCenter) (*document.PreferenceCenter, error) {
			if p == nil {
				return nil, control.ErrNotFound
			}
			p.Title, p.PageHTML, p.ConfirmationHTML = r.center.Title, r.center.PageHTML, r.center.ConfirmationHTML
			if r.center.State != "" {
				p.State = r.center.State
			}
			if r.hasOptions {
				p.Options = r.center.Options
			}
			if r.hasRedirect {
				p.RedirectHTML = r.center.RedirectHTML
			}
			return p, nil
		})
	if err != nil {
		fail(x, err)
		return
	}
	x.Reply = appendCenter(append(x.Reply[:0], '{'), p)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.Send(fasthttp.StatusOK, x.Reply)
}

// fail answers with control's error about a change.
func fail(x *call.Call, err error) {
	switch {
	case errors.Is(err, document.ErrInvalid):
		x.Fail(fasthttp.StatusBadRequest, reason(err))
	case errors.Is(err, control.ErrExists):
		x.Fail(fasthttp.StatusBadRequest, "'name' is in use by another preference center")
	case errors.Is(err, control.ErrFull): // not a conflict for clients, which would try again
		x.Fail(fasthttp.StatusBadRequest,
			fmt.Sprintf("a workspace may have at most %d preference centers", document.MaxPreferenceCenters))
	case errors.Is(err, control.ErrNotFound):
		x.Fail(fasthttp.StatusNotFound, textNoCenter)
	case errors.Is(err, control.ErrNoRoom):
		x.FailEngine(err)
	case errors.Is(err, control.ErrConflict):
		x.Fail(fasthttp.StatusConflict, "The preference center was changed at the same time. Please try again.")
	default:
		x.FailEngine(err)
	}
}

// reason returns control's error about a value, in a form for the sender.
func reason(err error) string {
	return strings.TrimPrefix(err.Error(), document.ErrInvalid.Error()+": ")
}

// centerRequest is the body of create and update.
type centerRequest struct {
	call.Verdict
	center                  document.PreferenceCenter
	hasOptions, hasRedirect bool
}

// readPreferenceCenter reads the types; control judges the values.
func readPreferenceCenter(body value.Value, create bool) (r centerRequest) {
	p := &r.center
	for member, m := range body.Members() {
		switch member {
		case "name":
			if create {
				r.text(member, m, &p.Name)
			}
		case "preference_center_title":
			r.text(member, m, &p.Title)
		case "preference_center_page_html":
			r.text(member, m, &p.PageHTML)
		case "confirmation_page_html":
			r.text(member, m, &p.ConfirmationHTML)
		case "redirect_page_html":
			r.hasRedirect = true
			if !m.Absent() {
				p.RedirectHTML = new(string)
				r.text(member, m, p.RedirectHTML)
			}
		case "state":
			r.text(member, m, &p.State)
			if p.State == "" && !m.Absent() {
				r.Fail("'state' must be 'active' or 'draft'")
			}
		case "options":
			r.hasOptions = true
			r.options(m)
		}
	}
	switch {
	case create && p.Name == "":
		r.Fail("'name' is required")
	case p.PageHTML == "":
		r.Fail("'preference_center_page_html' is required")
	case p.ConfirmationHTML == "":
		r.Fail("'confirmation_page_html' is required")
	}
	return r
}

// text reads a string; null counts as missing.
func (r *centerRequest) text(field string, v value.Value, into *string) {
	if v.Absent() {
		return
	}
	var ok bool
	if *into, ok = v.Str(); !ok {
		r.Fail("'" + field + "' must be a string")
	}
}

func (r *centerRequest) options(v value.Value) {
	if v.Absent() {
		return
	}
	if !v.IsObject() {
		r.Fail("'options' must be an object")
		return
	}
	for member, m := range v.Members() {
		switch member {
		case "meta-viewport-content":
			r.text(member, m, &r.center.Options.Viewport)
		case "links-tags", "link-tags": // reference.md 6: both spellings
			r.links(member, m)
		}
	}
}

func (r *centerRequest) links(field string, v value.Value) {
	if v.Absent() {
		return
	}
	if !v.IsArray() {
		r.Fail("'" + field + "' must be an array of objects")
		return
	}
	for _, e := range v.Elements() {
		if !e.IsObject() || e.Unsafe() != "" {
			r.Fail("'" + field + "' must be an array of objects")
			return
		}
		var l document.LinkTag
		for member, m := range e.Members() {
			switch member {
			case "rel":
				r.text(member, m, &l.Rel)
			case "type":
				r.text(member, m, &l.Type)
			case "sizes":
				r.text(member, m, &l.Sizes)
			case "color":
				r.text(member, m, &l.Color)
			case "href":
				r.text(member, m, &l.Href)
			}
		}
		r.center.Options.Links = append(r.center.Options.Links, l)
	}
}
