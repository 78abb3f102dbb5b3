package integration

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
)

// TestLockCommands: an operator sees the holder of a type, requests its release, and forces it; workers continue and nothing is lost.
func TestLockCommands(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		refused(t, run(t, nil, "fencepost", "locks", "show", "--url", b.url, "t"), nothing)
		drainable(t, b, 100)
		watch := start(t, "watch", "fencepost", "locks", "watch", "--url", b.url, "--interval", "50ms", "-o", "json", "t")
		worker := start(t, "worker 1", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s", "--log-format", "json")
		holds := func(p *process) func() bool {
			return func() bool {
				locks := heldLocks(t, b)
				return len(locks) == 1 && locks[0].PID == p.Process.Pid
			}
		}
		eventually(t, time.Minute, "the worker holds the type", holds(worker))
		r := mustRun(t, nil, "fencepost", "locks", "show", "--url", b.url, "t")
		if !strings.Contains(r.stdout, "held") || !strings.Contains(r.stdout, "worker ") || !strings.Contains(r.stdout, "token") {
			t.Errorf("show: %v", r)
		}

		second := start(t, "worker 2", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s", "--log-format", "json")
		drainable(t, b, 100)
		time.Sleep(time.Second)
		mustRun(t, nil, "fencepost", "locks", "release", "--url", b.url, "--request", "--why", "maintenance", "t")
		eventually(t, time.Minute, "its holder gives the type back", func() bool {
			return strings.Contains(worker.stderr.String()+second.stderr.String(), `"reason":"maintenance"`)
		})
		drainable(t, b, 100)
		eventually(t, time.Minute, "a worker holds the type again", func() bool { return len(heldLocks(t, b)) == 1 })

		mustRun(t, nil, "fencepost", "locks", "release", "--url", b.url, "--force", "--why", "INC-1", "t")
		drainable(t, b, 100)
		eventually(t, time.Minute, "the force is told", func() bool {
			return strings.Contains(mustRun(t, nil, "fencepost", "locks", "show", "--url", b.url, "t").stdout, "INC-1")
		})
		for _, p := range []*process{worker, second} {
			p.signal(t, syscall.SIGTERM)
			if code := p.wait(t, time.Minute); code != 0 {
				t.Errorf("%s ended with %d", p.name, code)
			}
		}
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		if got := len(payloads(t, b, "t")); got != 400 {
			t.Errorf("%d messages in the file, want 400", got)
		}
		watch.signal(t, syscall.SIGINT)
		if code := watch.wait(t, time.Minute); code != stopped {
			t.Errorf("watch ended with %d", code)
		}
		tokens := map[int64]bool{}
		for line := range strings.Lines(watch.stdout.String()) {
			var row struct{ Token int64 }
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatalf("watch printed %q", line)
			}
			tokens[row.Token] = true
		}
		// The request itself may appear and disappear between two polls: a worker complies as soon as it sees it.
		if len(tokens) < 2 {
			t.Errorf("watch saw %d tokens:\n%s", len(tokens), watch.stdout.String())
		}
	})
}

// TestDamagedLock: an unreadable record is distinguished from a server that does not answer, and does not hide the other locks.
func TestDamagedLock(t *testing.T) {
	for name, b := range map[string]backend{"sqlite": embedded(t), "mongodb": {}} {
		t.Run(name, func(t *testing.T) {
			damage := func() {
				db, err := sql.Open("sqlite", b.path())
				must(t, err)
				_, err = db.Exec("UPDATE locks SET version = x'00' WHERE name = 't'")
				must(t, errors.Join(err, db.Close()))
			}
			if name == "mongodb" {
				uri, db := mongotest.Fresh(t)
				b = backend{url: uri, dir: filepath.Join(t.TempDir(), "data")}
				damage = func() {
					_, err := db.Collection(mongolock.DefaultCollection).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "t"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "q", Value: bson.A{"x"}}}}})
					must(t, err)
				}
			}
			locks := func(args ...string) result {
				t.Helper()
				return run(t, nil, "fencepost", append([]string{"locks", args[0], "--url", b.url}, args[1:]...)...)
			}
			const remedy = "fencepost locks release --force --why TEXT t"
			drainable(t, b, 1)
			if r := drain(t, b); r.code != 0 {
				t.Fatal(r)
			}
			damage()
			if r := locks("ls"); r.code != 0 || !strings.Contains(r.stdout, "(damaged)") || !strings.Contains(r.stderr, remedy) {
				t.Errorf("locks ls: %v", r)
			}
			refused(t, locks("show", "t"), failed, "the record of lock", "is damaged", remedy)
			drainable(t, b, 1)
			w := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--log-format", "json")
			eventually(t, time.Minute, "the worker says what is wrong", func() bool { return strings.Contains(w.stderr.String(), remedy) })
			if strings.Contains(w.stderr.String(), "no usable answer") {
				t.Error("the worker blames the server")
			}
			if r := locks("release", "--force", "--why", "INC-1", "t"); r.code != 0 || r.stdout != "t is free\n" {
				t.Errorf("locks release: %v", r)
			}
			eventually(t, runTimeout, "the worker goes on", func() bool { return pending(t, b)["t"] == 0 })
		})
	}
}

