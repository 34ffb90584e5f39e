package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// limit of a search: none, so that no verdict depends on how busy the machine is.
const limit = 0

// script reads a history: a line is an entry, "call return op -> answer". A return of ? is unknown, one like 5/9 a
// merge that was over at 9.
func script(t *testing.T, text string) (entries []Entry) {
	t.Helper()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		request, answer, found := strings.Cut(line, " -> ")
		require.True(t, found, line)
		words := strings.Fields(request)
		var e Entry
		scan(t, words[0], &e.Call)
		end, effect, queued := strings.Cut(words[1], "/")
		if e.Return = Never; end != "?" {
			scan(t, end, &e.Return)
		}
		if queued {
			scan(t, effect, &e.Effect)
		}
		e.Op = readOp(t, words[2:])
		if words[2] == "merge" && !queued {
			e.Effect = Never
		}
		e.Answer = readAnswer(t, strings.TrimSpace(answer))
		entries = append(entries, e)
	}
	return entries
}

func scan(t *testing.T, text string, to any) {
	t.Helper()
	_, err := fmt.Sscan(text, to)
	require.NoError(t, err, text)
}

func readRef(t *testing.T, text string) (r Ref) {
	r.Alias = text[0] == 'a'
	scan(t, text[1:], &r.Number)
	return r
}

func readOp(t *testing.T, words []string) (o Op) {
	switch words[0] {
	case "track": // e1 x0
		scan(t, words[1][1:], &o.Event)
		o.A = readRef(t, words[2])
	case "export":
		o.Kind, o.A = Export, readRef(t, words[1])
	case "make":
		o.Kind, o.B = MakeAlias, readRef(t, words[1])
	case "give": // a0 x0
		o.Kind, o.B, o.A = GiveAlias, readRef(t, words[1]), readRef(t, words[2])
	case "identify": // a0 x0
		o.Kind, o.A, o.B = Identify, readRef(t, words[1]), readRef(t, words[2])
	case "merge": // x1 x0
		o.Kind, o.A, o.B = Merge, readRef(t, words[1]), readRef(t, words[2])
	case "set":
		o.Kind, o.A, o.Value = Set, readRef(t, words[1]), words[2]
	case "get":
		o.Kind, o.A = Get, readRef(t, words[1])
	default:
		t.Fatalf("what is %q?", words[0])
	}
	return o
}

func readAnswer(t *testing.T, text string) (a Answer) {
	switch {
	case text == "in use":
		return Answer{Refusal: InUse}
	case text == "label":
		return Answer{Refusal: Label}
	case text == "ok" || text == "nobody":
		return Answer{}
	case text[0] == '=':
		return Answer{Value: text[1:]}
	}
	a.Found, a.External = true, -1
	for _, word := range strings.Fields(text) {
		var n uint8
		scan(t, word[1:], &n)
		switch word[0] {
		case 'x':
			a.External = int8(n)
		case 'a':
			a.Aliases |= 1 << n
		case 'e':
			a.Events |= 1 << n
		}
	}
	return a
}

