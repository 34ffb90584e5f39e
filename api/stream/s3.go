package stream

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"millrace/api/control/document"
	"millrace/api/s3"
)

// bucket is a shelf at a service that speaks S3. An object is there as a whole or not at all, whatever its size: it is
// put by one request, or in parts that a last request joins. A repeated delivery replaces objects by themselves.
type bucket struct {
	o         *Options
	disk      disk
	to        *document.Destination
	workspace string
	prefix    string
	client    *minio.Client
	uploads   minio.PutObjectOptions
}

// s3Tries is how often a request is tried before the stream is held up and waits like any other.
const s3Tries = 3

func newBucket(o *Options, workspace, stream string, d *document.Destination) *bucket {
	b := &bucket{o: o, disk: o.disk, to: d, workspace: workspace, prefix: d.Prefix}
	if b.prefix == "" {
		b.prefix = workspace + "/" + stream
	}
	return b
}

// open reads the credentials again, since they may have changed after a failure. A stream that names none has those of
// the machine.
func (b *bucket) open(context.Context) (err error) {
	service := s3.Service{Endpoint: b.to.Endpoint, Region: b.to.Region, Addressing: b.to.Addressing, Tries: s3Tries,
		Patience: b.o.RequestTimeout, Silence: b.o.maxSilence(), Transport: b.o.transport}
	if b.to.Credentials != "" {
		service.Credentials = new(s3.Credentials)
		if err := b.o.credentials(b.workspace, b.to.Credentials, service.Credentials); err != nil {
			return err
		}
	}
	if b.client, err = service.Client(); err != nil {
		return err
	}
	b.uploads = minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: b.o.partBytes}
	switch b.to.Encryption {
	case document.EncryptionS3:
		b.uploads.ServerSideEncryption = encrypt.NewSSE()
	case document.EncryptionKMS:
		b.uploads.ServerSideEncryption, err = encrypt.NewSSEKMS(b.to.KMSKey, nil)
	}
	return err
}

// hasRoom never fails: a local file is removed once its object is there, and the log's floor is larger than one such
// file.
func (b *bucket) hasRoom() error { return nil }

func (b *bucket) put(ctx context.Context, file, name string, again bool) error {
	object := path.Join(b.prefix, name)
	if again { // parts of an attempt that was killed would stay, unseen and paid for
		_ = b.client.RemoveIncompleteUpload(ctx, b.to.Bucket, object) // this may not be permitted
	}
	if err := b.upload(ctx, file, object); err != nil {
		return fmt.Errorf("put %s/%s: %w", b.to.Bucket, object, err)
	}
	return b.disk.Remove(file)
}

// upload puts a file. When ctx ends, the library asks the service to remove the parts that are there, and waits up to a
// minute for the answer: what holds up a pause, or the end of the server, is no longer than abortPatience.
func (b *bucket) upload(ctx context.Context, file, object string) error {
	ended := make(chan error, 1)
	client, options := b.client, b.uploads // which open may replace
	go func() {
		_, err := client.FPutObject(ctx, b.to.Bucket, object, file, options)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(abortPatience):
		return ctx.Err()
	}
}

const abortPatience = time.Second

// settle has nothing to wait for: an answered put is there for good.
func (b *bucket) settle() error { return nil }
