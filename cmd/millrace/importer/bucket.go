package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"millrace/api/s3"
)

// S3 says how buckets are reached. The zero value of a field means its default.
type S3 struct {
	// Endpoint of the service (default https://s3.amazonaws.com).
	Endpoint string
	// Region (default: the service is asked).
	Region string
	// Addressing of buckets: path or host (default: host at AWS, else path).
	Addressing string
}

const defaultEndpoint = "https://s3.amazonaws.com"

func (s *S3) validate() error {
	if s.Addressing != "" && s.Addressing != s3.ByPath && s.Addressing != s3.ByHost {
		return fmt.Errorf("--s3-addressing %q: want path or host", s.Addressing)
	}
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" {
		return fmt.Errorf("--s3-endpoint %q: want http://HOST:PORT or https://HOST", s.Endpoint)
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16); err != nil {
		return fmt.Errorf("--s3-endpoint %q: no machine has such a port", s.Endpoint)
	}
	if s.Addressing == s3.ByHost && net.ParseIP(u.Hostname()) != nil {
		return fmt.Errorf("--s3-addressing host: %s has no hosts below it; want path", s.Endpoint)
	}
	return nil
}

const bucketScheme = "s3://"

// isBucket reports whether a path is s3://BUCKET/PREFIX.
func isBucket(path string) bool { return strings.HasPrefix(path, bucketScheme) }

// partsOf returns the bucket and the beginning of the keys that a path names.
func partsOf(path string) (bucket, prefix string) {
	bucket, prefix, _ = strings.Cut(strings.TrimPrefix(path, bucketScheme), "/")
	return bucket, prefix
}

// checkBucket refuses a path of a bucket that can't exist: a watching import would look for it in vain.
func checkBucket(path string) error {
	if !isBucket(path) {
		return nil
	}
	if bucket, _ := partsOf(path); bucket == "" {
		return fmt.Errorf("path %q: want s3://BUCKET/PREFIX", path)
	} else if err := s3utils.CheckValidBucketName(bucket); err != nil {
		return fmt.Errorf("path %q: %w", path, err)
	}
	return nil
}

// buckets gives access to the buckets of a service that speaks S3.
type buckets struct {
	client *minio.Client
	isOurs func(name string) bool
	most   int // keys in a list
	// patience is how long the pages of a list may bring no key: a service may answer with empty ones for ever.
	patience time.Duration
}

// maxKeys bounds a list, of which each key takes up to about 1 KiB until its object is imported.
const maxKeys = 1_000_000

// object is what is needed to read an object as it was found.
type object struct{ bucket, key, etag string }

// newBuckets uses the credentials that the machine has for AWS. A service of buckets or of credentials that is silent
// for as long as patience counts as one that cannot be reached.
func newBuckets(o *S3, patience time.Duration, isOurs func(name string) bool) (*buckets, error) {
	service := s3.Service{Endpoint: o.Endpoint, Region: o.Region, Addressing: o.Addressing,
		Patience: patience, Silence: patience}
	client, err := service.Client()
	if err != nil {
		return nil, err
	}
	return &buckets{client: client, isOurs: isOurs, most: maxKeys, patience: patience}, nil
}

// awayError is the error of a service that can't be reached, or not now.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *awayError) Unwrap() error { return e.err }

// list returns the objects whose keys begin as a path says, in the order of their keys, without those in folders below.
func (b *buckets) list(ctx context.Context, path string) (all []found, err error) {
	bucket, prefix := partsOf(path)
	ctx, cancel := context.WithCancelCause(ctx) // so that minio ends when an error does
	defer cancel(nil)
	pages := keyless{most: b.patience, tooLong: func() { cancel(errOnlyEmptyPages) }}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: pages.answered})
	options := minio.ListObjectsOptions{Prefix: prefix}
	keys := 0
	for o := range b.client.ListObjects(ctx, bucket, options) {
		if o.Err != nil {
			return nil, b.problem(fmt.Errorf("list %s: %w", path, cmp.Or(context.Cause(ctx), o.Err)))
		}
		pages.since.Store(nil)
		if keys++; keys > b.most {
			return nil, fmt.Errorf("list %s: there are more than %d objects and folders: give a longer prefix", path,
				b.most)
		}
		f := found{path: bucketScheme + bucket + "/" + o.Key, size: o.Size, modified: o.LastModified.UTC(),
			object: &object{bucket, o.Key, o.ETag}}
		isFolder := strings.HasSuffix(o.Key, "/")
		isNamed := o.Key == prefix+"/" && prefix != "" && !strings.HasSuffix(prefix, "/")
		if isFolder && !isNamed || o.Key != prefix && !b.isOurs(f.path) {
			continue
		}
		all = append(all, f)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, b.problem(fmt.Errorf("list %s: %w", path, err))
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.path, b.path) })
	return all, nil
}

// keyless are the answers that came since the last key. A service that does not answer is not among them: what is wrong
// then, the library finds out and says.
type keyless struct {
	since   atomic.Pointer[time.Time] // when the first one came; nil: there is none
	most    time.Duration             // for how long they may come
	tooLong func()
}

func (k *keyless) answered() {
	now := time.Now()
	switch since := k.since.Load(); {
	case since == nil:
		k.since.Store(&now)
	case now.Sub(*since) > k.most:
		k.tooLong()
	}
}

var errOnlyEmptyPages = errors.New("the service sends one empty page after the other")

// open reads an object as it was found.
func (b *buckets) open(ctx context.Context, f *found) (io.ReadCloser, error) {
	if f.object.etag == "" {
		return nil, &FileError{f.path, errNoETag}
	}
	var options minio.GetObjectOptions
	if err := options.SetMatchETag(f.object.etag); err != nil {
		return nil, err
	}
	r, err := b.client.GetObject(ctx, f.object.bucket, f.object.key, options)
	if err == nil {
		_, err = r.Stat() // this makes the request
	}
	if err != nil {
		return nil, b.objectProblem(f, err)
	}
	return r, nil
}

// objectProblem distinguishes what is wrong with an object from what is wrong with the request, or with the service as
// it is now. Its answer may begin well and the object be replaced, or not be readable at all.
func (b *buckets) objectProblem(f *found, err error) error {
	switch minio.ToErrorResponse(err).Code {
	case minio.NoSuchKey, minio.PreconditionFailed:
		return &FileError{f.path, errReplaced}
	case minio.InvalidObjectState: // it is archived
		return &FileError{f.path, err}
	}
	return b.problem(fmt.Errorf("get %s: %w", f.path, err))
}

var errNoETag = errors.New("the service lists it without an ETag, by which it would be known when it is replaced")

var errReplaced = errors.New("it was changed or removed since it was listed")

// problem distinguishes what the service says for good about a request from what may change in a while. A redirect says
// that the bucket is elsewhere, and minio has followed those that it can follow.
func (b *buckets) problem(err error) error {
	if r, _ := errors.AsType[minio.ErrorResponse](err); r.StatusCode >= 300 && r.StatusCode < 500 &&
		r.StatusCode != http.StatusTooManyRequests && r.StatusCode != http.StatusRequestTimeout {
		return err
	}
	return &awayError{err}
}

// patience is how long the service may be unreachable before a watching import gives up.
type patience struct {
	most  time.Duration
	since time.Time // zero: it is reachable
}

// away notes an error; it returns false when there was one too many.
func (p *patience) away() bool {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	return time.Since(p.since) <= p.most
}
