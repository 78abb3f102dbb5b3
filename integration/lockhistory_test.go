package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/lock/sqlitelock"
)

const (
	envLocks  = "FENCEPOST_INTEGRATION_LOCKS" // makes this test binary a process that locks; the URL of the store
	envClocks = "FENCEPOST_INTEGRATION_CLOCK" // "jumps": the process's wall clock jumps
	lockNames = 3
)

// monotonic returns the clock that all processes of a machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// openLocks opens the locks at a URL, without the rest of the backend.
func openLocks(ctx context.Context, backend string) (lock.Store, error) {
	if path, ok := strings.CutPrefix(backend, "sqlite://"); ok {
		return sqlitelock.Open(ctx, path)
	}
	u, err := url.Parse(backend)
	if err != nil {
		return nil, err
	}
	return mongolock.Open(ctx, backend, strings.Trim(u.Path, "/"), mongolock.Options{})
}

// unreliable loses answers and delays requests beyond their answers.
type unreliable struct {
	lock.Store
	late sync.WaitGroup
}

var errLost = errors.New("injected: the answer is lost")

func unreliably[T any](u *unreliable, ctx context.Context, op func(context.Context) (T, bool, error)) (T, bool, error) {
	var zero T
	switch rand.IntN(40) {
	case 0:
		op(ctx)
		return zero, false, errLost
	case 1:
		return zero, false, errLost
	case 2:
		u.late.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			op(ctx)
		})
		return zero, false, errLost
	}
	return op(ctx)
}

func (u *unreliable) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	return unreliably(u, ctx, func(ctx context.Context) (int64, bool, error) { return u.Store.Acquire(ctx, name, h, v) })
}

func (u *unreliable) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (int64, bool, error) {
	return unreliably(u, ctx, func(ctx context.Context) (int64, bool, error) { return u.Store.TakeOver(ctx, name, seen, h, v) })
}

func (u *unreliable) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	return unreliably(u, ctx, func(ctx context.Context) (string, bool, error) { return u.Store.Renew(ctx, name, h, v) })
}

func (u *unreliable) RenewMany(ctx context.Context, renewals []lock.Renewal) (int, error) {
	found, _, err := unreliably(u, ctx, func(ctx context.Context) (int, bool, error) {
		found, err := u.Store.(lock.BatchRenewer).RenewMany(ctx, renewals)
		return found, err == nil, err
	})
	return found, err
}

func (u *unreliable) Requests(ctx context.Context, names []string) (map[lock.HoldID]string, error) {
	return u.Store.(lock.BatchRenewer).Requests(ctx, names)
}

func (u *unreliable) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (int64, bool, error) {
	return unreliably(u, ctx, func(ctx context.Context) (int64, bool, error) { return u.Store.Confirm(ctx, name, h, floor, v) })
}

func (u *unreliable) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	_, ok, err := unreliably(u, ctx, func(ctx context.Context) (struct{}, bool, error) {
		ok, err := u.Store.Release(ctx, name, h, v)
		return struct{}{}, ok, err
	})
	return ok, err
}

// lockProcess acquires, holds and releases locks until it is told to end, and logs its operations to stdout. Its wall clock may
// jump by up to an hour.
func lockProcess(backend string) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); stop() }() // the parent closes it
	var store lock.Store
	for store == nil { // the process may be stopped while it connects
		var err error
		if store, err = openLocks(ctx, backend); err != nil && ctx.Err() != nil {
			return nil
		}
	}
	u := &unreliable{Store: store}
	recorder := locktest.Record(u, fmt.Sprint("pid ", os.Getpid()), monotonic, os.Stdout)
	wall := time.Now
	if os.Getenv(envClocks) == "jumps" {
		wall = func() time.Time { return time.Now().Add(time.Duration(rand.Int64N(int64(2*time.Hour))) - time.Hour) }
	}
	locker, err := lock.New(recorder, lock.Options{Lease: lock.MinLease, Wall: wall})
	if err != nil {
		return err
	}
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			for ctx.Err() == nil {
				useLock(ctx, locker)
			}
		})
	}
	g.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = locker.Close(closing)
	u.late.Wait()
	return err
}

// useLock performs the operations of a lock's users on one of the locks, in random order.
func useLock(ctx context.Context, l *lock.Locker) {
	n := rand.IntN(lockNames)
	name := fmt.Sprint("lock ", n)
	opts := []lock.Option{lock.WithWait(time.Duration(1 + rand.Int64N(int64(2*time.Second))))}
	if n == 0 {
		opts = append(opts, lock.WithPermits(2))
	}
	le, err := l.Acquire(ctx, name, opts...)
	if err != nil {
		time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
		return
	}
	switch rand.IntN(20) {
	case 0: // longer than the lease
		time.Sleep(2 * lock.MinLease)
	case 1:
		le.RaiseToken(ctx, le.Token()+rand.Int64N(100))
	case 2:
		l.ForceRelease(ctx, name, "test")
	default:
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
	}
	le.Release(ctx)
}

// lockUser is a running lockProcess.
type lockUser struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   kit.Buffer
	err   kit.Buffer
}

func startLockUser(t *testing.T, backend, clock string) *lockUser {
	t.Helper()
	u := &lockUser{cmd: exec.Command(os.Args[0])}
	u.cmd.Env = append(kit.Env(), envLocks+"="+backend, envClocks+"="+clock)
	u.cmd.Stdout, u.cmd.Stderr = &u.out, &u.err
	stdin, err := u.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	u.stdin = stdin
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.cmd.Process.Kill(); u.cmd.Wait() })
	return u
}

