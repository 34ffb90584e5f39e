package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/stamp"
)

// importLines imports users into the workspace of the site by the command, and returns what it says.
func (s *site) importLines(t *testing.T, lines ...string) (a importAnswer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.ndjson")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	c := exec.Command(binary, s.target("import", "profiles", file, "--workspace", "test")...)
	text, err := c.Output()
	require.NoError(t, json.Unmarshal(text, &a), "%v: %s", err, text)
	requireSuccess(t, text)
	require.Equal(t, map[bool]int{true: exitRefused}[a.Refused > 0], c.ProcessState.ExitCode())
	return a
}

// requireSuccess requires an answer of the admin API with the message of a success.
func requireSuccess(t *testing.T, text []byte) {
	t.Helper()
	var answer struct{ Message string }
	require.NoError(t, json.Unmarshal(text, &answer), string(text))
	require.Equal(t, "success", answer.Message)
}

// user is what the export has of one user, nil when there is none.
func (s *site) user(t *testing.T, id string, fields ...string) map[string]any {
	t.Helper()
	body, err := json.Marshal(map[string]any{"external_ids": []string{id}, "fields_to_export": fields})
	require.NoError(t, err)
	a := s.export(t, strings.Replace(string(body), `"fields_to_export":null`, `"x":1`, 1))
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var v struct {
		Users []map[string]any `json:"users"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	if len(v.Users) == 0 {
		return nil
	}
	return v.Users[0]
}

// Devices and push tokens come by the import of profiles, as exports of elsewhere have them (decisions.md D9), and stay:
// over a kill, a backup and a merge. An export goes in again. What isn't taken is named.
func TestImportOfDevices(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	p := s.start(t)
	const device = `{"model":"iPhone14,2","os":"iOS 17","carrier":null,"device_id":"d1","ad_tracking_enabled":true,"idfv":"v"}`
	a := s.importLines(t,
		`{"external_id":"dev1","devices":[`+device+`],"push_tokens":[{"app":"iOS","platform":"ios","token":"t","device_id":"d1","notifications_enabled":true}]}`,
		`{"external_id":"dev2","campaigns_received":[{"name":"c"}],"apps":[{"name":"iOS","platform":"ios","sessions":1,"first":"2024-01-01","last":"2024-01-01"}]}`,
		`{"external_id":"bad","devices":[{"ad_tracking_enabled":1}],"campaigns_received":[{}]}`,
		`{"external_id":"dev3","campaigns_received":[{"name":"c"}],"custom_attributes":{"far":{"t":{"$time":"3001-01-01"}},"near":1}}`)
	require.Equal(t, importAnswer{Imported: 3, Refused: 1, Warned: 2,
		Errors: []importError{{3, "not an exported user: devices ad_tracking_enabled: not a boolean"}},
		Warnings: []importWarning{{"'apps.platform' is not imported", 1, 2}, {"'campaigns_received' is not imported", 2, 2},
			{"'custom_attributes.far' is not valid", 1, 4}}}, a)
	require.Nil(t, s.user(t, "bad"))
	require.Equal(t, map[string]any{"near": 1.0}, s.user(t, "dev3")["custom_attributes"])

	var wantDevice map[string]any
	require.NoError(t, json.Unmarshal([]byte(device), &wantDevice))
	want := map[string]any{"devices": []any{wantDevice}, "push_tokens": []any{map[string]any{"app_id": "11ae5b4b-2445-4440-a04f-bf537764c9ad",
		"app": "iOS", "platform": "ios", "token": "t", "device_id": "d1", "notifications_enabled": true}}}
	has := func(s *site, id string) {
		t.Helper()
		require.Equal(t, want, s.user(t, id, "devices", "push_tokens"))
		require.Equal(t, want["devices"], s.user(t, id)["devices"])
	}
	has(s, "dev1")
	require.NotContains(t, s.user(t, "dev1", "external_id"), "devices")
	require.NotContains(t, s.user(t, "dev2"), "devices")

	// A custom attribute may be called like it.
	require.Equal(t, 201, s.post(t, "/users/track", allKey, `{"attributes":[{"external_id":"dev1","devices":["x"],"first_name":"Ada"}]}`).status)
	has(s, "dev1")
	require.Equal(t, map[string]any{"devices": []any{"x"}}, s.user(t, "dev1")["custom_attributes"])

	whole, err := json.Marshal(s.user(t, "dev1"))
	require.NoError(t, err)
	require.Equal(t, importAnswer{Imported: 1}, s.importLines(t, strings.Replace(string(whole), `"dev1"`, `"again"`, 1)))
	has(s, "again")

	file := s.backup(t)
	p.kill()
	p = s.start(t)
	has(s, "dev1")
	other := s.restore(t, file)
	q := other.start(t)
	has(other, "dev1")
	q.stop()

	merge := func(from, into string) {
		t.Helper()
		require.Equal(t, 202, s.post(t, "/users/merge", allKey, `{"merge_updates":[{"identifier_to_merge":{"external_id":"`+from+`"},"identifier_to_keep":{"external_id":"`+into+`"}}]}`).status)
		require.Eventually(t, func() bool { return s.user(t, from) == nil }, recovery, 20*time.Millisecond)
	}
	merge("dev1", "dev2")
	require.Eventually(t, func() bool { return s.user(t, "dev2", "devices")["devices"] != nil }, recovery, 20*time.Millisecond)
	has(s, "dev2")
	s.importLines(t, `{"external_id":"dev4","devices":[{"device_id":"d4"}]}`)
	merge("again", "dev4")
	require.Equal(t, []any{map[string]any{"device_id": "d4"}}, s.user(t, "dev4", "devices")["devices"])

	require.Equal(t, 201, s.post(t, "/users/delete", allKey, `{"external_ids":["dev2"]}`).status)
	require.Equal(t, 201, s.track(t, "dev2").status)
	require.Empty(t, s.user(t, "dev2", "devices", "push_tokens"))
	p.stop()
}

// What the import and /users/track both take, they store alike; exports of elsewhere have other forms of some values.
func TestImportStoresAsTrackDoes(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	p := s.start(t)
	var lines, objects []string
	for i, members := range []string{`"country":"Australia"`, `"country":"us"`, `"country":"Atlantis"`, `"time_zone":"Eastern Time (US & Canada)"`, `"time_zone":"Mars"`,
		`"gender":"male"`, `"gender":"f"`, `"gender":"X"`, `"language":"en-US"`, `"language":"qq"`, `"first_name":"Ada","country":"DE","gender":"N","language":"de","time_zone":"Europe/Berlin"`} {
		lines = append(lines, fmt.Sprintf(`{"external_id":"i%d",%s}`, i, members))
		objects = append(objects, fmt.Sprintf(`{"external_id":"t%d",%s}`, i, members))
	}
	const list = `["x","x",1,1.0,1,true,["x"],["x"],{"a":1},{"a":1},"y"]`
	lines = append(lines, `{"external_id":"i11","custom_attributes":{"list":`+list+`}}`)
	objects = append(objects, `{"external_id":"t11","list":`+list+`}`)
	a := s.importLines(t, lines...)
	require.Equal(t, importAnswer{Imported: 12, Warned: 4, Warnings: []importWarning{
		{"'country' is not valid", 1, 3}, {"'time_zone' is not valid", 1, 5}, {"'gender' is not valid", 1, 8}, {"'language' is not valid", 1, 10}}}, a)
	require.Equal(t, 201, s.post(t, "/users/track", allKey, `{"attributes":[`+strings.Join(objects, ",")+`]}`).status)
	named := []string{"first_name", "country", "time_zone", "gender", "language", "custom_attributes"}
	for i := range lines {
		require.Equal(t, s.user(t, fmt.Sprintf("t%d", i), named...), s.user(t, fmt.Sprintf("i%d", i), named...), lines[i])
	}
	require.Equal(t, "America/New_York", s.user(t, "i3")["time_zone"])
	p.stop()
}

// A line that is too long is refused; those behind it are imported.
func TestImportOfLongLines(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	p := s.start(t)
	user := func(id string, size int) string {
		line := `{"external_id":"` + id + `"`
		return line + strings.Repeat(" ", max(size-len(line)-1, 0)) + "}"
	}
	a := s.importLines(t, user("l1", 0), user("l2", maxImportLine), "", user("l3", maxImportLine-1), user("l4", 3*maxImportLine), user("l5", 0), user("l6", maxImportLine+1))
	require.Equal(t, importAnswer{Imported: 3, Refused: 3, Errors: []importError{{2, errLongLine.Error()}, {5, errLongLine.Error()}, {7, errLongLine.Error()}}}, a)
	for id, there := range map[string]bool{"l1": true, "l2": false, "l3": true, "l4": false, "l5": true, "l6": false} {
		require.Equal(t, there, s.user(t, id, "external_id") != nil, id)
	}
	p.stop()
}

// Revenue goes out and in again as the same amounts, also in a currency that the server doesn't know (any more).
func TestImportOfRevenue(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	p := s.start(t)
	want := map[string]any{"EUR": 12.5, "HRK": 7.25, "JPY": 300.0}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.Equal(t, importAnswer{Imported: 1}, s.importLines(t, `{"external_id":"u1","revenue_by_currency":`+string(text)+`}`))
	require.Equal(t, want, s.user(t, "u1")["revenue_by_currency"])
	(&operator{t, s}).run("workspaces", "update", "test", "--exchange-rates", "HRK=2")
	require.Equal(t, 14.5, s.user(t, "u1")["total_revenue"])
	p.stop()
}

// usersOf is what the export has of the users who have an address: their external ids and custom attributes, as text.
func (s *site) usersOf(t *testing.T, identifier string) (all []string) {
	t.Helper()
	a := s.export(t, "{"+identifier+"}")
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var v struct {
		Users []struct {
			ID         string          `json:"external_id"`
			Attributes json.RawMessage `json:"custom_attributes"`
		} `json:"users"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	for _, u := range v.Users {
		all = append(all, u.ID+string(u.Attributes))
	}
	slices.Sort(all)
	return all
}

// A line without an external id and aliases is a user who has nothing but an address. Others who have the address stay
// as they are, and so do the users of other lines; the same import again replaces the same users.
func TestImportOfUsersWithoutNames(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	s.start(t)
	const shared, phone = `"email":"shared@example.com"`, `"phone":"+4915112345678"`
	s.importLines(t,
		`{"external_id":"ann",`+shared+`,`+phone+`,"custom_attributes":{"n":1},"total_revenue":5}`,
		`{"user_aliases":[{"alias_label":"l","alias_name":"a"}],`+shared+`,"custom_attributes":{"n":12}}`)
	ann := s.user(t, "ann")
	for _, from := range []int{10, 20, 20} { // anew, with other values, and the same again
		line := func(i int, address string) string {
			return fmt.Sprintf(`{"user_aliases":[],%s,"custom_attributes":{"n":%d}}`, address, from+i)
		}
		lines := []string{line(0, shared), line(1, shared+","+phone)}
		for i := range importBatch { // what follows is in another batch
			lines = append(lines, fmt.Sprintf(`{"external_id":"other%d"}`, i))
		}
		lines = append(lines, line(2, phone), line(3, `"email":"SHARED@example.com"`))
		require.Equal(t, importAnswer{Imported: len(lines)}, s.importLines(t, lines...))
	}
	require.Equal(t, []string{`ann{"n":1}`, `{"n":12}`, `{"n":20}`, `{"n":21}`, `{"n":23}`}, s.usersOf(t, `"email_address":"shared@example.com"`))
	require.Equal(t, []string{`ann{"n":1}`, `{"n":21}`, `{"n":22}`}, s.usersOf(t, `"phone":"+4915112345678"`))
	require.Equal(t, ann, s.user(t, "ann"))
}

// A user without a name who says something while the import runs, before it comes to the user's line, is replaced like
// any other.
func TestImportOfUsersWhoAreActive(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	s.start(t)
	const ann, annEmail = `{"email":"ann@example.com","custom_attributes":{"n":%d}}`, `"email_address":"ann@example.com"`
	s.importLines(t, fmt.Sprintf(ann, 1))
	body, lines := io.Pipe()
	ended := make(chan string)
	go func() {
		text, err := s.importAll(t.Context(), body)
		ended <- fmt.Sprint(text, err)
	}()
	for i := range importBatch {
		_, err := fmt.Fprintf(lines, "{\"external_id\":\"other%d\"}\n", i)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.user(t, "other0") != nil }, recovery, 10*time.Millisecond)
	a := s.post(t, "/users/track", allKey, `{"attributes":[{"email":"ann@example.com","seen":true}]}`)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	require.Equal(t, []string{`{"n":1,"seen":true}`}, s.usersOf(t, annEmail))
	_, err := fmt.Fprintf(lines, ann, 2)
	require.NoError(t, err)
	require.NoError(t, lines.Close())
	require.Contains(t, <-ended, fmt.Sprintf(`"imported":%d`, importBatch+1))
	require.Equal(t, []string{`{"n":2}`}, s.usersOf(t, annEmail))
}

// importAll sends lines to the workspace of the site as they come, and returns the answer.
func (s *site) importAll(ctx context.Context, lines io.Reader) (answer string, err error) {
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.admin+"/admin/workspaces/test/profiles", lines)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// A body that doesn't come to its end is its client's fault. What came of it is imported.
func TestImportThatIsCutOff(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(`{"external_id":"ada"}`+"\n"),
		iotest.ErrReader(errors.New("malformed chunked encoding"))))
	r.SetPathValue("workspace", "w")
	w := httptest.NewRecorder()
	n.importProfiles(w, r, nil)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "after 1 profiles: the body could not be read to its end: malformed chunked encoding")

	late := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r = httptest.NewRequest(http.MethodPost, "/", late)
	r.SetPathValue("workspace", "w")
	began := time.Now()
	n.importProfiles(late, r, nil)
	require.Equal(t, http.StatusRequestTimeout, late.Code)
	require.Contains(t, late.Body.String(), "after 3 profiles: the body could not be read to its end: i/o timeout")
	require.False(t, late.read.Before(began.Add(clientStall)))
}