func TestNames(t *testing.T) {
	f := func(want Verdict, name, text string) {
		t.Helper()
		entries := script(t, text)
		require.Equal(t, want, Check(Names{}, entries, limit), "%s\n%s", name, Text(entries))
	}
	f(Linearizable, "nothing", ``)
	f(Linearizable, "read your write", `
		1 2 track e1 x0 -> ok
		3 4 export x0 -> x0 e1`)
	f(Illegal, "stale read", `
		1 2 track e1 x0 -> ok
		3 4 export x0 -> nobody`)
	f(Linearizable, "at once: either", `
		1 5 track e1 x0 -> ok
		2 3 export x0 -> nobody
		4 6 export x0 -> x0 e1`)
	f(Illegal, "there and gone again", `
		1 9 track e1 x0 -> ok
		2 3 export x0 -> x0 e1
		4 5 export x0 -> nobody`)
	f(Linearizable, "unknown: never", `
		1 ? track e1 x0 -> ok
		9 10 export x0 -> nobody`)
	f(Linearizable, "unknown: late", `
		1 ? track e1 x0 -> ok
		9 10 export x0 -> nobody
		11 12 export x0 -> x0 e1`)
	f(Illegal, "unknown: back and forth", `
		1 ? track e1 x0 -> ok
		9 10 export x0 -> x0 e1
		11 12 export x0 -> nobody`)
	f(Illegal, "nobody has sent it", `
		1 2 track e1 x0 -> ok
		3 4 export x0 -> x0 e1 e2`)
	f(Illegal, "two events seen in two orders", `
		1 9 track e1 x0 -> ok
		1 9 track e2 x0 -> ok
		2 3 export x0 -> x0 e1
		2 3 export x0 -> x0 e2`)

	f(Linearizable, "an alias is one user's", `
		1 2 make a0 -> ok
		3 4 make a0 -> in use
		5 6 give a0 x0 -> ok
		7 8 track e1 x0 -> ok
		9 10 give a0 x0 -> in use
		11 12 give a1 x0 -> ok
		13 14 give a2 x0 -> label
		15 16 give a1 x0 -> ok
		17 18 export a1 -> x0 a1 e1`)
	f(Linearizable, "promised, and then not taken", `
		1 2 give a1 x0 -> ok
		1 2 track e1 x0 -> ok
		3 4 give a1 x0 -> ok
		5 9 give a0 x0 -> label
		6 7 make a0 -> in use
		10 11 make a0 -> ok`)
	f(Illegal, "the promise is over with the answer", `
		1 2 track e1 x0 -> ok
		3 4 give a1 x0 -> ok
		5 6 give a0 x0 -> label
		7 8 make a0 -> in use`)
	f(Illegal, "both have got it", `
		1 9 make a0 -> ok
		1 9 make a0 -> ok`)
	f(Illegal, "nobody has got it", `
		1 9 make a0 -> in use
		1 9 make a0 -> in use`)
	f(Illegal, "refused for what nobody has", `
		1 2 track e1 x0 -> ok
		3 4 give a0 x0 -> label`)
	f(Linearizable, "an event makes the user of an alias", `
		1 2 track e1 a0 -> ok
		3 4 make a0 -> in use
		5 6 export a0 -> a0 e1`)

	f(Linearizable, "identify gives the id", `
		1 2 track e1 a0 -> ok
		3 4 identify a0 x0 -> ok
		5 6 export x0 -> x0 a0 e1
		7 8 identify a0 x1 -> ok
		9 10 export x1 -> nobody`)
	f(Linearizable, "identify merges", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 4 identify a0 x0 -> ok
		5 6 export a0 -> x0 a0 e1 e2`)
	f(Illegal, "identify is over when it is answered", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 4 identify a0 x0 -> ok
		5 6 export a0 -> nobody`)
	f(Linearizable, "for a moment nobody has the alias", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 9 identify a0 x0 -> ok
		4 5 export a0 -> nobody
		6 7 export x0 -> x0 e2
		10 11 export x0 -> x0 a0 e1 e2`)
	f(Linearizable, "or it leads to the other already", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 9 identify a0 x0 -> ok
		4 5 export a0 -> x0 e2
		6 7 export x0 -> x0 e2
		10 11 export a0 -> x0 a0 e1 e2`)
	f(Illegal, "but not behind the answer", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 9 identify a0 x0 -> ok
		10 11 export a0 -> x0 e2`)
	f(Illegal, "there are two of it", `
		1 2 track e1 a0 -> ok
		1 2 track e2 x0 -> ok
		3 9 identify a0 x0 -> ok
		4 5 export x0 -> x0 a0 e1 e2
		6 7 export a0 -> a0 e1`)

	f(Linearizable, "a merge comes after its answer", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		5 6 export x1 -> x1 e2
		7 8 export x1 -> nobody
		9 10 export x0 -> x0 e1
		11 12 export x0 -> x0 e1 e2
		21 22 export x0 -> x0 e1 e2`)
	f(Illegal, "and does come", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		21 22 export x0 -> x0 e1`)
	f(Illegal, "and not before its call", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4 export x1 -> nobody
		5 6/20 merge x1 x0 -> ok`)
	f(Illegal, "an event is lost in it", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		21 22 export x0 -> x0 e1
		23 24 export x1 -> nobody`)
	f(Illegal, "an event is there twice", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		21 22 export x0 -> x0 e1 e2
		23 24 export x1 -> x1 e2`)
	f(Linearizable, "what was on its way reaches the other", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		3 15 track e3 x1 -> ok
		5 6 export x0 -> x0 e1 e2
		7 8 export x0 -> x0 e1 e2 e3`)
	f(Linearizable, "the id is free then", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		5 6 export x1 -> nobody
		7 8 track e3 x1 -> ok
		21 22 export x1 -> x1 e3
		21 22 export x0 -> x0 e1 e2`)
	f(Illegal, "and its user is a new one", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		5 6 export x1 -> nobody
		7 8 track e3 x1 -> ok
		21 22 export x1 -> nobody
		21 22 export x0 -> x0 e1 e2 e3`)
	f(Linearizable, "crossing merges: one of them", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		3 4/20 merge x0 x1 -> ok
		21 22 export x1 -> x1 e1 e2
		21 22 export x0 -> nobody`)
	f(Illegal, "crossing merges: none of them", `
		1 2 track e1 x0 -> ok
		1 2 track e2 x1 -> ok
		3 4/20 merge x1 x0 -> ok
		3 4/20 merge x0 x1 -> ok
		21 22 export x1 -> nobody
		21 22 export x0 -> nobody`)
	f(Linearizable, "a merge of nobody", `
		1 2 track e1 x0 -> ok
		3 4/9 merge x1 x0 -> ok
		5 6 track e2 x1 -> ok
		10 11 export x1 -> x1 e2`)
}

