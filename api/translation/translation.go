// Package translation has the endpoints of translations of campaign and canvas messages (service.md 2.15, 4.11, 4.12;
// decisions.md D6, D9): listed, shown one by one, and written.
//
// A request is judged in this order, and the first check that fails is the answer: the ids that it must have; whether
// the workspace has more than one language; the campaign, or the canvas and its step; the message; its channel; whether
// it has more than one language; the locale; the texts.
package translation

import (
	"errors"
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/value"
)

// refusal is a refusal with its code.
type refusal struct {
	status     int
	code, text string
}

func (e *refusal) Error() string { return e.text }

// Codes and texts of service.md 7 and reference.md 7, and ours where those say nothing.
var (
	errMultiLanguage = &refusal{400, "MULTI_LANGUAGE_NOT_ENABLED",
		"Multi-language is not enabled in this workspace."}
	errMonolingual = &refusal{400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE",
		"This message does not support multi-language."}
	errChannel   = &refusal{400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."}
	errCampaign  = &refusal{400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."}
	errVariation = &refusal{400, "INVALID_MESSAGE_VARIATION_ID",
		"The provided message variation ID is not valid."}
	errMessage = &refusal{400, "MESSAGE_NOT_FOUND",
		"The message was not found in this campaign or Canvas step."}
	errLocaleID       = &refusal{400, "INVALID_LOCALE_ID", "The provided locale ID is not valid."}
	errLocale         = &refusal{400, "LOCALE_NOT_FOUND", "The provided locale code does not exist."}
	errTranslationMap = &refusal{400, "INVALID_TRANSLATION_MAP",
		"'translation_map' must be an object of strings"}
	errTranslations = &refusal{400, "TRANSLATIONS_TOO_LARGE",
		"The provided translations have exceeded the maximum of 20MB."}
	errCanvas = &refusal{404, "CANVAS_NOT_FOUND", "The Canvas was not found."}
	errStep   = &refusal{404, "STEP_NOT_FOUND", "The Canvas step was not found."}
)

const (
	codeCanvas = "INVALID_WORKFLOW_ID"
	codeStep   = "INVALID_STEP_ID"
)

func requiredID(code, name string) *refusal {
	return &refusal{400, code, "'" + name + "' is required"}
}

// maxTranslationBytes bounds the texts of one translation, ids included. With the default of Options.MaxBodyBytes no
// request comes near it.
const maxTranslationBytes = 20 << 20

// textTooManyRequests is what clients of the public API know for 429; the message beside it names the limit (D2).
const textTooManyRequests = "You have exceeded the maximum number of requests. Please try again later."

// AppendFailure appends the answer to a request that the door refused.
func AppendFailure(dst []byte, status int, text string) []byte {
	code := strings.ReplaceAll(strings.ToUpper(http.StatusText(status)), " ", "_")
	if status == fasthttp.StatusTooManyRequests {
		return appendRefusal(dst, text, code, textTooManyRequests)
	}
	return appendRefusal(dst, text, code, text)
}

func appendRefusal(dst []byte, message, code, text string) []byte {
	dst = value.AppendQuoted(append(dst, `{"message":`...), message)
	dst = value.AppendQuoted(append(dst, `,"errors":[{"code":`...), code)
	dst = value.AppendQuoted(append(dst, `,"message":`...), text)
	return append(dst, `}]}`...)
}

// fail answers a request that was refused, here or by the engine.
func fail(x *call.Call, err error) {
	e, ok := errors.AsType[*refusal](err)
	if !ok {
		x.FailEngine(err)
		return
	}
	x.Reply = appendRefusal(x.Reply[:0], e.text, e.code, e.text)
	x.Send(e.status, x.Reply)
}
