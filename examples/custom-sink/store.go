package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/worker"
	_ "modernc.org/sqlite"
)

// errFenced means that a holder with a greater token has claimed the type. It ends the session, and blames no message.
var errFenced = fmt.Errorf("refused by the store: %w", worker.ErrFenced)

// store keeps one document per type, with the token of the holder that may write it:
//
//	state: type | token | document
//
// Any store that can compare and write in one step is suitable: a row of any database, a key of etcd, or an object in a bucket with
// conditional writes (claim on the condition that the object has not changed since it was read, write on the condition that it is still the
// claimed one).
type store struct {
	db      *sql.DB
	noFence bool // --no-fence
}

func openStore(ctx context.Context, path string) (*store, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS state (type TEXT PRIMARY KEY, token INTEGER NOT NULL, document TEXT NOT NULL)`); err != nil {
		return nil, errors.Join(fmt.Errorf("create the store's table: %w", err), db.Close())
	}
	return &store{db: db}, nil
}

// claim makes token the one that may write, and reads the document. rule: both happen in one step, before anything is computed from the
// document. A holder that only read it, and stored its token with its first write, would miss a write of the previous holder in between.
func (s *store) claim(ctx context.Context, typ string, token int64) (*totals, error) {
	const claim = `INSERT INTO state (type, token, document) VALUES (?, ?, '{}')
		ON CONFLICT (type) DO UPDATE SET token = excluded.token WHERE token <= excluded.token RETURNING document`
	var document []byte
	switch err := s.db.QueryRowContext(ctx, claim, typ, token).Scan(&document); {
	case errors.Is(err, sql.ErrNoRows):
		var seen int64
		if err := s.db.QueryRowContext(ctx, `SELECT token FROM state WHERE type = ?`, typ).Scan(&seen); err != nil {
			return nil, errors.Join(errFenced, err)
		}
		return nil, worker.FencedAbove(seen) // the token of a later holder, or the locks were restored from a backup and their tokens rolled back
	case err != nil:
		return nil, fmt.Errorf("claim type %q in the store: %w", typ, err)
	}
	t := newTotals()
	if err := json.Unmarshal(document, t); err != nil {
		return nil, fmt.Errorf("document of type %q: %w", typ, err)
	}
	return t, nil
}

// save writes the document. rule: only the token that claimed the document may write it.
func (s *store) save(ctx context.Context, typ string, token int64, t *totals) error {
	document, err := json.Marshal(t)
	if err != nil {
		return err
	}
	update, args := `UPDATE state SET document = ? WHERE type = ? AND token = ?`, []any{document, typ, token}
	if s.noFence {
		update, args = `UPDATE state SET document = ? WHERE type = ?`, args[:2]
	}
	res, err := s.db.ExecContext(ctx, update, args...)
	if err != nil {
		return fmt.Errorf("write type %q to the store: %w", typ, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errFenced, err)
	}
	return nil
}

// load reads the document without claiming it.
func (s *store) load(ctx context.Context, typ string) (*totals, error) {
	t := newTotals()
	var document []byte
	err := s.db.QueryRowContext(ctx, `SELECT document FROM state WHERE type = ?`, typ).Scan(&document)
	if err == nil {
		err = json.Unmarshal(document, t)
	}
	return t, err
}
