// Package sqlitelock keeps locks in the embedded database file, for processes of one machine.
//
// It has the same atomic operations as mongolock, each in one transaction. A grant is synced to disk
// before it is reported, so that its token survives a power failure. Renewals and releases are not
// synced: a power failure also ends every process of the machine, and with it every lease. Readers do
// not wait for writers.
package sqlitelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/internal/transition"
)

// ddl creates the one table: a row per name. hold_id is null when the lock is free. Times are
// microseconds since 1970.
const ddl = `CREATE TABLE IF NOT EXISTS locks (
	name          TEXT PRIMARY KEY,
	token         INTEGER NOT NULL, -- last granted fencing token; only grows, survives release
	version       BLOB NOT NULL,    -- random, new with every write
	hold_id       BLOB,             -- of the acquisition that holds the lock
	lease_ms      INTEGER,
	host          TEXT, pid INTEGER, instance TEXT, boot TEXT, pid_namespace TEXT, started TEXT,
	why           TEXT,
	since_us      INTEGER NOT NULL, -- last acquired; for people
	at_us         INTEGER NOT NULL, -- last written; for people
	more          TEXT              -- JSON: see type more; null when there is nothing of it
) STRICT, WITHOUT ROWID`

// more is the JSON column for fields that few records have; it is null in all others, which keeps their rows small.
type more struct {
	Asked  string       `json:",omitempty"` // of the exclusive holder
	Shares []lock.Entry `json:",omitempty"`
	Queue  []lock.Entry `json:",omitempty"`
	Forced *lock.Forced `json:",omitempty"`
}

// columns are the columns that scan reads, in its order.
const columns = `name, token, version, hold_id, coalesce(lease_ms, 0), coalesce(host, ''), coalesce(pid, 0),
	coalesce(instance, ''), coalesce(boot, ''), coalesce(pid_namespace, ''), coalesce(started, ''), coalesce(why, ''),
	since_us, at_us, coalesce(more, '')`

// store implements lock.Store with the functions of package transition. Each method says whether it
// is synced; a power failure can undo those that are not.
type store struct {
	db    *sqlitedb.DB
	close func() error
}

var _ lock.BatchRenewer = (*store)(nil)

// Open opens the database file at path, creating it if it is missing. It uses a handle of its own, so
// that other users of the file in this process do not delay renewals.
//
// Errors name the remedy. They wrap [lock.ErrInvalid] if path cannot be that of a file, and [lock.ErrPermanent] if the file
// cannot be used: another program's, damaged, without permission.
func Open(ctx context.Context, path string) (lock.Store, error) {
	db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{})
	if errors.Is(err, sqlitedb.ErrPath) {
		return nil, fmt.Errorf("lock store: %w (%w)", err, lock.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", permanent(err))
	}
	s, err := newStore(ctx, db, db.Close)
	if err != nil {
		_ = db.Close()
	}
	return s, err
}

// OpenIn keeps locks in the database of an embedded queue: db is what sqlitequeue.Queue.Database returns. It stays open when the store
// is closed, so close the locks before the queue. Operations that wait concurrently share a transaction with the other writers of that
// handle, so they do not compete with them for the file.
func OpenIn(ctx context.Context, db *sqlitedb.DB) (lock.Store, error) {
	return newStore(ctx, db, func() error { return nil })
}

func newStore(ctx context.Context, db *sqlitedb.DB, close func() error) (lock.Store, error) {
	err := db.Migrate(ctx, ddl)
	if err == nil {
		err = db.AddColumn(ctx, "locks", "more TEXT") // tables of the first version lack it
	}
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", permanent(err))
	}
	return &store{db, close}, nil
}

// Read selects by primary key.
func (s *store) Read(ctx context.Context, name string) (r lock.Record, found bool, err error) {
	err = s.db.Read(ctx, func(tx *sqlitedb.Tx) (err error) {
		r, found, err = get(tx, name)
		return err
	})
	return r, found, permanent(err)
}

// get reads the row of name. The error is a lock.DamagedError if it cannot be decoded.
func get(tx *sqlitedb.Tx, name string) (r lock.Record, found bool, err error) {
	rows, err := tx.Query("SELECT "+columns+" FROM locks WHERE name = ?", name)
	if err != nil {
		return r, false, err
	}
	defer rows.Close()
	for rows.Next() {
		if r, err = scan(rows.Scan); err != nil {
			return r, false, err
		}
		found = true
	}
	return r, found, rows.Err()
}

