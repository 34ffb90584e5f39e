package translation

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control/document"
	"millrace/api/value"
)

// Campaign serves GET /campaigns/translations: of one message or, without message_variation_id, of each message of the
// campaign that has any.
func Campaign(x *call.Call) {
	p, err := queriedPlace(x, false)
	answerTranslations(x, &p, cmp.Or(err, p.checkCampaign(false)))
}

// Canvas serves GET /canvases/translations.
func Canvas(x *call.Call) {
	p, err := queriedPlace(x, true)
	answerTranslations(x, &p, cmp.Or(err, p.checkCanvas()))
}

func answerTranslations(x *call.Call, p *place, err error) {
	var shown []document.Message
	if err == nil {
		shown, err = p.shown(x)
	}
	only := ""
	if err == nil && p.localeID != "" {
		var l document.Locale
		l, err = p.locale(x)
		only = localeKey(l)
	}
	if err != nil {
		fail(x, err)
		return
	}
	locales := localesOf(x)
	x.Reply = append(x.Reply[:0], `{"translations":[`...)
	for i := range shown {
		for _, t := range shown[i].Translations {
			key := localeKey(t.Locale)
			if only != "" && key != only {
				continue
			}
			t.Locale = locales[key].Described()
			x.Reply = value.WithComma(x.Reply)
			appendTranslation(x, p, &shown[i], t)
		}
	}
	x.Reply = append(x.Reply, `],"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}

// shown returns the messages whose translations the place asks for.
func (p *place) shown(x *call.Call) ([]document.Message, error) {
	messages, err := p.messages(x)
	if err != nil {
		return nil, err
	}
	if p.variation != "" {
		m, err := p.find(x, messages)
		if err != nil {
			return nil, err
		}
		return []document.Message{*m}, nil
	}
	var shown []document.Message
	for i := range messages {
		refused := translatable(&messages[i])
		if refused == nil {
			shown = append(shown, messages[i])
		} else if err != errMonolingual { // of several reasons, the more helpful one
			err = refused
		}
	}
	if len(shown) == 0 {
		return nil, err
	}
	return shown, nil
}

// appendTranslation appends a translation to the reply; if there are several messages, it says of which one.
func appendTranslation(x *call.Call, p *place, m *document.Message, t document.Translation) {
	l := t.Locale
	b := append(x.Reply, `{"locale":{"uuid":`...)
	b = value.AppendQuoted(b, localeID(x, l).String())
	b = value.AppendQuoted(append(b, `,"name":`...), l.Name)
	b = value.AppendQuoted(append(b, `,"country":`...), l.Country)
	b = value.AppendQuoted(append(b, `,"language":`...), l.Language)
	b = value.AppendQuoted(append(b, `,"locale_key":`...), strings.ToLower(localeKey(l)))
	b = appendTexts(append(b, `},"translation_map":`...), t.Map)
	if p.variation == "" {
		b = value.AppendQuoted(append(b, `,"message_variation_id":`...), m.ID)
	}
	x.Reply = append(b, '}')
}

// appendTexts appends texts by their ids, in the order of the ids.
func appendTexts(dst []byte, texts map[string]string) []byte {
	dst = append(dst, '{')
	for _, id := range slices.Sorted(maps.Keys(texts)) {
		dst = append(value.AppendQuoted(value.WithComma(dst), id), ':')
		dst = value.AppendQuoted(dst, texts[id])
	}
	return append(dst, '}')
}

// CampaignSource serves GET /campaigns/translations/source: the texts to be translated.
func CampaignSource(x *call.Call) {
	p, err := queriedPlace(x, false)
	answerSource(x, &p, cmp.Or(err, p.checkCampaign(true)))
}

// CanvasSource serves GET /canvases/translations/source.
func CanvasSource(x *call.Call) {
	p, err := queriedPlace(x, true)
	answerSource(x, &p, cmp.Or(err, p.checkCanvas()))
}

func answerSource(x *call.Call, p *place, err error) {
	var shown []document.Message
	if err == nil {
		shown, err = p.shown(x)
	}
	if err != nil {
		fail(x, err)
		return
	}
	x.Reply = appendTexts(append(x.Reply[:0], `{"translations":{"translation_map":`...), shown[0].Source)
	x.Reply = append(x.Reply, `},"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}
