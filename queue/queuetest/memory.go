package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Memory is a queue in memory: for tests of code that uses a queue, and the reference of the conformance suite. Its
// contents are lost with the process. Use NewMemory.
type Memory struct {
	// OnStore, if set before the first use, is called for every message that Insert adds, in order, with the queue
	// locked: an Oracle's Observe, for example.
	OnStore func(queue.Message)

	mu       sync.Mutex
	closed   bool
	types    map[string]bool                // registered
	files    map[string]queue.RegistryEntry //
	msgs     map[string][]queue.Message     // per type, sorted by ID
	dead     map[string][]queue.DeadLetter  // per type, sorted by ID
	notes    map[string][]byte
	settings map[string]queue.Settings
	members  map[string]queue.Member // by ID
	foreign  map[string][]string     // foreign keys per type, sorted
	delays   delays
	notified notifications
}

var _ queue.Queue = (*Memory)(nil)

// NewMemory returns an empty queue. Its clock is time.Now, so it runs on virtual time inside a testing/synctest bubble.
func NewMemory() *Memory {
	return &Memory{types: map[string]bool{}, files: map[string]queue.RegistryEntry{}, msgs: map[string][]queue.Message{},
		dead: map[string][]queue.DeadLetter{}, notes: map[string][]byte{}, settings: map[string]queue.Settings{}, members: map[string]queue.Member{},
		foreign: map[string][]string{}}
}

// Clone returns a copy of the queue, like a database that is restored from a backup. Changes of one do not affect the other. OnStore is not
// copied.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{types: maps.Clone(m.types), files: maps.Clone(m.files), msgs: lists(m.msgs), dead: lists(m.dead), notes: maps.Clone(m.notes),
		settings: maps.Clone(m.settings), members: maps.Clone(m.members), foreign: lists(m.foreign),
		notified: notifications{m.notified.count, slices.Clone(m.notified.latest)}}
	c.delays = delays{list: slices.Clone(m.delays.list), sequences: map[string]*queuedriver.Sequence{}, settled: map[queue.ID]bool{}}
	maps.Copy(c.delays.settled, m.delays.settled)
	for typ, s := range m.delays.sequences {
		at := *s
		c.delays.sequences[typ] = &at
	}
	return c
}

// lists copies a map of slices.
func lists[T any](m map[string][]T) map[string][]T {
	c := maps.Clone(m)
	for typ, list := range c {
		c[typ] = slices.Clone(list)
	}
	return c
}

// enter locks m.mu if the queue is open and ctx has not ended. The caller unlocks it.
func (m *Memory) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return fmt.Errorf("memory queue: %w", queue.ErrClosed)
	}
	return nil
}

func byID(m queue.Message, id queue.ID) int { return m.ID.Compare(id) }

// Insert implements queue.Queue.
func (m *Memory) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	if err := queuedriver.CheckInsert(typ, msgs); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return &queue.InsertError{Refused: true, Err: err}
	}
	defer m.mu.Unlock()
	m.insert(typ, msgs)
	return nil
}

// insert adds messages. m is locked.
func (m *Memory) insert(typ string, msgs []queue.Message) {
	list := m.msgs[typ]
	for _, msg := range msgs {
		if i, found := slices.BinarySearchFunc(list, msg.ID, byID); !found {
			msg.Type, msg.Payload, msg.Headers = typ, bytes.Clone(msg.Payload), maps.Clone(msg.Headers)
			list = slices.Insert(list, i, msg)
			if m.OnStore != nil {
				m.OnStore(msg)
			}
		}
	}
	m.msgs[typ] = list
}

// Plant adds a message as a foreign publisher might: nothing is checked.
func (m *Memory) Plant(typ string, msg queue.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	msg.Type = typ
	if i, found := slices.BinarySearchFunc(m.msgs[typ], msg.ID, byID); !found {
		m.msgs[typ] = slices.Insert(m.msgs[typ], i, msg)
	}
}

// Spoil makes a pending message one that cannot be decoded, for the given reason; without a reason it repairs it.
func (m *Memory) Spoil(typ string, id queue.ID, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, found := slices.BinarySearchFunc(m.msgs[typ], id, byID); found {
		msg := &m.msgs[typ][i]
		msg.Incomplete, msg.Why = why != "", why
	}
}

