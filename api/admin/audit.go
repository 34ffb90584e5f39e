package admin

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"

	"github.com/goccy/go-json"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard"
)

// The audit log, for reading only: no route changes or removes an entry.

// Paging of the audit log.
const (
	defaultAuditLimit = 100
	maxAuditLimit     = 1000
	maxAuditScan      = 100_000 // entries that one request looks at when it filters them
)

func (s *Server) auditRoutes() []route {
	return []route{
		{"GET /admin/audit", s.listAudit},
		{"GET /admin/audit/verify", s.verifyAudit},
	}
}

// listAudit answers with entries in order: from a sequence number on, or the newest ones; of one workspace or of all.
func (s *Server) listAudit(_ control.Actor, r *http.Request) (any, error) {
	query := r.URL.Query()
	limit, err := queryNumber(query, "limit", defaultAuditLimit, maxAuditLimit)
	if err != nil {
		return nil, err
	}
	answer := answers.AuditPage{Entries: []answers.AuditEntry{}}
	if !query.Has("from") {
		answer.Entries, err = s.newestEntries(query, limit)
		return answer, err
	}
	from, err := queryNumber(query, "from", 1, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	scanned := 0
	err = s.common.Store.Audit(from, func(e shard.AuditEntry) bool {
		if uint64(len(answer.Entries)) == limit || scanned == maxAuditScan {
			answer.Next = e.Seq
			return false
		}
		scanned++
		if shown := describeEntry(e); matches(&shown, query) {
			answer.Entries = append(answer.Entries, shown)
		}
		return true
	})
	return answer, err
}

// newestEntries returns the last limit entries that match, as far as maxAuditScan entries back. It goes back in steps,
// each as long as all previous ones together.
func (s *Server) newestEntries(query url.Values, limit uint64) (found []answers.AuditEntry, err error) {
	end, _ := s.common.Store.AuditEnd()
	found = []answers.AuditEntry{}
	for first, step := end+1, limit; first > 1 && uint64(len(found)) < limit && end+1-first < maxAuditScan; step *= 2 {
		last := first - 1
		first = max(first, step+1) - step
		var older []answers.AuditEntry
		if err := s.common.Store.Audit(first, func(e shard.AuditEntry) bool {
			if e.Seq > last {
				return false
			}
			if shown := describeEntry(e); matches(&shown, query) {
				older = append(older, shown)
			}
			return true
		}); err != nil {
			return nil, err
		}
		found = append(older, found...)
	}
	return found[max(uint64(len(found)), limit)-limit:], nil
}

// matches reports whether the query asks for the entry.
func matches(e *answers.AuditEntry, query url.Values) bool {
	is := func(name, value string) bool { return !query.Has(name) || query.Get(name) == value }
	return is("workspace", e.Workspace) && is("kind", e.Kind) && is("id", e.ID)
}

func describeEntry(e shard.AuditEntry) answers.AuditEntry {
	shown := answers.AuditEntry{Seq: e.Seq, Time: microText(e.Time), Hash: hex.EncodeToString(e.Hash[:])}
	if e.Actor != control.AdminActor {
		shown.Actor = e.Actor
	}
	if err := json.Unmarshal(e.Body, &shown.Entry); err != nil {
		shown.What = "entry that can't be read"
	}
	return shown
}

// verifyAudit computes the chain of hashes anew. With seq and hash of an entry that was noted elsewhere earlier, it
// also detects a log that was rewritten as a whole, or cut short.
func (s *Server) verifyAudit(_ control.Actor, r *http.Request) (any, error) {
	query := r.URL.Query()
	if query.Has("seq") != query.Has("hash") {
		return nil, fmt.Errorf("%w: seq and hash go together", document.ErrInvalid)
	}
	noted, err := queryNumber(query, "seq", 0, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	answer := answers.AuditCheck{IsIntact: true}
	answer.Seq, err = s.common.Store.VerifyAudit()
	if errors.Is(err, shard.ErrAudit) {
		answer.IsIntact, answer.Problem = false, err.Error()
		return answer, nil
	}
	if err != nil || answer.Seq == 0 && noted == 0 {
		return answer, err
	}
	hashOf := func(seq uint64) (hash string, err error) {
		err = s.common.Store.Audit(seq, func(e shard.AuditEntry) bool {
			if e.Seq == seq {
				hash = hex.EncodeToString(e.Hash[:])
			}
			return false
		})
		return hash, err
	}
	if noted > 0 {
		switch hash, err := hashOf(noted); {
		case err != nil:
			return nil, err
		case noted > answer.Seq:
			answer.IsIntact, answer.Problem = false, fmt.Sprintf("entry %d is missing", noted)
		case hash != query.Get("hash"):
			answer.IsIntact, answer.Problem = false, fmt.Sprintf("entry %d has another hash than was noted", noted)
		}
	}
	answer.Hash, err = hashOf(answer.Seq)
	return answer, err
}