func TestRegister(t *testing.T) {
	f := func(want Verdict, through string, text string) {
		t.Helper()
		m := Register{Initial: "none"}
		if through != "" {
			r := readRef(t, through)
			m.Through = &r
		}
		require.Equal(t, want, Check(m, script(t, text), limit), "%s", text)
	}
	f(Linearizable, "", `
		1 2 get x0 -> =none
		3 4 set x0 one -> ok
		5 9 set x0 two -> ok
		6 7 get x0 -> =one
		10 11 get x0 -> =two`)
	f(Illegal, "", `
		3 4 set x0 one -> ok
		6 7 get x0 -> =none`)
	half := `
		1 9 set x0 one -> ok
		2 3 get x1 -> =one
		4 5 get x0 -> =none
		10 11 get x0 -> =one`
	f(Linearizable, "x0", half)
	f(Linearizable, "x1", half)
	f(Illegal, "", half)
	f(Illegal, "x1", half+`
		12 13 get x1 -> =none`)
}

// TestRandomHistories makes histories by a server that does one thing after the other: each request takes effect at a
// moment between call and return. They are all linearizable, and what is bent in an answer is found.
func TestRandomHistories(t *testing.T) {
	r := testseed.Rand(t)
	bent, found := 0, 0
	for range 300 {
		entries := simulate(r, 40, 3)
		require.Equal(t, Linearizable, Check(Names{}, entries, limit), "%s", Text(entries))
		if i := stale(entries); i >= 0 {
			e := &entries[i]
			e.Answer.Events &= e.Answer.Events - 1 // without one that was acknowledged long before
			if e.Answer.Events == 0 {
				e.Answer = Answer{}
			}
			bent++
			require.Equal(t, Illegal, Check(Names{}, entries, limit), "entry %d\n%s", i+1, Text(entries))
			short := Shortest(Names{}, entries, limit)
			require.LessOrEqual(t, len(short), len(entries))
			require.Equal(t, Illegal, Check(Names{}, short, limit))
			found++
		}
	}
	require.Greater(t, found, 20)
	require.Equal(t, bent, found)
}

// simulate makes entries of some clients; now and then an outcome is unknown.
func simulate(r *rand.Rand, n, clients int) (entries []Entry) {
	type user struct {
		external int8
		aliases  uint16
		events   uint64
	}
	var users []*user
	find := func(a Ref) *user {
		for _, u := range users {
			if !a.Alias && u.external == int8(a.Number) || a.Alias && u.aliases&(1<<a.Number) != 0 {
				return u
			}
		}
		return nil
	}
	made := func(a Ref) *user {
		u := &user{external: -1}
		if a.Alias {
			u.aliases = 1 << a.Number
		} else {
			u.external = int8(a.Number)
		}
		users = append(users, u)
		return u
	}
	join := func(from, to *user) {
		to.aliases, to.events = to.aliases|from.aliases, to.events|from.events
		*from = user{external: -1}
	}
	do := func(o Op) (a Answer) {
		u := find(o.A)
		switch o.Kind {
		case Track:
			if u == nil {
				u = made(o.A)
			}
			u.events |= 1 << o.Event
		case Export:
			if u != nil {
				return Answer{Found: true, External: u.external, Aliases: u.aliases, Events: u.events}
			}
		case MakeAlias:
			if find(o.B) != nil {
				return Answer{Refusal: InUse}
			}
			made(o.B)
		case GiveAlias:
			holder := find(o.B)
			switch {
			case u == nil || holder == u:
			case holder != nil:
				return Answer{Refusal: InUse}
			case u.aliases != 0:
				return Answer{Refusal: Label}
			default:
				u.aliases |= 1 << o.B.Number
			}
		case Identify:
			if u != nil && u.external < 0 {
				if keeper := find(o.B); keeper != nil {
					join(u, keeper)
				} else {
					u.external = int8(o.B.Number)
				}
			}
		case Merge:
			if keeper := find(o.B); u != nil && keeper != nil && u != keeper {
				join(u, keeper)
			}
		}
		return a
	}
	free := make([]int64, clients) // when a client may call again
	events := uint8(0)
	for at := int64(100); len(entries) < n; at += 1 + r.Int64N(20) {
		client := r.IntN(clients)
		if free[client] >= at {
			continue
		}
		e := Entry{Client: client, Op: RandomOp(r, 2, 3)}
		if e.Op.Kind == Track {
			e.Op.Event = events
			events++
		}
		e.Call = max(free[client]+1, at-1-r.Int64N(60))
		e.Return = at + 1 + r.Int64N(60)
		free[client] = e.Return
		if e.Answer = do(e.Op); e.Op.Kind == Merge {
			e.Effect = e.Return + r.Int64N(100)
		}
		if !e.Op.reads() && r.IntN(30) == 0 {
			e.Return, e.Effect = Never, 0
			e.Answer = Answer{}
		}
		entries = append(entries, e)
	}
	return entries
}

