package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// The end of the log is deleted when the group has not accepted it. The library (raft-wal v0.4.0) then seals the newest segment without the index that a
// sealed segment is read by: as long as the process runs it reads on, but what stays of the segment can't be read after the next Open. So here that segment is
// deleted whole, and what stays of it is written again. In between it stands in a file of its own:
//
//	CUT written, synced ▶ segment deleted ▶ entries written again ▶ CUT removed
//
// Open goes on from wherever a crash has ended this, before anything else is written.
const cutName = "CUT"

// cut deletes the entries from index to last.
func (s *store) cut(index, last uint64) error {
	state, err := s.meta.Load(s.dir)
	if err != nil {
		return err
	}
	first, err := s.wal.FirstIndex()
	if err != nil {
		return err
	}
	from := first
	if n := len(state.Segments); n > 0 {
		from = max(first, state.Segments[n-1].BaseIndex)
	}
	if from >= index { // of the newest segment nothing stays
		return s.wal.DeleteRange(index, last)
	}
	var stays []*raft.Log
	for i := from; i < index; i++ {
		var log raft.Log
		if err := s.read(i, &log); err != nil {
			return err
		}
		stays = append(stays, &log)
	}
	if err := s.writeCut(stays); err != nil {
		return err
	}
	return s.finishCut()
}

// finishCut does what the file says, if there is one.
func (s *store) finishCut() error {
	path := filepath.Join(s.dir, cutName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	stays, err := readCut(text)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", wal.ErrCorrupt, path, err)
	}
	last, err := s.wal.LastIndex()
	if err != nil {
		return err
	}
	if from := stays[0].Index; last >= from {
		if err := s.wal.DeleteRange(from, last); err != nil {
			return err
		}
	}
	for i, l := range stays {
		stays[i] = sealLog(l)
	}
	if err := s.wal.StoreLogs(stays); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// writeCut writes the file: for each entry index, term, appended at (Unix ns) u64 each, type u8, sizes u32 of extensions and data, and these; then CRC-32C.
func (s *store) writeCut(logs []*raft.Log) error {
	var b []byte
	for _, l := range logs {
		b = binary.LittleEndian.AppendUint64(b, l.Index)
		b = binary.LittleEndian.AppendUint64(b, l.Term)
		appended := int64(0)
		if !l.AppendedAt.IsZero() {
			appended = l.AppendedAt.UnixNano()
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(appended))
		b = append(b, byte(l.Type))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Extensions)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Data)))
		b = append(append(b, l.Extensions...), l.Data...)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	path := filepath.Join(s.dir, cutName)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(s.dir)
}

const cutHeaderBytes = 8 + 8 + 8 + 1 + 4 + 4

func readCut(b []byte) (logs []*raft.Log, err error) {
	n := len(b) - 4
	if n < cutHeaderBytes || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errors.New("its checksum fails")
	}
	for b = b[:n]; len(b) > 0; {
		if len(b) < cutHeaderBytes {
			return nil, errors.New("it is cut short")
		}
		l := &raft.Log{Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:]), Type: raft.LogType(b[24])}
		if appended := binary.LittleEndian.Uint64(b[16:]); appended != 0 {
			l.AppendedAt = time.Unix(0, int64(appended))
		}
		extensions, data := uint64(binary.LittleEndian.Uint32(b[25:])), uint64(binary.LittleEndian.Uint32(b[29:]))
		if b = b[cutHeaderBytes:]; extensions+data > uint64(len(b)) {
			return nil, errors.New("it is cut short")
		}
		if extensions > 0 {
			l.Extensions = b[:extensions:extensions]
		}
		l.Data = b[extensions : extensions+data : extensions+data]
		b = b[extensions+data:]
		logs = append(logs, l)
	}
	return logs, nil
}
