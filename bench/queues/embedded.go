package queues

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// embedded compares Fencepost without a server with the least that SQLite could do: one table, accessed by its key.
type embedded struct {
	drain, publish timed
}

// newEmbedded makes a place for Fencepost on SQLite.
func (b *bench) newEmbedded(ctx context.Context, name string) (*place, error) {
	e, err := messages.OpenEmbedded(ctx, filepath.Join(b.o.Dir, name))
	if err != nil {
		return nil, err
	}
	b.server.Keep(e)
	return &place{e}, nil
}

// bareSQLite is the bare loop's table.
type bareSQLite struct {
	db   *sqlitedb.DB
	j    *messages.Journal
	next int // message to be loaded
	done int
}

func openBareSQLite(ctx context.Context, dir, name string) (*bareSQLite, error) {
	db, err := sqlitedb.Open(ctx, filepath.Join(dir, name+".db"), sqlitedb.Options{})
	if err != nil {
		return nil, err
	}
	j, err := messages.OpenJournal(dir, name)
	if err == nil {
		err = db.Migrate(ctx, `CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT`)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &bareSQLite{db: db, j: j}, nil
}

func (s *bareSQLite) close() error { return errors.Join(s.db.Close(), s.j.F.Close()) }

// publish inserts n rows, one batch per synced transaction.
func (s *bareSQLite) publish(ctx context.Context, n int) error {
	for end := s.next + n; s.next < end; {
		err := s.db.Write(ctx, func(tx *sqlitedb.Tx) error {
			for range min(messages.BatchSize, end-s.next) {
				if _, err := tx.Exec(`INSERT INTO bare (id, payload) VALUES (?, ?)`, s.next, messages.Payload(s.next)); err != nil {
					return err
				}
				s.next++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// drain selects a batch, writes it, syncs it and deletes it, the deletion not synced, until it has drained most messages or nothing is
// left. It calls committed after each batch, if that is not nil.
func (s *bareSQLite) drain(ctx context.Context, most int, committed func(n int)) error {
	end := s.done + most
	for last := s.done - 1; last+1 < end; {
		var buf []byte
		first := last + 1
		err := s.db.Read(ctx, func(tx *sqlitedb.Tx) error {
			rows, err := tx.Query(`SELECT id, payload FROM bare WHERE id > ? ORDER BY id LIMIT ?`, last, min(messages.BatchSize, end-first))
			if err != nil {
				return err
			}
			for rows.Next() {
				var p []byte
				if err := rows.Scan(&last, &p); err != nil {
					return err
				}
				buf = append(buf, p...)
			}
			return rows.Err()
		})
		if err != nil || len(buf) == 0 {
			return err
		}
		if err := s.j.Append(buf); err != nil {
			return err
		}
		err = s.db.WriteRelaxed(ctx, func(tx *sqlitedb.Tx) error {
			_, err := tx.Exec(`DELETE FROM bare WHERE id BETWEEN ? AND ?`, first, last)
			return err
		})
		if err != nil {
			return err
		}
		s.done = last + 1
		if committed != nil {
			committed(s.done - first)
		}
	}
	return nil
}

func (b *bench) measureEmbedded(ctx context.Context) (e embedded, err error) {
	n := b.sized(20_000, 2000)
	bare, err := openBareSQLite(ctx, b.o.Dir, "bare")
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, bare.close()) }()
	ours, err := b.newEmbedded(ctx, "embedded")
	if err != nil {
		return e, err
	}
	publisher, err := queue.NewPublisher(ctx, ours.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()

	e = embedded{drain: timed{n: n, times: measure.Times{}}, publish: timed{n: n, times: measure.Times{}}}
	note := func(t *timed, name string, f func() error) error {
		begin := time.Now()
		err := f()
		t.times[name] = append(t.times[name], []time.Duration{time.Since(begin)})
		return err
	}
	for range b.o.Rounds {
		for _, err := range []error{
			note(&e.publish, nameBare, func() error { return bare.publish(ctx, n) }),
			note(&e.publish, nameFencepost, func() error { return ours.publishAll(ctx, publisher, n) }),
			note(&e.drain, nameBare, func() error { return bare.drain(ctx, n, nil) }),
			note(&e.drain, nameFencepost, func() error { return ours.Drain(ctx, oneType) }),
			messages.Complete("what the bare SQLite loop drained", bare.done, bare.next),
		} {
			if err != nil {
				return e, err
			}
		}
		if err := ctx.Err(); err != nil {
			return e, err
		}
	}
	return e, errors.Join(bare.j.Check(bare.next), ours.Verify(ctx))
}

// windows per round: windows are short.
const windows = 7

// measureEmbeddedBacklog is measureBacklog without a server. The bare loop and Fencepost each have a big backlog, as their tables differ.
func (b *bench) measureEmbeddedBacklog(ctx context.Context) (l backlog, err error) {
	l = b.newBacklog()
	rounds := b.few()
	all := l.big + rounds*windows*2*l.window // leaves at least l.big
	bare, ours, publishers := map[string]*bareSQLite{}, map[string]*place{}, map[string]*queue.Publisher{}
	for _, size := range []string{small, big} {
		if bare[size], err = openBareSQLite(ctx, b.o.Dir, "backlog_bare_"+size); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, bare[size].close()) }()
		if ours[size], err = b.newEmbedded(ctx, "backlog_embedded_"+size); err != nil {
			return l, err
		}
		if publishers[size], err = queue.NewPublisher(ctx, ours[size].Backend.Queue, queue.PublisherOptions{}); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, publishers[size].Close(context.WithoutCancel(ctx))) }()
	}
	publish := func(size string, n int) error {
		return errors.Join(bare[size].publish(ctx, n), ours[size].publishAll(ctx, publishers[size], n))
	}
	if err := publish(big, all); err != nil {
		return l, err
	}
	for range rounds {
		took := map[string]float64{} // seconds, in all windows of the round
		for range windows {
			if err := publish(small, l.small); err != nil {
				return l, err
			}
			for _, size := range []string{small, big} {
				c := newClocked(l.window)
				if err := bare[size].drain(ctx, l.window, c.note); err != nil {
					return l, err
				}
				rate, err := ours[size].fencepostWindow(ctx, oneType, l.window)
				if err != nil {
					return l, err
				}
				took[nameBare+size] += 1 / c.rate
				took[nameFencepost+size] += 1 / rate
			}
			if err := errors.Join(bare[small].drain(ctx, l.small, nil), ours[small].Drain(ctx, oneType)); err != nil {
				return l, err
			}
		}
		for name, t := range took {
			l.rates[name] = append(l.rates[name], windows/t)
		}
	}
	l.taken = ours[big].Drained[oneType]
	l.left = all - l.taken
	for _, size := range []string{small, big} {
		err = errors.Join(err, bare[size].j.Check(bare[size].done), ours[size].Verify(ctx))
	}
	return l, err
}
