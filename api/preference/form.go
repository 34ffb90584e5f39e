package preference

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"
)

// Choices is what a form says.
type Choices struct {
	Email    string          // OptedIn, Subscribed, Unsubscribed; empty: nothing
	Groups   map[string]bool // by id: subscribed or not
	OneClick bool            // a mail program unsubscribes its user (RFC 8058); nothing else in the form counts
}

// Errors of ReadForm, besides those that name a field.
var (
	// ErrMediaType is returned for a media type that no form has.
	ErrMediaType = errors.New("the form must be sent as application/x-www-form-urlencoded or multipart/form-data")
	// errForm is returned for a body that can't be read.
	errForm = errors.New("the form can't be read")
	// errNoChoice is returned when there are fields of preferences but none says anything: such a page needs a script
	// to fill them in.
	errNoChoice = errors.New("the form says nothing about preferences")
)

// maxFields bounds the fields of a form.
const maxFields = 1000

// ReadForm reads a form as browsers send it, and the request of RFC 8058. Unknown fields are ignored, as are those of
// groups that do not exist. If a field occurs more than once, the last one counts (a hidden field precedes a checkbox).
// A field without a value says nothing.
func ReadForm(contentType string, body []byte, s *Subscriber) (c Choices, err error) {
	fields, err := readFields(contentType, body)
	if err != nil {
		return c, err
	}
	if strings.TrimSpace(fields["List-Unsubscribe"]) == "One-Click" { // some senders end their body with a line break
		return Choices{OneClick: true}, nil
	}
	c.Groups = map[string]bool{}
	empty := 0
	for name, value := range fields {
		if _, ours := s.stateOf(name); !ours {
			continue
		}
		id, isGroup := strings.CutPrefix(name, groupPrefix)
		switch {
		case value == "":
			empty++
		case value == unchanged:
		case isGroup && (value == Subscribed || value == Unsubscribed):
			c.Groups[id] = value == Subscribed
		case !isGroup && (value == OptedIn || value == Subscribed || value == Unsubscribed):
			c.Email = value
		default:
			return Choices{}, fmt.Errorf("the value of the field %s is not valid", name)
		}
	}
	if empty > 0 && c.Email == "" && len(c.Groups) == 0 {
		return Choices{}, errNoChoice
	}
	return c, nil
}

// readFields returns the last value of each field.
func readFields(contentType string, body []byte) (map[string]string, error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, ErrMediaType
	}
	switch kind {
	case "application/x-www-form-urlencoded":
		return readURLEncoded(string(body))
	case "multipart/form-data":
		return readMultipart(body, parameters["boundary"])
	}
	return nil, ErrMediaType
}

func readURLEncoded(body string) (map[string]string, error) {
	if strings.Count(body, "&") >= maxFields {
		return nil, errForm
	}
	values, err := url.ParseQuery(body)
	if err != nil {
		return nil, errForm
	}
	fields := map[string]string{}
	for name, list := range values {
		fields[name] = list[len(list)-1]
	}
	return fields, nil
}

// readMultipart reads a multipart form, which RFC 8058 also allows mail programs to send.
func readMultipart(body []byte, boundary string) (map[string]string, error) {
	fields := map[string]string{}
	// The reader takes some truncated forms for complete.
	if boundary == "" || !bytes.Contains(body, []byte("--"+boundary+"--")) {
		return nil, errForm
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxFields {
		part, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return fields, nil
		}
		if err != nil {
			return nil, errForm
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, errForm
		}
		if part.FileName() == "" {
			fields[part.FormName()] = string(value)
		}
	}
	return nil, errForm
}
