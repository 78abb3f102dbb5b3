package sqlitedb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// Tx is a running transaction. It is valid only during the function that receives it, and not safe for concurrent
// use. Statements are prepared once per connection and kept, keyed by their text: use parameters, not text, for
// values.
type Tx struct {
	ctx        context.Context
	statements context.Context // that interrupts a statement
	c          *conn
	rows       []*sql.Rows
	gone       error // set once a statement has rolled the transaction back
}

// prepare returns the statement for query, unless the context has ended.
func (tx *Tx) prepare(query string) (*sql.Stmt, error) {
	if err := cmp.Or(tx.gone, tx.ctx.Err()); err != nil {
		return nil, err
	}
	return tx.c.prepare(tx.statements, query)
}

// Exec runs a statement and returns the number of rows it changed.
func (tx *Tx) Exec(query string, args ...any) (int64, error) {
	stmt, err := tx.prepare(query)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(tx.statements, args...)
	// rule: nothing is written after a trigger has rolled back the transaction (RAISE(ROLLBACK)): each statement would be
	// committed by itself. BEGIN fails inside a transaction.
	if IsRefusal(err) && tx.c.exec("BEGIN") == nil {
		tx.gone = fmt.Errorf("%w: %v", errRolledBack, errors.Join(err, tx.c.exec("ROLLBACK"))) // not itself a refusal
		return 0, tx.gone
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query runs a statement that returns rows. They are closed with the transaction, if not before.
func (tx *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	stmt, err := tx.prepare(query)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(tx.statements, args...)
	if err != nil {
		return nil, err
	}
	tx.rows = append(tx.rows, rows)
	return rows, nil
}

// Get runs a statement that returns at most one row and scans it into dest. found is false when there is no row.
func (tx *Tx) Get(dest []any, query string, args ...any) (found bool, err error) {
	stmt, err := tx.prepare(query)
	if err != nil {
		return false, err
	}
	err = stmt.QueryRowContext(tx.statements, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Migrate runs idempotent definitions (CREATE TABLE IF NOT EXISTS …) in one transaction. Every package of the product
// creates its own tables this way.
func (db *DB) Migrate(ctx context.Context, ddl ...string) error {
	return db.Write(ctx, func(tx *Tx) error {
		for _, q := range ddl {
			// Not through the statement cache: a definition runs once.
			if _, err := tx.c.c.ExecContext(tx.statements, q); err != nil {
				return fmt.Errorf("create tables: %w", err)
			}
		}
		return nil
	})
}

// AddColumn adds a column to a table of an earlier version, if it is missing. column is its definition, which begins with its name.
func (db *DB) AddColumn(ctx context.Context, table, column string) error {
	name, _, _ := strings.Cut(column, " ")
	has := func(tx *Tx) (found bool, err error) {
		var one int
		return tx.Get([]any{&one}, `SELECT 1 FROM pragma_table_info(?) WHERE name = ?`, table, name)
	}
	found := false
	err := db.Read(ctx, func(tx *Tx) (err error) {
		found, err = has(tx)
		return err
	})
	if err != nil || found {
		return err
	}
	return db.Write(ctx, func(tx *Tx) error {
		found, err := has(tx) // another process may have been faster
		if err == nil && !found {
			_, err = tx.Exec(`ALTER TABLE ` + table + ` ADD COLUMN ` + column)
		}
		return err
	})
}

// Write runs fn in a write transaction and commits it durably; an error of fn undoes what fn has written and is returned. fn
// runs at most once, with the file's write lock held, so it must not wait for anything but the database. Writers that
// wait at the same time share a transaction, see group.go: each of them sees what those before it have written.
//
// When ctx ends first, the error wraps ctx's error; if it also wraps [ErrNotBegun], fn did not run. Once fn has returned
// nil, the commit continues even if ctx ends. An error of the commit itself leaves the outcome unknown until the data is
// read again, which is the only unclear case.
func (db *DB) Write(ctx context.Context, fn func(*Tx) error) error { return db.write(ctx, true, fn) }

// WriteRelaxed is Write without waiting for the disk, unless a Write waits for it: see the package comment.
func (db *DB) WriteRelaxed(ctx context.Context, fn func(*Tx) error) error {
	return db.write(ctx, false, fn)
}

// Usable returns the error with which a Read would fail before it calls SQLite: ctx has ended, the handle is closed, or
// its files were replaced.
func (db *DB) Usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("embedded database %s: %w", db.path, context.Cause(ctx))
	}
	if db.isClosing() {
		return db.closedError()
	}
	return db.lookNowAndThen()
}

// Read runs fn on one consistent snapshot of the database. It neither waits for writers nor blocks them; changing data
// in it fails. fn runs at most once.
func (db *DB) Read(ctx context.Context, fn func(*Tx) error) error {
	var c *conn
	select {
	case c = <-db.readers:
	case <-ctx.Done():
		return fmt.Errorf("embedded database %s: waiting for one of %d read connections: %w", db.path, cap(db.readers),
			context.Cause(ctx))
	case <-db.closing:
		return db.closedError()
	}
	defer func() { db.readers <- c }()
	if err := db.Usable(ctx); err != nil {
		return err
	}
	err := db.retry(ctx, func() (err error) {
		if c == nil {
			if c, err = db.connect(ctx, "FULL"); err != nil {
				return err
			}
			if _, err = c.c.ExecContext(context.Background(), "PRAGMA query_only=1"); err != nil {
				c.discard(&c)
				return err
			}
		}
		return c.begin(beginRead)
	})
	if err != nil {
		return db.describe(ctx, "begin reading", err)
	}
	tx := &Tx{ctx: ctx, statements: ctx, c: c}
	err = runFunc(tx, fn, &c)
	// Nothing was changed, so the end of the transaction cannot matter to the caller; a connection that cannot end it
	// is replaced.
	if e := c.exec("COMMIT"); e != nil {
		c.discard(&c)
	}
	return db.describe(ctx, "read", err)
}

func (db *DB) isClosing() bool {
	select {
	case <-db.closing:
		return true
	default:
		return false
	}
}

// courtesy leaves the file's lock to other processes now and then. Without it a process that writes back to back
// leaves it free for about 20 µs at a time, which processes that try every few milliseconds hardly ever hit.
func (w *writer) courtesy(ctx context.Context, now time.Time) error {
	if now.Sub(w.last) >= courtesyPause {
		w.since = now
		return nil
	}
	every := courtesyAlone
	if now.Sub(w.company) < companyRemember {
		every = courtesyAmong
	}
	if now.Sub(w.since) < every {
		return nil
	}
	if wait.For(ctx, courtesyPause) != nil {
		return context.Cause(ctx)
	}
	w.since = time.Now()
	return nil
}

// runFunc calls fn, closes the rows it left open, and on a panic drops the connection before the panic continues.
func runFunc(tx *Tx, fn func(*Tx) error, slot **conn) error {
	done := false
	closeRows := func() {
		for _, r := range tx.rows {
			_ = r.Close()
		}
	}
	defer func() {
		if !done {
			closeRows()
			tx.c.discard(slot)
		}
	}()
	err := fn(tx)
	closeRows()
	if err == nil {
		err = tx.ctx.Err()
	}
	done = true
	return err
}

// retry calls f until it succeeds, fails with an error other than "busy", or ctx ends.
func (db *DB) retry(ctx context.Context, f func() error) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotBegun, context.Cause(ctx))
		}
		err := f()
		if err == nil || !isBusy(err) {
			return err
		}
		db.busy.Add(1)
		pause := minBusyPause + rand.N(maxBusyPause-minBusyPause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: waiting for another process: %w", ErrNotBegun, context.Cause(ctx))
		case <-db.closing:
			timer.Stop()
			return db.closedError()
		}
	}
}

