package preference

import (
	"encoding/base64"
	"mime/multipart"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const (
	news   = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"
	offers = "7d89bdc3-4aa1-4592-8b8a-4c8b7161c875"
)

func someone(email, group string) *Subscriber {
	return &Subscriber{Address: "a@b.c", Email: email, Groups: map[string]string{news: group}}
}

func TestLink(t *testing.T) {
	secret := [32]byte{1, 2, 3}
	for _, l := range []Link{
		{Workspace: 1, User: 1 << 63, Center: "main", Expires: 1_800_000_000},
		{Workspace: 1<<32 - 1, User: 7, Center: strings.Repeat("c", 255), Viewport: strings.Repeat("v", 255), Expires: 1 << 40},
		{Center: "", Viewport: "é\"<", Expires: 1},
	} {
		text := Sign(&secret, l)
		require.Regexp(t, `^[A-Za-z0-9_-]+$`, text)
		require.LessOrEqual(t, len(text), maxLinkText)
		got, err := Open(&secret, text, l.Expires-1)
		require.NoError(t, err)
		require.Equal(t, l, got)
		got, err = Open(&secret, text, l.Expires)
		require.ErrorIs(t, err, errExpired)
		require.Equal(t, l, got)

		raw, err := linkEncoding.DecodeString(text)
		require.NoError(t, err)
		for bit := range 8 * len(raw) { // each single bit counts
			raw[bit/8] ^= 1 << (bit % 8)
			_, err = Open(&secret, linkEncoding.EncodeToString(raw), 0)
			require.ErrorIs(t, err, ErrForged, "bit %d", bit)
			raw[bit/8] ^= 1 << (bit % 8)
		}
		for n := range raw {
			_, err = Open(&secret, linkEncoding.EncodeToString(raw[:n]), 0)
			require.ErrorIs(t, err, ErrForged)
		}
		_, err = Open(&[32]byte{1, 2, 4}, text, 0)
		require.ErrorIs(t, err, ErrForged)
		for _, other := range []string{text + "=", " " + text, text + "\n", base64.StdEncoding.EncodeToString(raw) + "=", text + text} {
			_, err = Open(&secret, other, 0)
			require.ErrorIs(t, err, ErrForged, other)
		}
	}
	// The last character of a text that does not end with a byte has bits to spare; only one spelling is taken.
	text := Sign(&secret, Link{Center: "ab", Expires: 9})
	require.NotZero(t, len(text)%4)
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if other := text[:len(text)-1] + string(c); other != text {
			_, err := Open(&secret, other, 0)
			require.ErrorIs(t, err, ErrForged)
		}
	}
}

