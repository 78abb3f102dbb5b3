package types

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/worker"
)

// replica is a pool with its own connections, whose commands are counted.
type replica struct {
	queue      queue.Queue
	locker     *lock.Locker
	close      func(context.Context) error
	ofQueue    server.Sent
	ofLock     *server.Sent // nil: there are no commands
	dir        string
	pool       *worker.Pool
	poolsError chan error
}

// names returns the first n types.
func names(n int) []string {
	types := make([]string, n)
	for i := range types {
		types[i] = fmt.Sprintf("t%05d", i)
	}
	return types
}

func (r *replica) obey(ctx context.Context, o order) (a answer, err error) {
	switch o.Do {
	case doOpen:
		r.dir = o.Dir
		return a, r.open(ctx, o.URL)
	case doStart:
		// Types must stay held while that is measured.
		return a, r.start(ctx, worker.Config{Types: names(o.Types), IdleTimeout: time.Hour})
	case doDrain:
		before := r.kinds()
		if err := r.start(ctx, worker.Config{Types: names(o.Types), UntilEmpty: true}); err != nil {
			return a, err
		}
		err := <-r.poolsError
		a = answer{Appended: int(r.pool.Stats().Appended), Kinds: r.kinds()}
		for kind, n := range before {
			a.Kinds[kind] -= n
		}
		return a, err
	case doSample:
		return r.sample(), nil
	case doCount:
		return answer{Appended: int(r.pool.Stats().Appended)}, nil
	case doMemory:
		return answer{Memory: memory()}, nil
	case doStop:
		r.pool.Stop()
		return a, <-r.poolsError
	case doClose:
		return a, r.close(ctx)
	}
	return a, fmt.Errorf("unknown order %q", o.Do)
}

func (r *replica) start(ctx context.Context, c worker.Config) (err error) {
	c.Queue, c.Locker, c.To = r.queue, r.locker, worker.Files{Dir: r.dir}
	if r.pool, err = worker.New(c); err != nil {
		return err
	}
	r.poolsError = make(chan error, 1)
	go func() { r.poolsError <- r.pool.Run(ctx) }()
	return nil
}

func (r *replica) open(ctx context.Context, url string) error {
	if strings.HasPrefix(url, "sqlite:") {
		b, err := fencepost.Open(ctx, url)
		if err != nil {
			return err
		}
		r.queue, r.locker, r.close = b.Queue, b.Locker, b.Close
		return nil
	}
	q, err := mongoqueue.Open(ctx, url, mongoqueue.Options{Monitor: r.ofQueue.Monitor()})
	if err != nil {
		return err
	}
	client, sent, err := server.Dial(url)
	if err != nil {
		return errors.Join(err, q.Close())
	}
	store, err := mongolock.New(ctx, client.Database(q.Database()), mongolock.Options{})
	if err == nil {
		r.locker, err = lock.New(store, lock.Options{})
	}
	if err != nil {
		return errors.Join(err, q.Close(), client.Disconnect(ctx))
	}
	r.queue, r.ofLock = q, sent
	r.close = func(ctx context.Context) error {
		return errors.Join(r.locker.Close(ctx), q.Close(), client.Disconnect(ctx))
	}
	return nil
}

// kinds returns the commands so far by name and collection.
func (r *replica) kinds() map[string]int64 {
	kinds := map[string]int64{}
	maps.Copy(kinds, r.ofQueue.ByKind())
	if r.ofLock != nil {
		for kind, n := range r.ofLock.ByKind() {
			kinds[kind] += n
		}
	}
	return kinds
}

func (r *replica) sample() answer {
	a := answer{Queue: r.ofQueue.Load(), CPU: cpu()}
	if r.ofLock != nil {
		a.Lock = r.ofLock.Load()
	}
	for _, t := range r.pool.Status().Types {
		if t.Held {
			a.Held++
		}
	}
	return a
}

// cpu returns the seconds of processor time that this process has used.
func cpu() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// memory returns the bytes of heap and stacks that are in use.
func memory() uint64 {
	debug.FreeOSMemory() // collects garbage first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
