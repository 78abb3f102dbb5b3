package sqlitedb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Group commit. Writers of a handle that wait at the same time share one transaction and one sync. The right to write passes from one to
// the next, in the order of arrival, and each runs its own function:
//
//	writer 1  BEGIN IMMEDIATE ─ function ──┐
//	writer 2                               └─ SAVEPOINT ─ function ─ RELEASE ──┐
//	writer 3                                                                   └─ SAVEPOINT ─ function ─ RELEASE ─ COMMIT ──▶ all three return
//
// A writer that finds no other writer waiting commits, so a single writer waits for no others. While a group is being committed, the next
// one gathers.

// groupSize is the largest number of writers that share a transaction. Other processes wait for it, because it has the file's lock.
const groupSize = 64

const (
	savepoint  = "SAVEPOINT member"
	release    = "RELEASE member"
	rollbackTo = "ROLLBACK TO member"
)

var errPanic = errors.New("a function panicked in a transaction")

// errRolledBack is in the errors of writes whose transaction was rolled back as a whole.
var errRolledBack = errors.New("the transaction of this write, and perhaps of others, was rolled back, and nothing of it was kept; try again")

// turn is a writer that waits for the right to write.
type turn struct {
	durable bool
	alone   bool          // it does not join a group
	given   chan struct{} // closed when it has the right
}

// group is the open transaction. It belongs to the writer that has the right to write.
type group struct {
	c       *conn
	slot    **conn
	durable bool
	members int           // writers whose writes it contains
	lost    bool          // it must be rolled back, or SQLite has already done so
	doubted bool          // lost, and the state of the connection is in doubt
	ended   chan struct{} // closed when err is known
	err     error
}

// takes reports whether t may join.
func (g *group) takes(t *turn) bool {
	return !g.lost && !t.alone && (g.durable || !t.durable) && g.members < groupSize
}

// takeTurn waits for the right to write.
func (db *DB) takeTurn(ctx context.Context, t *turn) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: embedded database %s: %w", ErrNotBegun, db.path, context.Cause(ctx))
	}
	db.enqueue(t)
	var err error
	select {
	case <-t.given:
		if err = db.lookNowAndThen(); db.isClosing() {
			err = db.closedError()
		}
	case <-ctx.Done():
		err = fmt.Errorf("%w: embedded database %s: waiting for other writers of this process: %w", ErrNotBegun, db.path, context.Cause(ctx))
	case <-db.closing:
		err = db.closedError()
	}
	if err != nil && !db.dequeue(t) {
		db.passOn()
	}
	return err
}

// enqueue adds t to the waiting writers, or gives it the right to write if no writer has it.
func (db *DB) enqueue(t *turn) {
	t.given = make(chan struct{})
	db.turns.Lock()
	defer db.turns.Unlock()
	if db.writing {
		db.waiting = append(db.waiting, t)
	} else {
		db.writing = true
		close(t.given)
	}
}

// dequeue removes t from the waiting writers. It returns false if t has been given the right to write meanwhile.
func (db *DB) dequeue(t *turn) bool {
	db.turns.Lock()
	defer db.turns.Unlock()
	i := slices.Index(db.waiting, t)
	if i >= 0 {
		db.waiting = slices.Delete(db.waiting, i, i+1)
	}
	return i >= 0
}

// passOn ends a turn: the next writer joins the open group, or the group is committed first.
//
// rule: the writer that has the right to write commits the group or passes both on. Otherwise the group would never end.
func (db *DB) passOn() {
	if g := db.w.group; g != nil {
		db.turns.Lock()
		open := len(db.waiting) > 0 && g.takes(db.waiting[0])
		if open {
			db.giveTurn()
		}
		db.turns.Unlock()
		if open {
			return
		}
		db.commit(g)
	}
	db.turns.Lock()
	defer db.turns.Unlock()
	if len(db.waiting) > 0 {
		db.giveTurn()
	} else {
		db.writing = false
	}
}

// giveTurn gives the right to write to the first waiter. db.turns is held.
func (db *DB) giveTurn() {
	close(db.waiting[0].given)
	db.waiting[0] = nil
	db.waiting = db.waiting[1:]
}

