package lock

import (
	"context"
	"sync"
)

// Keyed is a set of mutexes inside one process, one per key, made when a key is first locked and gone when nobody uses it:
// callers with the same key take turns, in the order in which they came; callers with different keys do not meet. It costs
// memory only for the keys that are in use. The zero value is ready. Safe for concurrent use; must not be copied.
//
// It excludes the goroutines of this process only. Across processes use a [Locker]; in front of one, Keyed keeps the
// goroutines of a process from competing for the same name over the network.
type Keyed[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*keyedMutex
	peak  int // most keys in use since the map was made
}

// keyedMutex is the mutex of one key.
type keyedMutex struct {
	sem   chan struct{} // holds one element while locked; blocked senders are served in order
	users int           // holder and waiters; under Keyed.mu
}

// shrinkAbove is the number of keys from which on the map is made anew once it is empty: Go's maps keep the memory of the
// most keys they ever held.
const shrinkAbove = 1024

// Lock waits until key is free or ctx ends, and returns the function that unlocks it, which may be called more than once
// and from any goroutine. The error is ctx's cause; then nothing is locked.
func (k *Keyed[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m := k.enter(key)
	select {
	case m.sem <- struct{}{}:
		return k.unlocker(key, m), nil
	case <-ctx.Done():
		k.leave(key, m)
		return nil, context.Cause(ctx)
	}
}

// TryLock locks key if nobody has it or waits for it; ok tells whether it did.
func (k *Keyed[K]) TryLock(key K) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks[key] != nil {
		return nil, false
	}
	m := k.add(key)
	m.sem <- struct{}{}
	return k.unlocker(key, m), true
}

// Len returns the number of keys in use: locked or waited for.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.locks)
}

// enter counts the caller as a user of key.
func (k *Keyed[K]) enter(key K) *keyedMutex {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.locks[key]
	if m == nil {
		return k.add(key)
	}
	m.users++
	return m
}

// add makes the mutex of key, with the caller as its user. k.mu is held.
func (k *Keyed[K]) add(key K) *keyedMutex {
	if k.locks == nil {
		k.locks, k.peak = make(map[K]*keyedMutex), 0
	}
	m := &keyedMutex{sem: make(chan struct{}, 1), users: 1}
	k.locks[key] = m
	k.peak = max(k.peak, len(k.locks))
	return m
}

// leave is the opposite of enter; the last user takes the mutex away.
func (k *Keyed[K]) leave(key K, m *keyedMutex) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.users--; m.users > 0 {
		return
	}
	delete(k.locks, key)
	if len(k.locks) == 0 && k.peak > shrinkAbove {
		k.locks = nil
	}
}

func (k *Keyed[K]) unlocker(key K, m *keyedMutex) func() {
	return sync.OnceFunc(func() {
		<-m.sem
		k.leave(key, m)
	})
}
