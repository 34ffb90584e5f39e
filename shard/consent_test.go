package shard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// These tests tell one story a case of who has said what and for whom it holds (decisions.md D5). The model of states
// comes to all these cases by chance.

// consents is the state of the email group that holds for users, named by external id, and for addresses.
func consents(t *testing.T, e *Engine, names ...string) (all []string) {
	t.Helper()
	for _, name := range names {
		on, ok := false, false
		if key := []byte(name); strings.Contains(name, "@") {
			require.NoError(t, e.ViewAddress(1, op.Email, key, func(blob []byte) { on, _, _, ok = profile.GroupState(blob, emailGroup.Group) }))
		} else {
			users, err := e.Find(1, op.ExternalID, key)
			require.NoError(t, err)
			require.Len(t, users, 1)
			on, _, _, ok = profile.GroupState(users[0].Blob, emailGroup.Group)
		}
		all = append(all, map[bool]string{true: map[bool]string{true: "on", false: "off"}[on], false: "-"}[ok])
	}
	return all
}

func withEmail(address string) []byte { return attrField(op.AttrEmail, address) }

func ungrouped() profile.State {
	off := emailGroup
	off.On = false
	return off
}

// A user who comes to an address, by a change of data or by a merge, brings nothing to those who have the address, and
// makes no entries in their trails.
func TestWhoComesBringsNothing(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	number := func(user string) uint64 { return numberOf(t, e, op.ExternalID, user) }
	for _, user := range []string{"b", "c"} {
		track(t, e, user, withEmail("shared@example.com"))
	}
	track(t, e, "merged")
	track(t, e, "mover", withEmail("own@example.com"))
	for _, user := range []string{"merged", "mover"} {
		setUser(t, e, op.ExternalID, user, emailGroup)
	}
	commitAs(t, e, op.SourceMerge, func(b *Batch) { b.Merge(number("merged"), number("b")) })
	settle(t, e)
	require.Equal(t, []string{"-", "-", "-"}, consents(t, e, "b", "c", "shared@example.com"))
	track(t, e, "mover", withEmail("shared@example.com"))
	require.Equal(t, []string{"on", "-", "-", "-"}, consents(t, e, "mover", "b", "c", "shared@example.com"))
	require.Empty(t, first(e.Trail(1, number("c"))))
}

// An opt-out is not lost to an address that is subscribed, in whatever way user and address come together. What the
// user says while they have the address holds for all who have it.
func TestOptOutStays(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	setAddress(t, e, op.Email, "x@example.com", emailGroup)
	track(t, e, "c", withEmail("x@example.com"))
	track(t, e, "a")
	setUser(t, e, op.ExternalID, "a", ungrouped())
	track(t, e, "a", withEmail("x@example.com"))
	require.Equal(t, []string{"off", "on", "on"}, consents(t, e, "a", "c", "x@example.com"))
	setUser(t, e, op.ExternalID, "c", emailGroup)
	require.Equal(t, []string{"on", "on", "on"}, consents(t, e, "a", "c", "x@example.com"), "said for the address since he came")
	setUser(t, e, op.ExternalID, "a", ungrouped())
	require.Equal(t, []string{"off", "off", "off"}, consents(t, e, "a", "c", "x@example.com"))
}

// One request sets the state of a user and has another user leave the address that both share. The objects take effect
// in their order, however the user is named.
func TestWhoLeavesInTheSameRequest(t *testing.T) {
	for round, set := range []func(b *Batch, s profile.State){
		func(b *Batch, s profile.State) { b.SetUserStates(op.ExternalID, []byte("o"), 0, s) },
		func(b *Batch, s profile.State) { b.SetUserStates(op.Alias, []byte(aliasKey("l", "o")), 0, s) },
		func(b *Batch, s profile.State) { b.SetAddressStates(op.Email, []byte("shared@example.com"), s) },
		func(b *Batch, s profile.State) { // a user who comes in the same request
			addAttributes(b, op.ExternalID, "new", op.Contact, withEmail("shared@example.com"))
			b.SetUserStates(op.ExternalID, []byte("new"), 0, s)
		},
	} {
		e := openTest(t, testOptions(vfs.NewMem()))
		for i := range 20 { // their partitions differ, and with them who is first
			what := fmt.Sprint("round ", round, " user ", i)
			q := fmt.Sprint("q", i)
			if i == 0 {
				track(t, e, "o", withEmail("shared@example.com"))
				label, name, _ := op.SplitAliasKey([]byte(aliasKey("l", "o")))
				commitAs(t, e, op.SourceTrack, func(b *Batch) { b.AddAlias(numberOf(t, e, op.ExternalID, "o"), label, name) })
			}
			setAddress(t, e, op.Email, "shared@example.com", emailGroup)
			track(t, e, q, withEmail("shared@example.com"))
			leave := func(b *Batch) { addAttributes(b, op.ExternalID, q, op.Contact, withEmail(q+"@example.org")) }
			if i%2 == 0 {
				commitAs(t, e, op.SourceTrack, func(b *Batch) { set(b, ungrouped()); leave(b) })
				require.Equal(t, []string{"off", "off"}, consents(t, e, "o", q), what)
			} else {
				commitAs(t, e, op.SourceTrack, func(b *Batch) { leave(b); set(b, ungrouped()) })
				require.Equal(t, []string{"off", "on"}, consents(t, e, "o", q), what)
			}
			require.Equal(t, []string{"-"}, consents(t, e, q+"@example.org"))
		}
	}
}

