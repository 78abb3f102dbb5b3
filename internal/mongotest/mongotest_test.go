package mongotest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"weak"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A helper that leaves goroutines behind would spoil the leak checks of every suite that uses it.
	goleak.VerifyTestMain(m)
}

const testTimeout = 10 * time.Minute

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls a condition that must come true.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		if err := pollPause(ctx, 20*time.Millisecond); err != nil {
			t.Fatalf("%s: not so after %s", what, testTimeout)
		}
	}
}

type document struct {
	ID string `bson:"_id"`
	N  int    `bson:"n"`
}

func insert(ctx context.Context, t *testing.T, db *mongo.Database, d document) {
	t.Helper()
	if _, err := db.Collection("c").InsertOne(ctx, d); err != nil {
		t.Fatalf("insert %v: %v", d, err)
	}
}

func find(ctx context.Context, db *mongo.Database, id string) (d document, err error) {
	err = db.Collection("c").FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&d)
	return d, err
}

func TestDatabase(t *testing.T) {
	ctx := testContext(t)

	db := Database(t)
	insert(ctx, t, db, document{"a", 1})
	if d, err := find(ctx, db, "a"); err != nil || d.N != 1 {
		t.Fatalf("find what was inserted: got %v, %v", d, err)
	}
	other := Database(t)
	if _, err := find(ctx, other, "a"); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("find in another fresh database: got error %v, want no documents: databases are not apart", err)
	}
}

func TestFreshURINamesTheDatabaseAndIsDropped(t *testing.T) {
	ctx := testContext(t)
	uri := URI(t) // skips here rather than in the inner test
	t.Run("use", func(t *testing.T) {
		var db *mongo.Database
		uri, db = Fresh(t)
		insert(ctx, t, db, document{"a", 1})
		if !strings.Contains(uri, "/"+db.Name()) {
			t.Errorf("URI %s does not name the database %s", uri, db.Name())
		}
	})

	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatalf("the URI %s is not valid: %v", uri, err)
	}
	defer client.Disconnect(ctx) //nolint:errcheck // the end of the test
	name := uri[strings.LastIndexByte(uri, '/')+1 : strings.IndexByte(uri, '?')]
	if _, err := find(ctx, client.Database(name), "a"); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("find after the test that owned the database: got error %v, want no documents", err)
	}
}

func TestServerPause(t *testing.T) {
	ctx := testContext(t)
	s := NewServer(t)
	db := s.Database(t)
	insert(ctx, t, db, document{"a", 1})

	if err := s.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if _, err := find(short, db, "a"); !mongo.IsTimeout(err) {
		t.Errorf("find on a paused server: got error %v, want a timeout", err)
	}

	if err := s.Unpause(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := find(ctx, db, "a"); err != nil || d.N != 1 {
		t.Errorf("find after unpause: got %v, %v", d, err)
	}
}

func TestServerKeepsWhatItConfirmedOverKill(t *testing.T) {
	for _, test := range []struct {
		name   string
		before func(context.Context, *Server) error
	}{
		{"running", func(context.Context, *Server) error { return nil }},
		{"paused", func(ctx context.Context, s *Server) error { return s.Pause(ctx) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := testContext(t)
			s := NewServer(t)
			db := s.Database(t)
			uri := s.URI()

			// Twice, because a start after a recovery differs from the first one.
			for round := range 2 {
				id := fmt.Sprint("round ", round)
				insert(ctx, t, db, document{id, round})
				if err := test.before(ctx, s); err != nil {
					t.Fatal(err)
				}
				if err := s.Kill(ctx); err != nil {
					t.Fatal(err)
				}
				short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
				if _, err := find(short, db, id); err == nil {
					t.Error("find on a killed server: it answered")
				}
				cancel()

				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
				if s.URI() != uri {
					t.Errorf("URI after start: got %s, want %s as before", s.URI(), uri)
				}
				eventually(ctx, t, "find by the client of before the kill", func() bool {
					d, err := find(ctx, db, id)
					return err == nil && d.N == round
				})
			}
		})
	}
}

func TestServerTerminateLeavesNothing(t *testing.T) {
	ctx := testContext(t)
	s := NewServer(t)
	for _, what := range []string{"first", "second"} { // the test's own cleanup also terminates it
		if err := s.Terminate(ctx); err != nil {
			t.Errorf("%s Terminate: %v", what, err)
		}
	}
	if s.engine.alive(ctx) {
		t.Error("the server is still alive")
	}
}

// A test process that dies, here by SIGKILL, must not leave its server running.
func TestGuardRemovesTheServerOfADeadProcess(t *testing.T) {
	const role = "MONGOTEST_DIE_WITH_A_SERVER"
	if os.Getenv(role) != "" { // the second process
		s := NewServer(t)
		fmt.Printf("addr=%s\n", s.Addr())
		p, _ := os.FindProcess(os.Getpid())
		_ = p.Kill()
		select {}
	}
	ctx := testContext(t)
	probe := NewServer(t) // skips where none is available
	if probe.engine.removeCommand() == "" {
		t.Skip("no docker command: the next process that starts a server removes it")
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), role+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("the process did not die:\n%s", out)
	}
	_, rest, ok := strings.Cut(string(out), "addr=")
	if !ok {
		t.Fatalf("the process had no server:\n%s", out)
	}
	addr, _, _ := strings.Cut(rest, "\n")
	s := &Server{addr: addr, engine: probe.engine}
	eventually(ctx, t, "the server of the dead process is gone", func() bool { return s.probe(ctx) != nil })
}

