package api

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
)

// Translations of campaign and canvas messages (service.md 2.15, 4.11, 4.12; decisions.md D6, D9): listed, shown one by
// one, and written.
//
// A request is judged in this order, and the first that fails is the answer: the ids that it must have; whether the
// workspace has more than one language; the campaign, or the canvas and its step; the message; its channel; whether it
// has more than one language; the locale; the texts.

// translationError is a refusal with its code.
type translationError struct {
	status     int
	code, text string
}

func (e *translationError) Error() string { return e.text }

// Codes and texts of service.md 7 and reference.md 7, and ours where those say nothing.
var (
	errMultiLanguage = &translationError{400, "MULTI_LANGUAGE_NOT_ENABLED",
		"Multi-language is not enabled in this workspace."}
	errMonolingual = &translationError{400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE",
		"This message does not support multi-language."}
	errChannel   = &translationError{400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."}
	errCampaign  = &translationError{400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."}
	errVariation = &translationError{400, "INVALID_MESSAGE_VARIATION_ID",
		"The provided message variation ID is not valid."}
	errMessage = &translationError{400, "MESSAGE_NOT_FOUND",
		"The message was not found in this campaign or Canvas step."}
	errLocaleID       = &translationError{400, "INVALID_LOCALE_ID", "The provided locale ID is not valid."}
	errLocale         = &translationError{400, "LOCALE_NOT_FOUND", "The provided locale code does not exist."}
	errTranslationMap = &translationError{400, "INVALID_TRANSLATION_MAP",
		"'translation_map' must be an object of strings"}
	errTranslations = &translationError{400, "TRANSLATIONS_TOO_LARGE",
		"The provided translations have exceeded the maximum of 20MB."}
	errCanvas = &translationError{404, "CANVAS_NOT_FOUND", "The Canvas was not found."}
	errStep   = &translationError{404, "STEP_NOT_FOUND", "The Canvas step was not found."}
)

func requiredID(code, name string) *translationError {
	return &translationError{400, code, "'" + name + "' is required"}
}

// maxTranslationBytes bounds the texts of one translation, ids included. With the default of Options.MaxBodyBytes no
// request comes near it.
const maxTranslationBytes = 20 << 20

// textTooManyRequests is what clients of the public API know for 429; the message beside it names the limit (D2).
const textTooManyRequests = "You have exceeded the maximum number of requests. Please try again later."

var translationShape = shape{contentType: contentJSON, append: func(dst []byte, status int, text string) []byte {
	code := strings.ReplaceAll(strings.ToUpper(http.StatusText(status)), " ", "_")
	if status == fasthttp.StatusTooManyRequests {
		return appendTranslationError(dst, text, code, textTooManyRequests)
	}
	return appendTranslationError(dst, text, code, text)
}}

func appendTranslationError(dst []byte, message, code, text string) []byte {
	dst = appendQuoted(append(dst, `{"message":`...), message)
	dst = appendQuoted(append(dst, `,"errors":[{"code":`...), code)
	dst = appendQuoted(append(dst, `,"message":`...), text)
	return append(dst, `}]}`...)
}

// failTranslation answers a request that was refused, here or by the engine.
func (x *exchange) failTranslation(err error) {
	var e *translationError
	if !errors.As(err, &e) {
		x.failEngine(err)
		return
	}
	x.reply = appendTranslationError(x.reply[:0], e.text, e.code, e.text)
	x.send(e.status, x.reply)
}

// messagePlace names a message: in a campaign, or in a step of a canvas. It reads and changes the document that the
// message is in.
type messagePlace struct {
	campaign, canvas, step string // ids
	variation              string // of the message; empty: all of the campaign
	localeID, localeName   string // of a translation; both empty: all
}

// queriedPlace reads a place from the query. Other parameters, such as post_launch_draft_version, are passed over:
// there are no drafts.
func (x *exchange) queriedPlace() messagePlace {
	query := x.ctx.QueryArgs()
	get := func(name string) string { return string(query.Peek(name)) }
	return messagePlace{campaign: get("campaign_id"), canvas: get("workflow_id"), step: get("step_id"),
		variation: get("message_variation_id"), localeID: get("locale_id")}
}

// checkCampaign and checkCanvas say which id is missing.
func (p *messagePlace) checkCampaign(needsVariation bool) error {
	switch {
	case p.campaign == "":
		return requiredID(errCampaign.code, "campaign_id")
	case p.variation == "" && needsVariation:
		return requiredID(errVariation.code, "message_variation_id")
	}
	p.canvas, p.step = "", ""
	return nil
}

func (p *messagePlace) checkCanvas() error {
	switch {
	case p.canvas == "":
		return requiredID("INVALID_WORKFLOW_ID", "workflow_id")
	case p.step == "":
		return requiredID("INVALID_STEP_ID", "step_id")
	case p.variation == "":
		return requiredID(errVariation.code, "message_variation_id")
	}
	p.campaign = ""
	return nil
}

// messages are those of the campaign or of the step, as they are now; not to be changed.
func (p *messagePlace) messages(x *exchange) ([]control.Message, error) {
	if !x.ws.MultiLanguage {
		return nil, errMultiLanguage
	}
	if p.campaign != "" {
		return campaignMessages(x.s.options.Control.Campaigns.Get(x.ws.ID, p.campaign))
	}
	return p.canvasMessages(x.s.options.Control.Canvases.Get(x.ws.ID, p.canvas))
}

func campaignMessages(c *control.Campaign) ([]control.Message, error) {
	if c == nil {
		return nil, errCampaign
	}
	return c.Messages, nil
}

func (p *messagePlace) canvasMessages(c *control.Canvas) ([]control.Message, error) {
	if c == nil {
		return nil, errCanvas
	}
	i := slices.IndexFunc(c.Steps, func(s control.Step) bool { return s.ID == p.step })
	if i < 0 {
		return nil, errStep
	}
	return c.Steps[i].Messages, nil
}

// find returns the message of the place among messages.
func (p *messagePlace) find(x *exchange, messages []control.Message) (*control.Message, error) {
	i := slices.IndexFunc(messages, func(m control.Message) bool { return m.ID == p.variation })
	switch {
	case i >= 0:
		return &messages[i], translatable(&messages[i])
	case x.hasMessage(p.variation):
		return nil, errMessage
	}
	return nil, errVariation
}

func translatable(m *control.Message) error {
	switch {
	case m.Channel != "email":
		return errChannel
	case !m.MultiLanguage:
		return errMonolingual
	}
	return nil
}

// hasMessage says whether any campaign or step of the workspace has a message with this id.
func (x *exchange) hasMessage(id string) bool {
	found := false
	x.eachMessage(func(m *control.Message) bool {
		found = m.ID == id
		return !found
	})
	return found
}

// eachMessage calls f for the messages of the workspace until it says false.
func (x *exchange) eachMessage(f func(*control.Message) bool) {
	each := func(messages []control.Message) bool {
		for i := range messages {
			if !f(&messages[i]) {
				return false
			}
		}
		return true
	}
	for _, c := range x.s.options.Control.Campaigns.List(x.ws.ID) {
		if !each(c.Messages) {
			return
		}
	}
	for _, c := range x.s.options.Control.Canvases.List(x.ws.ID) {
		for i := range c.Steps {
			if !each(c.Steps[i].Messages) {
				return
			}
		}
	}
}

// locale returns the locale that the request names, one of the workspace: of its settings, or of any translation that
// it has.
func (p *messagePlace) locale(x *exchange) (control.Locale, error) {
	var same func(control.Locale) bool
	if p.localeID != "" {
		id, err := uuid.Parse(p.localeID)
		if err != nil {
			return control.Locale{}, errLocaleID
		}
		same = func(l control.Locale) bool { return x.localeID(l) == id }
	} else {
		key, ok := control.LocaleKey(p.localeName)
		if !ok {
			return control.Locale{}, errLocale
		}
		same = func(l control.Locale) bool { return localeKey(l) == key }
	}
	if i := slices.IndexFunc(x.ws.Locales, same); i >= 0 {
		return x.ws.Locales[i], nil
	}
	var found *control.Locale
	x.eachMessage(func(m *control.Message) bool {
		if i := slices.IndexFunc(m.Translations, func(t control.Translation) bool { return same(t.Locale) }); i >= 0 {
			found = &m.Translations[i].Locale
		}
		return found == nil
	})
	if found == nil {
		return control.Locale{}, errLocale
	}
	return *found, nil
}

func localeKey(l control.Locale) string {
	if key, ok := control.LocaleKey(l.Name); ok {
		return key
	}
	return l.Name // of before names were checked
}

// localeSpace is the name space of the ids of locales.
var localeSpace = uuid.MustParse("5b1d5a52-7a3b-4c7e-9a53-0f6d1d7b2e94")

// localeID is made of the workspace and the code, so it is the same whenever and wherever it is asked for.
func (x *exchange) localeID(l control.Locale) uuid.UUID {
	return uuid.NewSHA1(localeSpace, []byte(x.ws.ID+"/"+localeKey(l)))
}

// campaignTranslations serves GET /campaigns/translations: of one message, or, without message_variation_id, of each
// message of the campaign that has any.
func (s *Server) campaignTranslations(x *exchange) {
	p := x.queriedPlace()
	x.answerTranslations(&p, p.checkCampaign(false))
}

// canvasTranslations serves GET /canvases/translations.
func (s *Server) canvasTranslations(x *exchange) {
	p := x.queriedPlace()
	x.answerTranslations(&p, p.checkCanvas())
}

func (x *exchange) answerTranslations(p *messagePlace, err error) {
	var shown []control.Message
	if err == nil {
		shown, err = p.shown(x)
	}
	only := ""
	if err == nil && p.localeID != "" {
		var l control.Locale
		l, err = p.locale(x)
		only = localeKey(l)
	}
	if err != nil {
		x.failTranslation(err)
		return
	}
	x.reply = append(x.reply[:0], `{"translations":[`...)
	for i := range shown {
		for _, t := range shown[i].Translations {
			if only != "" && localeKey(t.Locale) != only {
				continue
			}
			x.reply = withComma(x.reply)
			x.appendTranslation(p, &shown[i], t)
		}
	}
	x.reply = append(x.reply, `],"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// shown are the messages whose translations the place asks for.
func (p *messagePlace) shown(x *exchange) ([]control.Message, error) {
	messages, err := p.messages(x)
	if err != nil {
		return nil, err
	}
	if p.variation != "" {
		m, err := p.find(x, messages)
		if err != nil {
			return nil, err
		}
		return []control.Message{*m}, nil
	}
	var shown []control.Message
	for i := range messages {
		refused := translatable(&messages[i])
		if refused == nil {
			shown = append(shown, messages[i])
		} else if err != errMonolingual { // the kinder reason, when there are several
			err = refused
		}
	}
	if len(shown) == 0 {
		return nil, err
	}
	return shown, nil
}

// appendTranslation appends a translation to the reply; one of several messages says of which.
func (x *exchange) appendTranslation(p *messagePlace, m *control.Message, t control.Translation) {
	l := t.Locale.Described()
	b := append(x.reply, `{"locale":{"uuid":`...)
	b = appendQuoted(b, x.localeID(l).String())
	b = appendQuoted(append(b, `,"name":`...), l.Name)
	b = appendQuoted(append(b, `,"country":`...), l.Country)
	b = appendQuoted(append(b, `,"language":`...), l.Language)
	b = appendQuoted(append(b, `,"locale_key":`...), strings.ToLower(localeKey(l)))
	b = appendTexts(append(b, `},"translation_map":`...), t.Map)
	if p.variation == "" {
		b = appendQuoted(append(b, `,"message_variation_id":`...), m.ID)
	}
	x.reply = append(b, '}')
}

// appendTexts appends texts by their ids, in order of the ids.
func appendTexts(dst []byte, texts map[string]string) []byte {
	dst = append(dst, '{')
	for _, id := range slices.Sorted(maps.Keys(texts)) {
		dst = append(appendQuoted(withComma(dst), id), ':')
		dst = appendQuoted(dst, texts[id])
	}
	return append(dst, '}')
}

// campaignSource serves GET /campaigns/translations/source: the texts to be translated.
func (s *Server) campaignSource(x *exchange) {
	p := x.queriedPlace()
	x.answerSource(&p, p.checkCampaign(true))
}

// canvasSource serves GET /canvases/translations/source.
func (s *Server) canvasSource(x *exchange) {
	p := x.queriedPlace()
	x.answerSource(&p, p.checkCanvas())
}

func (x *exchange) answerSource(p *messagePlace, err error) {
	var shown []control.Message
	if err == nil {
		shown, err = p.shown(x)
	}
	if err != nil {
		x.failTranslation(err)
		return
	}
	x.reply = appendTexts(append(x.reply[:0], `{"translations":{"translation_map":`...), shown[0].Source)
	x.reply = append(x.reply, `},"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// putCampaignTranslation serves PUT /campaigns/translations.
func (s *Server) putCampaignTranslation(x *exchange, body value) {
	if p, texts, ok := x.written(body, func(p *messagePlace) error { return p.checkCampaign(true) }); ok {
		putTranslation(x, &p, texts, s.options.Control.Campaigns, p.campaign, campaignMessages)
	}
}

// putCanvasTranslation serves PUT /canvases/translations.
func (s *Server) putCanvasTranslation(x *exchange, body value) {
	if p, texts, ok := x.written(body, (*messagePlace).checkCanvas); ok {
		putTranslation(x, &p, texts, s.options.Control.Canvases, p.canvas, p.canvasMessages)
	}
}

// written reads the body of a PUT: the place, and the text of translation_map, which is read last. It has answered when
// ok is false.
func (x *exchange) written(body value, check func(*messagePlace) error) (p messagePlace, texts value, ok bool) {
	var err error
	str := func(v value, wrong *translationError, name string) string {
		s, isString := v.str()
		if !v.absent() && !isString && err == nil {
			err = &translationError{400, wrong.code, "'" + name + "' must be a string"}
		}
		return s
	}
	for member, m := range body.members() {
		switch member {
		case "campaign_id":
			p.campaign = str(m, errCampaign, member)
		case "workflow_id":
			p.canvas = str(m, &translationError{code: "INVALID_WORKFLOW_ID"}, member)
		case "step_id":
			p.step = str(m, &translationError{code: "INVALID_STEP_ID"}, member)
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
		err = requiredID(errLocaleID.code, "locale_id")
	}
	if err != nil {
		x.failTranslation(err)
		return p, nil, false
	}
	return p, texts, true
}

// putTranslation gives a message's translation into a locale the texts, all of them. The request is judged on what is
// there now, and once more on the document that it changes, which nobody else changes meanwhile.
func putTranslation[T any](
	x *exchange, p *messagePlace, texts value, l *control.Collection[T], id string,
	messagesOf func(*T) ([]control.Message, error),
) {
	messages, err := p.messages(x)
	var m *control.Message
	if err == nil {
		m, err = p.find(x, messages)
	}
	var locale control.Locale
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
		x.failTranslation(err)
		return
	}
	err = l.Edit(x.actor(), x.ws.ID, id, "translation put", func(document *T) (*T, error) {
		messages, err := messagesOf(document)
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
		m.Translations = withTranslation(m.Translations, control.Translation{Locale: locale, Map: translated})
		return document, nil
	}, "message", p.variation, "locale", locale.Name)
	if err != nil {
		x.failTranslation(err)
		return
	}
	x.succeed(fasthttp.StatusOK)
}

// withTranslation puts t in the place of the translation into the same locale, or behind the others.
func withTranslation(list []control.Translation, t control.Translation) []control.Translation {
	i := slices.IndexFunc(list,
		func(other control.Translation) bool { return localeKey(other.Locale) == localeKey(t.Locale) })
	if i < 0 {
		return append(list, t)
	}
	t.Locale = list[i].Locale // as it has been described
	list[i] = t
	return list
}

// readTexts reads translation_map.
func readTexts(v value) (map[string]string, error) {
	if v.absent() {
		return nil, requiredID(errTranslationMap.code, "translation_map")
	}
	if !v.isObject() {
		return nil, errTranslationMap
	}
	texts := map[string]string{}
	size := 0
	for id, m := range v.members() {
		text, ok := m.str()
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

// complete says which ids of the message's source the texts leave out. Ids that the source doesn't have are kept: a
// message may have no source here.
func complete(m *control.Message, texts map[string]string) error {
	var missing []string
	for _, id := range slices.Sorted(maps.Keys(m.Source)) {
		if _, there := texts[id]; !there {
			missing = append(missing, "'"+id+"'")
		}
	}
	if len(missing) > 0 {
		return &translationError{400, "MISSING_TRANSLATIONS",
			"The provided translations are missing " + strings.Join(missing, ", ")}
	}
	return nil
}
