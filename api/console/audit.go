package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"millrace/api/admin/answers"
)

// ownEntry returns the entry that this request has caused; it is among the latest.
func (v *visit) ownEntry() (*answers.AuditEntry, error) {
	var page answers.AuditPage
	if err := v.call(http.MethodGet, "/admin/audit?limit=1000", nil, &page); err != nil {
		return nil, err
	}
	for i := range page.Entries {
		if e := &page.Entries[len(page.Entries)-1-i]; e.RequestID == v.by().RequestID {
			return e, nil
		}
	}
	return &answers.AuditEntry{}, nil // so much has happened meanwhile that the person has to look for it
}

const auditPath = "/console/audit"

// auditData is what the page of the audit log shows, the newest entry first.
type auditData struct {
	answers.AuditPage
	Workspace, Kind string
	Older           uint64 // where the page before begins
	Check           *answers.AuditCheck
}

// auditPageSize is how many entries a page has.
const auditPageSize = 100

// showAudit serves GET /console/audit.
func (c *Console) showAudit(v *visit) error { return v.showAudit(nil) }

func (v *visit) showAudit(check *answers.AuditCheck) error {
	query := v.r.URL.Query()
	data := auditData{Workspace: query.Get("workspace"), Kind: query.Get("kind"), Check: check}
	ask := url.Values{"limit": {strconv.Itoa(auditPageSize)}}
	v.passOn(ask, "workspace", "kind", "id", "from")
	if err := v.call(http.MethodGet, "/admin/audit?"+ask.Encode(), nil, &data.AuditPage); err != nil {
		return err
	}
	slices.Reverse(data.Entries)
	if n := len(data.Entries); n > 0 && data.Entries[n-1].Seq > 1 && data.Workspace == "" && data.Kind == "" {
		data.Older = max(data.Entries[n-1].Seq, auditPageSize+1) - auditPageSize
	}
	return v.render("audit", "Audit log", data)
}

// checkAudit serves POST /console/audit/check. Given the number and the hash of an entry, noted elsewhere, it also
// finds a log that was written anew.
func (c *Console) checkAudit(v *visit) error {
	ask := url.Values{}
	switch {
	case (v.form("seq") == "") != (v.form("hash") == ""):
		return v.retry(bad("Enter both the entry number and its hash."), c.showAudit)
	case v.form("seq") != "":
		ask = url.Values{"seq": {v.form("seq")}, "hash": {v.form("hash")}}
	}
	check := new(answers.AuditCheck)
	if err := v.call(http.MethodGet, "/admin/audit/verify?"+ask.Encode(), nil, check); err != nil {
		return v.retry(err, c.showAudit)
	}
	return v.showAudit(check)
}

// downloadAudit serves GET /console/audit/download: all entries, one JSON object a line. For HEAD, reading some of them
// is enough.
func (c *Console) downloadAudit(v *visit) error {
	for from := uint64(1); from != 0; {
		var page struct {
			Entries []json.RawMessage `json:"entries"`
			Next    uint64            `json:"next"`
		}
		if err := v.call(http.MethodGet, "/admin/audit?limit=1000&from="+strconv.FormatUint(from, 10), nil,
			&page); err != nil {
			if from == 1 {
				return err
			}
			panic(http.ErrAbortHandler) // nobody may take a part for the whole
		}
		if from == 1 {
			v.download("application/x-ndjson", "audit.ndjson")
		}
		if v.r.Method == http.MethodHead {
			return nil
		}
		for _, e := range page.Entries {
			if _, err := v.w.Write(append(e, '\n')); err != nil {
				return nil // the browser has gone
			}
		}
		from = page.Next
	}
	return nil
}