// A server of which only the URI is still referenced, like the shared one, must survive garbage
// collection.
func TestGuardOutlivesGarbageCollection(t *testing.T) {
	g := newGuard("true")
	if g == nil {
		t.Skip("no shell")
	}
	held := weak.Make(g.held)
	g = nil
	runtime.GC()
	runtime.GC() // an object with a finalizer is freed only the second time
	if held.Value() == nil {
		t.Error("the pipe of a guard on duty was collected, which tells the guard to act")
	}
	guards.Range(func(g, _ any) bool {
		if pipe := held.Value(); pipe != nil && g.(*guard).held == pipe {
			g.(*guard).dismiss()
		}
		return true
	})
}

func TestWithDatabase(t *testing.T) {
	for _, test := range []struct{ uri, want string }{
		{"mongodb://h", "mongodb://h/db"},
		{"mongodb://h:1/", "mongodb://h:1/db"},
		{"mongodb://h:1/?directConnection=true", "mongodb://h:1/db?directConnection=true"},
		{"mongodb://a:1,b:2/other?replicaSet=rs0", "mongodb://a:1,b:2/db?replicaSet=rs0"},
		{"mongodb://u:p@h", "mongodb://u:p@h/db?authSource=admin"},
		{"mongodb://u:p@h/own?w=1", "mongodb://u:p@h/db?w=1&authSource=own"},
		{"mongodb://u:p@h/own?authSource=x", "mongodb://u:p@h/db?authSource=x"},
		{"mongodb+srv://h/?w=1", "mongodb+srv://h/db?w=1"},
	} {
		got, err := withDatabase(test.uri, "db")
		if err != nil || got != test.want {
			t.Errorf("withDatabase(%q): got %q, %v, want %q", test.uri, got, err, test.want)
		}
	}
	if got, err := withDatabase("localhost:27017", "db"); err == nil {
		t.Errorf("withDatabase without a scheme: got %q, want an error", got)
	}
}

func TestOwnerGone(t *testing.T) {
	me := strings.Split(owner(), "/")
	with := func(part int, value string) string {
		parts := append([]string(nil), me...)
		parts[part] = value
		return strings.Join(parts, "/")
	}
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, owner string
		want        bool
	}{
		{"this process", owner(), false},
		{"a process that has ended", with(3, strconv.Itoa(dead.Process.Pid)), true},
		{"another process with the same number", with(4, "1"), true},
		{"the same machine before it was started again", with(1, "other"), true},
		{"another machine", with(0, "other"), false},
		{"another PID namespace", with(2, "pid:[1]"), false},
		{"nonsense", "x", false},
	} {
		if got := ownerGone(test.owner); got != test.want {
			t.Errorf("ownerGone(%s): got %t, want %t", test.name, got, test.want)
		}
	}
}

func TestIsMongo(t *testing.T) {
	for image, want := range map[string]bool{
		"mongo:8":                          true,
		"mongo":                            true,
		"example.org:5000/library/mongo":   true,
		"mongo@sha256:0123":                true,
		"mongodb/mongodb-community-server": true,
		"fencepost-test-mongo:ferretdb-2":  false,
		"example.org/ferretdb/ferretdb:2":  false,
	} {
		if got := isMongo(image); got != want {
			t.Errorf("isMongo(%q): got %t, want %t", image, got, want)
		}
	}
}
