package translation

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"millrace/api/call"
	"millrace/api/control/document"
)

// place identifies a message: in a campaign, or in a step of a canvas. It reads and changes the document that contains
// the message.
type place struct {
	campaign, canvas, step string // ids
	variation              string // of the message; empty: all of the campaign
	localeID, localeName   string // of a translation; both empty: all
}

// queriedPlace reads a place from the query, which may have each id once; empty ones count as missing. Other
// parameters, such as post_launch_draft_version, are ignored: there are no drafts.
func queriedPlace(x *call.Call, isCanvas bool) (p place, err error) {
	for name, text := range x.Ctx.QueryArgs().All() {
		into, code := p.id(string(name), isCanvas)
		switch {
		case into == nil || len(text) == 0:
		case *into != "" && err == nil:
			err = &refusal{400, code, "'" + string(name) + "' may be sent once only"}
		default:
			*into = string(text)
		}
	}
	return p, err
}

// id returns where the place keeps the id for a parameter, and the code of the error about it; nil for other
// parameters.
func (p *place) id(name string, isCanvas bool) (into *string, code string) {
	switch {
	case name == "campaign_id" && !isCanvas:
		return &p.campaign, errCampaign.code
	case name == "workflow_id" && isCanvas:
		return &p.canvas, codeCanvas
	case name == "step_id" && isCanvas:
		return &p.step, codeStep
	case name == "message_variation_id":
		return &p.variation, errVariation.code
	case name == "locale_id":
		return &p.localeID, errLocaleID.code
	}
	return nil, ""
}

// checkCampaign and checkCanvas say which id is missing.
func (p *place) checkCampaign(needsVariation bool) error {
	switch {
	case p.campaign == "":
		return requiredID(errCampaign.code, "campaign_id")
	case p.variation == "" && needsVariation:
		return requiredID(errVariation.code, "message_variation_id")
	}
	p.canvas, p.step = "", ""
	return nil
}

func (p *place) checkCanvas() error {
	switch {
	case p.canvas == "":
		return requiredID(codeCanvas, "workflow_id")
	case p.step == "":
		return requiredID(codeStep, "step_id")
	case p.variation == "":
		return requiredID(errVariation.code, "message_variation_id")
	}
	p.campaign = ""
	return nil
}

// messages returns the current messages of the campaign or of the step; they must not be changed.
func (p *place) messages(x *call.Call) ([]document.Message, error) {
	if !x.Workspace.MultiLanguage {
		return nil, errMultiLanguage
	}
	if p.campaign != "" {
		return campaignMessages(x.Control.Campaigns.Get(x.Workspace.ID, p.campaign))
	}
	return p.canvasMessages(x.Control.Canvases.Get(x.Workspace.ID, p.canvas))
}

func campaignMessages(c *document.Campaign) ([]document.Message, error) {
	if c == nil {
		return nil, errCampaign
	}
	return c.Messages, nil
}

func (p *place) canvasMessages(c *document.Canvas) ([]document.Message, error) {
	if c == nil {
		return nil, errCanvas
	}
	i := slices.IndexFunc(c.Steps, func(s document.Step) bool { return s.ID == p.step })
	if i < 0 {
		return nil, errStep
	}
	return c.Steps[i].Messages, nil
}

// find returns the message of the place among messages.
func (p *place) find(x *call.Call, messages []document.Message) (*document.Message, error) {
	i := slices.IndexFunc(messages, func(m document.Message) bool { return m.ID == p.variation })
	switch {
	case i >= 0:
		return &messages[i], translatable(&messages[i])
	case hasMessage(x, p.variation):
		return nil, errMessage
	}
	return nil, errVariation
}

func translatable(m *document.Message) error {
	switch {
	case m.Channel != "email":
		return errChannel
	case !m.MultiLanguage:
		return errMonolingual
	}
	return nil
}

// hasMessage reports whether any campaign or step of the workspace has a message with this id.
func hasMessage(x *call.Call, id string) bool {
	found := false
	eachMessage(x, func(m *document.Message) bool {
		found = m.ID == id
		return !found
	})
	return found
}

// eachMessage calls f for the messages of the workspace until f returns false.
func eachMessage(x *call.Call, f func(*document.Message) bool) {
	each := func(messages []document.Message) bool {
		for i := range messages {
			if !f(&messages[i]) {
				return false
			}
		}
		return true
	}
	for _, c := range x.Control.Campaigns.List(x.Workspace.ID) {
		if !each(c.Messages) {
			return
		}
	}
	for _, c := range x.Control.Canvases.List(x.Workspace.ID) {
		for i := range c.Steps {
			if !each(c.Steps[i].Messages) {
				return
			}
		}
	}
}

// locale returns the locale that the request names, one of the workspace.
func (p *place) locale(x *call.Call) (document.Locale, error) {
	if p.localeID == "" {
		if key, ok := document.LocaleKey(p.localeName); ok {
			if l, ok := localesOf(x)[key]; ok {
				return l, nil
			}
		}
		return document.Locale{}, errLocale
	}
	id, err := uuid.Parse(p.localeID)
	if err != nil {
		return document.Locale{}, errLocaleID
	}
	for _, l := range localesOf(x) {
		if localeID(x, l) == id {
			return l, nil
		}
	}
	return document.Locale{}, errLocale
}

// localesOf returns the locales of the workspace by their keys: those of its settings and of all its translations. A
// locale has the same name wherever it is shown: the one in the settings, else that of the first translation that has
// one, in the order of campaigns, canvases and their messages.
func localesOf(x *call.Call) map[string]document.Locale {
	found := map[string]document.Locale{}
	keys := map[string]string{} // of names, which are parsed once
	add := func(l document.Locale) {
		key, ok := keys[l.Name]
		if !ok {
			key = localeKey(l)
			keys[l.Name] = key
		}
		if first, ok := found[key]; ok {
			l = document.Locale{Name: first.Name, Country: cmp.Or(first.Country, l.Country),
				Language: cmp.Or(first.Language, l.Language)}
		}
		found[key] = l
	}
	for _, l := range x.Workspace.Locales {
		add(l)
	}
	eachMessage(x, func(m *document.Message) bool {
		for i := range m.Translations {
			add(m.Translations[i].Locale)
		}
		return true
	})
	return found
}

func localeKey(l document.Locale) string {
	if key, ok := document.LocaleKey(l.Name); ok {
		return key
	}
	return l.Name // from before names were checked
}

// localeSpace is the name space of the ids of locales.
var localeSpace = uuid.MustParse("5b1d5a52-7a3b-4c7e-9a53-0f6d1d7b2e94")

// localeID is derived from the workspace and the code, so it is the same whenever and wherever it is asked for.
func localeID(x *call.Call, l document.Locale) uuid.UUID {
	return uuid.NewSHA1(localeSpace, []byte(x.Workspace.ID+"/"+localeKey(l)))
}