// stale looks for a read that begins after the event with its lowest bit was acknowledged to the same identifier, with
// nobody being merged from the one to the other. -1: there is none.
func stale(entries []Entry) int {
	quiet := func(from, to int64) bool {
		for i := range entries {
			o := &entries[i]
			if (o.Op.Kind == Merge || o.Op.Kind == Identify) && o.Call <= to && from <= max(o.Return, o.Effect) {
				return false
			}
		}
		return true
	}
	for i := range entries {
		e := &entries[i]
		if e.Op.Kind != Export || e.Answer.Events == 0 {
			continue
		}
		for j := range entries {
			w := &entries[j]
			if w.Op.Kind == Track && e.Answer.Events&-e.Answer.Events == 1<<w.Op.Event && w.Return < e.Call && w.Op.A == e.Op.A && quiet(w.Call, e.Return) {
				return i
			}
		}
	}
	return -1
}

// counted is Names whose steps are counted: what a search takes, however busy the machine is.
type counted struct {
	Names
	tried *int
}

func (c counted) porcupine() porcupine.Model {
	m := c.Names.porcupine()
	step := m.Step
	m.Step = func(state, input, output any) (bool, any) {
		*c.tried++
		return step(state, input, output)
	}
	return m
}

// TestUnknownsAreJudgedInTime: families end after a few requests of unknown outcome, because each doubles what is
// possible.
func TestUnknownsAreJudgedInTime(t *testing.T) {
	r := testseed.Rand(t)
	var all []int
	for range 50 {
		entries := simulate(r, 50, 4)
		unknown := 0
		for i := range entries {
			if e := &entries[i]; !e.Op.reads() && unknown < 4 && r.IntN(6) == 0 {
				e.Return, e.Effect, e.Answer = Never, 0, Answer{}
				unknown++
			}
		}
		tried := 0
		require.Equal(t, Linearizable, Check(counted{Names{}, &tried}, entries, limit), "%s", Text(entries))
		all = append(all, tried)
	}
	slices.Sort(all)
	// Three of four take some hundred steps; one in fifty may take a thousand times as many.
	require.Less(t, all[len(all)*3/4], 5_000, "steps of a search, of three of four")
}

func TestRecorder(t *testing.T) {
	r := &Recorder{Began: time.Now()}
	ask := func(o Op, a Answer, end Outcome) { r.Do(1, 2, o, func() (Answer, Outcome) { return a, end }) }
	x0 := Ref{}
	ask(Op{Kind: Track, A: x0}, Answer{}, Answered)
	ask(Op{Kind: Track, A: x0, Event: 1}, Answer{}, Undone)
	ask(Op{Kind: Track, A: x0, Event: 2}, Answer{}, Unknown)
	ask(Op{Kind: Export, A: x0}, Answer{}, Unknown)
	ask(Op{Kind: Merge, A: x0}, Answer{}, Answered)
	require.Equal(t, 5, r.Sent())
	require.Equal(t, 3, r.Recorded())
	require.Equal(t, 1, r.Unknowns())
	entries := r.Entries()
	require.Len(t, entries, 3)
	require.False(t, entries[1].Known())
	require.EqualValues(t, Never, entries[2].Effect)
	r.Settled()
	require.Less(t, r.Entries()[2].Effect, int64(Never))
	require.Contains(t, Text(entries), "client 1 node 2: track e0 to x0 -> done")
}
