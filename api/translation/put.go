package translation

import (
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/value"
)

// PutCampaign serves PUT /campaigns/translations.
func PutCampaign(x *call.Call, body value.Value) {
	if p, texts, ok := written(x, body, func(p *place) error { return p.checkCampaign(true) }); ok {
		putTranslation(x, &p, texts, x.Control.Campaigns, p.campaign, campaignMessages)
	}
}

// PutCanvas serves PUT /canvases/translations.
func PutCanvas(x *call.Call, body value.Value) {
	if p, texts, ok := written(x, body, (*place).checkCanvas); ok {
		putTranslation(x, &p, texts, x.Control.Canvases, p.canvas, p.canvasMessages)
	}
}

// written reads the body of a PUT: the place, and the text of translation_map, which is read last. If ok is false, it
// has answered.
func written(x *call.Call, body value.Value, check func(*place) error) (p place, texts value.Value, ok bool) {
	var err error
	str := func(v value.Value, wrong *refusal, name string) string {
		s, isString := v.Str()
		if !v.Absent() && !isString && err == nil {
			err = &refusal{400, wrong.code, "'" + name + "' must be a string"}
		}
		return s
	}
	for member, m := range body.Members() {
		switch member {
		case "campaign_id":
			p.campaign = str(m, errCampaign, member)
		case "workflow_id":
			p.canvas = str(m, &refusal{code: codeCanvas}, member)
		case "step_id":
			p.step = str(m, &refusal{code: codeStep}, member)
		case "message_variation_id":
			p.variation = str(m, errVariation, member)
		case "locale_id":
			p.localeID = str(m, errLocaleID, member)
		case "locale_name":
			p.localeName = str(m, errLocaleID, member)
		case "translation_map":
			texts = m
		}
	}
	if err == nil {
		err = check(&p)
	}
	if err == nil && p.localeID == "" && p.localeName == "" {
		err = requiredID(errLocaleID.code, "locale_id' or 'locale_name")
	}
	if err != nil {
		fail(x, err)
		return p, nil, false
	}
	return p, texts, true
}

// putTranslation replaces all texts of a message's translation into a locale. The request is judged by what is there
// now, and once more by the document that it changes, which nobody else changes meanwhile.
func putTranslation[T any](
	x *call.Call, p *place, texts value.Value, l *control.Collection[T], id string,
	messagesOf func(*T) ([]document.Message, error),
) {
	messages, err := p.messages(x)
	var m *document.Message
	if err == nil {
		m, err = p.find(x, messages)
	}
	var locale document.Locale
	if err == nil {
		locale, err = p.locale(x)
	}
	var translated map[string]string
	if err == nil {
		translated, err = readTexts(texts)
	}
	if err == nil {
		err = complete(m, translated)
	}
	if err != nil {
		fail(x, err)
		return
	}
	err = l.Edit(x.Actor(), x.Workspace.ID, id, "translation put", func(v *T) (*T, error) {
		messages, err := messagesOf(v)
		if err != nil {
			return nil, err
		}
		m, err := p.find(x, messages)
		if err != nil {
			return nil, err
		}
		if err := complete(m, translated); err != nil {
			return nil, err
		}
		m.Translations = withTranslation(m.Translations, document.Translation{Locale: locale, Map: translated})
		return v, nil
	}, "message", p.variation, "locale", locale.Name)
	if err != nil {
		fail(x, err)
		return
	}
	x.Succeed(fasthttp.StatusOK)
}

// withTranslation replaces the translation into the same locale by t, or appends t.
func withTranslation(list []document.Translation, t document.Translation) []document.Translation {
	i := slices.IndexFunc(list,
		func(other document.Translation) bool { return localeKey(other.Locale) == localeKey(t.Locale) })
	if i < 0 {
		return append(list, t)
	}
	t.Locale = list[i].Locale // with its earlier description
	list[i] = t
	return list
}

// readTexts reads translation_map.
func readTexts(v value.Value) (map[string]string, error) {
	if v.Absent() {
		return nil, requiredID(errTranslationMap.code, "translation_map")
	}
	if !v.IsObject() {
		return nil, errTranslationMap
	}
	texts := map[string]string{}
	size := 0
	for id, m := range v.Members() {
		text, ok := m.Str()
		if !ok {
			return nil, errTranslationMap
		}
		if size += len(id) + len(text); size > maxTranslationBytes {
			return nil, errTranslations
		}
		texts[id] = text
	}
	return texts, nil
}

// complete returns which ids of the message's source the texts leave out. Ids that the source doesn't have are kept: a
// message may have no source here.
func complete(m *document.Message, texts map[string]string) error {
	var missing []string
	for _, id := range slices.Sorted(maps.Keys(m.Source)) {
		if _, there := texts[id]; !there {
			missing = append(missing, "'"+id+"'")
		}
	}
	if len(missing) > 0 {
		return &refusal{400, "MISSING_TRANSLATIONS",
			"The provided translations are missing " + strings.Join(missing, ", ")}
	}
	return nil
}
