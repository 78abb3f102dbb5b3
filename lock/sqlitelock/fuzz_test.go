package sqlitelock

import (
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/lock"
)

// FuzzRecord: rows of locks, including rows written by other programs. A row that cannot be decoded is reported as damaged, with its name; a
// decoded row is written to a database and must be read back unchanged.
func FuzzRecord(f *testing.F) {
	opened, err := Open(f.Context(), filepath.Join(f.TempDir(), "locks.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { opened.Close() })
	db := opened.(*store).db
	id, version := []byte("0123456789ab"), []byte("ba9876543210")
	const hex = "000102030405060708090a0b"
	for _, text := range []string{"", `{}`, `{"Asked":"please"}`, `null`, `[`, `{"Shares":[{"ID":"` + hex + `","Lease":20000000000,"Owner":{"Host":"h"},"Permits":3,"Version":"` + hex + `"}]}`,
		`{"Queue":[{"ID":"00"}]}`, `{"Queue":[{}]}`, `{"Forced":{"ID":"` + hex + `","Why":"by hand"}}`, `{"Queue":[]}`, `{"Shares":[null]}`} {
		f.Add(int64(7), version, id, int64(20_000), "h", int64(4711), "i", "why", int64(1_700_000_000_000_000), text)
	}
	f.Add(int64(7), version, []byte(nil), int64(0), "", int64(0), "", "", int64(0), "")
	f.Add(int64(7), version, id, int64(math.MaxInt64/3), "h", int64(1), "", "", int64(0), "")
	f.Add(int64(7), []byte("short"), id, int64(math.MaxInt64), "\xff", int64(-1), "\x00", "", int64(math.MinInt64), "")
	f.Fuzz(func(t *testing.T, token int64, version, id []byte, ms int64, host string, pid int64, instance, why string, at int64, text string) {
		if len(id) == 0 {
			id = nil // free
		}
		r, err := scan(func(into ...any) error {
			for i, v := range []any{"orders", token, version, id, ms, host, int(pid), instance, "boot", "ns", "started", why, at, at, text} {
				reflect.ValueOf(into[i]).Elem().Set(reflect.ValueOf(v))
			}
			return nil
		})
		if err != nil {
			var damaged *lock.DamagedError
			if !errors.As(err, &damaged) || damaged.Name != "orders" || damaged.Cause == nil {
				t.Fatalf("%v", err)
			}
			return
		}
		var again lock.Record
		if err := db.WriteRelaxed(t.Context(), func(tx *sqlitedb.Tx) (err error) {
			if err := put(tx, r); err != nil {
				return err
			}
			again, _, err = get(tx, "orders")
			return err
		}); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if !reflect.DeepEqual(withNil(again), withNil(r)) {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

// withNil returns r with nil for empty lists, and its times as stored.
func withNil(r lock.Record) lock.Record {
	if len(r.Shares) == 0 {
		r.Shares = nil
	}
	if len(r.Queue) == 0 {
		r.Queue = nil
	}
	r.Since, r.At = time.UnixMicro(r.Since.UnixMicro()), time.UnixMicro(r.At.UnixMicro())
	return r
}