// A user who goes from address to address keeps what held for them there, whichever of the addresses answers first.
func TestFromAddressToAddress(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	for i := range 20 {
		q, mail := fmt.Sprint("q", i), func(n int) string { return fmt.Sprintf("m%d-%d@example.com", i, n) }
		track(t, e, q, withEmail(mail(0)))
		setAddress(t, e, op.Email, mail(0), ungrouped())
		setAddress(t, e, op.Email, mail(1), emailGroup)
		commitAs(t, e, op.SourceTrack, func(b *Batch) {
			for n := 1; n < 4; n++ {
				addAttributes(b, op.ExternalID, q, op.Contact, withEmail(mail(n)))
			}
		})
		require.Equal(t, []string{"off", "off", "on", "-"}, consents(t, e, q, mail(0), mail(1), mail(3)))
		track(t, e, q, []byte{op.AttrEmail, byte(op.Null)})
		require.Equal(t, []string{"off"}, consents(t, e, q))
	}
}

// An address that thousands share takes a change without a message to anybody.
func TestManyShareAnAddress(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	const users = 20_000
	for i := 0; i < users; {
		commitAs(t, e, op.SourceTrack, func(b *Batch) {
			for range 1000 {
				addAttributes(b, op.ExternalID, fmt.Sprint("u", i), op.Contact, withEmail("shared@example.com"))
				i++
			}
		})
	}
	sent, logged := e.Replica.Stats().Sent, e.Replica.Stats().LoggedBytes
	for i := range 50 {
		state := ungrouped()
		state.Group[1] = byte(i)
		setAddress(t, e, op.Email, "shared@example.com", state)
	}
	require.Equal(t, sent, e.Replica.Stats().Sent)
	setUser(t, e, op.ExternalID, "u7", ungrouped())
	require.Equal(t, sent+1, e.Replica.Stats().Sent)
	require.Less(t, e.Replica.Stats().LoggedBytes-logged, int64(100_000))
	require.Equal(t, []string{"off", "off"}, consents(t, e, "u7", fmt.Sprint("u", users-1)))
	// One request makes as many changes. Each goes to the one user whom the address names, and from the user to the
	// address.
	sent, logged = e.Replica.Stats().Sent, e.Replica.Stats().LoggedBytes
	commitAs(t, e, op.SourceTrack, func(b *Batch) {
		for i := range 50 {
			state := emailGroup
			state.Group[1] = byte(i)
			addAttributes(b, op.Email, "shared@example.com", op.Contact, statesField(state))
		}
	})
	require.LessOrEqual(t, e.Replica.Stats().Sent-sent, uint64(50))
	require.Less(t, e.Replica.Stats().LoggedBytes-logged, int64(100_000))
	require.Equal(t, []string{"on"}, consents(t, e, fmt.Sprint("u", users-1)))
}

