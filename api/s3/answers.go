package s3

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"millrace/api/bounded"
)

const (
	// maxAnswer bounds an answer that is neither an object nor a list of objects. The largest are lists of unfinished
	// uploads of one object.
	maxAnswer = 1 << 20
	// maxList bounds a list: 1,000 keys of up to 1,024 bytes, each of which may take three characters, and their ETags.
	maxList = 8 << 20
)

// answers bounds what a service answers, and refuses what is answered to a request for a list and is none: minio would
// find no objects in the page of a proxy, or in an error that comes with 200.
type answers struct {
	carrier http.RoundTripper
	time    time.Duration // that an answer may take
}

// RoundTrip makes it an error to read such an answer, or further than the bounds.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	asksList, most := r.URL.Query().Has("list-type"), int64(maxAnswer)
	if asksList {
		most = maxList
	}
	isFree := func(resp *http.Response) bool { return isObject(r, resp) }
	resp, err := bounded.Transport{Base: a.carrier, Bytes: most, Time: a.time, Free: isFree}.RoundTrip(r)
	if err == nil && asksList && resp.StatusCode == http.StatusOK {
		resp.Body = listOf(resp.Body)
	}
	return resp, err
}

// isObject reports whether an answer is an object, which may be of any size: everything else is asked for with
// parameters or by another method, or is an error.
func isObject(r *http.Request, resp *http.Response) bool {
	return r.Method == http.MethodGet && r.URL.RawQuery == "" && resp.StatusCode < 300
}

// listOf returns a body as it is when it is that of a list.
func listOf(body io.ReadCloser) io.ReadCloser {
	buffered := bufio.NewReader(body)
	head, err := buffered.Peek(listHead) // or less: a short answer is one, too
	if !bytes.Contains(head, []byte("ListBucketResult")) && (err == nil || err == io.EOF) {
		return noList{body}
	}
	return struct {
		io.Reader
		io.Closer
	}{buffered, body}
}

// listHead is within how many bytes a list says that it is one.
const listHead = 512

// noList is the body of an answer that is no list.
type noList struct{ io.Closer }

func (noList) Read([]byte) (int, error) { return 0, errNoList }

var errNoList = errors.New("the answer is no list of objects, so it is not that of a service that speaks S3")