// conn is one SQLite connection with its prepared statements.
type conn struct {
	db     *DB
	c      *sql.Conn
	stmts  map[string]*sql.Stmt
	joined bool // counted in db.conns
}

const (
	beginWrite = "BEGIN IMMEDIATE" // owns the write lock from here on, or fails with "busy"
	beginRead  = "BEGIN"
	// pinSnapshot makes BEGIN's deferred read lock real, so that "busy" (possible while another process recovers or
	// resets the log) is met before the caller's function and not in it.
	pinSnapshot = "SELECT 1 FROM sqlite_schema LIMIT 1"
)

// connect opens a connection.
func (db *DB) connect(ctx context.Context, synchronous string) (*conn, error) {
	if err := db.look(); err != nil {
		return nil, err
	}
	sc, err := db.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{db: db, c: sc, stmts: make(map[string]*sql.Stmt)}
	// FULL syncs the log at every commit, NORMAL only before a checkpoint.
	if err := c.exec("PRAGMA synchronous=" + synchronous); err != nil {
		_ = c.close()
		return nil, err
	}
	return c, nil
}

// exec runs a statement that no context may interrupt: the driver reports an interrupted statement as not done even
// when it was.
func (c *conn) exec(query string) error {
	_, err := c.c.ExecContext(context.Background(), query)
	return err
}

func (c *conn) begin(how string) error {
	stmt, err := c.prepare(context.Background(), how)
	if err != nil {
		return err
	}
	if _, err := stmt.ExecContext(context.Background()); err != nil {
		return err
	}
	if how == beginRead {
		err = c.pin()
	}
	if err == nil && !c.joined {
		err = c.db.join(c)
	}
	if err != nil {
		_ = c.exec("ROLLBACK")
	}
	return err
}

func (c *conn) pin() error {
	stmt, err := c.prepare(context.Background(), pinSnapshot)
	if err != nil {
		return err
	}
	var one int
	if err = stmt.QueryRowContext(context.Background()).Scan(&one); errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return err
}

// prepare returns the statement for query, from the cache when it is there.
func (c *conn) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	if len(c.stmts) >= maxStatements {
		c.forget()
	}
	s, err := c.c.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	c.stmts[query] = s
	return s, nil
}

func (c *conn) forget() {
	for q, s := range c.stmts {
		_ = s.Close()
		delete(c.stmts, q)
	}
}

// close really closes the connection: the pool keeps none. A nil conn is closed already.
func (c *conn) close() error {
	if c == nil {
		return nil
	}
	// rule: a connection is left open when another file has the name of its log. SQLite would write its own log into the
	// database, and remove the other one with the commits of other processes.
	if !c.db.leave(c) {
		return nil
	}
	c.forget()
	return c.c.Close()
}

// discard closes a connection in a doubtful state and empties its slot, so that the next user opens a new one.
func (c *conn) discard(slot **conn) {
	if c == nil {
		return
	}
	_ = c.close()
	*slot = nil
}
