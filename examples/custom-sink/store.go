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

// errFenced says that somebody with a greater token has claimed the type. It ends the session, and blames no message.
var errFenced = fmt.Errorf("refused by the store: %w", worker.ErrFenced)

// store keeps one document per type, and the token of who may write it:
//
//	state: type | token | document
//
// A store that compares and writes in one step will do: a row of any database, a key of etcd, an object in a bucket that takes conditional
// writes (claim with the condition that nothing has changed since it was read, write on the condition that it is still the one that was
// claimed).
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

// claim makes token the one that may write, and reads the document. rule: both in one step, and before anything is computed from the
// document. A holder that only read it, and left its token with the first write, would not see what the holder before writes in between.
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
		return nil, worker.FencedAbove(seen) // of a later holder; or locks were restored from a backup, and their tokens went back
	case err != nil:
		return nil, fmt.Errorf("claim type %q in the store: %w", typ, err)
	}
	t := newTotals()
	if err := json.Unmarshal(document, t); err != nil {
		return nil, fmt.Errorf("document of type %q: %w", typ, err)
	}
	return t, nil
}

// save writes the document. rule: only for the token that has claimed it.
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

// load reads the document for those who do not write.
func (s *store) load(ctx context.Context, typ string) (*totals, error) {
	t := newTotals()
	var document []byte
	err := s.db.QueryRowContext(ctx, `SELECT document FROM state WHERE type = ?`, typ).Scan(&document)
	if err == nil {
		err = json.Unmarshal(document, t)
	}
	return t, err
}