// write runs fn in a transaction, alone or with others.
func (db *DB) write(ctx context.Context, durable bool, fn func(*Tx) error) error {
	if err := db.takeTurn(ctx, &turn{durable: durable}); err != nil {
		return err
	}
	g := db.w.group
	if g == nil {
		var err error
		if g, err = db.beginGroup(ctx, durable); err != nil {
			db.passOn()
			return err
		}
		db.w.group = g
	}
	err := db.member(ctx, g, fn)
	// rule: no writer returns before the commit, even if it has failed or only read. The context does not reach the commit: its outcome
	// must be known.
	<-g.ended
	return cmp.Or(err, g.err)
}

// beginGroup begins a transaction, durable if one of the waiters needs that.
func (db *DB) beginGroup(ctx context.Context, durable bool) (*group, error) {
	w := &db.w
	if err := w.courtesy(ctx, time.Now()); err != nil {
		return nil, fmt.Errorf("%w: embedded database %s: %w", ErrNotBegun, db.path, err)
	}
	db.turns.Lock()
	durable = durable || slices.ContainsFunc(db.waiting, func(t *turn) bool { return t.durable })
	db.turns.Unlock()
	slot, sync := &w.relaxed, "NORMAL"
	if durable {
		slot, sync = &w.full, "FULL"
	}
	tries := 0
	err := db.retry(ctx, func() (err error) {
		tries++
		if *slot == nil {
			if *slot, err = db.connect(ctx, sync); err != nil {
				return err
			}
		}
		return (*slot).begin(beginWrite)
	})
	if err != nil {
		return nil, db.describe(ctx, "begin writing", err)
	}
	now := time.Now()
	if tries > 1 {
		w.since, w.company = now, now // another process had the lock a moment ago: a new run begins
	}
	return &group{c: *slot, slot: slot, durable: durable, ended: make(chan struct{})}, nil
}

// member runs fn as a part of a group, and then passes the right to write on, even if fn panics.
func (db *DB) member(ctx context.Context, g *group, fn func(*Tx) error) (err error) {
	tx := &Tx{ctx: ctx, statements: ctx, c: g.c}
	alone, panicked := g.members == 0, true
	defer func() {
		if panicked {
			g.lost, g.doubted, err = true, true, errPanic
		}
		if err = db.settle(ctx, g, tx, alone, err); err == nil {
			g.members++
		}
		db.passOn()
	}()
	if !alone {
		// rule: in a group no statement is interrupted: SQLite would roll back the writes of the other members.
		tx.statements = context.WithoutCancel(ctx)
		err = g.c.exec(savepoint)
	}
	if err == nil {
		err = fn(tx)
	}
	if err == nil {
		err = cmp.Or(tx.gone, ctx.Err())
	}
	panicked = false
	return err
}

// settle keeps or undoes the writes of a member. It returns err, or the reason why the writes are lost although err is nil.
func (db *DB) settle(ctx context.Context, g *group, tx *Tx, alone bool, err error) error {
	for _, r := range tx.rows {
		_ = r.Close()
	}
	switch {
	case err == nil && alone:
		return nil
	case err == nil:
		if err = g.c.exec(release); err == nil {
			return nil
		}
		g.lost = true
	case alone || g.lost:
		g.lost = true // no other member's writes to keep: it is rolled back as a whole
	default:
		// rule: the error of a member undoes the writes of that member, and no others.
		if g.c.exec(rollbackTo) != nil || g.c.exec(release) != nil {
			g.lost = true
		}
	}
	err = db.describe(ctx, "write", err)
	if g.lost {
		g.err = fmt.Errorf("embedded database %s: %w: %w", db.path, errRolledBack, err)
	}
	return err
}

// commit ends a group. Only then do its members learn the outcome of their writes.
func (db *DB) commit(g *group) {
	w := &db.w
	defer close(g.ended)
	defer func() { w.group, w.last = nil, time.Now() }()
	if g.lost {
		if g.doubted || g.c.exec("ROLLBACK") != nil {
			// SQLite ends a transaction by itself on an interrupt or a full disk; it then has nothing to roll back. Either
			// way the connection's state is in doubt, and closing it rolls back for sure.
			g.c.discard(g.slot)
		}
		return
	}
	if err := g.c.exec("COMMIT"); err != nil {
		_ = g.c.exec("ROLLBACK")
		g.c.discard(g.slot)
		g.err = db.describe(context.Background(), "commit", err)
		return
	}
	if g.durable {
		// rule: a synced commit is reported only if a process that opens the database now finds it.
		g.err = db.look()
	}
}
