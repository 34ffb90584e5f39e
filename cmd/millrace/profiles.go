package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"millrace/api/admin"
	"millrace/api/control"
	"millrace/api/users"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Imports of whole profiles: POST /admin/workspaces/{workspace}/profiles.

const (
	maxImportLine  = 8 << 20
	importBatch    = 100              // profiles in a record
	maxImportError = 100              // errors that are reported, and warnings with different texts
	drainTime      = 10 * time.Second // for what is still sent of an import that is refused
)

type importError struct {
	Line  int    `json:"line"`
	Error string `json:"error"`
}

// importWarning is something in lines that profiles don't take.
type importWarning struct {
	Warning string `json:"warning"`
	Lines   int    `json:"lines"` // how many have it
	Line    int    `json:"line"`  // the first of them
}

type importAnswer struct {
	Imported int             `json:"imported"`
	Refused  int             `json:"refused"`
	Warned   int             `json:"warned,omitempty"`   // lines that were imported except for something
	Errors   []importError   `json:"errors,omitempty"`   // the first ones
	Warnings []importWarning `json:"warnings,omitempty"` // the first ones
}

// warn counts what an imported line has and the profile doesn't take.
func (a *importAnswer) warn(line int, left []string) {
	if len(left) == 0 {
		return
	}
	a.Warned++
	slices.Sort(left)
	for _, what := range slices.Compact(left) {
		at := slices.IndexFunc(a.Warnings, func(w importWarning) bool { return w.Warning == what })
		switch {
		case at >= 0:
			a.Warnings[at].Lines++
		case len(a.Warnings) < maxImportError:
			a.Warnings = append(a.Warnings, importWarning{what, 1, line})
		}
	}
}

// importProfiles is POST /admin/workspaces/{workspace}/profiles: NDJSON, each line a user in the shape of the export
// (decisions.md D9). A line that is not a user is refused; the others are not affected. What a profile does not take of
// a line is left out with a warning. An existing profile is replaced; if a line has only an address, see namesakes.
func (n *node) importProfiles(w http.ResponseWriter, r *http.Request, phones *field.Phones) {
	ws := n.control.Snapshot().Lookup(r.PathValue("workspace"))
	if ws == nil {
		admin.Refuse(w, http.StatusNotFound, "the workspace does not exist")
		return
	}
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{})
	keep, end, err := n.imports.begin(ws.Number)
	_ = c.SetReadDeadline(time.Now().Add(drainTime)) // the server's own may have passed meanwhile
	if err != nil {
		answerFailure(w, err)
		return
	}
	defer end()
	// Two entries: one before anything is imported, and one that says how much was imported.
	audit := func(what string, details ...any) error {
		return untilTaken(context.Background(),
			func() error { return n.control.Audit(admin.ActorOf(r), what, ws.ID, details...) })
	}
	if err = audit("profile import begun"); err != nil {
		answerFailure(w, err)
		return
	}
	result, err := n.importLines(ws, heard{r.Body, c}, phones, keep)
	err = errors.Join(err, audit("profiles imported", "imported", result.Imported, "refused", result.Refused))
	if err != nil {
		answerFailure(w, fmt.Errorf("after %d profiles: %w", result.Imported, err))
		return
	}
	admin.Answer(w, http.StatusOK, result)
}

// importLines imports what is in body. Before each batch it asks keep whether it may go on.
func (n *node) importLines(
	ws *control.Workspace, body io.Reader, phones *field.Phones, keep func() error,
) (result importAnswer, err error) {
	var importer profile.Importer
	opt := importOptionsOf(ws)
	var left []string // what a line has and the profile doesn't
	opt.Left = func(what string) {
		if len(left) < maxImportError {
			left = append(left, what)
		}
	}
	var blobs [][]byte // not committed yet
	replaced := &namesakes{n.engine, ws.Number, n.clock.Next(1), make(map[string][]uint64)}
	commit := func() error {
		if err := keep(); err != nil {
			return err
		}
		if err := n.replaceProfiles(ws, blobs, replaced); err != nil {
			return err
		}
		result.Imported += len(blobs)
		blobs = blobs[:0]
		return nil
	}
	lines := lineReader{r: bufio.NewReaderSize(body, 64<<10)}
	for line := 1; ; line++ {
		text, err := lines.next()
		if err == io.EOF {
			return result, commit()
		} else if err != nil && err != errLongLine {
			return result, errors.Join(fmt.Errorf("%w: %w", admin.ErrCutOff, err), commit())
		}
		if err == nil && len(text) == 0 {
			continue
		}
		left = left[:0]
		var blob []byte
		if err == nil { // with a stamp, so that what users say later has a later one
			blob, err = importer.Import(nil, ws.Number, text, n.clock.Next(1), opt)
		}
		if err == nil {
			err = checkContacts(blob, phones)
		}
		if err != nil {
			result.Refused++
			if len(result.Errors) < maxImportError {
				result.Errors = append(result.Errors, importError{line, err.Error()})
			}
			continue
		}
		result.warn(line, left)
		if blobs = append(blobs, blob); len(blobs) == importBatch {
			if err := commit(); err != nil {
				return result, err
			}
		}
	}
}

