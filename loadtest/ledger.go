package loadtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"millrace/loadtest/body"
	"millrace/wal/durable"
)

// Ledger is what a server owes after a run: for each user how often each event and product must be there at least
// (acknowledged) and at most (with the requests whose outcome is unknown), the revenue, and the values that the marker
// attribute may have. It is complete once Run has returned, can be kept in a file, and is only read from then on.
type Ledger struct {
	head     ledgerHead
	accounts []account
	groups   int
	unknown  map[uint64]bool // sequences
	settling time.Duration   // how long Verify lets a half be completed; shorter in tests
}

// ledgerHead is the first line of a ledger file.
type ledgerHead struct {
	Format     string   `json:"format"`
	Prefix     string   `json:"prefix"`
	Seed       uint64   `json:"seed"`
	Marker     string   `json:"marker"`
	EventNames []string `json:"event_names"`
	Products   []string `json:"products"`
	Currency   string   `json:"currency"`
	Objects    uint64   `json:"objects"`
	Accounts   int      `json:"accounts"`
	Groups     int      `json:"groups"`
	Unknown    []uint64 `json:"unknown"`
}

const ledgerFormat = "millrace loadtest ledger 1"

// account is what one user must show. Counts are event names, then products.
type account struct {
	Kind          body.IDKind `json:"k,omitempty"`
	User          int         `json:"u"`
	Group         int         `json:"g"` // -1 outside of atomic runs
	Acked         []uint32    `json:"a"`
	Unknown       []uint32    `json:"n"`
	Amount        int64       `json:"r,omitempty"`
	AmountUnknown int64       `json:"rn,omitempty"`
	Seqs          []uint64    `json:"s,omitempty"`  // last acknowledged, of each worker that wrote the user
	SeqUnknown    uint64      `json:"sn,omitempty"` // atomic runs only
}

// UnknownRequests is the number of requests whose outcome is not known. It is for tests.
func (l *Ledger) UnknownRequests() int { return len(l.unknown) }

// ledger collects the books of the workers, and takes over their tables.
func (r *run) ledger() *Ledger {
	l := &Ledger{unknown: map[uint64]bool{}, settling: halfSettleTime,
		head: ledgerHead{Format: ledgerFormat, Prefix: r.generate.Prefix, Seed: r.generate.Seed,
			Marker: r.generate.Marker, Currency: r.generate.Currencies[0]}}
	for i := range r.generate.EventNames {
		l.head.EventNames = append(l.head.EventNames, body.EventName(i))
	}
	for i := range r.generate.Products {
		l.head.Products = append(l.head.Products, body.ProductID(i))
	}
	for _, w := range r.workers {
		l.head.Objects += w.book.objects
		for _, seq := range w.book.unknown {
			l.unknown[seq] = true
		}
		l.take(w.book)
	}
	if r.generate.Skew == body.Hot {
		l.joinHot()
	}
	return l
}

func (l *Ledger) take(b *book) {
	for _, g := range b.groups {
		for row := range g.table.seq {
			l.accounts = append(l.accounts, g.table.account(row, b.slots, body.ExternalID, g.first+row, l.groups))
		}
		l.groups++
	}
	if b.groups != nil || b.table == nil {
		return
	}
	for kind, rows := range b.perWorker {
		for i := range rows {
			a := b.table.account(b.firstRow[kind]+i, b.slots, body.IDKind(kind), b.user(i), -1)
			if a.touched() {
				l.accounts = append(l.accounts, a)
			}
		}
	}
}

func (t *table) account(row, slots int, kind body.IDKind, user, group int) account {
	a := account{Kind: kind, User: user, Group: group, Acked: t.acked[row*slots : (row+1)*slots],
		Unknown: t.unknown[row*slots : (row+1)*slots],
		Amount:  t.amount[row], AmountUnknown: t.amountUnknown[row]}
	if t.seq[row] != 0 {
		a.Seqs = []uint64{t.seq[row]}
	}
	if t.seqUnknown != nil {
		a.SeqUnknown = t.seqUnknown[row]
	}
	return a
}

// touched says whether the user was ever written to, as far as is known.
func (a *account) touched() bool {
	isSet := func(n uint32) bool { return n != 0 }
	return len(a.Seqs) > 0 || slices.ContainsFunc(a.Acked, isSet) || slices.ContainsFunc(a.Unknown, isSet)
}

// joinHot adds up the accounts that the workers kept of the same user.
func (l *Ledger) joinHot() {
	var joined []account
	for _, a := range l.accounts {
		i := slices.IndexFunc(joined, func(b account) bool {
			return a.Group < 0 && a.Kind == b.Kind && a.User == b.User
		})
		if i < 0 {
			joined = append(joined, a)
			continue
		}
		b := &joined[i]
		for slot := range a.Acked {
			b.Acked[slot] += a.Acked[slot]
			b.Unknown[slot] += a.Unknown[slot]
		}
		b.Amount += a.Amount
		b.AmountUnknown += a.AmountUnknown
		b.Seqs = append(b.Seqs, a.Seqs...)
	}
	l.accounts = joined
}

// identifier returns the identifier of an account's user.
func (l *Ledger) identifier(a *account) string {
	return string(body.AppendIdentifier(nil, l.head.Prefix, a.Kind, a.User))
}

// WriteFile writes the ledger to a file: a head, then a line for each user. The file appears whole or not at all.
func (l *Ledger) WriteFile(path string) error {
	err := durable.WriteFile(path, func(w io.Writer) error {
		out := bufio.NewWriterSize(w, 1<<16)
		return errors.Join(l.write(out), out.Flush())
	})
	if err != nil {
		return fmt.Errorf("write ledger %q: %w", path, err)
	}
	return nil
}

func (l *Ledger) write(out io.Writer) error {
	head := l.head
	head.Accounts, head.Groups = len(l.accounts), l.groups
	head.Unknown = slices.Sorted(maps.Keys(l.unknown))
	e := json.NewEncoder(out)
	if err := e.Encode(head); err != nil {
		return err
	}
	for i := range l.accounts {
		if err := e.Encode(&l.accounts[i]); err != nil {
			return err
		}
	}
	return nil
}

// readLedger reads a file that WriteFile has written.
func readLedger(path string) (*Ledger, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	defer f.Close()
	l := &Ledger{unknown: map[uint64]bool{}, settling: halfSettleTime}
	if err := l.read(json.NewDecoder(bufio.NewReaderSize(f, 1<<16))); err != nil {
		return nil, fmt.Errorf("read ledger %q: %w", path, err)
	}
	return l, nil
}

func (l *Ledger) read(d *json.Decoder) error {
	if err := d.Decode(&l.head); err != nil {
		return err
	}
	if l.head.Format != ledgerFormat {
		return fmt.Errorf("format is %q, want %q", l.head.Format, ledgerFormat)
	}
	for _, seq := range l.head.Unknown {
		l.unknown[seq] = true
	}
	l.groups, l.head.Unknown = l.head.Groups, nil
	slots := len(l.head.EventNames) + len(l.head.Products)
	for i := range l.head.Accounts {
		var a account
		if err := d.Decode(&a); err != nil {
			return fmt.Errorf("account %d of %d: %w", i, l.head.Accounts, err)
		}
		if len(a.Acked) != slots || len(a.Unknown) != slots || a.Kind >= body.NumKinds || a.Group < -1 ||
			a.Group >= l.groups {
			return fmt.Errorf("account %d does not belong to this ledger", i)
		}
		l.accounts = append(l.accounts, a)
	}
	return nil
}
