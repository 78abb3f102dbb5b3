package sqlitequeue

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// RegisterType implements queue.Queue. It writes only if the type is new.
func (q *Queue) RegisterType(ctx context.Context, typ string) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	known := false
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) (err error) {
		var one int
		known, err = tx.Get([]any{&one}, `SELECT 1 FROM queue_types WHERE type = ?`, typ)
		return err
	})
	if err == nil && !known {
		err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
			_, err := tx.Exec(`INSERT OR IGNORE INTO queue_types (type) VALUES (?)`, typ)
			return err
		})
	}
	return explain("register type "+typ, err)
}

// Types implements queue.Queue: the registered ones and a skip scan of two tables.
func (q *Queue) Types(ctx context.Context) ([]string, error) {
	found := map[string]bool{}
	var strays [4]queue.Strays
	err := q.db.Read(ctx, func(tx *sqlitedb.Tx) (err error) {
		for i, look := range []struct {
			table string
			find  func(tx *sqlitedb.Tx, table string, found map[string]bool) (queue.Strays, error)
		}{{"queue_types", listed}, {"queue_files", listed}, {"queue_messages", skipScan}, {"queue_dead", skipScan}} {
			if strays[i], err = look.find(tx, look.table, found); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain("list types", err)
	}
	for _, s := range strays {
		q.strays.Set(s)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// listed adds the types that have a row in a table.
func listed(tx *sqlitedb.Tx, table string, found map[string]bool) (queue.Strays, error) {
	strays := straysOf(table, "rows with an invalid type name", noType)
	rows, err := tx.Query(`SELECT type FROM ` + table)
	if err != nil {
		return strays, err
	}
	return strays, addTypes(rows, found, &strays)
}

// addTypes adds the valid type names to found. It counts the others as strays: rows that other
// programs stored under invalid names can never be served.
func addTypes(rows *sql.Rows, found map[string]bool, strays *queue.Strays) error {
	defer rows.Close()
	for rows.Next() {
		var typ string
		if err := rows.Scan(&typ); err != nil {
			return err
		}
		if queue.ValidateType(typ) == nil {
			found[typ] = true
		} else {
			queuedriver.CountStray(strays, typ)
		}
	}
	return rows.Err()
}

// RegistryEntry implements queue.Queue.
func (q *Queue) RegistryEntry(ctx context.Context, typ string) (f queue.RegistryEntry, ok bool, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	err = q.db.Read(ctx, func(tx *sqlitedb.Tx) error {
		f, ok, err = readFile(tx, typ)
		return err
	})
	if err != nil {
		return queue.RegistryEntry{}, false, explain("read the file entry of "+typ, err)
	}
	return f, ok, nil
}

// readFile reads a registry entry. Another program may have written it: an identity of the wrong length is queue.ErrDamaged.
func readFile(tx *sqlitedb.Tx, typ string) (f queue.RegistryEntry, ok bool, err error) {
	var id []byte
	var generation, epoch, index int64
	ok, err = tx.Get([]any{&id, &generation, &epoch, &index, &f.Place}, `SELECT file_id, generation, epoch, durable_index, place FROM queue_files WHERE type = ?`, typ)
	if err != nil || !ok {
		return queue.RegistryEntry{}, false, err
	}
	if len(id) != len(f.FileID) {
		return queue.RegistryEntry{}, false, fmt.Errorf("%w: file_id has %d bytes, want %d; repair the row %q in the table queue_files, or remove it: the next worker "+
			"registers the file again", queue.ErrDamaged, len(id), len(f.FileID), typ)
	}
	copy(f.FileID[:], id)
	f.Generation, f.Epoch, f.DurableIndex = uint64(max(generation, 1)), uint64(max(epoch, 0)), uint64(max(index, 0))
	f.Place = f.Place[:min(len(f.Place), queue.MaxPlace)]
	return f, true, nil
}

// RegisterFile implements queue.Queue: insert or read in one transaction, synced.
func (q *Queue) RegisterFile(ctx context.Context, typ string, f queue.RegistryEntry) (registered queue.RegistryEntry, err error) {
	if err := checkFile(typ, f); err != nil {
		return queue.RegistryEntry{}, err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec(`INSERT OR IGNORE INTO queue_files (type, file_id, generation, epoch, durable_index, place) VALUES (?, ?, ?, ?, ?, ?)`,
			typ, f.FileID[:], int64(max(f.Generation, 1)), int64(f.Epoch), int64(f.DurableIndex), f.Place); err != nil {
			return err
		}
		registered, _, err = readFile(tx, typ)
		return err
	})
	if err != nil {
		return queue.RegistryEntry{}, explain("register the file of "+typ, err)
	}
	return registered, nil
}

// UpdateFile implements queue.Queue: one update by type and file_id, synced. It matches no row if no
// file is registered, or another one.
func (q *Queue) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (updated bool, err error) {
	if err := checkFile(typ, f); err != nil {
		return false, err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		n, err := tx.Exec(`UPDATE queue_files SET epoch = max(epoch, ?), durable_index = max(durable_index, ?), place = coalesce(nullif(?, ''), place)
			WHERE type = ? AND file_id = ?`, int64(f.Epoch), int64(f.DurableIndex), f.Place, typ, f.FileID[:])
		updated = n == 1
		return err
	})
	if err != nil {
		return false, explain("update the file entry of "+typ, err)
	}
	return updated, nil
}

// AckFile implements queue.Queue: one update by type, file_id and epoch, and the deletions, in one
// transaction. It is not synced: a power failure undoes both or none.
func (q *Queue) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (ok bool, err error) {
	if err := checkFile(typ, f); err != nil {
		return false, err
	}
	err = q.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
		n, err := tx.Exec(`UPDATE queue_files SET epoch = ?, durable_index = max(durable_index, ?) WHERE type = ? AND file_id = ? AND epoch <= ?`,
			int64(f.Epoch), int64(f.DurableIndex), typ, f.FileID[:], int64(f.Epoch))
		// rule: nothing is removed for a writer that is not the registered one.
		if ok = n == 1; err != nil || !ok {
			return err
		}
		return deleteMessages(tx, typ, ids)
	})
	if err != nil {
		return false, explain("ack "+typ, err)
	}
	return ok, nil
}

// SucceedFile implements queue.Queue: update and read in one transaction, synced.
func (q *Queue) SucceedFile(ctx context.Context, typ string, old [16]byte, f queue.RegistryEntry) (now queue.RegistryEntry, ok bool, err error) {
	if err := checkFile(typ, f); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	err = q.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec(`UPDATE queue_files SET file_id = ?, generation = ?, epoch = max(epoch, ?), durable_index = max(durable_index, ?),
			place = coalesce(nullif(?, ''), place) WHERE type = ? AND file_id IN (?, ?)`,
			f.FileID[:], int64(max(f.Generation, 1)), int64(f.Epoch), int64(f.DurableIndex), f.Place, typ, old[:], f.FileID[:]); err != nil {
			return err
		}
		now, ok, err = readFile(tx, typ)
		return err
	})
	if err != nil {
		return queue.RegistryEntry{}, false, explain("replace the file entry of "+typ, err)
	}
	return now, ok, nil
}

// checkFile refuses values that do not fit into the signed integers of SQLite.
func checkFile(typ string, f queue.RegistryEntry) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if max(f.Generation, f.Epoch, f.DurableIndex) > math.MaxInt64 {
		return fmt.Errorf("sqlitequeue: file of %s: generation %d, epoch %d or durable index %d exceeds 63 bits", typ, f.Generation, f.Epoch, f.DurableIndex)
	}
	return nil
}
