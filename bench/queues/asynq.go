package queues

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/bench/internal/messages"
)

const asynqHow = "Enqueue, one at a time as there is no other way, "

// asynq is Asynq on its own Redis.
func (b *bench) asynq(ctx context.Context, ends *[]func() error) ([]*peer, string, error) {
	list := []*peer{
		{name: "Asynq, 1 worker", short: "Asynq 1", how: asynqHow + "from one goroutine; Concurrency 1", n: b.sized(500, 20)},
		{name: "Asynq, 100 workers", short: "A. 100", how: asynqHow + "from 100 goroutines; Concurrency 100; no order", n: b.sized(5000, 200)},
		{name: "Asynq, 100 workers, everysec", short: "A. 1 s", how: "as above; a crash of the machine loses up to a second of what was confirmed", n: b.sized(5000, 200)},
	}
	rs, err := startRedis(ctx, b.o.Dir, func(ctx context.Context, addr string) error {
		c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		defer c.Close()
		return c.Ping(ctx).Err()
	})
	if err != nil {
		return list, "", err
	}
	*ends = append(*ends, func() error { rs.stop(); return nil })
	for i, terms := range []struct {
		workers int
		fsync   string
	}{{1, "always"}, {100, "always"}, {100, "everysec"}} {
		if err := b.asynqPeer(ctx, list[i], fmt.Sprintf("q%d", i), rs.addr, terms.workers, terms.fsync, ends); err != nil {
			return list, "", err
		}
	}
	return list, "Redis " + rs.version + ", appendonly yes, appendfsync always where not said otherwise", nil
}

// asynqPeer completes a peer. Each has its own queue.
func (b *bench) asynqPeer(ctx context.Context, p *peer, name, addr string, workers int, fsync string, ends *[]func() error) error {
	opt := asynq.RedisClientOpt{Addr: addr, PoolSize: workers + 5}
	client, inspector, admin := asynq.NewClient(opt), asynq.NewInspector(opt), redis.NewClient(&redis.Options{Addr: addr})
	j, err := messages.OpenJournal(b.o.Dir, "asynq-"+name)
	if err != nil {
		return err
	}
	*ends = append([]func() error{func() error { return errors.Join(client.Close(), inspector.Close(), admin.Close(), j.F.Close()) }}, *ends...)
	p.check = checkUnordered(j)
	appendTo := newGroupFile(j).append
	if workers == 1 {
		p.check, appendTo = checkOrdered(j), j.Append
	}
	next := 0
	p.publish = func(n int) error {
		if err := admin.ConfigSet(ctx, "appendfsync", fsync).Err(); err != nil {
			return err
		}
		var g errgroup.Group
		g.SetLimit(workers)
		for range n {
			task := asynq.NewTask("append", messages.Payload(next))
			next++
			g.Go(func() error {
				_, err := client.EnqueueContext(ctx, task, asynq.Queue(name))
				return err
			})
		}
		return g.Wait()
	}
	p.drain = func(n int) (stop func(), err error) {
		var handled atomic.Int64
		srv := asynq.NewServer(opt, asynq.Config{Concurrency: workers, Queues: map[string]int{name: 1}, LogLevel: asynq.FatalLevel})
		err = srv.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
			defer handled.Add(1)
			return appendTo(t.Payload())
		}))
		if err != nil {
			return func() {}, err
		}
		// Handled, and gone from Redis, which is only queried once that is possible.
		for begin := time.Now(); ; {
			if handled.Load() >= int64(n) {
				info, err := inspector.GetQueueInfo(name)
				if err != nil || info.Size == 0 {
					return srv.Shutdown, err
				}
			}
			if time.Since(begin) > patience {
				return srv.Shutdown, fmt.Errorf("%d of %d were handled within %v", handled.Load(), n, patience)
			}
			if err := pauseBriefly(ctx); err != nil {
				return srv.Shutdown, err
			}
		}
	}
	return nil
}