// TestLocksOfAnotherCollection: programs of users may keep their locks in a collection of their own.
func TestLocksOfAnotherCollection(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	store, err := mongolock.New(t.Context(), db, mongolock.Options{Collection: "jobs"})
	must(t, err)
	locker, err := lock.New(store, lock.Options{})
	must(t, err)
	defer locker.Close(context.WithoutCancel(t.Context()))
	lease, err := locker.Acquire(t.Context(), "report", lock.WithWhy("nightly"))
	must(t, err)
	locks := func(collection string, args ...string) result {
		t.Helper()
		return run(t, nil, "fencepost", append([]string{"locks", args[0], "--url", uri, "--collection", collection}, args[1:]...)...)
	}
	if r := locks("jobs", "ls"); r.code != 0 || !strings.Contains(r.stdout, "report") || !strings.Contains(r.stdout, "nightly") {
		t.Errorf("locks ls: %v", r)
	}
	if r := locks("jobs", "show", "report"); r.code != 0 || !strings.Contains(r.stdout, "nightly") {
		t.Errorf("locks show: %v", r)
	}
	refused(t, locks("locks", "show", "report"), nothing)
	if r := locks("jobs", "release", "--request", "--why", "INC-1", "report"); r.code != 0 {
		t.Errorf("locks release: %v", r)
	}
	eventually(t, time.Minute, "the holder is asked", func() bool {
		select {
		case <-lease.ReleaseRequested():
			return true
		default:
			return false
		}
	})
	refused(t, locks("jbos", "ls"), nothing, "there is no collection jbos in the database "+db.Name(), "--collection")
	names, err := db.ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: "jbos"}})
	must(t, err)
	if len(names) > 0 {
		t.Error("the collection was created")
	}
}

func TestBadLockCommands(t *testing.T) {
	b := embedded(t)
	drainable(t, b, 1)
	args := func(more ...string) []string { return append([]string{"locks", more[0], "--url", b.url}, more[1:]...) }
	refused(t, run(t, nil, "fencepost", args("show")...), usage, "name one lock")
	refused(t, run(t, nil, "fencepost", args("ls", "--collection", "jobs")...), usage, "--collection jobs: the embedded database has one table of locks")
	refused(t, run(t, nil, "fencepost", args("watch", "--interval", "1ms")...), usage, "--interval")
	refused(t, run(t, nil, "fencepost", args("release", "t")...), usage, "--request", "--force")
	refused(t, run(t, nil, "fencepost", args("release", "--force", "t")...), usage, "--why")
	refused(t, run(t, nil, "fencepost", args("release", "--force", "--request", "--why", "x", "t")...), usage, "--request")
	refused(t, run(t, nil, "fencepost", args("release", "--force", "--why", "x", "t")...), nothing, "nobody holds")
	refused(t, run(t, nil, "fencepost", args("release", "--request", "--why", "x", strings.Repeat("n", 300))...), usage)
}

// TestDoctorAndSetup: doctor reports a healthy system as healthy, and finds each problem, with a remedy.
func TestDoctorAndSetup(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		drainable(t, b, 5)
		doctor := func() result { return run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir) }
		if r := doctor(); r.code != 0 || !strings.Contains(r.stdout, "does not exist yet") || strings.Contains(r.stdout, "bad ") {
			t.Errorf("before anything was written: %v", r)
		}
		mustRun(t, nil, "fencepost", "setup", "--url", b.url)
		mustRun(t, nil, "fencepost", "setup", "--check", "--url", b.url)
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		r := doctor()
		if r.code != 0 || !strings.Contains(r.stdout, "1 of 1 types") {
			t.Errorf("a healthy system: %v", r)
		}
		if strings.HasPrefix(b.url, "mongodb") != strings.Contains(r.stdout, "indexes") {
			t.Errorf("indexes: %v", r)
		}
		file := filepath.Join(b.dir, "t.fpl")
		if err := os.Rename(file, file+".away"); err != nil {
			t.Fatal(err)
		}
		refused(t, doctor(), integrity, "something is wrong")
		if r := doctor(); !strings.Contains(r.stdout, "does not exist") {
			t.Errorf("a missing file: %v", r)
		}
	})
	b := embedded(t)
	drainable(t, b, 1)
	refused(t, run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", "/proc"), failed, "something is wrong")
	refused(t, run(t, nil, "fencepost", "doctor", "--url", "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=500"), failed, "something is wrong")
}

// TestSetupIsMissing: a dropped index is found and created again.
func TestSetupIsMissing(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	b := backend{url: uri, dir: filepath.Join(t.TempDir(), "data")}
	drainable(t, b, 1)
	if err := db.Collection(mongolock.DefaultCollection).Indexes().DropAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Checking changes nothing, however often.
	for range 2 {
		refused(t, run(t, nil, "fencepost", "setup", "--check", "--url", uri), failed, "no TTL index", "run setup")
		if r := run(t, nil, "fencepost", "doctor", "--url", uri, "--dir", b.dir); r.code != 0 || !strings.Contains(r.stdout, "no TTL index") {
			t.Errorf("doctor: %v", r)
		}
	}
	mustRun(t, nil, "fencepost", "setup", "--url", uri)
	mustRun(t, nil, "fencepost", "setup", "--check", "--url", uri)
	if err := mongolock.CheckSetup(t.Context(), db, mongolock.Options{}); err != nil {
		t.Error(err)
	}
}
