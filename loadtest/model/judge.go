package model

import (
	"regexp"
	"slices"
	"strings"
)

// Texts of refused objects that the contract names.
const (
	textNobody     = "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required"
	textTwo        = "You must specify only one of 'external_id', 'user_alias' or 'svc_id'"
	textState      = "'email_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'"
	textEmail      = "The value provided for the 'email' field is not a valid email."
	textName       = "'name' is required"
	textTime       = "'time' is not valid"
	textProduct    = "'product_id' is required"
	textCurrency   = "'currency' is not valid"
	textPrice      = "'price' is not valid"
	textQuantity   = "'quantity' is not valid"
	textProperties = "Invalid 'properties' field"
	textUnnamed    = "?" // refused, and the contract has no text for it
)

// judge says why an object is refused, "" when it isn't, and how many of its values are left out when it is accepted.
// It knows what the generator makes, not all of the contract.
func judge(array string, o map[string]any, setup *Setup) (text string, warnings int) {
	if why := judgeIdentifier(o); why != "" {
		return why, 0
	}
	switch array {
	case "events":
		return judgeEvent(o), 0
	case "purchases":
		return judgePurchase(o), 0
	}
	return judgeAttributes(o, setup)
}

func judgeIdentifier(o map[string]any) string {
	n := 0
	for _, name := range []string{"external_id", "user_alias", "svc_id"} {
		if o[name] != nil {
			n++
		}
	}
	switch {
	case n > 1:
		return textTwo
	case n == 0 && o["email"] == nil && o["phone"] == nil:
		return textNobody
	case n == 0 && o["email"] != nil && !isEmail(text(o, "email")):
		return textEmail
	case n == 0 && o["email"] == nil && !isPhone(text(o, "phone")):
		return textUnnamed
	}
	return ""
}

func judgeEvent(o map[string]any) string {
	if text(o, "name") == "" {
		return textName
	}
	return judgeTime(o)
}

func judgeTime(o map[string]any) string {
	if o["time"] == nil {
		return textUnnamed
	}
	if !isTime.MatchString(text(o, "time")) {
		return textTime
	}
	if p, ok := o["properties"].(map[string]any); ok && p["time"] != nil {
		return textProperties
	}
	return ""
}

func judgePurchase(o map[string]any) string {
	if text(o, "product_id") == "" {
		return textProduct
	}
	if len(text(o, "currency")) != 3 {
		return textCurrency
	}
	if _, isText := o["price"].(string); isText {
		return textPrice
	}
	if n, ok := o["quantity"].(int64); ok && (n < 1 || n > 100) {
		return textQuantity
	}
	return judgeTime(o)
}

func judgeAttributes(o map[string]any, setup *Setup) (string, int) {
	if state := o["email_subscribe"]; state != nil &&
		!slices.Contains([]any{subscribed, unsubscribed, optedIn}, state) {
		return textState, 0
	}
	if isPrimary(o) && o["email"] != nil && !isEmail(text(o, "email")) {
		return textEmail, 0
	}
	groups, _ := o["subscription_groups"].([]any)
	for _, g := range groups {
		if setup.Groups[text(g.(map[string]any), "subscription_group_id")] == "" {
			return textUnnamed, 0
		}
	}
	return "", countLeftOut(o)
}

func countLeftOut(o map[string]any) (n int) {
	for name := range validAttribute {
		if v, ok := o[name].(string); ok && !isValidAttribute(name, v) {
			n++
		}
	}
	return n
}

var (
	isTime  = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	isDay   = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
	isUS    = regexp.MustCompile(`^\+1\d{10}$`)
	isPlain = regexp.MustCompile(`^[\w.+-]+@[\w.-]+\.com$`)
)

func isEmail(s string) bool { return isPlain.MatchString(s) }
func isPhone(s string) bool { return isUS.MatchString(s) }

// validAttribute tells values that are taken from those that are left out, among those that the generator makes.
var validAttribute = map[string]func(string) bool{
	"phone":     isPhone,
	"dob":       isDay.MatchString,
	"country":   isOf("US", "DE", "JP"),
	"language":  isOf("en", "de", "ja"),
	"time_zone": isOf("Europe/Berlin", "Asia/Tokyo", "America/New_York"),
	"gender":    isOf("M", "F", "O", "N", "P"),
}

func isOf(values ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(values, s) }
}

func isValidAttribute(name, v string) bool {
	valid, ok := validAttribute[name]
	return !ok || valid(strings.TrimSpace(v))
}