func TestTags(t *testing.T) {
	s := &Subscriber{Address: `ä"<x>&'@b.c`, Email: OptedIn, Groups: map[string]string{news: Subscribed, offers: Unknown}}
	for text, want := range map[string]string{
		`{{subscribed_state.${email_global}}}`:                                       "opted_in",
		"{{ subscribed_state.${ email_global }\n}}":                                  "opted_in",
		`{{subscribed_state.${` + news + `}}}`:                                       "subscribed",
		`{{subscribed_state.${` + strings.ToUpper(news) + `}}}`:                      "subscribed",
		`{{subscribed_state.${` + offers + `}}}`:                                     "unknown",
		`{{subscribed_state.${00000000-0000-4000-8000-000000000000}}}`:               "",
		`{% form_field_name :email_global_state %}`:                                  "email_global_state",
		`{%form_field_name :email_global_state%}`:                                    "email_global_state",
		`{%- form_field_name :email_global_state -%}`:                                "email_global_state",
		`{% form_field_name :subscription_group ` + strings.ToUpper(offers) + ` %}`:  "subscription_group_" + offers,
		`{{preference_center_submit_url}}`:                                           "/p/x-_~.9",
		`{{ preference_center_submit_url }}`:                                         "/p/x-_~.9",
		`{{${email_address}}}`:                                                       "&#228;&#34;&#60;x&#62;&#38;&#39;&#64;b&#46;c",
		`a{{subscribed_state.${email_global}}}{{subscribed_state.${email_global}}}b`: "aopted_inopted_inb",
	} {
		require.Equal(t, want, replaceTags(text, "/p/x-_~.9", s), text)
	}
	for _, text := range []string{
		"", "{{", "{{}}", "{% %}", "{{subscribed_state.${email_global}}", "{{subscribed_state.${}}}", "{{subscribed_state.${x}}}", "{{ subscribed_state . ${email_global}}}",
		"{{subscribed_state.${email_global} | upcase }}", "{% form_field_name email_global_state %}", "{% form_field_name :email_global %}", "{% form_field_name :subscription_group x %}",
		"{% form_field_name :subscription_group %}", "{{Preference_center_submit_url}}", "{% if true %}", "{{${first_name}}}", "{{preference_center_submit_url" + strings.Repeat(" ", 9) + "}}",
		"{{subscribed_state.${" + news + "0}}}", "\xff{{\x00",
	} {
		require.Equal(t, text, replaceTags(text, "/p", s))
	}
	// What is put in is not read again, and nothing that could mean more than itself is put in.
	require.Equal(t, "", replaceTags(`{{preference_center_submit_url}}`, `/p"onclick=`, s))
	require.Equal(t, "", replaceTags(`{{subscribed_state.${email_global}}}`, "", &Subscriber{Email: "{{preference_center_submit_url}}"}))
	require.Equal(t, "&#123;&#123;preference&#95;center&#95;submit&#95;url&#125;&#125;", replaceTags(`{{${email_address}}}`, "/p", &Subscriber{Address: "{{preference_center_submit_url}}"}))
}