// Clients track the same states again and again. From the third time on at the latest, no message is sent for them. A
// state that is new is told to everybody, also when the same request has said otherwise before.
func TestUnchangedStatesAreNotTold(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	messages := func() int { return int(e.Replica.Stats().Sent) }
	said := func(b *Batch, user string, states ...profile.State) {
		addAttributes(b, op.ExternalID, user, op.Contact, withEmail("x@example.com"), statesField(states...))
	}
	say := func(user string, states ...profile.State) (sent int) {
		before := messages()
		commitAs(t, e, op.SourceTrack, func(b *Batch) { said(b, user, states...) })
		return messages() - before
	}
	say("a", emailGroup, email("opted_in"))
	say("a", emailGroup, email("opted_in"))
	require.Zero(t, say("a", emailGroup, email("opted_in")))
	require.NotZero(t, say("a", emailGroup, email("subscribed")))
	require.NotZero(t, say("a", ungrouped(), email("subscribed")))
	require.Zero(t, say("a", ungrouped(), email("subscribed")))
	// The address has heard something else since.
	setAddress(t, e, op.Email, "x@example.com", emailGroup)
	require.NotZero(t, say("a", ungrouped(), email("subscribed")))
	require.Equal(t, []string{"off", "off"}, consents(t, e, "a", "x@example.com"))
	// A user has come since who says something else.
	track(t, e, "c")
	setUser(t, e, op.ExternalID, "c", ungrouped())
	say("a", emailGroup)
	track(t, e, "c", withEmail("x@example.com"))
	require.Equal(t, []string{"on", "off"}, consents(t, e, "a", "c"))
	require.NotZero(t, say("a", emailGroup))
	require.Equal(t, []string{"on", "on"}, consents(t, e, "a", "c"))
	require.Zero(t, say("a", emailGroup))
	// The same within one request, through the user and through another one.
	for _, other := range []string{"a", "c"} {
		commitAs(t, e, op.SourceTrack, func(b *Batch) {
			said(b, other, ungrouped())
			said(b, "a", emailGroup)
		})
		require.Equal(t, []string{"on", "on"}, consents(t, e, "a", "c"))
	}
}

// A state that by itself would change nothing does change something behind an op of the same request whose identifier
// doesn't show that it is for the same user: the svc_id of somebody who was merged into the user, or an address that
// others share.
func TestUnchangedBehindOtherNames(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	say := func(b *Batch, state profile.State) {
		addAttributes(b, op.ExternalID, "a", op.Contact, statesField(state))
	}
	for range 2 {
		commitAs(t, e, op.SourceTrack, func(b *Batch) {
			addAttributes(b, op.ExternalID, "a", op.Contact, withEmail("x@example.com"), statesField(emailGroup))
		})
	}
	gone, kept := makeUser(t, e, "gone"), numberOf(t, e, op.ExternalID, "a")
	merge(t, e, gone, kept)
	settle(t, e)
	for name, other := range map[string]func(b *Batch){
		"svc_id behind the external id that is free again": func(b *Batch) {
			addAttributes(b, op.ExternalID, "gone", op.Contact, statesField(emailGroup))
			attributesNumber(b, gone, op.Contact, statesField(ungrouped()))
		},
		"svc_id": func(b *Batch) { attributesNumber(b, gone, op.Contact, statesField(ungrouped())) },
		"email":  func(b *Batch) { addAttributes(b, op.Email, "x@example.com", op.Contact, statesField(ungrouped())) },
	} {
		commitAs(t, e, op.SourceTrack, func(b *Batch) { say(b, emailGroup) })
		commitAs(t, e, op.SourceTrack, func(b *Batch) {
			other(b)
			say(b, emailGroup)
		})
		require.Equal(t, []string{"on", "on"}, consents(t, e, "a", "x@example.com"), name)
	}
}