// deadlines is a connection on which some lines arrive, and then nothing. No read may be without a deadline of its own.
type deadlines struct {
	*httptest.ResponseRecorder
	read  time.Time
	lines int
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.read = at; return nil }

func (d *deadlines) Read(p []byte) (int, error) {
	if d.read.IsZero() {
		return 0, io.ErrUnexpectedEOF
	}
	if d.lines++; d.lines > 3 {
		return 0, os.ErrDeadlineExceeded
	}
	d.read = time.Time{}
	return copy(p, fmt.Sprintf("{\"external_id\":\"%d\"}\n", d.lines)), nil
}

// A client whose import is refused learns why, although its body was not read while it waited.
func TestImportThatHasNoTurn(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	stop, cancel := context.WithCancel(t.Context())
	n.imports = newTurns(n.clock, stop)
	_, end, err := n.imports.begin(n.control.Snapshot().Lookup("w").Number)
	require.NoError(t, err)
	defer end()
	begun, drained := make(chan struct{}), make(chan error, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		r.SetPathValue("workspace", "w")
		n.importProfiles(w, r, nil)
		_, err := io.Copy(io.Discard, r.Body) // as the server of the admin API does
		drained <- err
	}))
	server.Config.ReadHeaderTimeout, server.Config.ReadTimeout = time.Minute, time.Nanosecond
	server.Start()
	defer server.Close()
	body, lines := io.Pipe()
	go func() {
		<-begun
		cancel()
		_, _ = lines.Write(bytes.Repeat([]byte("{}\n"), 1<<20))
		_ = lines.Close()
	}()
	response, err := http.Post(server.URL, "application/x-ndjson", body)
	require.NoError(t, <-drained)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
}

