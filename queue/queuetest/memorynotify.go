package queuetest

import (
	"context"
	"maps"
	"slices"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// notifications is the log of a Memory: the latest notifications, and a count of all.
type notifications struct {
	count  int64
	latest []string
}

// Notify implements queue.Queue.
func (m *Memory) Notify(ctx context.Context, types []string) error {
	if err := queuedriver.CheckNotify(types); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	n := &m.notified
	n.count += int64(len(types))
	n.latest = queuedriver.LatestNotifications(append(n.latest, types...))
	return nil
}

// Notifications implements queue.Queue.
func (m *Memory) Notifications(ctx context.Context, since queue.NotificationMark) (queue.Notifications, error) {
	if err := m.enter(ctx); err != nil {
		return queue.Notifications{}, err
	}
	defer m.mu.Unlock()
	r := queuedriver.ReadNotifications(since)
	r.Log("", m.notified.count, m.notified.latest)
	return r.Result(), nil
}

// PendingTypes implements queue.Queue.
func (m *Memory) PendingTypes(ctx context.Context) ([]string, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pending())), nil
}

// Pending implements queue.Queue.
func (m *Memory) Pending(ctx context.Context, types []string, most int) ([]string, error) {
	if err := queuedriver.CheckPending(types, most); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var found []string
	for pending := m.pending(); len(types) > 0 && len(found) < most; types = types[1:] {
		if typ := types[0]; pending[typ] {
			found = append(found, typ)
			delete(pending, typ)
		}
	}
	slices.Sort(found)
	return found, nil
}

// pending returns the types with messages or foreign keys. m.mu is held.
func (m *Memory) pending() map[string]bool {
	all := map[string]bool{}
	for typ, list := range m.msgs {
		if len(list) > 0 {
			all[typ] = true
		}
	}
	for typ := range m.foreign {
		all[typ] = true
	}
	return all
}
