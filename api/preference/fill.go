package preference

import (
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// fill sets the controls of the form to the current states, since no script can. It changes the tags of controls that
// are named by a form_field_name tag; the rest of the HTML comes out byte for byte.
//
//   - A radio button is checked, and an option selected, when its value is the state. When no option is, an empty one
//     is selected, which changes nothing.
//   - A checkbox is ticked when its value is the state (or when it says subscribed and the state is opted_in, which it
//     then keeps). Browsers don't send a box that is not ticked, so a hidden field of the same name precedes it for
//     that case. If the box was shown ticked, the hidden field withdraws the consent; otherwise it leaves the state as
//     it is. So a form that is sent as it was shown changes nothing, and no box gives consent that nobody gave.
//   - Hidden and other fields stay as they are.
func fill(text string, s *Subscriber) string {
	f := filler{subscriber: s, boxes: map[string]bool{}}
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		kind := z.Next()
		raw := string(z.Raw()) // before Token, which reuses the memory
		switch kind {
		case html.ErrorToken:
			f.out.WriteString(raw)
			return f.text()
		case html.StartTagToken, html.SelfClosingTagToken:
			f.start(raw, z)
		case html.EndTagToken:
			if name, _ := z.TagName(); string(name) == "select" {
				f.endSelect()
			}
			f.out.WriteString(raw)
		default:
			f.out.WriteString(raw)
		}
	}
}

type filler struct {
	subscriber *Subscriber
	out        strings.Builder
	boxes      map[string]bool // fields that already have their hidden field
	selected   *selection      // the <select> that contains the tokenizer's place
	inserts    []insert
}

type selection struct {
	state   string
	at      int // after the <select> tag
	matched bool
}

type insert struct {
	at   int
	text string
}

// text returns the output with later insertions, in order of place.
func (f *filler) text() string {
	f.endSelect()
	if len(f.inserts) == 0 {
		return f.out.String()
	}
	var b strings.Builder
	all, at := f.out.String(), 0
	for _, i := range f.inserts {
		b.WriteString(all[at:i.at] + i.text)
		at = i.at
	}
	b.WriteString(all[at:])
	return b.String()
}

func (f *filler) start(raw string, z *html.Tokenizer) {
	t := z.Token()
	switch t.Data {
	case "input":
		if state, ours := f.subscriber.stateOf(attr(t, "name")); ours {
			f.input(raw, t, state)
			return
		}
	case "select":
		f.out.WriteString(raw)
		f.endSelect()
		if state, ours := f.subscriber.stateOf(attr(t, "name")); ours {
			f.selected = &selection{state: state, at: f.out.Len()}
		}
		return
	case "option":
		if f.selected != nil {
			set(&t, "selected", attr(t, "value") == f.selected.state)
			f.selected.matched = f.selected.matched || attr(t, "value") == f.selected.state
			f.out.WriteString(t.String())
			return
		}
	}
	f.out.WriteString(raw)
}

func (f *filler) endSelect() {
	if s := f.selected; s != nil && !s.matched {
		f.inserts = append(f.inserts, insert{s.at, `<option value="` + unchanged + `" selected></option>`})
	}
	f.selected = nil
}

func (f *filler) input(raw string, t html.Token, state string) {
	switch strings.ToLower(strings.TrimSpace(attr(t, "type"))) {
	case "radio":
		set(&t, "checked", attr(t, "value") == state)
		f.out.WriteString(t.String())
	case "checkbox":
		f.checkbox(t, state)
	default:
		f.out.WriteString(raw)
	}
}

func (f *filler) checkbox(t html.Token, state string) {
	name, value := attr(t, "name"), attr(t, "value")
	if value == "" { // reference.md 6: a checkbox says opted_in, or subscribed for a group, or else unsubscribed
		value = Subscribed
		if name == emailField {
			value = OptedIn
		}
	}
	ticked := value == state
	if value == Subscribed && state == OptedIn {
		ticked, value = true, OptedIn
	}
	untickedValue := state
	if ticked && value == Unsubscribed {
		untickedValue = Subscribed
	} else if ticked {
		untickedValue = Unsubscribed
	}
	if !f.boxes[name] && untickedValue != Unknown {
		f.out.WriteString(`<input type="hidden" name="` + name + `" value="` + untickedValue + `">`)
	}
	f.boxes[name] = true
	put(&t, "value", value)
	set(&t, "checked", ticked)
	f.out.WriteString(t.String())
}

// attr returns the first attribute of a name: that is the one that counts.
func attr(t html.Token, name string) string {
	for _, a := range t.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// put sets the value of an attribute.
func put(t *html.Token, name, value string) {
	if i := slices.IndexFunc(t.Attr, func(a html.Attribute) bool { return a.Key == name }); i >= 0 {
		t.Attr[i].Val = value
		return
	}
	t.Attr = append(t.Attr, html.Attribute{Key: name, Val: value})
}

// set adds or removes an attribute without a value.
func set(t *html.Token, name string, there bool) {
	t.Attr = slices.DeleteFunc(t.Attr, func(a html.Attribute) bool { return a.Key == name })
	if there {
		t.Attr = append(t.Attr, html.Attribute{Key: name})
	}
}