// An import that may not go on beside another one imports no further batch, and its client is told how far it came.
func TestImportThatLosesItsTurn(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	batches := 0
	result, err := n.importLines(n.control.Snapshot().Lookup("w"),
		strings.NewReader(strings.Repeat(`{"external_id":"ada"}`+"\n", 2*importBatch)), nil, func() error {
			if batches++; batches > 1 {
				return errImporting
			}
			return nil
		})
	require.Equal(t, errImporting, err)
	require.Equal(t, importBatch, result.Imported)
	w := httptest.NewRecorder()
	answerFailure(w, fmt.Errorf("after %d profiles: %w", result.Imported, err))
	require.Equal(t, http.StatusConflict, w.Code)
}

// An import waits for another one into its workspace, but not for ever, nor while the server stops.
func TestTurnsOfImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop, cancel := context.WithCancel(t.Context())
		turns := newTurns(&stamp.Clock{}, stop)
		_, end, err := turns.begin(1)
		require.NoError(t, err)
		began := time.Now()
		_, _, err = turns.begin(1)
		require.Equal(t, errImporting, err)
		require.Equal(t, importPatience, time.Since(began))
		_, other, err := turns.begin(2)
		require.NoError(t, err)
		other()

		time.AfterFunc(turnPoll/2, end)
		_, end, err = turns.begin(1)
		require.NoError(t, err)
		require.Equal(t, importPatience+turnPoll, time.Since(began))

		time.AfterFunc(turnPoll/2, cancel)
		_, _, err = turns.begin(1)
		require.Equal(t, shard.ErrClosed, err)
		end()
		require.Empty(t, turns.tickets)
	})
}

