// Package sqlitelock keeps locks in the embedded database file, for processes of one machine.
//
// It provides the same atomic operations as mongolock, each in one transaction: a grant is synced to disk before it is
// reported (and so survives a power failure), readers do not wait for writers. Renewals and releases are not synced: a
// power failure ends every process of the machine, hence every lease, and the tokens it must not take back are those of
// grants.
package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/lock"
)

// ddl creates the one table: a row per name. hold_id is null when the lock is free. Times are microseconds since 1970.
const ddl = `CREATE TABLE IF NOT EXISTS locks (
	name          TEXT PRIMARY KEY,
	token         INTEGER NOT NULL, -- last granted fencing token; only grows, survives release
	version       BLOB NOT NULL,    -- random, new with every write
	hold_id       BLOB,             -- of the acquisition that holds the lock
	lease_ms      INTEGER,
	host          TEXT, pid INTEGER, instance TEXT, boot TEXT, pid_namespace TEXT, started TEXT,
	why           TEXT,
	since_us      INTEGER NOT NULL, -- last acquired; for people
	at_us         INTEGER NOT NULL  -- last written; for people
) STRICT, WITHOUT ROWID`

const columns = `name, token, version, hold_id, coalesce(lease_ms, 0), coalesce(host, ''), coalesce(pid, 0),
	coalesce(instance, ''), coalesce(boot, ''), coalesce(pid_namespace, ''), coalesce(started, ''), coalesce(why, ''),
	since_us, at_us`

type store struct {
	db *sqlitedb.DB
}

// Open opens the database file at path, creating it when it is missing, with a handle of its own: waits of other users of
// the file in this process do not delay renewals. The error names the remedy.
func Open(ctx context.Context, path string) (lock.Store, error) {
	db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{})
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	if err := db.Migrate(ctx, ddl); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return &store{db: db}, nil
}

// Read selects by primary key.
func (s *store) Read(ctx context.Context, name string) (r lock.Record, found bool, err error) {
	err = s.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query("SELECT "+columns+" FROM locks WHERE name = ?", name)
		if err != nil {
			return err
		}
		for rows.Next() {
			if r, err = scan(rows.Scan); err != nil {
				return err
			}
			found = true
		}
		return rows.Err()
	})
	return r, found, permanent(err)
}

// Create inserts the row; no row inserted = the name has one.
func (s *store) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	created, _, err := s.write(ctx, s.db.Write, `INSERT INTO locks (token, version, hold_id, lease_ms, host, pid, instance,
		boot, pid_namespace, started, why, since_us, at_us, name) VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`, "", append(held(h, v), name)...)
	return created, err
}

// take is what an acquisition sets.
const take = `UPDATE locks SET token = token + 1, version = ?, hold_id = ?, lease_ms = ?, host = ?, pid = ?, instance = ?,
	boot = ?, pid_namespace = ?, started = ?, why = ?, since_us = ?, at_us = ? WHERE name = ? AND `

// Acquire updates the row if it is free; no row = held, or no record.
func (s *store) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	ok, token, err := s.write(ctx, s.db.Write, take+"hold_id IS NULL", name, append(held(h, v), name)...)
	return token, ok, err
}

// TakeOver updates the row if its version is the one seen; no row = somebody wrote it since.
func (s *store) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (int64, bool, error) {
	ok, token, err := s.write(ctx, s.db.Write, take+"version = ?", name, append(held(h, v), name, seen[:])...)
	return token, ok, err
}

// Renew sets a new version if the hold is ours; no row = lost.
func (s *store) Renew(ctx context.Context, name string, id lock.HoldID, v lock.Version) (bool, error) {
	ok, _, err := s.write(ctx, s.db.WriteRelaxed, "UPDATE locks SET version = ?, at_us = ? WHERE name = ? AND hold_id = ?", "",
		v[:], now(), name, id[:])
	return ok, err
}

