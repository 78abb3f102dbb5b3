package sqlitedb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Group commit. Writers of a handle that wait at the same time share one transaction and one sync. The right to write goes from one to the
// next, in the order in which they came, and each runs its own function:
//
//	writer 1  BEGIN IMMEDIATE ─ function ──┐
//	writer 2                               └─ SAVEPOINT ─ function ─ RELEASE ──┐
//	writer 3                                                                   └─ SAVEPOINT ─ function ─ RELEASE ─ COMMIT ──▶ all three return
//
// A writer that finds nobody else waiting commits, so a writer that is alone waits for nobody. While a group is being committed
// those of the next one gather.

// groupSize is how many writers share a transaction, at most. It has the file's lock meanwhile, and other processes wait for it.
const groupSize = 64

const (
	savepoint  = "SAVEPOINT member"
	release    = "RELEASE member"
	rollbackTo = "ROLLBACK TO member"
)

var errPanic = errors.New("a function panicked in a transaction")

// errRolledBack is the cause of a group that is lost.
var errRolledBack = errors.New("the transaction of this write, and perhaps of others, was rolled back, and nothing of it was kept; try again")

// turn is a writer that waits for the right to write.
type turn struct {
	durable bool
	alone   bool          // it joins no group
	given   chan struct{} // closed when it has the right
}

// group is the transaction that is open. It belongs to whoever has the right to write.
type group struct {
	c       *conn
	slot    **conn
	durable bool
	members int           // that wait for its end
	lost    bool          // it has to be rolled back, or SQLite has done that
	doubted bool          // and so is the state of the connection
	ended   chan struct{} // closed when err is known
	err     error
}

// takes tells whether one more may join.
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

// enqueue joins the writers that wait, or takes the right to write if nobody has it.
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

// dequeue is the opposite, if the right to write was not given to t meanwhile.
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
// rule: whoever has the right to write commits the group or passes both on. Nobody else would ever end it.
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
	// rule: nobody is told of anything before the commit, also what it has only read there. The context does not reach the commit:
	// its outcome must be known.
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
		w.since, w.company = now, now // the lock was somebody else's a moment ago: a new run begins
	}
	return &group{c: *slot, slot: slot, durable: durable, ended: make(chan struct{})}, nil
}

// member runs fn as a part of a group, and passes the right to write on, also if fn panics.
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
		// rule: in a group no statement is interrupted: SQLite would roll back what the others have written.
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

// settle keeps or undoes what a member has written, and returns err, or why its writes are lost all the same.
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
		g.lost = true // nobody else has written anything: it is rolled back as a whole
	default:
		// rule: the error of one undoes what that one has written, and nothing of the others.
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

// commit ends a group. Only then the members know what has become of their writes.
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
		// rule: a synced commit is reported only if those who open the database now find it.
		g.err = db.look()
	}
}