// In a cluster the turn is that of one import on all nodes, in the order in which they asked, also when clocks differ.
func TestTurnsOfImportsInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := turnNodes{}
		for node := range uint32(3) {
			ahead := time.Duration(node) * time.Second
			clock := &stamp.Clock{Now: func() time.Time { return time.Now().Add(-ahead) }}
			nodes[node] = newTurns(clock, t.Context())
			nodes[node].peers = turnPeers{node, nodes}
		}
		var running, ended atomic.Int32
		var order []uint32 // written by the import whose turn it is
		for _, node := range []uint32{1, 2, 0, 2, 1, 0, 0, 1, 2} {
			go func() {
				_, end, err := nodes[node].begin(7)
				assert.NoError(t, err)
				assert.EqualValues(t, 1, running.Add(1))
				order = append(order, node)
				time.Sleep(time.Second)
				running.Add(-1)
				end()
				ended.Add(1)
			}()
			synctest.Wait()
		}
		time.Sleep(importPatience)
		synctest.Wait()
		require.EqualValues(t, 9, ended.Load())
		require.Equal(t, []uint32{1, 2, 0, 2, 1, 0, 0, 1, 2}, order)

		began := time.Now()
		delete(nodes, 2) // after a while its import counts as ended
		_, end, err := nodes[0].begin(7)
		require.NoError(t, err)
		require.Equal(t, importPatience, time.Since(began))
		began = time.Now() // the other import's end is waited for as long again
		_, _, err = nodes[1].begin(7)
		require.Equal(t, errImporting, err)
		require.Equal(t, 2*importPatience, time.Since(began))
		end()
	})
}