// TestLockHistoriesOfProcesses: several processes use the same locks while they are stopped for longer than their leases, killed
// and restarted, while answers are lost, requests arrive late, the server pauses and records are deleted. Their operations have an
// order in which every answer was correct, and tokens grow.
func TestLockHistoriesOfProcesses(t *testing.T) {
	t.Parallel() // it waits for most of its time
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		lockHistory(t, func() backend { return embedded(t) }, nil, false)
	})
	// A deleted record starts again with a token from the wall clock, which must not have been set back then.
	t.Run("mongodb, records deleted", func(t *testing.T) {
		t.Parallel()
		lockHistory(t, func() backend {
			uri, _ := mongotest.Fresh(t)
			return backend{url: uri}
		}, nil, true)
	})
	t.Run("mongodb, server paused", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("takes a server of its own; not with -short")
		}
		s := mongotest.NewServer(t)
		lockHistory(t, func() backend {
			uri, _ := s.Fresh(t)
			return backend{url: uri}
		}, s, false)
	})
}

// lockHistory plays histories until one exercises the locks enough: a machine or a server may be too busy.
func lockHistory(t *testing.T, fresh func() backend, server *mongotest.Server, deletions bool) {
	for range 8 {
		if playLockHistory(t, fresh(), server, deletions) {
			return
		}
	}
	t.Error("no history exercises the locks")
}

// playLockHistory reports whether the history exercises the locks.
func playLockHistory(t *testing.T, b backend, server *mongotest.Server, deletions bool) (exercised bool) {
	duration := 15 * time.Second
	if testing.Short() {
		duration = 8 * time.Second
	}
	var all []*lockUser
	users := make([]*lockUser, 4)
	launch := func(i int) {
		users[i] = startLockUser(t, b.url, map[bool]string{false: "jumps", true: "steady"}[deletions])
		all = append(all, users[i])
	}
	for i := range users {
		launch(i)
	}
	deleted := newDeleter(t, b, deletions)
	stops, kills, pauses := 0, 0, 0
	for end, turn := time.Now().Add(duration), 0; time.Now().Before(end); turn++ {
		u := rand.IntN(len(users))
		switch turn % 4 {
		case 0:
			users[u].cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration((0.5 + 2.5*rand.Float64()) * float64(lock.MinLease)))
			users[u].cmd.Process.Signal(syscall.SIGCONT)
			stops++
		case 1:
			users[u].cmd.Process.Kill()
			users[u].cmd.Wait()
			launch(u)
			kills++
		case 2:
			deleted.delete(fmt.Sprint("lock ", rand.IntN(lockNames)))
		case 3:
			if server == nil {
				continue
			}
			if err := server.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Second))))
			if err := server.Unpause(t.Context()); err != nil {
				t.Fatal(err)
			}
			pauses++
		}
		time.Sleep(time.Duration(rand.Int64N(int64(500 * time.Millisecond))))
	}
	for _, u := range users {
		u.stdin.Close()
	}
	for _, u := range users {
		if err := u.cmd.Wait(); err != nil {
			t.Errorf("a process ended with %v\n%s", err, tail(u.err.String(), 20))
		}
	}
	steps, err := locktest.ReadHistory(&deleted.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		s, err := locktest.ReadHistory(strings.NewReader(u.out.String()))
		if err != nil {
			t.Fatal(err)
		}
		steps = append(steps, s...)
	}
	v, err := locktest.Check(steps, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d processes, %d stopped, %d killed, %d pauses of the server, %d deletions: %d operations, %d grants, %d takeovers, %d unclear answers, undecided %v",
		len(all), stops, kills, pauses, deleted.n, v.Operations, v.Grants, v.TakenOver, v.Unclear, v.Undecided)
	if len(v.Undecided) > 1 {
		t.Errorf("it took too long to decide about %v", v.Undecided)
	}
	return v.Grants >= 30 && v.Unclear > 0 && kills+stops > 0 && (!deletions || deleted.n > 0)
}

// deleter deletes lock records, as an administrator, a sweep, or a restored backup does.
type deleter struct {
	t    *testing.T
	rec  *locktest.Recorder
	coll *mongo.Collection // nil: nothing is deleted
	out  bytes.Buffer
	n    int
}

func newDeleter(t *testing.T, b backend, wanted bool) *deleter {
	t.Helper()
	d := &deleter{t: t}
	d.rec = locktest.Record(nil, "administrator", monotonic, &d.out)
	if wanted {
		client, err := mongo.Connect(options.Client().ApplyURI(b.url))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Disconnect(context.Background()) })
		u, err := url.Parse(b.url)
		if err != nil {
			t.Fatal(err)
		}
		d.coll = client.Database(strings.Trim(u.Path, "/")).Collection(mongolock.DefaultCollection)
	}
	return d
}

func (d *deleter) delete(name string) {
	if d.coll == nil {
		return
	}
	err := d.rec.Deleted(name, func() (bool, error) {
		ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
		defer cancel()
		result, err := d.coll.DeleteOne(ctx, bson.D{{Key: "_id", Value: name}})
		if err != nil {
			return false, err
		}
		d.n += int(result.DeletedCount)
		return result.DeletedCount > 0, nil
	})
	if err != nil { // on a busy server; the history records the outcome as unclear
		d.t.Log(err)
	}
}
