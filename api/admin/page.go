package admin

import (
	"net/http"
	"sort"

	"github.com/goccy/go-json"
)

// Paging of lists whose entries are documents: there may be ten thousand of them, and each may be large.
const (
	maxListLimit  = 1000    // also the default
	maxListLength = 1 << 20 // of the entries' text: a page ends with the entry that reaches it
)

// pageOf answers with a page of a list: the entries behind the request's cursor. Entries are in order of their keys;
// next, if there are more, is the cursor of the following page. Entries are shown only as far as the page has room for
// them.
func pageOf[T any](r *http.Request, name string, list []T, key func(T) string, show func(T) any) (any, error) {
	query := r.URL.Query()
	limit, err := queryNumber(query, "limit", maxListLimit, maxListLimit)
	if err != nil {
		return nil, err
	}
	page, length, last := []json.RawMessage{}, 0, query.Get("cursor")
	answer := map[string]any{}
	first := sort.Search(len(list), func(i int) bool { return key(list[i]) > last })
	for _, v := range list[first:] {
		if uint64(len(page)) == limit || length >= maxListLength {
			answer["next"] = last
			break
		}
		text, err := json.Marshal(show(v))
		if err != nil {
			return nil, err
		}
		page, length, last = append(page, text), length+len(text), key(v)
	}
	answer[name] = page
	return answer, nil
}