// PlantForeign stores something under foreign keys of a type. They sort after its messages.
func (m *Memory) PlantForeign(typ string, keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.foreign[typ] = append(m.foreign[typ], keys...)
	slices.Sort(m.foreign[typ])
}

// ForeignKeys implements queue.Queue.
func (m *Memory) ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error) {
	if err := queuedriver.CheckForeignKeys(typ, most); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	keys := slices.DeleteFunc(slices.Clone(m.foreign[typ]), func(key string) bool { return key <= after })
	return keys[:min(len(keys), most)], nil
}

// Strays implements queue.Queue. There are none: a Memory holds only inserted messages.
func (m *Memory) Strays() []queue.Strays { return nil }

// RemoveForeignKeys implements queue.Queue.
func (m *Memory) RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return 0, err
	}
	for _, key := range keys {
		if id, err := queue.ParseID(key); err == nil && !id.IsZero() {
			return 0, queuedriver.NotForeignKey(typ, key)
		}
	}
	if err := m.enter(ctx); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	before := len(m.foreign[typ])
	m.foreign[typ] = slices.DeleteFunc(m.foreign[typ], func(key string) bool { return slices.Contains(keys, key) })
	removed = before - len(m.foreign[typ])
	if len(m.foreign[typ]) == 0 {
		delete(m.foreign, typ)
	}
	return removed, nil
}

// Fetch implements queue.Queue.
func (m *Memory) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	list := m.msgs[typ]
	i, found := slices.BinarySearchFunc(list, after, byID)
	if found {
		i++
	}
	var out []queue.Message
	var size int64
	for ; i < len(list) && len(out) < limit.Messages; i++ {
		msg := list[i]
		msg.Payload, msg.Headers = bytes.Clone(msg.Payload), maps.Clone(msg.Headers)
		if msg.Incomplete {
			msg.Payload, msg.Headers = nil, nil
		}
		out = append(out, msg)
		if size += int64(msg.Size()); limit.Bytes > 0 && size >= limit.Bytes {
			break
		}
	}
	if limit.Foreign != nil && i == len(list) && len(out) < limit.Messages {
		for _, key := range m.foreign[typ] {
			limit.Foreign(key)
		}
	}
	return out, nil
}

// Ack implements queue.Queue.
func (m *Memory) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.remove(typ, ids)
	return nil
}

// remove removes messages. m is locked.
func (m *Memory) remove(typ string, ids []queue.ID) {
	if len(ids) == 0 {
		return
	}
	gone := make(map[queue.ID]bool, len(ids))
	for _, id := range ids {
		gone[id] = true
	}
	list := m.msgs[typ]
	lowest, highest := slices.MinFunc(ids, queue.ID.Compare), slices.MaxFunc(ids, queue.ID.Compare)
	from, _ := slices.BinarySearchFunc(list, lowest, byID)
	to, found := slices.BinarySearchFunc(list, highest, byID)
	if found {
		to++
	}
	kept := slices.DeleteFunc(list[from:to], func(msg queue.Message) bool { return gone[msg.ID] })
	if from == 0 && len(kept) == 0 {
		list = list[to:] // the usual case: the cost grows with the deleted messages, not with the remaining ones
	} else {
		list = slices.Delete(list, from+len(kept), to)
	}
	if len(list) == 0 {
		delete(m.msgs, typ)
		return
	}
	m.msgs[typ] = list
}

// MoveToDeadLetters implements queue.Queue.
func (m *Memory) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	letters, err := queuedriver.CheckDeadLetters(typ, letters, time.Now())
	if err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.bury(typ, letters)
	return nil
}

// bury moves messages to the dead letters. m is locked.
func (m *Memory) bury(typ string, letters []queue.DeadLetter) {
	ids := make([]queue.ID, 0, len(letters))
	for _, l := range letters {
		ids = append(ids, l.ID)
		list := m.dead[typ]
		if i, found := slices.BinarySearchFunc(list, l.ID, letterByID); !found {
			l.Payload, l.Headers = bytes.Clone(l.Payload), maps.Clone(l.Headers)
			m.dead[typ] = slices.Insert(list, i, l)
		}
	}
	m.remove(typ, ids)
}

func letterByID(l queue.DeadLetter, id queue.ID) int { return l.ID.Compare(id) }

