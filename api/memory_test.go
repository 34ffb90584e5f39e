package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"

	"millrace/api/control"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// memoryStore is an engine without a disk: what the tests of the door need of one, and hooks to make it slow, full or
// broken.
type memoryStore struct {
	store.Store // what is not below: the companion API is tested on the real engine
	control     *control.Control

	mu      sync.Mutex
	users   map[string]store.User // workspace/kind/key
	answers map[string]store.Answer
	next    uint64

	commits  atomic.Int64
	commit   func() error // called before each commit
	barrier  func() error // called by each Barrier
	flush    func() error // called by each FlushDeletions
	read     func()       // called when FindEach has read a user
	full     atomic.Bool  // Admit says so
	notReady atomic.Pointer[error]
	docs     map[string][]byte
	audit    []shard.AuditEntry
	refuse   error // of each change of documents
}

func newMemoryStore(c *control.Control) *memoryStore {
	return &memoryStore{control: c, users: map[string]store.User{}, answers: map[string]store.Answer{}, docs: map[string][]byte{}}
}

func userKey(workspace uint32, id op.IDKind, key []byte) string {
	return fmt.Sprintf("%d/%d/%s", workspace, id, key)
}

func (m *memoryStore) NewBatch(workspace, actor uint32) store.Batch {
	return &memoryBatch{store: m, workspace: workspace}
}

func (m *memoryStore) Find(workspace uint32, id op.IDKind, key []byte) (found []store.User, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, u := range m.users {
		if k == userKey(workspace, id, key) || strings.HasPrefix(k, userKey(workspace, id, key)+"#") { // "#": another one with the same address
			found = append(found, u)
		}
	}
	return found, nil
}

func (m *memoryStore) Sharers(workspace uint32, id op.IDKind, key []byte) (list []shard.Sharer, err error) {
	err = m.View(workspace, id, key, func(number uint64, blob []byte) {
		list = append(list, shard.Sharer{Number: number, Identified: profile.Identified(blob), Updated: profile.Updated(blob)})
	})
	return list, err
}

func (m *memoryStore) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	find := func() ([]store.User, error) { return m.Find(workspace, id, key) }
	if id == op.SvcID {
		find = func() ([]store.User, error) {
			number, _ := m.ParseSvcID(workspace, key)
			return m.FindNumber(workspace, number)
		}
	}
	users, err := find()
	for _, u := range users {
		f(u.Number, u.Blob)
	}
	return err
}

func (r memoryReads) FindEach(workspace uint32, list []shard.Identifier) iter.Seq2[[]store.User, error] {
	return func(yield func([]store.User, error) bool) {
		for _, id := range list {
			var found []store.User
			held := 0
			err := r.View(workspace, id.ID, id.Key, func(number uint64, blob []byte) {
				found = append(found, store.User{Number: number, Blob: blob})
				held += len(blob)
			})
			err = cmp.Or(err, r.room.Hold(held))
			if r.read != nil {
				r.read()
			}
			goOn := yield(found, err) && err == nil
			_ = r.room.Hold(-held)
			if !goOn {
				return
			}
		}
	}
}

func (m *memoryStore) FindMerged(workspace uint32, number uint64) ([]store.User, error) {
	return m.FindNumber(workspace, number)
}

func (m *memoryStore) FindNumber(workspace uint32, number uint64) ([]store.User, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.users {
		if u.Number == number && profile.Workspace(u.Blob) == workspace {
			return []store.User{u}, nil
		}
	}
	return nil, nil
}

func (m *memoryStore) ParseSvcID(workspace uint32, text []byte) (uint64, bool) {
	var ws uint32
	var n uint64
	_, err := fmt.Sscanf(string(text), "svc-%d-%d", &ws, &n)
	return n, err == nil && ws == workspace
}

func (m *memoryStore) AppendSvcID(dst []byte, workspace uint32, number uint64) []byte {
	return fmt.Appendf(dst, "svc-%d-%d", workspace, number)
}

func (m *memoryStore) HomeNumber(uint32, op.IDKind, []byte) uint64 { return 0 }

func (m *memoryStore) Answer(workspace uint32, key []byte) (store.Answer, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.answers[fmt.Sprintf("%d/%s", workspace, key)]
	return a, ok, nil
}

func (m *memoryStore) Admit() error {
	if m.full.Load() {
		return shard.ErrBusy
	}
	return nil
}

func (m *memoryStore) BarrierAnswer(uint32, []byte) error { return m.Barrier() }

func (m *memoryStore) BarrierControl() error { return m.Barrier() }

func (m *memoryStore) NewReads(room shard.Room) store.Reads { return memoryReads{m, room} }

type memoryReads struct {
	*memoryStore
	room shard.Room
}

func (memoryReads) Begin() {}

func (r memoryReads) Expect(uint32, shard.Extent, ...shard.Identifier) error { return r.Barrier() }