// An import that runs has the first turn, also before one of a node that was away and whose clock is behind.
func TestTurnsOfImportsWithAClockBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, away := newTurnNodes(t, time.Hour)
		delete(nodes, 1)
		keep, end, err := nodes[0].begin(7)
		require.NoError(t, err)
		nodes[1] = away
		_, _, err = away.begin(7)
		require.Equal(t, errImporting, err)
		require.NoError(t, keep())
		end()
		require.Empty(t, nodes[0].tickets)
	})
}

// Two imports that run, since their nodes could not reach each other, learn of it before their next batches.
func TestTurnsOfImportsOfNodesThatWereCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, other := newTurnNodes(t, 0)
		keep, end, err := nodes[0].begin(7)
		require.NoError(t, err)
		require.NoError(t, keep())
		cut := nodes[0]
		delete(nodes, 0)
		keepOther, endOther, err := other.begin(7)
		require.NoError(t, err)
		require.NoError(t, keepOther())
		nodes[0] = cut
		require.Equal(t, errImporting, keep())
		end()
		time.Sleep(turnRetry)
		require.NoError(t, keepOther())
		endOther()
	})
}

// newTurnNodes makes three nodes, of which the second one's clock is behind, and returns that one too.
func newTurnNodes(t *testing.T, behind time.Duration) (turnNodes, *turns) {
	nodes := turnNodes{}
	for node, behind := range []time.Duration{0, behind, 0} {
		clock := &stamp.Clock{Now: func() time.Time { return time.Now().Add(-behind) }}
		nodes[uint32(node)] = newTurns(clock, t.Context())
		nodes[uint32(node)].peers = turnPeers{uint32(node), nodes}
	}
	return nodes, nodes[1]
}

// turnNodes are the nodes of a cluster; one that is missing doesn't answer.
type turnNodes map[uint32]*turns

type turnPeers struct {
	self  uint32
	nodes turnNodes
}

func (p turnPeers) Self() uint32    { return p.self }
func (p turnPeers) Nodes() []uint32 { return []uint32{0, 1, 2} }

// Call takes the stamps of both sides along, as calls between nodes do.
func (p turnPeers) Call(_ context.Context, node uint32, message []byte) ([]byte, error) {
	own, other := p.nodes[p.self], p.nodes[node]
	if other == nil {
		return nil, errors.New("no connection")
	}
	other.clock.Observe(own.clock.Last())
	answer, err := other.Serve(message)
	own.clock.Observe(other.clock.Last())
	return answer, err
}

