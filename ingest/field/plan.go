package field

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"regexp/syntax"
	"slices"
	"sync"

	"github.com/nyaruka/phonenumbers/v2/metadata"
)

// plan is the numbering plan of a country calling code, as a graph whose edges are the digits after the code. It is
// compiled from the patterns in the library's metadata, so it gives the library's answers, but in about 100 ns instead
// of 25 µs or more. It can't answer for digits that start with a national prefix, such as the 0 of +44 (0)20: only the
// library knows how much of them to remove or to replace.
type plan struct {
	nodes []planNode
}

// planNode is the state after some digits.
type planNode struct {
	next    [10]uint16 // the node after each digit
	verdict verdict    // on the digits so far, when no more follow
}

// verdict is what a plan says of a number.
type verdict uint8

const (
	noNumber verdict = iota
	isNumber
	askLibrary
)

// The first three nodes have the same meaning in every plan.
const (
	planDead = iota // no number starts with these digits
	planAsk         // the library has to be asked, whatever follows
	planRoot        // no digit yet
)

const (
	minNationalDigits = 2 // the library's bounds
	maxNationalDigits = 17
	maxCodeDigits     = 3
	nonGeographic     = "001" // the library's region for codes that belong to no country
)

// judge gives the verdict on the digits after the calling code.
func (p *plan) judge(digits []byte) verdict {
	at := uint16(planRoot)
	for _, digit := range digits {
		at = p.nodes[at].next[digit-'0']
	}
	return p.nodes[at].verdict
}

// judgePhone gives the verdict on the digits of a whole number, the calling code first. It doesn't keep digits.
func judgePhone(digits []byte) verdict {
	code := 0
	for i, digit := range digits[:min(maxCodeDigits, len(digits))] {
		code = code*10 + int(digit-'0')
		if p := planOf(code); p != nil {
			return p.judge(digits[i+1:])
		}
	}
	return noNumber
}

// plans holds the plan of each calling code. A plan is made when the first number needs it, which takes a few
// milliseconds; a code that isn't assigned has none.
var plans [1000]struct {
	once sync.Once
	plan *plan
}

func planOf(code int) *plan {
	p := &plans[code]
	p.once.Do(func() { p.plan = makePlan(code) })
	return p.plan
}

// region is one of the regions that share a calling code. Its patterns are indexes into planMaker.progs.
type region struct {
	leading int // matches the start of every number of the region; -1: the region is told by its kinds of numbers
	general kind
	kinds   []kind
}

// kind is a kind of number, such as mobile or toll-free.
type kind struct {
	pattern int
	lengths []int32 // allowed numbers of digits; empty: whatever the pattern matches
}

// planMaker makes a plan by running all patterns of a calling code at once over every sequence of digits, as one
// determinizes an automaton. Nodes that agree on everything that may follow are merged.
type planMaker struct {
	progs   []*syntax.Prog
	open    []bool // by pattern: a match of the first digits is enough
	prefix  int    // the pattern of the national prefix; -1: none
	regions []region

	plan  *plan
	nodes map[planNode]uint16 // to merge equal nodes
	known map[string]uint16   // by number of digits and positions
}

// position is an instruction in the program of a pattern that the digits so far have led to.
type position struct {
	pattern, pc uint32
}

// makePlan returns nil for a code that isn't assigned. When a pattern can't be followed digit by digit, it returns a
// plan that has the library asked about every number.
func makePlan(code int) *plan {
	names := metadata.CountryCodeToRegion()[code]
	if len(names) == 0 {
		return nil
	}
	m := &planMaker{prefix: -1, plan: new(plan), nodes: map[planNode]uint16{}, known: map[string]uint16{}}
	ask := planNode{verdict: askLibrary}
	for digit := range ask.next {
		ask.next[digit] = planAsk
	}
	m.plan.nodes = []planNode{planDead: {}, planAsk: ask, planRoot: ask}
	m.nodes[planNode{}], m.nodes[ask] = planDead, planAsk
	if err := m.addRegions(code, names); err != nil {
		return m.plan
	}
	root := m.node(m.start(), 0)
	m.plan.nodes[planRoot] = m.plan.nodes[root]
	return m.plan
}

// addRegions compiles the patterns of the regions. As in the library, the first region has the national prefix.
func (m *planMaker) addRegions(code int, names []string) error {
	for i, name := range names {
		data, ok := metadata.RegionMetadata(name)
		if name == nonGeographic {
			data, ok = metadata.NonGeoMetadata(code)
		}
		if !ok {
			return fmt.Errorf("no metadata of region %q", name)
		}
		var err error
		if prefix := data.GetNationalPrefixForParsing(); i == 0 && prefix != "" {
			if m.prefix, err = m.pattern(prefix, true); err != nil {
				return err
			}
		}
		r := region{leading: -1}
		if leading := data.GetLeadingDigits(); leading != "" && len(names) > 1 {
			if r.leading, err = m.pattern(leading, true); err != nil {
				return err
			}
		}
		if r.general, err = m.kind(data.GetGeneralDesc()); err != nil {
			return err
		}
		kinds := []*metadata.PhoneNumberDesc{data.GetPremiumRate(), data.GetTollFree(), data.GetSharedCost(),
			data.GetVoip(), data.GetPersonalNumber(), data.GetPager(), data.GetUan(), data.GetVoicemail(),
			data.GetFixedLine()}
		if !data.GetSameMobileAndFixedLinePattern() {
			kinds = append(kinds, data.GetMobile())
		}
		for _, desc := range kinds {
			k, err := m.kind(desc)
			if err != nil {
				return err
			}
			r.kinds = append(r.kinds, k)
		}
		m.regions = append(m.regions, r)
	}
	return nil
}

