package image

import (
	"bufio"
	"io"
	"time"

	"millrace/shard/cluster/calls"
)

// far is an image of a group on another node.
type far struct {
	ask   Ask
	id    uint64
	files []File
}

// Ask makes a call that Lender.Serve answers.
type Ask func(body calls.Body, deadline time.Time) (answer []byte, err error)

const (
	// makeTime bounds a call that makes an image: it writes a checkpoint and packs events.
	makeTime    = 10 * time.Minute
	releaseTime = 5 * time.Second
)

// BeginFar makes another node begin an image.
func BeginFar(ask Ask, group uint32) (Image, error) {
	answer, err := ask(calls.NewBody(5).Byte(begin).U32(group), time.Now().Add(makeTime))
	if err != nil {
		return nil, err
	}
	x := calls.NewReader(answer)
	return &far{ask: ask, id: x.U64()}, x.Err()
}

func (i *far) call(verb byte) calls.Body { return calls.NewBody(24).Byte(verb).U64(i.id) }

// End fixes the position.
func (i *far) End(position uint64) error {
	answer, err := i.ask(i.call(end).U64(position), time.Now().Add(makeTime))
	if err != nil {
		return err
	}
	x := calls.NewReader(answer)
	for len(x.Rest) > 0 {
		f := File{Size: int64(x.U64())}
		f.Name = string(x.Sized())
		i.files = append(i.files, f)
	}
	return x.Err()
}

// Files returns the files of the image.
func (i *far) Files() []File { return i.files }

// Release makes the other node remove the image.
func (i *far) Release() error {
	_, err := i.ask(i.call(letGo), time.Now().Add(releaseTime))
	return err
}

// Open returns a reader that reads a file part by part.
func (i *far) Open(file int) (io.ReadCloser, error) {
	whole := io.NewSectionReader(farFile{i, uint32(file)}, 0, i.files[file].Size)
	return io.NopCloser(bufio.NewReaderSize(whole, partBytes)), nil
}

type farFile struct {
	i    *far
	file uint32
}

// ReadAt reads a part of the file.
func (f farFile) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		body := f.i.call(read).U32(f.file).U64(uint64(offset) + uint64(n))
		part, err := f.i.ask(body, time.Now().Add(calls.Patience))
		if err != nil {
			return n, err
		}
		if len(part) == 0 {
			return n, io.ErrUnexpectedEOF
		}
		n += copy(p[n:], part)
	}
	return n, nil
}