// A state that by itself would change nothing does change something behind an op of the same request that brings its
// user to another address, or somebody else to the user's, and behind another state of the address. Behind one that
// takes somebody else away it changes nothing.
func TestUnchangedBehindOthersOfTheAddress(t *testing.T) {
	bring := func(user, address string) func(b *Batch) {
		return func(b *Batch) { addAttributes(b, op.ExternalID, user, op.Contact, withEmail(address)) }
	}
	deny := func(id op.IDKind, key string) func(b *Batch) {
		return func(b *Batch) {
			addAttributes(b, op.ExternalID, "a", op.Contact, attrField(op.AttrPhone, "+12122000001"))
			addAttributes(b, id, key, op.Contact, statesField(ungrouped()))
		}
	}
	for name, c := range map[string]struct {
		other  string // address of b
		before func(b *Batch)
		who    string // says yes once more
		y      string
	}{
		"the user moves":             {"y@example.com", bring("a", "y@example.com"), "a", "on"},
		"somebody comes":             {"y@example.com", bring("b", "x@example.com"), "a", "off"},
		"somebody leaves":            {"x@example.com", bring("b", "y@example.com"), "a", "-"},
		"nobody moves":               {"x@example.com", bring("b", "x@example.com"), "a", "-"},
		"the user says no":           {"x@example.com", deny(op.ExternalID, "a"), "a", "-"},
		"somebody says no":           {"x@example.com", deny(op.ExternalID, "a"), "b", "-"},
		"somebody says no, by alias": {"x@example.com", deny(op.Alias, aliasKey("l", "a")), "b", "-"},
	} {
		for _, id := range []op.IDKind{op.ExternalID, op.Alias} {
			t.Run(fmt.Sprint(name, ", by ", id), func(t *testing.T) {
				e := openTest(t, testOptions(vfs.NewMem()))
				say := func(id op.IDKind, user string, state profile.State) func(b *Batch) {
					key := map[op.IDKind]string{op.ExternalID: user, op.Alias: aliasKey("l", user)}[id]
					return func(b *Batch) { addAttributes(b, id, key, op.Contact, statesField(state)) }
				}
				for user, address := range map[string]string{"a": "x@example.com", "b": c.other} {
					key := aliasKey("l", user) // so the user's number is not the home of the external id
					commitAs(t, e, op.SourceTrack, func(b *Batch) { addAttributes(b, op.Alias, key, op.Contact, withEmail(address)) })
					number := numberOf(t, e, op.Alias, key)
					commitAs(t, e, op.SourceTrack, func(b *Batch) { b.Identify(number, []byte(user), profile.MergeNone) })
				}
				commitAs(t, e, op.SourceTrack, say(op.ExternalID, "b", ungrouped()))
				for range 2 {
					commitAs(t, e, op.SourceTrack, say(op.ExternalID, c.who, emailGroup))
					commitAs(t, e, op.SourceTrack, say(op.ExternalID, "a", emailGroup))
				}
				commitAs(t, e, op.SourceTrack, func(b *Batch) {
					c.before(b)
					say(id, c.who, emailGroup)(b)
				})
				require.Equal(t, []string{"on", "on", "on", c.y}, consents(t, e, "a", "b", "x@example.com", "y@example.com"))
			})
		}
	}
}

func statesField(states ...profile.State) []byte {
	set := map[modelKey]string{}
	for _, s := range states {
		k, value := keyOf(s)
		set[k] = value
	}
	return trackFields(set)[0]
}

// An import takes back the states that an export shows. Nothing changes for users who are there already, and in a new
// store the addresses know the states, too.
func TestExportedStatesComeBack(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	names := []string{"a", "b", "c", "d"}
	for i, name := range names[:3] {
		track(t, e, name, withEmail(fmt.Sprintf("m%d@example.com", i/2)), attrField(op.AttrPhone, "+4930123456"))
	}
	track(t, e, "d")
	setUser(t, e, op.ExternalID, "d", ungrouped())
	track(t, e, "d", withEmail("m0@example.com"))
	setUser(t, e, op.ExternalID, "a", email("opted_in"), smsGroup)
	setAddress(t, e, op.Email, "m0@example.com", emailGroup, profile.State{Kind: profile.StateBounce, On: true})
	setAddress(t, e, op.Email, "m1@example.com", ungrouped(), email("unsubscribed"))
	exported := func(e *Engine) (lines []string) {
		for _, name := range names {
			u := first(e.Find(1, op.ExternalID, []byte(name)))[0]
			var fields profile.Fields
			for _, f := range []string{"external_id", "email", "phone", "email_subscribe", "subscription_groups", "email_hard_bounced_at"} {
				fields, _ = fields.AddField([]byte(f))
			}
			line := string(profile.AppendJSON(nil, u.Blob, fields, profile.Export{}))
			groups := strings.Split(line, `{"id"`) // their order is that of their coming
			slices.Sort(groups)
			lines = append(lines, line, strings.Trim(strings.Join(groups, ""), "]},"))
		}
		return lines
	}
	want := exported(e)
	channel := func(group [16]byte) byte { return map[byte]byte{1: op.ChannelEmail, 2: op.ChannelSMS}[group[0]] }
	for range 2 {
		var im profile.Importer
		for i := range names {
			blob, err := im.Import(nil, 1, []byte(want[2*i]), time.Now().UnixMicro(), profile.ImportOptions{Channel: channel})
			require.NoError(t, err)
			commitAs(t, e, op.SourceImport, func(b *Batch) { b.Import(blob) })
		}
		got := exported(e)
		for i := range names {
			require.Equal(t, want[2*i+1], got[2*i+1], names[i])
		}
		require.Equal(t, []string{"on", "off"}, consents(t, e, "m0@example.com", "m1@example.com"))
		e = openTest(t, testOptions(vfs.NewMem()))
	}
}