func TestFill(t *testing.T) {
	email, group := `name="email_global_state"`, `name="subscription_group_`+news+`"`
	hidden := func(name, value string) string { return `<input type="hidden" ` + name + ` value="` + value + `">` }
	for _, c := range []struct{ email, group, text, want string }{
		// radio buttons
		{OptedIn, Unknown, `<input type=radio ` + email + ` value=opted_in>`, `<input type="radio" ` + email + ` value="opted_in" checked="">`},
		{Subscribed, Unknown, `<INPUT TYPE=Radio CHECKED ` + email + ` value=opted_in/>`, `<input type="Radio" ` + email + ` value="opted_in/">`},
		{Subscribed, Unknown, `<input type='radio' checked ` + group + ` value='subscribed' />`, `<input type="radio" ` + group + ` value="subscribed"/>`},
		// boxes: ticked says what is, the hidden field what becomes of it when the tick is taken out
		{Subscribed, Subscribed, `<input type=checkbox ` + group + ` value=subscribed>`, hidden(group, Unsubscribed) + `<input type="checkbox" ` + group + ` value="subscribed" checked="">`},
		{Subscribed, Unsubscribed, `<input type=checkbox ` + group + ` value=subscribed checked>`, hidden(group, Unsubscribed) + `<input type="checkbox" ` + group + ` value="subscribed">`},
		{Subscribed, Unknown, `<input type=checkbox ` + group + ` value=subscribed>`, `<input type="checkbox" ` + group + ` value="subscribed">`},
		{Subscribed, Unsubscribed, `<input type=checkbox ` + group + ` value=unsubscribed>`, hidden(group, Subscribed) + `<input type="checkbox" ` + group + ` value="unsubscribed" checked="">`},
		{Subscribed, Subscribed, `<input type=checkbox ` + group + ` value=unsubscribed>`, hidden(group, Subscribed) + `<input type="checkbox" ` + group + ` value="unsubscribed">`},
		{Subscribed, Subscribed, `<input type=checkbox ` + group + `>`, hidden(group, Unsubscribed) + `<input type="checkbox" ` + group + ` value="subscribed" checked="">`},
		{OptedIn, "", `<input type=checkbox ` + email + `>`, hidden(email, Unsubscribed) + `<input type="checkbox" ` + email + ` value="opted_in" checked="">`},
		{Subscribed, "", `<input type=checkbox ` + email + ` value=opted_in>`, hidden(email, Subscribed) + `<input type="checkbox" ` + email + ` value="opted_in">`},
		{OptedIn, "", `<input type=checkbox ` + email + ` value=subscribed>`, hidden(email, Unsubscribed) + `<input type="checkbox" ` + email + ` value="opted_in" checked="">`},
		{Unsubscribed, "", `<input type=checkbox ` + email + ` value=subscribed>`, hidden(email, Unsubscribed) + `<input type="checkbox" ` + email + ` value="subscribed">`},
		{Subscribed, Subscribed, `<input type=checkbox ` + group + `><input type=checkbox ` + group + `>`, // one hidden field before all
			hidden(group, Unsubscribed) + `<input type="checkbox" ` + group + ` value="subscribed" checked=""><input type="checkbox" ` + group + ` value="subscribed" checked="">`},
		// options
		{Unsubscribed, "", `<select ` + email + `><option value=opted_in selected>A<option value=unsubscribed>B</select><option value=unsubscribed>`,
			`<select ` + email + `><option value="opted_in">A<option value="unsubscribed" selected="">B</select><option value=unsubscribed>`},
		{Subscribed, Unknown, `<select ` + group + `><option value=subscribed>A</select>x<select ` + email + `>`,
			`<select ` + group + `><option value="unchanged" selected></option><option value="subscribed">A</select>x<select ` + email + `><option value="unchanged" selected></option>`},
		{Subscribed, Unknown, `<select><option value=subscribed></select>`, `<select><option value=subscribed></select>`},
		// the rest is left alone, byte for byte
		{Subscribed, Subscribed, `<input ` + email + `><input type=hidden ` + email + ` value="" ><input type=checkbox name=other checked><INPUT type=radio name=subscription_group_` + offers + ` value=subscribed>`, ""},
		{Subscribed, Subscribed, `<!-- <input type=checkbox ` + group + `> --><script>"<input type=checkbox ` + group + `>"</script><textarea><input type=radio ` + email + ` value=subscribed></textarea>`, ""},
		{Subscribed, Subscribed, "<p\tclass = 'a' >\r\n&amp;&copy;\x00</P ><br/><p <b>", ""},
		{Subscribed, Subscribed, `<input type=checkbox ` + group, ""},
	} {
		if c.want == "" {
			c.want = c.text
		}
		require.Equal(t, c.want, fill(c.text, someone(c.email, c.group)), c.text)
	}
	// Attributes survive their being read and written.
	require.Equal(t, `<input type="radio" name="email_global_state" value="subscribed" title="&#34;&lt;&amp;" checked="">`,
		fill(`<input type=radio name=email_global_state value=subscribed title='"<&amp;'>`, someone(Subscribed, "")))
}