// lineReader reads lines of NDJSON.
type lineReader struct {
	r    *bufio.Reader
	text []byte
}

// errLongLine is returned for a line that is too long.
var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxImportLine)

// next returns the next line, without the blanks around it. It is valid until the next call. Errors: errLongLine, after
// which the next line can be read; io.EOF when there are no more.
func (l *lineReader) next() ([]byte, error) {
	l.text = l.text[:0]
	for isLong, any := false, false; ; any = true {
		part, err := l.r.ReadSlice('\n')
		if isLong = isLong || len(l.text)+len(part) > maxImportLine; !isLong {
			l.text = append(l.text, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err != nil && (err != io.EOF || !any && len(part) == 0):
			return nil, err
		case isLong:
			return nil, errLongLine
		default:
			return bytes.TrimSpace(l.text), nil
		}
	}
}

// importOptionsOf is what an import needs to know of a workspace.
func importOptionsOf(ws *control.Workspace) profile.ImportOptions {
	groups, shown := forIngest(ws).Groups, users.ExportOf(ws)
	return profile.ImportOptions{
		Currency: shown.Currency,
		Digits:   shown.Digits,
		AppID: func(name []byte) []byte {
			for id, a := range ws.Apps {
				if a.Name == string(name) {
					return []byte(id)
				}
			}
			return nil
		},
		Channel: func(group [16]byte) byte { return groups[group] },
		Text:    importedText,
	}
}

// importedText applies the rules of /users/track to texts that have a form. Exports of elsewhere have other forms, such
// as the names that Rails gives time zones.
func importedText(code uint32, text []byte) (stored []byte, ok bool) {
	switch code {
	case op.AttrCountry:
		country, ok := field.Country(text)
		return country[:], ok
	case op.AttrLanguage:
		language, ok := field.Language(text)
		return []byte(language), ok
	case op.AttrTimeZone:
		zone, ok := field.TimeZone(text)
		return []byte(zone), ok
	case op.AttrGender:
		letter, ok := field.Gender(text)
		return []byte{letter}, ok
	}
	return text, true
}

// replaceProfiles makes imported profiles durable and visible.
func (n *node) replaceProfiles(ws *control.Workspace, blobs [][]byte, replaced *namesakes) error {
	var numbers []uint64
	err := untilTaken(context.Background(), func() (err error) {
		numbers, err = replaced.of(blobs)
		return err
	})
	if err != nil {
		return err
	}
	return untilTaken(context.Background(), func() error { // each time for the same numbers
		b := n.engine.NewBatch(ws.Number, 0)
		defer b.Release()
		b.SetSource(op.SourceImport)
		for i, blob := range blobs {
			switch {
			case !isNameless(blob):
				b.Import(blob)
			case numbers[i] == 0:
				b.ImportBeside(blob)
			default:
				b.ImportOver(numbers[i], blob)
			}
		}
		return b.Commit()
	})
}

// isNameless says whether an imported profile has neither an external id nor an alias: only an address.
func isNameless(blob []byte) bool {
	id, _ := profile.HomeID(blob)
	return id == op.Email || id == op.Phone
}

// namesakes chooses the profiles that the nameless ones of one import replace, each only one. The address doesn't say
// which of those who share it is meant, so those whom something else names stay as they are. Of the others it is the
// one who was updated first. Those who came to the address since the import began are users of earlier lines.
type namesakes struct {
	engine    *shard.Coordinator
	workspace uint32
	begun     int64 // when the import began
	// crowds are, by address, the numbers of the profiles that may still be replaced, in their turn. Where many share
	// an address, looking at all of them for each batch would take the square of the lines.
	crowds map[string][]uint64
}

// crowdSize is from how many users of an address on they are looked at only once.
const crowdSize = 20

// of returns the numbers of the profiles that the nameless ones of blobs replace; 0: none. It may be called again for
// the same blobs.
func (s *namesakes) of(blobs [][]byte) (numbers []uint64, err error) {
	numbers = make([]uint64, len(blobs))
	var addresses []shard.Identifier // each once: thousands of lines may have the same one
	lines := make(map[string][]int)  // by address: no email is a phone
	for i, blob := range blobs {
		if !isNameless(blob) {
			continue
		}
		id, key := profile.HomeID(blob)
		if _, isCrowd := s.crowds[string(key)]; !isCrowd && lines[string(key)] == nil {
			addresses = append(addresses, shard.Identifier{ID: id, Key: key})
		}
		lines[string(key)] = append(lines[string(key)], i)
	}
	reads := s.engine.NewReads(nil) // behind barriers: this node may not have heard yet of the lines before
	for address, at := range lines {
		if _, isCrowd := s.crowds[address]; !isCrowd {
			continue
		}
		id, _ := profile.HomeID(blobs[at[0]])
		chosen, err := s.ofCrowd(reads, id, address, len(at))
		if err != nil {
			return nil, err
		}
		for i, number := range chosen {
			numbers[at[i]] = number
		}
	}
	if len(addresses) == 0 {
		return numbers, nil
	}
	if err := reads.Expect(s.workspace, shard.OfUsers, addresses...); err != nil {
		return nil, err
	}
	for users, err := range reads.FindEach(s.workspace, addresses) {
		if err != nil {
			return nil, err
		}
		address := string(addresses[0].Key)
		chosen := s.replaceable(addresses[0].ID, users)
		if len(users) >= crowdSize {
			s.crowds[address] = chosen
		}
		for i, at := range lines[address][:min(len(chosen), len(lines[address]))] {
			numbers[at] = chosen[i]
		}
		addresses = addresses[1:]
	}
	return numbers, nil
}

// ofCrowd returns the numbers of the next profiles of an address of crowds, of at most so many. Those who can't be
// replaced any more leave the crowd: they have been, by lines before, or have got a name meanwhile, or have gone.
func (s *namesakes) ofCrowd(reads *shard.Reads, id op.IDKind, address string, most int) (chosen []uint64, err error) {
	left := s.crowds[address]
	for len(left) > 0 && len(chosen) < most {
		users, err := reads.FindNumber(s.workspace, left[0])
		if err != nil {
			return nil, err
		}
		chosen, left = append(chosen, s.replaceable(id, users)...), left[1:]
	}
	s.crowds[address] = slices.Concat(chosen, left) // these are looked at again: what was chosen may not be done yet
	return chosen, nil
}

// replaceable returns the numbers of those of users, who share an address, who may be replaced, in the order in which
// they are.
func (s *namesakes) replaceable(id op.IDKind, users []shard.User) []uint64 {
	users = slices.DeleteFunc(users, func(u shard.User) bool {
		_, hasEmail := profile.Attr(u.Blob, op.AttrEmail)
		joined := profile.Joined(u.Blob, id)
		return profile.HasName(u.Blob) || id == op.Phone && hasEmail || joined == 0 || joined >= s.begun
	})
	slices.SortStableFunc(users, func(a, b shard.User) int {
		return cmp.Compare(profile.Updated(a.Blob), profile.Updated(b.Blob))
	})
	numbers := make([]uint64, len(users))
	for i, u := range users {
		numbers[i] = u.Number
	}
	return numbers
}

// checkContacts applies the rules of /users/track to the contact data of an imported profile.
func checkContacts(blob []byte, phones *field.Phones) error {
	if v, ok := profile.Attr(blob, op.AttrEmail); ok && !field.Email(v.Bytes()) {
		return errors.New("'email' is not a valid email address")
	}
	if v, ok := profile.Attr(blob, op.AttrPhone); ok {
		if e164, ok := phones.Parse(nil, v.Bytes()); !ok || !bytes.Equal(e164, v.Bytes()) {
			return errors.New("'phone' is not a valid E.164 number")
		}
	}
	if id := profile.ExternalID(blob); len(id) > 0 && !field.ExternalID(id) {
		return errors.New("'external_id' must be fewer than 988 bytes")
	}
	return nil
}