// DeadLetters implements queue.Queue.
func (m *Memory) DeadLetters(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.DeadLetter, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	list := m.dead[typ]
	i, found := slices.BinarySearchFunc(list, after, letterByID)
	if found {
		i++
	}
	var out []queue.DeadLetter
	var size int64
	for ; i < len(list) && len(out) < limit.Messages; i++ {
		l := list[i]
		l.Payload, l.Headers = bytes.Clone(l.Payload), maps.Clone(l.Headers)
		out = append(out, l)
		if size += int64(l.Size()); limit.Bytes > 0 && size >= limit.Bytes {
			break
		}
	}
	return out, nil
}

// RemoveDeadLetters implements queue.Queue.
func (m *Memory) RemoveDeadLetters(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.dead[typ] = slices.DeleteFunc(m.dead[typ], func(l queue.DeadLetter) bool { return slices.Contains(ids, l.ID) })
	if len(m.dead[typ]) == 0 {
		delete(m.dead, typ)
	}
	return nil
}

// RegisterType implements queue.Queue.
func (m *Memory) RegisterType(ctx context.Context, typ string) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.types[typ] = true
	return nil
}

// Types implements queue.Queue.
func (m *Memory) Types(ctx context.Context) ([]string, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	all := maps.Clone(m.types)
	for t := range m.msgs {
		all[t] = true
	}
	for t := range m.dead {
		all[t] = true
	}
	for t := range m.files {
		all[t] = true
	}
	for t := range m.foreign {
		all[t] = true
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// Depth implements queue.Queue.
func (m *Memory) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	if err := queuedriver.CheckDepth(typ, most); err != nil {
		return queue.Depth{}, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.Depth{}, err
	}
	defer m.mu.Unlock()
	list := m.msgs[typ]
	d := queue.Depth{Pending: min(len(list), most), Capped: len(list) > most, Foreign: min(len(m.foreign[typ]), max(most+1-len(list), 0))}
	if len(list) > 0 {
		d.Oldest = list[0].ID
	}
	return d, nil
}

// Now implements queue.Queue.
func (m *Memory) Now(ctx context.Context) (time.Time, error) {
	if err := m.enter(ctx); err != nil {
		return time.Time{}, err
	}
	defer m.mu.Unlock()
	return time.Now(), nil
}

// Close implements queue.Queue.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Settings implements queue.Queue.
func (m *Memory) Settings(ctx context.Context, typ string) (queue.Settings, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.Settings{}, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.Settings{}, err
	}
	defer m.mu.Unlock()
	return m.settings[typ], nil
}

// AllSettings implements queue.Queue.
func (m *Memory) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	all := map[string]queue.Settings{}
	for typ, s := range m.settings {
		if !s.IsZero() {
			all[typ] = s
		}
	}
	return all, nil
}

// PatchSettings implements queue.Queue.
func (m *Memory) PatchSettings(ctx context.Context, typ string, c queue.SettingsPatch) (queue.Settings, error) {
	c, err := queuedriver.CheckSettingsPatch(typ, c)
	if err != nil {
		return queue.Settings{}, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.Settings{}, err
	}
	defer m.mu.Unlock()
	m.types[typ] = true
	m.settings[typ] = queuedriver.Apply(c, m.settings[typ], time.Now())
	return m.settings[typ], nil
}

// Heartbeat implements queue.Queue.
func (m *Memory) Heartbeat(ctx context.Context, member queue.Member) error {
	member, err := queuedriver.CheckHeartbeat(member, time.Now())
	if err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	member = cloneMember(member)
	m.members[member.Instance] = member
	return nil
}

// Members implements queue.Queue.
func (m *Memory) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var all []queue.Member
	for _, id := range slices.Sorted(maps.Keys(m.members)) {
		if id > after && (most == 0 || len(all) < most) {
			all = append(all, cloneMember(m.members[id]))
		}
	}
	return all, nil
}

// Leave implements queue.Queue.
func (m *Memory) Leave(ctx context.Context, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	delete(m.members, id)
	return nil
}

// cloneMember copies a member with its lists, so that callers and the queue share nothing.
func cloneMember(m queue.Member) queue.Member {
	m.Types, m.Held, m.Idle, m.Leaving, m.Errors = slices.Clone(m.Types), slices.Clone(m.Held), slices.Clone(m.Idle), slices.Clone(m.Leaving), maps.Clone(m.Errors)
	return m
}
