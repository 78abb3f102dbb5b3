package sqlitequeue_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

func benchIDs(from, n int) []queue.Message {
	msgs := make([]queue.Message, n)
	for i := range msgs {
		p := make([]byte, 256)
		binary.LittleEndian.PutUint64(p, uint64(from+i))
		msgs[i] = queue.Message{ID: queue.NewID(time.UnixMilli(1_700_000_000_000), 7, uint64(from+i+1)), Payload: p}
	}
	return msgs
}

// One process, batches of 1000 messages of 256 bytes, against the same rows with bare statements on the same database
// layer. Both are synced.
func BenchmarkInsert(b *testing.B) {
	const batch = 1000
	b.Run("queue", func(b *testing.B) {
		q := open(b, filepath.Join(b.TempDir(), "queue.db"))
		for n := 0; n < b.N; n += batch {
			if err := q.Insert(b.Context(), "orders", benchIDs(n, batch)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("bare", func(b *testing.B) {
		db, err := sqlitedb.Open(b.Context(), filepath.Join(b.TempDir(), "bare.db"), sqlitedb.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		if err := db.Migrate(b.Context(), `CREATE TABLE bare (id BLOB PRIMARY KEY, payload BLOB)`); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < b.N; n += batch {
			err := db.Write(b.Context(), func(tx *sqlitedb.Tx) error {
				for _, m := range benchIDs(n, batch) {
					if _, err := tx.Exec(`INSERT INTO bare (id, payload) VALUES (?, ?)`, m.ID[:], m.Payload); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}

func BenchmarkFetchAck(b *testing.B) {
	const batch = 1000
	q := open(b, filepath.Join(b.TempDir(), "queue.db"))
	for n := 0; n < b.N; n += batch {
		if err := q.Insert(b.Context(), "orders", benchIDs(n, batch)); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	total := 0
	for after := (queue.ID{}); ; {
		msgs, err := q.Fetch(b.Context(), "orders", after, queue.Limit{Messages: batch})
		if err != nil {
			b.Fatal(err)
		}
		if len(msgs) == 0 {
			break
		}
		ids := make([]queue.ID, len(msgs))
		for i := range msgs {
			ids[i] = msgs[i].ID
		}
		if err := q.Ack(b.Context(), "orders", ids); err != nil {
			b.Fatal(err)
		}
		total += len(msgs)
		after = ids[len(ids)-1]
	}
	b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "msg/s")
}

// Several publishing processes and a concurrent one that drains, all on one file: msg/s is end to end.
func BenchmarkProcesses(b *testing.B) {
	for _, publishers := range []int{1, 3} {
		b.Run(fmt.Sprintf("%d+1", publishers), func(b *testing.B) {
			const total = 30_000
			for range b.N {
				path := filepath.Join(b.TempDir(), "queue.db")
				q := open(b, path)
				done := make(chan struct{})
				var running sync.WaitGroup
				for i := range publishers {
					cmd, out := startPublisher(b, path, fmt.Sprint("p", i), total/publishers, 256)
					running.Go(func() {
						_, _ = io.Copy(io.Discard, out)
						if err := cmd.Wait(); err != nil {
							b.Error(err)
						}
					})
				}
				go func() { running.Wait(); close(done) }()
				got := 0
				for _, list := range drain(b, q, done) {
					got += len(list)
				}
				if got != total {
					b.Fatalf("%d messages arrived", got)
				}
			}
			b.ReportMetric(float64(b.N)*total/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
