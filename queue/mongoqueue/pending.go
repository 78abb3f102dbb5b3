package mongoqueue

import (
	"context"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Pending implements queue.Queue.
//
//	find {_id: {$gt: "<type>/", $lt: "{"}} → _id only, sort {_id: 1}, limit 100 or 1000; index: _id. A page of keys covers all types up
//	to its last key; the next page begins at the next type. For types with many messages each, an aggregate: see sharedreads.go.
func (q *Queue) Pending(ctx context.Context, types []string, most int) ([]string, error) {
	if err := queuedriver.CheckPending(types, most); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	l := newPendingLook(types) // without types there is no query
	for limit := keysFew; len(l.rest) > 0 && len(l.found) < most; {
		before := len(l.found)
		keys, more, err := readKeys(ctx, q.messages, l.rest[0]+headSeparator, typesEnd, limit)
		if err != nil {
			return nil, q.explain(ctx, "look for types with messages", err)
		}
		l.learn(keys, more)
		// Where a page covers few types, a union covers more.
		if len(l.found)-before >= keysFew/10 {
			limit = keysPage
			continue
		}
		limit = keysFew
		for all := more; all && len(l.rest) > 0 && len(l.found) < most && !q.unionless.Load(); {
			if all, err = q.unionLook(ctx, l); err != nil {
				return nil, q.explain(ctx, "look for types with messages", err)
			}
		}
	}
	found := l.found[:min(len(l.found), most)]
	slices.Sort(found)
	return found, nil
}

// pendingLook is the progress of a call of Pending.
type pendingLook struct {
	rest  []string // types not decided yet, in the order of their keys
	found []string
}

func newPendingLook(types []string) *pendingLook {
	rest := slices.Clone(types)
	slices.SortFunc(rest, func(a, b string) int { return strings.Compare(a+headSeparator, b+headSeparator) })
	return &pendingLook{rest: slices.Compact(rest)}
}

// learn processes a page of keys that begins with the range of the first type. more is false if no
// keys follow it.
func (l *pendingLook) learn(keys []string, more bool) {
	for _, key := range keys {
		for len(l.rest) > 0 && l.rest[0]+headEnd <= key {
			l.rest = l.rest[1:] // its range ends before this key, and is empty
		}
		if len(l.rest) > 0 && strings.HasPrefix(key, l.rest[0]+headSeparator) {
			l.found = append(l.found, l.rest[0])
			l.rest = l.rest[1:]
		}
	}
	// rule: a page says nothing about later keys
	if !more {
		l.rest = nil
	}
}

// unionLook checks the next few types with one aggregate. all means that each of them has messages or foreign keys,
// so pages of keys would cover fewer types.
func (q *Queue) unionLook(ctx context.Context, l *pendingLook) (all bool, err error) {
	next := l.rest[:min(len(l.rest), unionMost)]
	parts := make([]part, len(next))
	for i, typ := range next {
		parts[i] = keysPart(typ, 1)
	}
	byType, whole, err := q.readParts(ctx, parts)
	if err != nil && !q.unionless.Load() {
		return false, err
	}
	if err != nil || !whole {
		return false, nil // pages also work
	}
	all = true
	for _, typ := range next {
		if len(byType[typ]) > 0 {
			l.found = append(l.found, typ)
		} else {
			all = false
		}
	}
	l.rest = l.rest[len(next):]
	return all, nil
}
