package s3

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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

// answers bounds what a service answers, and refuses what is somebody else's answer, such as the page of a proxy: minio
// would find no objects in it, or say nothing of why the rest of an upload fails.
type answers struct {
	carrier http.RoundTripper
	time    time.Duration // that an answer may take
}

// RoundTrip makes it an error to read such an answer, or further than the bounds. To minio that is a fault of the
// network: what was sent is sent again, a few times.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	most, elements := int64(maxAnswer), []string(nil)
	switch q := r.URL.Query(); {
	case q.Has("list-type"):
		most, elements = maxList, []string{"ListBucketResult"}
	case r.Method == http.MethodPost && q.Has("uploads"):
		elements = []string{"UploadId"}
	case r.Method == http.MethodPost && q.Has("uploadId"): // what joins the parts may fail after a 200
		elements = []string{"CompleteMultipartUploadResult", "<Error"}
	}
	isFree := func(resp *http.Response) bool { return isObject(r, resp) }
	resp, err := bounded.Transport{Base: a.carrier, Bytes: most, Time: a.time, Free: isFree}.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	header := "" // without which it is no answer about an object, or a part of one
	switch {
	case r.Method == http.MethodPut:
		header = "ETag"
	case r.Method == http.MethodHead, isObject(r, resp): // nobody asks for the head of a bucket
		header = "Last-Modified"
	}
	if header != "" && resp.Header.Get(header) == "" {
		return nil, errors.Join(lack(header), resp.Body.Close())
	}
	if elements != nil {
		resp.Body = having(elements, resp.Body)
	}
	return resp, nil
}

// isObject reports whether an answer is an object, which may be of any size: everything else is asked for with
// parameters or by another method, or is an error.
func isObject(r *http.Request, resp *http.Response) bool {
	return r.Method == http.MethodGet && r.URL.RawQuery == "" && resp.StatusCode < 300
}

// having returns a body as it is when it has one of the elements of XML near its beginning.
func having(elements []string, body io.ReadCloser) io.ReadCloser {
	buffered := bufio.NewReaderSize(body, headBytes)
	head, err := buffered.Peek(headBytes) // or less: a short answer is one, too
	has := func(element string) bool { return bytes.Contains(head, []byte(element)) }
	if !slices.ContainsFunc(elements, has) && (err == nil || err == io.EOF) {
		return lacking{body, elements[0]}
	}
	return struct {
		io.Reader
		io.Closer
	}{buffered, body}
}

// headBytes is within how many bytes the element is: the one of an upload comes after the object's key, which may have
// 1,024 bytes, each of them as an entity.
const headBytes = 8 << 10

// lacking is the body of an answer that has no such element.
type lacking struct {
	io.Closer
	element string
}

func (l lacking) Read([]byte) (int, error) { return 0, lack(l.element) }

func lack(what string) error {
	return fmt.Errorf("the answer has no %s, so it is not that of a service that speaks S3", what)
}