// An import that begins while another one still runs replaces the users whom that one makes of lines without a name.
func TestImportBesideAnother(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	const line = `{"email":"ada@example.com"}` + "\n"
	send := func(body io.Reader) {
		r := httptest.NewRequest(http.MethodPost, "/", body)
		r.SetPathValue("workspace", "w")
		w := httptest.NewRecorder()
		n.importProfiles(w, r, nil)
		assert.Equal(t, http.StatusOK, w.Code, w.Body.String())
	}
	second := make(chan struct{})
	send(io.MultiReader(strings.NewReader(line), reader(func([]byte) (int, error) { // the first has read its line
		go func() {
			defer close(second)
			send(strings.NewReader(line))
		}()
		testengine.NotYet(t, second, "it has to wait")
		return 0, io.EOF
	})))
	<-second
	users, err := n.engine.Find(n.control.Snapshot().Lookup("w").Number, op.Email, []byte("ada@example.com"))
	require.NoError(t, err)
	require.Len(t, users, 1)
}

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// Those who share an address with many others are looked at together once in an import, and replaced one after the other
// in many batches, without those who have got a name meanwhile or have gone.
func TestImportOfACrowd(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	ws := n.control.Snapshot().Lookup("w")
	const size = 3*importBatch + importBatch/2
	var importer profile.Importer
	blobs := func(from, to int) (list [][]byte) {
		for i := from; i < to; i++ {
			text := fmt.Sprintf(`{"email":"all@example.com","first_name":"%d"}`, i)
			blob, err := importer.Import(nil, ws.Number, []byte(text), n.clock.Next(1), importOptionsOf(ws))
			require.NoError(t, err)
			list = append(list, blob)
		}
		return list
	}
	begin := func(after time.Duration) *namesakes {
		return &namesakes{n.engine, ws.Number, n.clock.Next(1) + after.Microseconds(), make(map[string][]uint64)}
	}
	replace := func(s *namesakes, from, to int) {
		t.Helper()
		for batch := range slices.Chunk(blobs(from, to), importBatch) {
			_, err := s.of(batch) // a choice that comes to nothing
			require.NoError(t, err)
			require.NoError(t, n.replaceProfiles(ws, batch, s))
		}
	}
	members := func() map[string]uint64 { // their numbers by their first names
		t.Helper()
		users, err := n.engine.Find(ws.Number, op.Email, []byte("all@example.com"))
		require.NoError(t, err)
		numbers := make(map[string]uint64)
		for _, u := range users {
			name, _ := profile.Attr(u.Blob, op.AttrFirstName)
			numbers[string(name.Bytes())] = u.Number
		}
		require.Len(t, numbers, len(users))
		return numbers
	}
	commit := func(change func(b *shard.Batch)) {
		t.Helper()
		b := n.engine.NewBatch(ws.Number, 0)
		defer b.Release()
		change(b)
		require.NoError(t, b.Commit())
	}

	replace(begin(0), 1000, 1000+size)
	before := members()
	replace(begin(0), 2000, 2000+size)
	after := members()
	require.Len(t, after, size)
	for i := range size {
		require.Equal(t, before[fmt.Sprint(1000+i)], after[fmt.Sprint(2000+i)], i)
	}

	s := begin(0)
	replace(s, 3000, 3000+importBatch)
	commit(func(b *shard.Batch) { b.Identify(after["2200"], []byte("ann"), profile.MergeNone) })
	commit(func(b *shard.Batch) { b.Delete(after["2201"]) })
	replace(s, 3000+importBatch, 3000+size)
	last := members()
	require.Len(t, last, size+1)
	require.Equal(t, after["2200"], last["2200"])
	for i := range size {
		require.Contains(t, last, fmt.Sprint(3000+i))
	}

	s = begin(time.Hour) // to which newcomers are as good as others
	_, err = s.of(blobs(4000, 4001))
	require.NoError(t, err)
	commit(func(b *shard.Batch) { b.ImportBeside(blobs(5000, 5001)[0]) })
	numbers, err := s.of(blobs(4000, 4000+2*size))
	require.NoError(t, err)
	chosen := slices.DeleteFunc(numbers, func(number uint64) bool { return number == 0 })
	require.Len(t, chosen, size, "nobody has looked again at all who have the address")
}
