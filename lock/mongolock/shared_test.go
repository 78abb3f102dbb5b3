package mongolock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/combine"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/lock"
)

func storeOn(t *testing.T, uri, database string) *store {
	t.Helper()
	s, err := Open(t.Context(), uri, database, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*store)
}

func requestFor(name string) request {
	return request{name: name, hold: lock.Hold{ID: lock.NewHoldID(), Lease: 20 * time.Second}, v: lock.NewVersion()}
}

// grants summarizes answers: the value of a token does not matter.
func grants(answers []combine.Answer[grant]) (short []string) {
	for _, a := range answers {
		switch {
		case a.Again:
			short = append(short, "again")
		case a.Err != nil:
			short = append(short, "error")
		case a.Value.ok && a.Value.token > 0:
			short = append(short, "granted")
		case !a.Value.ok:
			short = append(short, "no")
		default:
			short = append(short, "granted without a token")
		}
	}
	return short
}

func outcomes(answers []combine.Answer[bool]) (short []string) {
	for _, a := range answers {
		if a.Err != nil {
			short = append(short, "error")
		} else {
			short = append(short, fmt.Sprint(a.Value))
		}
	}
	return short
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestOperationsOnManyLocks: each member of a command gets its own answer.
func TestOperationsOnManyLocks(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	s := storeOn(t, uri, db.Name())
	ctx := t.Context()
	of := func(names ...string) (requests []request) {
		for _, name := range names {
			requests = append(requests, requestFor(name))
		}
		return requests
	}
	first := of("a", "b", "c")
	expect(t, "acquire without records", grants(s.acquireMany(ctx, first)), "no", "no", "no")
	expect(t, "create", outcomes(s.createMany(ctx, first)), "true", "true", "true")
	others := of("b", "d")
	expect(t, "create again", outcomes(s.createMany(ctx, others)), "false", "true")
	first[1].floor, first[0].floor = 1<<41, 1<<42
	answers := s.confirmMany(ctx, first[:2])
	expect(t, "confirm", grants(answers), "granted", "granted")
	if a, b := answers[0].Value.token, answers[1].Value.token; a != 1<<42+1 || b != 1<<41+1 {
		t.Errorf("tokens %d and %d", a, b)
	}
	expect(t, "confirm, one is not held", grants(s.confirmMany(ctx, []request{requestFor("a"), first[2]})), "no", "granted")
	lost := requestFor("a")
	expect(t, "release, one was lost", outcomes(s.releaseMany(ctx, []request{lost, first[0], first[1]})), "false", "true", "true")
	expect(t, "release, all were lost", outcomes(s.releaseMany(ctx, []request{lost, requestFor("b")})), "false", "false")
	again := of("a", "b", "c", "missing")
	answers = s.acquireMany(ctx, again)
	expect(t, "acquire, one is held, one is missing", grants(answers), "granted", "granted", "no", "no")
	if a := answers[0].Value.token; a != 1<<42+2 {
		t.Errorf("token %d", a)
	}
	raw, err := s.readOne(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	read := s.readMany(ctx, []string{"missing", "a"})
	if read[0].Value != nil || read[0].Err != nil || read[1].Value.String() != raw.String() {
		t.Errorf("read %v, want %v", read, raw)
	}

	// A damaged record does not affect the others.
	if _, err := s.locks.InsertOne(ctx, bson.D{{Key: "_id", Value: "damaged"}, {Key: "token", Value: "many"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, "release", outcomes(s.releaseMany(ctx, again[:2])), "true", "true")
	var all sync.WaitGroup
	var granted [6]bool
	for i, name := range []string{"a", "b", "damaged", "a", "b", "missing"} {
		all.Go(func() {
			var err error
			if _, granted[i], err = s.Acquire(ctx, name, requestFor(name).hold, lock.NewVersion()); err != nil && name != "damaged" {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	if granted[0] == granted[3] || granted[1] == granted[4] || granted[2] || granted[5] {
		t.Errorf("granted: %v", granted)
	}
}

// answering is a store on a server that answers update with n and errors, and find with documents.
func answering(t *testing.T, n int, found bson.A, errors ...bson.E) *store {
	t.Helper()
	server := fake.Start(t, func(command string) bson.D {
		switch command {
		case "update", "insert":
			return append(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: n}, {Key: "nModified", Value: n}}, errors...)
		case "find":
			return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.locks"}, {Key: "firstBatch", Value: found}}}}
		}
		return nil
	})
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + server.Addr() + "/?directConnection=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	s, err := open(t.Context(), client.Database("db"), nil, "the server", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAnswersOfAServer: if the records do not explain the count of an answer, every operation counts as unclear.
func TestAnswersOfAServer(t *testing.T) {
	a, b := requestFor("a"), requestFor("b")
	both := []request{a, b}
	record := func(r request, v lock.Version, hold lock.HoldID, token int64) bson.D {
		return bson.D{{Key: "_id", Value: r.name}, {Key: "v", Value: bson.ObjectID(v)}, {Key: "token", Value: token}, {Key: "h", Value: bson.D{{Key: "id", Value: bson.ObjectID(hold)}}}}
	}
	shows := func(r request) bson.D { return record(r, r.v, r.hold.ID, 7) }
	other := lock.NewVersion()
	concern := bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}}}
	failed := func(index, code int) bson.E {
		return bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: index}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}}}}
	}
	for name, tc := range map[string]struct {
		n     int
		found bson.A
		err   []bson.E
		want  []string // of acquireMany
		freed []string // of releaseMany
	}{
		"all, and the records show it":         {2, bson.A{shows(a), shows(b)}, nil, []string{"granted", "granted"}, []string{"true", "true"}},
		"none":                                 {0, bson.A{}, nil, []string{"no", "no"}, []string{"false", "false"}},
		"one, and a record shows it":           {1, bson.A{shows(b)}, nil, []string{"no", "granted"}, []string{"false", "true"}},
		"one, a record has an older hold":      {1, bson.A{record(a, other, a.hold.ID, 7), shows(b)}, nil, []string{"no", "granted"}, []string{"false", "true"}},
		"one, a record has nothing but a hold": {1, bson.A{record(a, other, a.hold.ID, 7)}, nil, []string{"again", "again"}, []string{"error", "error"}},
		"one, and the records are older":       {1, bson.A{}, nil, []string{"again", "again"}, []string{"error", "error"}},
		"two, and the records show one":        {2, bson.A{shows(a)}, nil, []string{"again", "again"}, []string{"true", "true"}},
		"two, and one has another hold":        {2, bson.A{shows(a), record(b, b.v, lock.NewHoldID(), 7)}, nil, []string{"again", "again"}, []string{"true", "true"}},
		"a statement failed":                   {1, bson.A{shows(a)}, []bson.E{failed(1, 14)}, []string{"again", "again"}, []string{"error", "error"}},
		"not at a majority":                    {2, bson.A{shows(a), shows(b)}, []bson.E{concern}, []string{"again", "again"}, []string{"error", "error"}},
	} {
		s := answering(t, tc.n, tc.found, tc.err...)
		expect(t, name, grants(s.acquireMany(t.Context(), both)), tc.want...)
		expect(t, name+", release", outcomes(s.releaseMany(t.Context(), both)), tc.freed...)
	}
	for name, tc := range map[string]struct {
		err  []bson.E
		want []string
	}{
		"made":                           {nil, []string{"true", "true"}},
		"one is there":                   {[]bson.E{failed(1, 11000)}, []string{"true", "false"}},
		"one is refused":                 {[]bson.E{failed(0, 121)}, []string{"error", "true"}},
		"one is there, no majority":      {[]bson.E{failed(1, 11000), concern}, []string{"error", "error"}},
		"an answer that makes no sense":  {[]bson.E{failed(77, 11000)}, []string{"error", "error"}},
		"made, a majority may not agree": {[]bson.E{concern}, []string{"error", "error"}},
	} {
		expect(t, name, outcomes(answering(t, 2, nil, tc.err...).createMany(t.Context(), both)), tc.want...)
	}

	// A token that is not above the floor belongs to an earlier record.
	low := requestFor("a")
	low.floor = 7
	expect(t, "confirm", grants(answering(t, 1, bson.A{shows(low)}).confirmMany(t.Context(), []request{low})), "again")
}
