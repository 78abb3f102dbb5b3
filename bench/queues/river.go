package queues

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/server"
)

// riverArgs is a message as a job of River: JSON, so the payload is in base64.
type riverArgs struct {
	Payload []byte `json:"payload"`
}

func (riverArgs) Kind() string { return "append" }

// riverWorker handles a job: it is durable in the file before River learns that it is done.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	append func([]byte) error
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	return w.append(job.Args.Payload)
}

const riverHow = "InsertManyFast, batches of 1000; "

// river is River on its own PostgreSQL: one worker, which keeps the order, and a hundred.
func (b *bench) river(ctx context.Context, ends *[]func() error) ([]*peer, string, error) {
	one := &peer{name: "River, 1 worker", short: "River 1", how: riverHow + "MaxWorkers 1, FetchCooldown 1 ms (at the default of 100 ms it takes ten jobs a second)", n: b.sized(500, 20)}
	many := &peer{name: "River, 100 workers", short: "River 100", how: riverHow + "MaxWorkers 100, FetchCooldown 1 ms; no order", n: b.sized(5000, 200)}
	list := []*peer{one, many}
	pg, err := startPostgres(ctx, b.o.Dir, func(ctx context.Context, url string) error {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		return pool.Ping(ctx)
	})
	if err != nil {
		return list, "", err
	}
	*ends = append(*ends, func() error { pg.stop(); return nil })
	for i, workers := range []int{1, 100} {
		if err := b.riverPeer(ctx, list[i], pg.url, workers, ends); err != nil {
			return list, "", err
		}
	}
	return list, "PostgreSQL " + pg.version + ", fsync and synchronous_commit on", nil
}

// riverPeer completes a peer. Each has its own schema.
func (b *bench) riverPeer(ctx context.Context, p *peer, url string, workers int, ends *[]func() error) error {
	schema := fmt.Sprintf("bench%d", workers)
	db, err := pgxpool.New(ctx, url+"&search_path="+schema)
	if err != nil {
		return err
	}
	*ends = append([]func() error{func() error { db.Close(); return nil }}, *ends...) // before the server is stopped
	if _, err := db.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		return err
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(riverpgxv5.New(db), &rivermigrate.Config{Schema: schema, Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	j, err := messages.OpenJournal(b.o.Dir, "river-"+schema)
	if err != nil {
		return err
	}
	*ends = append(*ends, j.F.Close)
	p.check = checkUnordered(j)
	appendTo := newGroupFile(j).append
	if workers == 1 {
		p.check, appendTo = checkOrdered(j), j.Append
	}
	client := func() (*river.Client[pgx.Tx], error) {
		w := river.NewWorkers()
		river.AddWorker(w, &riverWorker{append: appendTo})
		return river.NewClient(riverpgxv5.New(db), &river.Config{
			Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
			Workers:       w,
			FetchCooldown: time.Millisecond,
			Schema:        schema,
			Logger:        quiet,
		})
	}
	next := 0
	p.publish = func(n int) error {
		c, err := client()
		if err != nil {
			return err
		}
		for end := next + n; next < end; {
			jobs := make([]river.InsertManyParams, min(messages.BatchSize, end-next))
			for i := range jobs {
				jobs[i].Args = riverArgs{messages.Payload(next)}
				next++
			}
			if _, err := c.InsertManyFast(ctx, jobs); err != nil {
				return err
			}
		}
		return nil
	}
	p.drain = func(n int) (stop func(), err error) {
		stop = func() {}
		c, err := client()
		if err != nil {
			return stop, err
		}
		ended, cancel := c.SubscribeConfig(&river.SubscribeConfig{Kinds: []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed}, ChanSize: n + 1})
		if err := c.Start(ctx); err != nil {
			cancel()
			return stop, err
		}
		stop = func() {
			defer cancel()
			end, cancelEnd := server.Undisturbed(ctx)
			defer cancelEnd()
			_ = c.Stop(end) // all its jobs are completed, or the run fails anyway
		}
		for range n {
			select {
			case e := <-ended:
				if e.Kind != river.EventKindJobCompleted {
					return stop, errors.New("a job failed")
				}
			case <-time.After(patience):
				return stop, fmt.Errorf("nothing was completed for %v", patience)
			case <-ctx.Done():
				return stop, ctx.Err()
			}
		}
		return stop, nil
	}
	return nil
}
