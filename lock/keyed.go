package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Keyed is a set of mutexes inside one process, one per key. A mutex exists only while its key is in
// use. Callers with the same key take turns in order of arrival; callers with different keys do not
// affect each other. The zero value is ready to use. Safe for concurrent use; must not be copied.
//
// It excludes only the goroutines of this process, and is not re-entrant. Across processes use a
// [Locker].
//
// A key that does not equal itself (NaN, or a struct with a NaN) could not exclude anything, and is refused.
type Keyed[K comparable] struct {
	mu     sync.Mutex
	locked map[K][]chan struct{} // the locked keys, each with its waiters in order; a closed channel grants the key
	peak   int                   // most keys in use since the map was created
}

// shrinkAbove: a map that has held more keys than this is dropped once it is empty, because a Go map
// never frees the memory of its largest size.
const shrinkAbove = 1024

// Do locks key, runs fn, and unlocks, also when fn panics. The error is fn's, or that of Lock if ctx ended before
// its turn came; then fn was not called.
func (k *Keyed[K]) Do(ctx context.Context, key K, fn func() error) error {
	unlock, err := k.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

// Lock waits until key is free or ctx ends, and returns the function that unlocks it, which may be
// called more than once and from any goroutine. The error wraps ctx's error and its cause, or is an
// [*InvalidError] for a key that does not equal itself; then nothing is locked.
func (k *Keyed[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	if key != key {
		return nil, &InvalidError{What: "key", Value: fmt.Sprint(key), Problem: "it does not equal itself, so it cannot exclude anything; use a key without NaN"}
	}
	if ctx.Err() != nil {
		return nil, endOf(ctx)
	}
	turn := k.enter(key)
	if turn == nil {
		return k.unlocker(key), nil
	}
	select {
	case <-turn:
		return k.unlocker(key), nil
	case <-ctx.Done():
		k.giveUp(key, turn)
		return nil, endOf(ctx)
	}
}

// TryLock locks key if it is free; ok reports whether it did. It never locks a key that does not equal itself.
func (k *Keyed[K]) TryLock(key K) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, locked := k.locked[key]; locked || key != key {
		return nil, false
	}
	k.lock(key)
	return k.unlocker(key), true
}

// Len returns the number of keys in use.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.locked)
}

// enter locks key and returns nil if key is free. Otherwise it queues the caller: turn is closed when
// key has been locked for it.
func (k *Keyed[K]) enter(key K) (turn chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	waiters, locked := k.locked[key]
	if !locked {
		k.lock(key)
		return nil
	}
	turn = make(chan struct{})
	k.locked[key] = append(waiters, turn)
	return turn
}

// lock locks a free key. k.mu is held.
func (k *Keyed[K]) lock(key K) {
	if k.locked == nil {
		k.locked, k.peak = make(map[K][]chan struct{}), 0
	}
	k.locked[key] = nil
	k.peak = max(k.peak, len(k.locked))
}

// pass hands key off to the caller that has waited longest, or frees it. k.mu is held.
func (k *Keyed[K]) pass(key K) {
	if waiters := k.locked[key]; len(waiters) > 0 {
		close(waiters[0])
		k.locked[key] = waiters[1:]
		return
	}
	delete(k.locked, key)
	if len(k.locked) == 0 && k.peak > shrinkAbove {
		k.locked = nil
	}
}

// giveUp removes a waiter from the queue of key, or passes key on if its turn has just come.
func (k *Keyed[K]) giveUp(key K, turn chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.Index(k.locked[key], turn); i >= 0 {
		k.locked[key] = slices.Delete(k.locked[key], i, i+1)
	} else {
		k.pass(key)
	}
}

// unlocker returns a function that unlocks key once; further calls do nothing.
func (k *Keyed[K]) unlocker(key K) func() {
	locked := true
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if locked {
			locked = false
			k.pass(key)
		}
	}
}