func TestDocument(t *testing.T) {
	p := Page{Title: "A & B"}
	title := "<title>A &amp; B</title>\n"
	for text, want := range map[string]string{
		"<p>x":                  "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n" + title + "</head>\n<body>\n<p>x\n</body>\n</html>\n",
		"x<html>":               "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n" + title + "</head>\n<body>\nx<html>\n</body>\n</html>\n",
		"<title>Own</title><p>": "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n" + title + "</head>\n<body>\n<title>Own</title><p>\n</body>\n</html>\n",
		"<!DOCTYPE html><p>x":   "<!DOCTYPE html>" + title + "<p>x",
		"\n<!-- c --><!doctype html>\n<html lang=en><head class=x><meta charset=utf-8></head><body>": "\n<!-- c --><!doctype html>\n<html lang=en><head class=x>" + title + "<meta charset=utf-8></head><body>",
		"<html><head><style>title{}</style><title>Own</title></head>":                                "<!doctype html>\n<html><head><style>title{}</style><title>Own</title></head>",
		"<html><body><svg><title>s</title></svg>":                                                    "<!doctype html>\n<html>" + title + "<body><svg><title>s</title></svg>",
		"<body>x":            "<!doctype html>\n" + title + "<body>x",
		"<!-- <html> --><p>": "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n" + title + "</head>\n<body>\n<!-- <html> --><p>\n</body>\n</html>\n",
	} {
		require.Equal(t, want, string(p.document(text)), text)
	}
	p.Viewport = `a"b`
	p.Icons = []Icon{{Rel: "icon", Href: `https://e/?a&b"`, Type: "image/png", Sizes: "16x16", Color: "red"}, {Rel: "apple-touch-icon", Href: "https://e"}}
	require.Equal(t, "<html>"+title+"<meta name=\"viewport\" content=\"a&#34;b\">\n<link rel=\"icon\" type=\"image/png\" sizes=\"16x16\" color=\"red\" href=\"https://e/?a&amp;b&#34;\">\n<link rel=\"apple-touch-icon\" href=\"https://e\">\n",
		strings.TrimPrefix(string(p.document("<html>")), "<!doctype html>\n"))
}

func TestForm(t *testing.T) {
	const kind = "application/x-www-form-urlencoded"
	s := &Subscriber{Groups: map[string]string{news: Unknown, offers: Subscribed}}
	read := func(body string) Choices {
		c, err := ReadForm(kind, []byte(body), s)
		require.NoError(t, err, body)
		return c
	}
	require.Equal(t, Choices{Email: OptedIn, Groups: map[string]bool{news: true, offers: false}},
		read("email_global_state=opted_in&subscription_group_"+news+"=subscribed&subscription_group_"+offers+"=unsubscribed"))
	require.Equal(t, Choices{Email: Unsubscribed, Groups: map[string]bool{}}, read("email_global_state=opted_in&email_global_state=unsubscribed"), "the last one counts")
	require.Equal(t, Choices{Groups: map[string]bool{news: false}}, read("email_global_state=&subscription_group_"+news+"=unsubscribed"), "an empty one says nothing")
	require.Equal(t, Choices{Groups: map[string]bool{}}, read("a=b&subscription_group_x=subscribed"))
	require.Equal(t, Choices{Groups: map[string]bool{}}, read("email_global_state=unchanged&subscription_group_"+news+"=unchanged"))
	require.Equal(t, Choices{OneClick: true}, read("email_global_state=nonsense&List-Unsubscribe=One-Click"))
	require.Equal(t, Choices{OneClick: true}, read("List-Unsubscribe=One-Click\r\n"))
	for body, want := range map[string]error{"email_global_state=&subscription_group_" + news + "=": errNoChoice, "a=%": errForm, "a;b": errForm, strings.Repeat("&", maxFields): errForm} {
		_, err := ReadForm(kind, []byte(body), s)
		require.ErrorIs(t, err, want, body)
	}
	_, err := ReadForm(kind, []byte("email_global_state=on"), s)
	require.ErrorContains(t, err, "email_global_state is not valid")
	for _, other := range []string{"", "text/plain", "application/json", "multipart/mixed; boundary=x", ";"} {
		_, err := ReadForm(other, nil, s)
		require.ErrorIs(t, err, ErrMediaType, other)
	}
	var body strings.Builder
	w := multipart.NewWriter(&body)
	require.NoError(t, w.WriteField("email_global_state", "subscribed"))
	f, err := w.CreateFormFile("subscription_group_"+news, "file.txt")
	require.NoError(t, err)
	_, _ = f.Write([]byte("subscribed"))
	require.NoError(t, w.Close())
	c, err := ReadForm(w.FormDataContentType(), []byte(body.String()), s)
	require.NoError(t, err)
	require.Equal(t, Choices{Email: Subscribed, Groups: map[string]bool{}}, c, "files are no fields")
	for _, cut := range []int{8, 40, 120, body.Len()} {
		_, err = ReadForm(w.FormDataContentType(), []byte(body.String()[:body.Len()-cut]), s)
		require.ErrorIs(t, err, errForm, cut)
	}
	_, err = ReadForm("multipart/form-data", nil, s)
	require.ErrorIs(t, err, errForm)
}

