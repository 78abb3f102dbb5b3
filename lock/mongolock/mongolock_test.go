package mongolock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/lock/mongolock"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The shared test server, when this process started it, lives as long as the process.
		goleak.IgnoreAnyFunction("github.com/fencepost/fencepost/internal/mongotest.startForTests"))
}

func TestMongoConforms(t *testing.T) {
	locktest.Run(t, func(t testing.TB) locktest.Backend {
		uri, db := mongotest.Fresh(t)
		return locktest.Backend{
			Open: func() lock.Store {
				s, err := mongolock.Open(t.Context(), uri, db.Name(), mongolock.Options{})
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				return s
			},
			Delete: func(name string) error {
				_, err := db.Collection(mongolock.DefaultCollection).DeleteOne(context.Background(), bson.D{{Key: "_id", Value: name}})
				return err
			},
		}
	})
}

// A store on the caller's client follows the same protocol and leaves the client open.
func TestNewUsesTheCallersClient(t *testing.T) {
	db := mongotest.Database(t)
	s, err := mongolock.New(t.Context(), db, mongolock.Options{Collection: "other"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(s, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	le, err := l.TryAcquire(t.Context(), "n", lock.WithWhy("layout"))
	if err != nil {
		t.Fatal(err)
	}
	var doc bson.M
	if err := db.Collection("other").FindOne(t.Context(), bson.D{{Key: "_id", Value: "n"}}).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if doc["token"] != le.Token() {
		t.Errorf("stored token %v, lease's %d", doc["token"], le.Token())
	}
	if _, ok := doc["v"].(bson.ObjectID); !ok {
		t.Errorf("v is a %T, want an ObjectId", doc["v"])
	}
	if h, ok := doc["h"].(bson.D); !ok || len(h) != 4 {
		t.Errorf("h is %v, want id, ms, owner and why", doc["h"])
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc = bson.M{}
	if err := db.Collection("other").FindOne(t.Context(), bson.D{{Key: "_id", Value: "n"}}).Decode(&doc); err != nil {
		t.Fatalf("the caller's client was closed: %v", err)
	}
	if _, ok := doc["h"]; ok {
		t.Errorf("released, but h is %v", doc["h"])
	}
	if _, ok := doc["at"].(bson.DateTime); !ok {
		t.Errorf("at is a %T after a release, want the server's date", doc["at"])
	}
}

// A grant that a failover can undo is no grant: every write waits for the majority, whatever the client settings. That includes Setup:
// the answer to a command that was sent without waiting for it can be taken for the answer to the next one.
func TestWritesWaitForTheMajority(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	writes, commands := map[string]int{}, []string{"createIndexes", "insert", "update", "findAndModify"}
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetWriteConcern(writeconcern.Unacknowledged()).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if !slices.Contains(commands, e.CommandName) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			writes[e.CommandName]++
			if w, _ := e.Command.Lookup("writeConcern", "w").StringValueOK(); w != "majority" {
				t.Errorf("sent without w: majority: %v", e.Command)
			}
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	s, err := mongolock.New(ctx, client.Database(db.Name()), mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(s, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // creates the record, and then acquires it
		le, err := l.Acquire(ctx, "n")
		if err == nil {
			_, err = le.RaiseToken(ctx, le.Token()+10)
		}
		if err == nil {
			err = le.Release(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range commands {
		if writes[name] == 0 {
			t.Errorf("no %s was sent: this shows nothing of it", name)
		}
	}
}

func TestTTLIndexIsMadeOnce(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	for _, retention := range []time.Duration{0, 0, 8 * 24 * time.Hour} {
		var warned []error
		s, err := mongolock.Open(t.Context(), uri, db.Name(), mongolock.Options{
			Retention: retention,
			Warn:      func(err error) { warned = append(warned, err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if retention == 0 && len(warned) > 0 {
			t.Errorf("warned: %v", warned)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	specs, err := db.Collection(mongolock.DefaultCollection).Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, sp := range specs {
		if sp.Name == "at_ttl" {
			found = true
			if want := int32(mongolock.DefaultRetention / time.Second); sp.ExpireAfterSeconds == nil || *sp.ExpireAfterSeconds != want {
				t.Errorf("expireAfterSeconds is %v, want %d", sp.ExpireAfterSeconds, want)
			}
		}
	}
	if !found {
		t.Errorf("no TTL index among %d indexes", len(specs))
	}
}

func TestSetup(t *testing.T) {
	ctx, db := t.Context(), mongotest.Database(t)
	o := mongolock.Options{Collection: "setup"}
	if err := mongolock.CheckSetup(ctx, db, o); !errors.Is(err, mongolock.ErrSetup) || !strings.Contains(err.Error(), "run setup") {
		t.Errorf("before setup: %v", err)
	}
	for range 2 {
		if err := mongolock.Setup(ctx, db, o); err != nil {
			t.Fatal(err)
		}
		if err := mongolock.CheckSetup(ctx, db, o); err != nil {
			t.Error(err)
		}
	}
	o.Retention = 8 * 24 * time.Hour
	if err := mongolock.CheckSetup(ctx, db, o); !errors.Is(err, mongolock.ErrSetup) || !strings.Contains(err.Error(), "192h") {
		t.Errorf("another retention: %v", err)
	}
	if err := mongolock.Setup(ctx, db, o); !errors.Is(err, mongolock.ErrSetup) {
		t.Errorf("setup with another retention: %v", err)
	}
	// The server would remove locks by the wrong field, including held ones.
	if _, err := db.Collection("wrong").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "since", Value: 1}},
		Options: options.Index().SetExpireAfterSeconds(60)}); err != nil {
		t.Fatal(err)
	}
	if err := mongolock.CheckSetup(ctx, db, mongolock.Options{Collection: "wrong"}); !errors.Is(err, mongolock.ErrSetup) ||
		!strings.Contains(err.Error(), "drop it") {
		t.Errorf("a wrong TTL index: %v", err)
	}
	if err := mongolock.Setup(ctx, db, mongolock.Options{Retention: time.Hour}); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a retention of an hour: %v", err)
	}
}

// On a server with change streams, Watch reports a release; on one without, it returns an error.
func TestWatch(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	s, err := mongolock.Open(t.Context(), uri, db.Name(), mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	names, err := s.(lock.Watcher).Watch(ctx)
	if err != nil {
		t.Skipf("this server has no change streams: %v", err)
	}
	defer func() {
		cancel()
		for range names {
		}
	}()
	for _, permits := range []int{0, 2} {
		name := fmt.Sprint("permits ", permits)
		h := lock.Hold{ID: lock.NewHoldID(), Lease: time.Minute, Permits: permits}
		if ok, err := s.Create(ctx, name, h, lock.NewVersion()); err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
		for range 3 { // renewals are not reported
			if _, _, err := s.Renew(ctx, name, h, lock.NewVersion()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Release(ctx, name, h, lock.NewVersion()); err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != name {
			t.Errorf("hint about %q, want %q", got, name)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := mongolock.Open(t.Context(), "mongodb://127.0.0.1:1", "db", mongolock.Options{Retention: time.Hour})
	if !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a retention of an hour: %v", err)
	}
	_, err = mongolock.Open(t.Context(), "postgres://x", "db", mongolock.Options{})
	if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "mongodb://") {
		t.Errorf("a wrong URL: %v", err)
	}
	_, err = mongolock.Open(t.Context(), "mongodb://127.0.0.1:1,127.0.0.1:2/?directConnection=true", "db", mongolock.Options{})
	if !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("an option of the URL that does not fit: %v", err)
	}
	for _, name := range []string{"", "a.b", "a$b", "a b", strings.Repeat("a", 64)} {
		_, err := mongolock.Open(t.Context(), "mongodb://127.0.0.1:1/db", name, mongolock.Options{})
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "database name") {
			t.Errorf("database %q: %v", name, err)
		}
	}
	for _, name := range []string{"a$b", "a\x00b", ".a", "system.locks", "\xff", strings.Repeat("a", 233)} {
		_, err := mongolock.Open(t.Context(), "mongodb://127.0.0.1:1", "db", mongolock.Options{Collection: name})
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "collection of locks") {
			t.Errorf("collection %q: %v", name, err)
		}
	}
	_, err = mongolock.New(t.Context(), nil, mongolock.Options{})
	for what, err := range map[string]error{
		"New":        err,
		"Setup":      mongolock.Setup(t.Context(), nil, mongolock.Options{}),
		"CheckSetup": mongolock.CheckSetup(t.Context(), nil, mongolock.Options{}),
	} {
		if !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s without a database: %v", what, err)
		}
	}
}

// The server answers, and refuses the user: a retry cannot help.
func TestOpenWithAWrongPassword(t *testing.T) {
	s := fake.Start(t, func(command string) bson.D {
		if command == "saslStart" {
			return fake.Failed(18)
		}
		return nil
	})
	_, err := mongolock.Open(t.Context(), "mongodb://bob:hidden@"+s.Addr()+"/?authMechanism=PLAIN&authSource=$external", "db", mongolock.Options{})
	if !errors.Is(err, lock.ErrPermanent) || errors.Is(err, lock.ErrUnavailable) || strings.Contains(err.Error(), "hidden") ||
		!strings.Contains(err.Error(), "check user, password") || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
}

// The driver quotes text that it cannot parse, which may contain secrets.
func TestAMalformedURLIsRefusedWithoutItsSecrets(t *testing.T) {
	for name, uri := range map[string]string{
		"password":       "mongodb://bob:%zzhidden@127.0.0.1:1/",
		"key's password": "mongodb://127.0.0.1:1/?tlsCertificateKeyFilePassword=%zzhidden",
		"session token":  "mongodb://127.0.0.1:1/?authMechanism=MONGODB-AWS;authMechanismProperties=AWS_SESSION_TOKEN:%zzhidden",
	} {
		_, err := mongolock.Open(t.Context(), uri, "db", mongolock.Options{})
		if err == nil || !strings.Contains(err.Error(), "percent-encode") || strings.Contains(err.Error(), "zz") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only errors that a retry cannot fix are permanent. Connections are also made, with credentials, while a server shuts down
// or an election is under way.
func TestOnlySomeFailuresOfAuthenticationArePermanent(t *testing.T) {
	for name, test := range map[string]struct {
		code      int
		permanent bool
		want      string
	}{
		"wrong password":       {18, true, "authSource"},
		"unknown mechanism":    {334, true, "authSource"},
		"no rights":            {13, true, "authSource"},
		"shutting down":        {91, false, ""},
		"interrupted":          {11600, false, ""},
		"stepped down":         {189, false, ""},
		"a shard's election":   {133, false, ""},
		"of a kind of its own": {8, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuses atomic.Bool
			s := fake.Start(t, func(command string) bson.D {
				switch {
				case command == "saslStart" && refuses.Load():
					return fake.Failed(test.code)
				case command == "saslStart":
					return bson.D{{Key: "ok", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "done", Value: true}, {Key: "payload", Value: []byte{}}}
				case command == "find" && !refuses.Swap(true):
					return fake.Failed(11600) // the driver closes its connections
				}
				return nil
			})
			st, err := mongolock.Open(t.Context(), "mongodb://bob:hidden@"+s.Addr()+"/?authMechanism=PLAIN&authSource=$external", "db", mongolock.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if _, _, err := st.Read(t.Context(), "n"); err == nil || errors.Is(err, lock.ErrPermanent) {
				t.Fatalf("the server shuts down: %v", err)
			}
			_, _, err = st.Read(t.Context(), "n")
			for err != nil && strings.Contains(err.Error(), "was cleared") {
				_, _, err = st.Read(t.Context(), "n") // the driver reports another request's login, whose error it includes only as text
			}
			if err == nil || errors.Is(err, lock.ErrPermanent) != test.permanent || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("permanent: %v, want %v: %v", errors.Is(err, lock.ErrPermanent), test.permanent, err)
			}
		})
	}
}

func TestAnUnreachableServerIsABoundedErrorWithARemedy(t *testing.T) {
	// A port that is certainly closed: it was ours a moment ago.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	_, err = mongolock.Open(ctx, "mongodb://user:secret@"+addr+"/", "db", mongolock.Options{})
	if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrPermanent) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	if d := time.Since(begin); d > 4*time.Second { // a busy machine; without the context it is 5 s
		t.Errorf("took %v for a context of 1 s", d)
	}
	if !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "check that it runs") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("the error should name the address and the remedy, and not the password: %v", err)
	}
}

// While the server does not answer, a waiting Acquire and a renewal end in time, and both work again afterwards.
func TestAServerThatStopsAnswering(t *testing.T) {
	srv := mongotest.NewServer(t)
	s, err := mongolock.Open(t.Context(), srv.URI(), "locks_paused", mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const lease = 3 * time.Second
	l, err := lock.New(s, lock.Options{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	le, err := l.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err = l.TryAcquire(t.Context(), "other")
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "check that it runs") {
		t.Errorf("TryAcquire on a paused server: %v", err)
	}
	if d := time.Since(begin); d > lease+5*time.Second { // two operations of up to half a lease
		t.Errorf("TryAcquire took %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin = time.Now()
	if _, err = l.Acquire(ctx, "other"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire on a paused server: %v", err)
	}
	if d := time.Since(begin); d > 2*time.Second { // a busy machine; a request of its own would last as long as the lease
		t.Errorf("Acquire took %v for a context of 200 ms", d)
	}
	select {
	case <-le.Lost():
	case <-time.After(2 * lease):
		t.Error("the lease was not lost while the server was paused")
	}
	if err := srv.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = le.Release(t.Context())
	for _, name := range []string{"held", "other"} {
		got, err := l.Acquire(t.Context(), name)
		if err != nil {
			t.Fatalf("after the pause: %v", err)
		}
		if name == "held" && got.Token() <= le.Token() {
			t.Errorf("token %d after %d", got.Token(), le.Token())
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	for what, set := range map[string]bson.D{
		"version": {{Key: "v", Value: "none"}}, "hold": {{Key: "h", Value: int32(7)}}, "queue": {{Key: "q", Value: bson.A{"somebody"}}},
	} {
		t.Run(what, func(t *testing.T) {
			db := mongotest.Database(t)
			s, err := mongolock.New(t.Context(), db, mongolock.Options{})
			if err != nil {
				t.Fatal(err)
			}
			locktest.Damaged(t, s, func(name string) {
				c := db.Collection(mongolock.DefaultCollection)
				if _, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: name}}, bson.D{{Key: "$set", Value: set}}); err != nil {
					t.Fatal(err)
				}
				if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 4711}}); err != nil { // not a lock
					t.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	uri, db := mongotest.Fresh(b)
	s, err := mongolock.Open(b.Context(), uri, db.Name(), mongolock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l, err := lock.New(s, lock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	b.ReportAllocs()
	for b.Loop() {
		le, err := l.Acquire(b.Context(), "n")
		if err != nil {
			b.Fatal(err)
		}
		if err := le.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenewMany(b *testing.B) {
	uri, db := mongotest.Fresh(b)
	s, err := mongolock.Open(b.Context(), uri, db.Name(), mongolock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	locktest.BenchmarkRenewMany(b, s)
}

// The queue accepts such a URL, with pool sizes for bulk work; locks ignore them.
func TestTheURLsPoolIsNotForLocks(t *testing.T) {
	s := fake.Start(t, func(string) bson.D { return nil })
	st, err := mongolock.Open(t.Context(), "mongodb://"+s.Addr()+"/?minPoolSize=50&maxPoolSize=100", "db", mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
}

// Whatever indexes already exist, Setup and CheckSetup agree.
func TestSetupWithIndexesOfOthers(t *testing.T) {
	ttl := func(name, field string) bson.D {
		return bson.D{{Key: "name", Value: name}, {Key: "key", Value: bson.D{{Key: field, Value: 1}}},
			{Key: "expireAfterSeconds", Value: int64(mongolock.DefaultRetention / time.Second)}}
	}
	plain := bson.D{{Key: "name", Value: "at_1"}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}}
	for name, test := range map[string]struct {
		indexes []bson.D
		refusal int // the error code for an attempt to create an index
		want    []string
	}{
		"another name":         {[]bson.D{ttl("at_1", "at")}, 85, nil},
		"no right to make one": {[]bson.D{ttl("at_ttl", "at")}, 13, nil},
		"a wrong one, too":     {[]bson.D{ttl("at_ttl", "at"), ttl("since_1", "since")}, 85, []string{"since_1", "drop it"}},
		"a wrong one besides":  {[]bson.D{ttl("at_ttl", "at"), ttl("since_1", "since")}, 0, []string{"since_1", "drop it"}},
		"a plain one":          {[]bson.D{plain}, 85, []string{"at_1", "drop it"}},
		"none":                 {nil, 13, []string{"no TTL index", "run setup"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := fake.Start(t, func(command string) bson.D {
				switch command {
				case "listIndexes":
					return fake.Found("db.locks", test.indexes...)
				case "createIndexes":
					if test.refusal != 0 {
						return fake.Failed(test.refusal)
					}
				}
				return nil
			})
			client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + s.Addr()))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Disconnect(context.Background())
			for what, do := range map[string]func(context.Context, *mongo.Database, mongolock.Options) error{"Setup": mongolock.Setup, "CheckSetup": mongolock.CheckSetup} {
				err := do(t.Context(), client.Database("db"), mongolock.Options{})
				if (err == nil) != (test.want == nil) || err != nil && !errors.Is(err, mongolock.ErrSetup) {
					t.Errorf("%s: %v", what, err)
				}
				for _, w := range test.want {
					if err != nil && !strings.Contains(err.Error(), w) {
						t.Errorf("%s: %v, want %q", what, err, w)
					}
				}
			}
		})
	}
}

// An election while a Locker subscribes to hints for the first time: it tries again.
func TestAPassingFailureOfWatchIsNoServerWithoutHints(t *testing.T) {
	var code atomic.Int64
	s := fake.Start(t, func(command string) bson.D {
		if command == "aggregate" {
			return fake.Failed(int(code.Load()))
		}
		return nil
	})
	st, err := mongolock.Open(t.Context(), "mongodb://"+s.Addr()+"/?retryReads=false", "db", mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	code.Store(189) // PrimarySteppedDown
	names, err := st.(lock.Watcher).Watch(t.Context())
	if err != nil {
		t.Fatalf("a primary that steps down: %v", err)
	}
	if name, more := <-names; more {
		t.Errorf("a hint about %q", name)
	}
	code.Store(40573) // change streams are only supported on replica sets
	if _, err := st.(lock.Watcher).Watch(t.Context()); err == nil {
		t.Error("a server without change streams: no error")
	}
}