func (m *memoryStore) Barrier() error {
	if m.barrier != nil {
		return m.barrier()
	}
	return nil
}

func (m *memoryStore) FlushDeletions() error {
	if m.flush != nil {
		return m.flush()
	}
	return nil
}

func (m *memoryStore) Ready() error {
	if err := m.notReady.Load(); err != nil {
		return *err
	}
	return nil
}

func (m *memoryStore) PutDocuments(actor uint32, changes []control.Change, audit []byte) error {
	if m.refuse != nil {
		return m.refuse
	}
	m.mu.Lock()
	for _, c := range changes {
		if c.Check && !bytes.Equal(m.docs[c.Key], c.Was) {
			m.mu.Unlock()
			return control.ErrConflict
		}
	}
	for _, c := range changes {
		m.docs[c.Key] = bytes.Clone(c.Doc)
	}
	if len(audit) > 0 {
		m.audit = append(m.audit, shard.AuditEntry{Seq: uint64(len(m.audit) + 1), Time: 1_800_000_000_000_000, Actor: actor, Body: audit})
	}
	m.mu.Unlock()
	for _, c := range changes {
		m.control.Apply(c.Key, c.Doc)
	}
	return nil
}

func (m *memoryStore) AuditEnd() (seq uint64, hash [32]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(len(m.audit)), hash
}

func (m *memoryStore) Audit(seq uint64, f func(shard.AuditEntry) bool) error {
	m.mu.Lock()
	entries := m.audit
	m.mu.Unlock()
	for _, e := range entries {
		if e.Seq >= seq && !f(e) {
			break
		}
	}
	return nil
}

type memoryBatch struct {
	store.Batch
	store     *memoryStore
	workspace uint32
	effects   []func()
	deleted   []shard.Outcome // by reference
}

func (b *memoryBatch) Outcome(ref int) shard.Outcome { return b.deleted[ref] }

func (b *memoryBatch) Count() int { return len(b.effects) }

func (b *memoryBatch) add(id op.IDKind, key []byte) {
	b.effects = append(b.effects, func() {
		k := userKey(b.workspace, id, key)
		if _, there := b.store.users[k]; !there {
			b.store.next++
			b.store.users[k] = store.User{Number: b.store.next, Blob: profile.New(nil, b.workspace, id, key, int64(b.store.next))}
		}
	})
}

func (b *memoryBatch) Delete(number uint64) (ref int) {
	ref, b.deleted = len(b.deleted), append(b.deleted, shard.Nobody)
	b.effects = append(b.effects, func() {
		for k, u := range b.store.users {
			if u.Number == number {
				delete(b.store.users, k)
				b.deleted[ref] = shard.Done
			}
		}
	})
	return ref
}

func (b *memoryBatch) KeepAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) {
	k, a := fmt.Sprintf("%d/%s", b.workspace, key), store.Answer{BodyHash: bodyHash, Status: status, Body: bytes.Clone(answer)}
	b.effects = append(b.effects, func() { b.store.answers[k] = a })
}

func (b *memoryBatch) Audit(entry []byte) {
	b.effects = append(b.effects, func() {
		b.store.audit = append(b.store.audit, shard.AuditEntry{Seq: uint64(len(b.store.audit) + 1), Body: bytes.Clone(entry)})
	})
}

func (b *memoryBatch) Commit() error {
	if b.store.commit != nil {
		if err := b.store.commit(); err != nil {
			return err
		}
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	for _, effect := range b.effects {
		effect()
	}
	b.store.commits.Add(1)
	return nil
}

func (b *memoryBatch) Unmet() []shard.UnmetOperator { return nil }

func (b *memoryBatch) Release() { b.effects = nil }

// memoryTrack accepts {"attributes":[{"external_id":…}, …]} and panics on {"panic":true}.
func memoryTrack(dst, body []byte, _ *control.Workspace, _ Limits, batch store.Batch, _ int64, _ func(Fault)) ([]byte, int) {
	var request struct {
		Panic      bool `json:"panic"`
		Attributes []struct {
			ExternalID string `json:"external_id"`
			Email      string `json:"email"`
		} `json:"attributes"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return append(dst, `{"message":"bad JSON"}`...), 400
	}
	if request.Panic {
		panic("asked for")
	}
	for _, a := range request.Attributes {
		if a.Email != "" {
			batch.(*memoryBatch).add(op.Email, []byte(a.Email))
			continue
		}
		batch.(*memoryBatch).add(op.ExternalID, []byte(a.ExternalID))
	}
	if len(request.Attributes) == 0 {
		return append(dst, `{"message":"Valid data must be provided in the 'attributes', 'events', or 'purchases' fields."}`...), 400
	}
	return fmt.Appendf(dst, `{"attributes_processed":%d,"message":"success"}`, len(request.Attributes)), 201
}

var testClock atomic.Int64

func init() { testClock.Store(1_800_000_000_000) }