// do applies an operation to the row of name in one transaction; how is db.Write (synced) or
// db.WriteRelaxed. ok is false if the condition of the operation was not met.
func (s *store) do(ctx context.Context, how func(context.Context, func(*sqlitedb.Tx) error) error, name string,
	f transition.Func) (ok bool, r lock.Record, err error) {
	err = how(ctx, func(tx *sqlitedb.Tx) (err error) {
		ok, r, err = change(tx, name, f)
		return err
	})
	switch {
	case err != nil && ok && errors.Is(err, sqlitedb.ErrReplaced):
		return false, r, err // rule: it may be written, in the old file, so it is not called permanent: that would mean not written
	case err != nil:
		return false, r, permanent(err)
	}
	return ok, r, nil
}

// change is do inside a transaction.
func change(tx *sqlitedb.Tx, name string, f transition.Func) (ok bool, r lock.Record, err error) {
	r, exists, err := get(tx, name)
	if err != nil {
		return false, r, err
	}
	r.Name = name
	before := r.Version
	if !f(&r, exists) {
		return false, r, nil
	}
	if r.Version != before {
		r.At = time.Now()
	}
	return true, r, put(tx, r)
}

// Create inserts the row.
func (s *store) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	ok, _, err := s.do(ctx, s.db.Write, name, transition.Create(h, v, time.Now()))
	return ok, err
}

// Acquire is synced, as all grants are.
func (s *store) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	return transition.Token(s.do(ctx, s.db.Write, name, transition.Acquire(h, v, time.Now())))
}

// TakeOver is synced.
func (s *store) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (int64, bool, error) {
	return transition.Token(s.do(ctx, s.db.Write, name, transition.TakeOver(seen, h, v, time.Now())))
}

// HandOff is synced.
func (s *store) HandOff(ctx context.Context, name string, from lock.HoldID, h lock.Hold, v lock.Version) (int64, bool, error) {
	return transition.Token(s.do(ctx, s.db.Write, name, transition.HandOff(from, h, v, time.Now())))
}

// Renew is not synced.
func (s *store) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	ok, r, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Renew(h, v))
	return transition.Asked(r, h), ok, err
}

// RenewMany runs one transaction, not synced. A damaged record counts as not found.
func (s *store) RenewMany(ctx context.Context, renewals []lock.Renewal) (found int, err error) {
	err = s.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
		found = 0
		for _, one := range renewals {
			ok, _, err := change(tx, one.Name, transition.Renew(one.Hold, one.Version))
			if err != nil && !errors.Is(err, lock.ErrDamaged) {
				return err
			}
			if ok {
				found++
			}
		}
		return nil
	})
	return found, permanent(err)
}

// Requests selects by primary key, and only rows with a value in more: other rows have no request.
func (s *store) Requests(ctx context.Context, names []string) (asked map[lock.HoldID]string, err error) {
	list, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	asked = make(map[lock.HoldID]string)
	err = s.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		rows, err := tx.Query("SELECT "+columns+" FROM json_each(?) CROSS JOIN locks ON name = value WHERE more IS NOT NULL", string(list))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scan(rows.Scan)
			if err != nil && !errors.Is(err, lock.ErrDamaged) {
				return err
			}
			for _, h := range r.Holds() {
				if h.Asked != "" {
					asked[h.ID] = h.Asked
				}
			}
		}
		return rows.Err()
	})
	return asked, permanent(err)
}

// Confirm is synced: it may confirm a grant whose answer was lost, and may raise the token.
func (s *store) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (int64, bool, error) {
	return transition.Token(s.do(ctx, s.db.Write, name, transition.Confirm(h, floor, v)))
}

// Release is not synced.
func (s *store) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	ok, _, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Release(h, v))
	return ok, err
}

// Expire is not synced.
func (s *store) Expire(ctx context.Context, name string, e lock.Entry, v lock.Version) (bool, error) {
	ok, _, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Expire(e, v))
	return ok, err
}

// Ask is not synced.
func (s *store) Ask(ctx context.Context, name string, h lock.Hold, why string) (bool, error) {
	ok, _, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Ask(h, why))
	return ok, err
}

// Force is synced: it raises the token.
func (s *store) Force(ctx context.Context, name string, h lock.Hold, why string, v lock.Version) (bool, error) {
	ok, _, err := s.do(ctx, s.db.Write, name, transition.Force(h, why, v))
	return ok, err
}

// Enqueue is not synced.
func (s *store) Enqueue(ctx context.Context, name string, e lock.Entry) (lock.Record, bool, error) {
	ok, r, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Enqueue(e))
	if !ok {
		r = lock.Record{}
	}
	return r, ok, err
}

