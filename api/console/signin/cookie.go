package signin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
)

// Cookies. Because of the prefix, browsers take them over https alone (or from loopback), for this host alone.
const (
	sessionCookie = "__Host-millrace"
	formCookie    = "__Host-millrace-form" // of forms of those who have no session
	flowCookie    = "__Host-millrace-oidc" // of a sign-in that is with the provider
)

// StrangersForm is the token in the forms of somebody who is not signed in: it is derived from the token in a cookie,
// which StrangersForm sets when there is none.
func StrangersForm(w http.ResponseWriter, r *http.Request) string {
	token := randomText()
	if cookie, err := r.Cookie(formCookie); err == nil && len(cookie.Value) == len(token) {
		token = cookie.Value
	} else {
		setCookie(w, formCookie, token, http.SameSiteStrictMode, 0)
	}
	return formToken(token)
}

// formToken is the token in the forms of a session: who knows it has read a page of that session.
func formToken(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("form"))
	return hex.EncodeToString(mac.Sum(nil))
}

func same(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func randomText() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// setCookie sets a cookie for this host. With 0 seconds it lasts as long as the browser is open; below 0 the browser
// removes it.
func setCookie(w http.ResponseWriter, name, value string, site http.SameSite, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true,
		SameSite: site})
}