// When one object, or one call for an address, sets a state twice, the last value holds, for the user and for all who
// have the address.
func TestLastOfTwoHolds(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	for _, user := range []string{"a", "b"} {
		track(t, e, user, withEmail("x@example.com"))
	}
	twice := func(states ...profile.State) (field []byte) {
		var groups []byte
		for _, s := range states {
			groups = op.AppendBool(op.AppendString(groups, append(s.Group[:], s.Channel)), s.On)
		}
		return op.AppendBlock([]byte{op.AttrSubscriptionGroups}, op.Array, groups)
	}
	for range 2 {
		track(t, e, "a", twice(emailGroup, ungrouped()))
		require.Equal(t, []string{"off", "off", "off"}, consents(t, e, "a", "b", "x@example.com"))
		track(t, e, "a", twice(ungrouped(), emailGroup))
		require.Equal(t, []string{"on", "on", "on"}, consents(t, e, "a", "b", "x@example.com"))
		setUser(t, e, op.ExternalID, "a", emailGroup, ungrouped())
		require.Equal(t, []string{"off", "off", "off"}, consents(t, e, "a", "b", "x@example.com"))
		setAddress(t, e, op.Email, "x@example.com", ungrouped(), emailGroup)
		require.Equal(t, []string{"on", "on", "on"}, consents(t, e, "a", "b", "x@example.com"))
		setAddress(t, e, op.Email, "x@example.com", emailGroup, ungrouped())
		require.Equal(t, []string{"off", "off", "off"}, consents(t, e, "a", "b", "x@example.com"))
	}
}

// Every export has a default for users who have said nothing. Importing it leaves no trace of consent, not even in the
// trail.
func TestImportedDefaultIsNoConsent(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	for i, state := range []string{"subscribed", "opted_in", "unsubscribed"} {
		var im profile.Importer
		user := fmt.Sprint("u", i)
		line := fmt.Sprintf(`{"external_id":%q,"email":"%s@example.com","email_subscribe":%q}`, user, user, state)
		blob, err := im.Import(nil, 1, []byte(line), time.Now().UnixMicro(), profile.ImportOptions{})
		require.NoError(t, err)
		commitAs(t, e, op.SourceImport, func(b *Batch) { b.Import(blob) })
		held, said, err := e.HeldState(1, op.ExternalID, []byte(user), profile.State{Kind: profile.StateEmail})
		require.NoError(t, err)
		_, heard, err := e.HeldState(1, op.Email, []byte(user+"@example.com"), profile.State{Kind: profile.StateEmail})
		require.NoError(t, err)
		require.Equal(t, []bool{i > 0, i > 0}, []bool{said, heard})
		trail := first(e.Trail(1, numberOf(t, e, op.ExternalID, user)))
		require.Equal(t, i > 0, len(trail) > 0)
		if i > 0 {
			require.Equal(t, state, held.Value)
		}
	}
}

// An import counts as coming to the address anew, also for a user who had the same one before: what others say there
// afterwards holds for the user, also when they repeat it, and the trail says so.
func TestImportComesAnew(t *testing.T) {
	for _, tracked := range []bool{true, false} {
		e := openTest(t, testOptions(vfs.NewMem()))
		const address = "x@example.com"
		say := func() {
			if tracked {
				track(t, e, "ann", trackFields(map[modelKey]string{{profile.StateGroup, 1}: "on"})...)
			} else {
				setUser(t, e, op.ExternalID, "ann", emailGroup)
			}
		}
		for _, user := range []string{"ann", "bob"} {
			track(t, e, user, attrField(op.AttrEmail, address))
		}
		say()
		var im profile.Importer
		line := fmt.Sprintf(`{"external_id":"bob","email":%q,"subscription_groups":[{"id":%q,"status":"Unsubscribed"}]}`,
			address, uuid.UUID(emailGroup.Group))
		blob, err := im.Import(nil, 1, []byte(line), time.Now().UnixMicro(),
			profile.ImportOptions{Channel: func([16]byte) byte { return op.ChannelEmail }})
		require.NoError(t, err)
		commitAs(t, e, op.SourceImport, func(b *Batch) { b.Import(blob) })
		held := func() bool {
			c, said, err := e.HeldState(1, op.ExternalID, []byte("bob"), emailGroup)
			require.NoError(t, err)
			require.True(t, said)
			return c.On
		}
		require.False(t, held())
		for range 3 {
			say()
			require.True(t, held())
			trail := first(e.Trail(1, first(e.Find(1, op.ExternalID, []byte("bob")))[0].Number))
			require.Len(t, trail, 2)
			require.True(t, trail[1].On)
		}
		require.NoError(t, e.Close())
	}
}
