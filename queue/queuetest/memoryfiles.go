package queuetest

import (
	"bytes"
	"cmp"
	"context"

	"github.com/fencepost/fencepost/queue"
)

// RegistryEntry implements queue.Queue.
func (m *Memory) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	defer m.mu.Unlock()
	f, ok := m.files[typ]
	return f, ok, nil
}

// RegisterFile implements queue.Queue.
func (m *Memory) RegisterFile(ctx context.Context, typ string, f queue.RegistryEntry) (queue.RegistryEntry, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.RegistryEntry{}, err
	}
	defer m.mu.Unlock()
	if old, ok := m.files[typ]; ok {
		return old, nil
	}
	f.Generation = max(f.Generation, 1)
	m.files[typ] = f
	return f, nil
}

// UpdateFile implements queue.Queue.
func (m *Memory) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return false, err
	}
	if err := m.enter(ctx); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	old, ok := m.files[typ]
	if !ok || old.FileID != f.FileID {
		return false, nil
	}
	old.Epoch, old.DurableIndex = max(old.Epoch, f.Epoch), max(old.DurableIndex, f.DurableIndex)
	old.Place = cmp.Or(f.Place, old.Place)
	m.files[typ] = old
	return true, nil
}

// AckFile implements queue.Queue.
func (m *Memory) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return false, err
	}
	if err := m.enter(ctx); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	old, ok := m.files[typ]
	if !ok || old.FileID != f.FileID || old.Epoch > f.Epoch {
		return false, nil
	}
	old.Epoch, old.DurableIndex = f.Epoch, max(old.DurableIndex, f.DurableIndex)
	m.files[typ] = old
	m.remove(typ, ids)
	return true, nil
}

// SucceedFile implements queue.Queue.
func (m *Memory) SucceedFile(ctx context.Context, typ string, old [16]byte, f queue.RegistryEntry) (queue.RegistryEntry, bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	if err := m.enter(ctx); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	defer m.mu.Unlock()
	now, ok := m.files[typ]
	if !ok || now.FileID != old && now.FileID != f.FileID {
		return now, ok, nil
	}
	now = queue.RegistryEntry{FileID: f.FileID, Generation: max(f.Generation, 1), Epoch: max(now.Epoch, f.Epoch), DurableIndex: max(now.DurableIndex, f.DurableIndex),
		Place: cmp.Or(f.Place, now.Place)}
	m.files[typ] = now
	return now, true, nil
}

// HolderNote implements queue.Queue.
func (m *Memory) HolderNote(ctx context.Context, typ string) ([]byte, error) {
	if err := queue.ValidateType(typ); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return bytes.Clone(m.notes[typ]), nil
}

// SetHolderNote implements queue.Queue.
func (m *Memory) SetHolderNote(ctx context.Context, typ string, note []byte) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.notes[typ] = bytes.Clone(note)
	return nil
}