// Our own pages are escaped, and good to look at in any browser (see the screenshot that TestBrowser takes on demand).
func TestNotice(t *testing.T) {
	page := string(Notice{Title: "<b>", Text: `"&`, Done: true}.Render())
	require.Contains(t, page, "<title>&lt;b&gt;</title>")
	require.Contains(t, page, "<p>&#34;&amp;</p>")
	require.Contains(t, page, `class="done"`)
	require.NotContains(t, string(Notice{Title: "x"}.Render()), `class="done"`)
}

// Any text comes out whole when it has no field of preferences, and whatever it is, values add no markup.
func FuzzRender(f *testing.F) {
	page, err := os.ReadFile("testdata/page.html")
	require.NoError(f, err)
	f.Add(string(page), "x@y.z")
	f.Add(`<input type=checkbox name="{% form_field_name :email_global_state %}"><select name=email_global_state><option value=x>`, `"><script>`)
	f.Add("<textarea><title></TEXTAREA><plaintext><p>{{${email_address}}}", "{{${email_address}}}")
	tags := regexp.MustCompile(`form_field_name|email_global_state|subscription_group|subscribed_state|preference_center_submit_url|email_address`)
	f.Fuzz(func(t *testing.T, text, address string) {
		s := someone(OptedIn, Subscribed)
		s.Address = address
		if !tags.MatchString(strings.ToLower(text)) {
			require.Equal(t, text, fill(replaceTags(text, "/p", s), s))
		}
		out := replaceTags(text, "/p", s)
		require.LessOrEqual(t, strings.Count(out, "<")+strings.Count(out, ">")+strings.Count(out, `"`), strings.Count(text, "<")+strings.Count(text, ">")+strings.Count(text, `"`))
		if utf8.ValidString(text) {
			require.True(t, utf8.ValidString(out))
		}
		_ = Page{Title: address, Viewport: address}.Render(text, "/p", s)
		_ = Page{}.RenderForNobody(text)
	})
}

func FuzzReadForm(f *testing.F) {
	f.Add("application/x-www-form-urlencoded", "email_global_state=opted_in&subscription_group_"+news+"=subscribed")
	f.Add("multipart/form-data; boundary=xx", "--xx\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--xx--\r\n")
	f.Fuzz(func(t *testing.T, kind, body string) {
		c, err := ReadForm(kind, []byte(body), someone(Subscribed, Unknown))
		if err != nil {
			require.Empty(t, c.Email)
			return
		}
		require.Contains(t, []string{"", OptedIn, Subscribed, Unsubscribed}, c.Email)
		for id := range c.Groups {
			require.Equal(t, news, id)
		}
	})
}

func FuzzOpen(f *testing.F) {
	secret := [32]byte{9}
	f.Add(Sign(&secret, Link{Center: "main", Expires: 9}))
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Open(&secret, text, 0)
		if err == nil {
			require.Equal(t, text, Sign(&secret, l))
		}
	})
}

// The example that the public API's documentation gives needs a script for everything; without one its form says
// nothing, which must not look like success.
func TestFormOfAScriptedPage(t *testing.T) {
	fields := url.Values{"email_global_state": {""}, "subscription_group_" + news: {""}}
	_, err := ReadForm("application/x-www-form-urlencoded", []byte(fields.Encode()), someone(Subscribed, Subscribed))
	require.ErrorIs(t, err, errNoChoice)
}