// Confirm renews, raises the token to more than floor, and returns it; no row = not ours. It is synced, because it may
// stand for a grant whose answer was lost, and because it may raise the token.
func (s *store) Confirm(ctx context.Context, name string, id lock.HoldID, floor int64, v lock.Version) (int64, bool, error) {
	ok, token, err := s.write(ctx, s.db.Write, `UPDATE locks SET version = ?, at_us = ?, token = max(token, ?)
		WHERE name = ? AND hold_id = ?`, name, v[:], now(), floor+1, name, id[:])
	return token, ok, err
}

// Release empties the hold if it is ours; no row = lost before. The row and its token stay.
func (s *store) Release(ctx context.Context, name string, id lock.HoldID, v lock.Version) (bool, error) {
	ok, _, err := s.write(ctx, s.db.WriteRelaxed, `UPDATE locks SET version = ?, at_us = ?, hold_id = NULL, lease_ms = NULL,
		host = NULL, pid = NULL, instance = NULL, boot = NULL, pid_namespace = NULL, started = NULL, why = NULL
		WHERE name = ? AND hold_id = ?`, "", v[:], now(), name, id[:])
	return ok, err
}

// List selects all rows, in the order of the primary key.
func (s *store) List(ctx context.Context) (list []lock.Record, err error) {
	err = s.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query("SELECT " + columns + " FROM locks ORDER BY name")
		if err != nil {
			return err
		}
		for rows.Next() {
			r, err := scan(rows.Scan)
			if err != nil {
				return err
			}
			list = append(list, r)
		}
		return rows.Err()
	})
	return list, permanent(err)
}

func (s *store) Close() error { return s.db.Close() }

// write runs one statement in a transaction of its own. tokenOf names the lock whose token is wanted, or is empty.
func (s *store) write(ctx context.Context, how func(context.Context, func(*sqlitedb.Tx) error) error, query, tokenOf string,
	args ...any) (ok bool, token int64, err error) {
	err = how(ctx, func(tx *sqlitedb.Tx) error {
		n, err := tx.Exec(query, args...)
		if err != nil || n == 0 {
			return err
		}
		ok = true
		if tokenOf == "" {
			return nil
		}
		_, err = tx.Get([]any{&token}, "SELECT token FROM locks WHERE name = ?", tokenOf)
		return err
	})
	if err != nil {
		return false, 0, permanent(err)
	}
	return ok, token, nil
}

// held are the values of an acquisition, in the order of the statements above.
func held(h lock.Hold, v lock.Version) []any {
	t := now()
	return []any{v[:], h.ID[:], h.Lease.Milliseconds(), h.Owner.Host, h.Owner.PID, h.Owner.Instance, h.Owner.Boot,
		h.Owner.PIDNamespace, h.Owner.Started, h.Why, t, t}
}

func now() int64 { return time.Now().UnixMicro() }

func scan(into func(...any) error) (r lock.Record, err error) {
	var (
		version, id   []byte
		ms, since, at int64
		h             lock.Hold
	)
	err = into(&r.Name, &r.Token, &version, &id, &ms, &h.Owner.Host, &h.Owner.PID, &h.Owner.Instance, &h.Owner.Boot,
		&h.Owner.PIDNamespace, &h.Owner.Started, &h.Why, &since, &at)
	if err != nil {
		return r, err
	}
	if len(version) != len(r.Version) || id != nil && len(id) != len(h.ID) {
		return r, fmt.Errorf("the record of lock %q is damaged: version of %d bytes, hold of %d; delete the row from table "+
			"locks while nobody uses the lock", r.Name, len(version), len(id))
	}
	copy(r.Version[:], version)
	if id != nil {
		copy(h.ID[:], id)
		h.Lease = time.Duration(ms) * time.Millisecond
		r.Hold = &h
	}
	r.Since, r.At = time.UnixMicro(since), time.UnixMicro(at)
	return r, nil
}

// permanent marks the errors that no repetition cures.
func permanent(err error) error {
	for _, kind := range []error{sqlitedb.ErrClosed, sqlitedb.ErrReadOnly, sqlitedb.ErrPermission, sqlitedb.ErrNotDatabase,
		sqlitedb.ErrForeign, sqlitedb.ErrNewerSchema, sqlitedb.ErrCorrupt} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%w (%w)", err, lock.ErrPermanent)
		}
	}
	return err
}