func (m *planMaker) kind(desc *metadata.PhoneNumberDesc) (kind, error) {
	pattern, err := m.pattern(desc.GetNationalNumberPattern(), false)
	return kind{pattern, desc.GetPossibleLength()}, err
}

func (m *planMaker) pattern(text string, open bool) (index int, err error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	for _, inst := range prog.Inst {
		if inst.Op == syntax.InstEmptyWidth && syntax.EmptyOp(inst.Arg) != syntax.EmptyEndText {
			return 0, fmt.Errorf("pattern %q looks at what is around it", text)
		}
	}
	m.progs, m.open = append(m.progs, prog), append(m.open, open)
	return len(m.progs) - 1, nil
}

// start returns the positions before the first digit.
func (m *planMaker) start() (at []position) {
	for i, prog := range m.progs {
		at = m.reach(at, uint32(i), uint32(prog.Start))
	}
	return at
}

// reach appends to at the positions that pc leads to without consuming a digit.
func (m *planMaker) reach(at []position, pattern, pc uint32) []position {
	switch inst := &m.progs[pattern].Inst[pc]; inst.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		return m.reach(m.reach(at, pattern, inst.Out), pattern, inst.Arg)
	case syntax.InstCapture, syntax.InstNop:
		return m.reach(at, pattern, inst.Out)
	case syntax.InstFail:
		return at
	}
	return append(at, position{pattern, pc})
}

// follow returns the positions after one more digit.
func (m *planMaker) follow(at []position, digit rune) (next []position) {
	for _, p := range at {
		switch inst := &m.progs[p.pattern].Inst[p.pc]; {
		case inst.Op == syntax.InstMatch:
			if m.open[p.pattern] {
				next = append(next, p)
			}
		case inst.Op != syntax.InstEmptyWidth && inst.MatchRune(digit):
			next = m.reach(next, p.pattern, inst.Out)
		}
	}
	return next
}

// node returns the node for the positions that n digits have led to.
func (m *planMaker) node(at []position, n int) uint16 {
	at = m.tidy(at)
	if len(at) == 0 || n > maxNationalDigits {
		return planDead
	}
	if n > 0 && m.matches(at, m.prefix) {
		return planAsk
	}
	bytes := make([]byte, 0, 1+8*len(at))
	bytes = append(bytes, byte(n))
	for _, p := range at {
		bytes = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(bytes, p.pattern), p.pc)
	}
	key := string(bytes)
	if index, ok := m.known[key]; ok {
		return index
	}
	var made planNode
	switch {
	case n > 0 && m.matchesWhole(at, m.prefix):
		made.verdict = askLibrary
	case n >= minNationalDigits && m.isNumber(at, n):
		made.verdict = isNumber
	}
	for digit := range made.next {
		made.next[digit] = m.node(m.follow(at, '0'+rune(digit)), n+1)
	}
	index, ok := m.nodes[made]
	if !ok {
		index = uint16(len(m.plan.nodes))
		m.plan.nodes, m.nodes[made] = append(m.plan.nodes, made), index
	}
	m.known[key] = index
	return index
}

// tidy sorts the positions and removes duplicates. Of an open pattern that has matched it keeps only the match, since
// what else the pattern might match no longer counts.
func (m *planMaker) tidy(at []position) []position {
	slices.SortFunc(at, func(a, b position) int {
		return cmp.Or(cmp.Compare(a.pattern, b.pattern), cmp.Compare(a.pc, b.pc))
	})
	at = slices.Compact(at)
	var tidied []position
	for _, p := range at {
		if !m.open[p.pattern] || m.isMatch(p) || !m.matches(at, int(p.pattern)) {
			tidied = append(tidied, p)
		}
	}
	return tidied
}

func (m *planMaker) isMatch(p position) bool {
	return m.progs[p.pattern].Inst[p.pc].Op == syntax.InstMatch
}

func (m *planMaker) matches(at []position, pattern int) bool {
	return slices.ContainsFunc(at, func(p position) bool { return int(p.pattern) == pattern && m.isMatch(p) })
}

// matchesWhole says whether a pattern matches if no digit follows, which a pattern may demand with a $.
func (m *planMaker) matchesWhole(at []position, pattern int) bool {
	return m.matches(at, pattern) || slices.ContainsFunc(at, func(p position) bool {
		inst := &m.progs[p.pattern].Inst[p.pc]
		return int(p.pattern) == pattern && inst.Op == syntax.InstEmptyWidth &&
			m.matchesWhole(m.reach(nil, p.pattern, inst.Out), pattern)
	})
}

// isNumber says whether n digits are a number of the region that they belong to. That is the first region whose leading
// digits they start with or, for a region without leading digits, that has a kind of number for them.
func (m *planMaker) isNumber(at []position, n int) bool {
	for _, r := range m.regions {
		if r.leading >= 0 && !m.matches(at, r.leading) {
			continue
		}
		hasKind := m.isOf(at, r.general, n) &&
			slices.ContainsFunc(r.kinds, func(k kind) bool { return m.isOf(at, k, n) })
		if hasKind || r.leading >= 0 {
			return hasKind
		}
	}
	return false
}

func (m *planMaker) isOf(at []position, k kind, n int) bool {
	return (len(k.lengths) == 0 || slices.Contains(k.lengths, int32(n))) && m.matchesWhole(at, k.pattern)
}