// RenewPlace is not synced.
func (s *store) RenewPlace(ctx context.Context, name string, e lock.Entry) (bool, error) {
	ok, _, err := s.do(ctx, s.db.WriteRelaxed, name, transition.RenewPlace(e))
	return ok, err
}

// Dequeue is not synced.
func (s *store) Dequeue(ctx context.Context, name string, id lock.HoldID, seen lock.Version) (bool, error) {
	ok, _, err := s.do(ctx, s.db.WriteRelaxed, name, transition.Dequeue(id, seen))
	return ok, err
}

// RemoveDamaged is synced.
func (s *store) RemoveDamaged(ctx context.Context, name string) (ok bool, err error) {
	err = s.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		if _, _, err := get(tx, name); !errors.Is(err, lock.ErrDamaged) {
			return err
		}
		_, err := tx.Exec("DELETE FROM locks WHERE name = ?", name)
		ok = err == nil
		return err
	})
	return ok && err == nil, permanent(err)
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
			if errors.As(err, &r.Damaged) {
				r = lock.Record{Name: r.Name, Damaged: r.Damaged}
			} else if err != nil {
				return err
			}
			list = append(list, r)
		}
		return rows.Err()
	})
	return list, permanent(err)
}

func (s *store) Close() error { return s.close() }

// put writes the row of a record.
func put(tx *sqlitedb.Tx, r lock.Record) error {
	var (
		hold = make([]any, 9) // null: free
		text any
		m    = more{Shares: r.Shares, Queue: r.Queue, Forced: r.Forced}
	)
	if h := r.Hold; h != nil {
		hold = []any{h.ID[:], h.Lease.Milliseconds(), h.Owner.Host, h.Owner.PID, h.Owner.Instance, h.Owner.Boot,
			h.Owner.PIDNamespace, h.Owner.Started, h.Why}
		m.Asked = h.Asked
	}
	if m.Asked != "" || len(m.Shares) > 0 || len(m.Queue) > 0 || m.Forced != nil {
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		text = string(b)
	}
	args := append([]any{r.Name, r.Token, r.Version[:]}, hold...)
	_, err := tx.Exec(`INSERT OR REPLACE INTO locks (name, token, version, hold_id, lease_ms, host, pid, instance, boot,
		pid_namespace, started, why, since_us, at_us, more) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		append(args, r.Since.UnixMicro(), r.At.UnixMicro(), text)...)
	return err
}

// scan decodes a row, which may have been written by another program. Name is set even if the error is a
// lock.DamagedError.
func scan(into func(...any) error) (r lock.Record, err error) {
	var (
		version, id   []byte
		ms, since, at int64
		h             lock.Hold
		text          string
		m             more
	)
	err = into(&r.Name, &r.Token, &version, &id, &ms, &h.Owner.Host, &h.Owner.PID, &h.Owner.Instance, &h.Owner.Boot,
		&h.Owner.PIDNamespace, &h.Owner.Started, &h.Why, &since, &at, &text)
	if err != nil {
		return r, err
	}
	if text != "" {
		err = json.Unmarshal([]byte(text), &m)
	}
	if err != nil || len(version) != len(r.Version) || id != nil && len(id) != len(h.ID) || ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return r, &lock.DamagedError{Name: r.Name, Cause: fmt.Errorf("version of %d bytes, hold of %d, lease of %d ms, more %q", len(version), len(id), ms, text)}
	}
	copy(r.Version[:], version)
	if id != nil {
		copy(h.ID[:], id)
		h.Lease, h.Asked = time.Duration(ms)*time.Millisecond, m.Asked
		r.Hold = &h
	}
	r.Shares, r.Queue, r.Forced = m.Shares, m.Queue, m.Forced
	r.Since, r.At = time.UnixMicro(since), time.UnixMicro(at)
	return r, nil
}

// permanent marks the errors that a retry cannot fix and that mean that nothing was written.
func permanent(err error) error {
	for _, kind := range []error{sqlitedb.ErrClosed, sqlitedb.ErrReplaced, sqlitedb.ErrReadOnly, sqlitedb.ErrPermission, sqlitedb.ErrNotDatabase,
		sqlitedb.ErrForeign, sqlitedb.ErrNewerSchema, sqlitedb.ErrCorrupt, sqlitedb.ErrUnsafeFileSystem} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%w (%w)", err, lock.ErrPermanent)
		}
	}
	return err
}
