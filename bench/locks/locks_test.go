package locks

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/bench/internal/suite/suitetest"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
)

func TestMain(m *testing.M) {
	if code, ok := Worker(); ok {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// TestQuick runs the whole suite on tiny sizes.
func TestQuick(t *testing.T) {
	uri := mongotest.URI(t)
	before := databases(t, uri)
	o := suite.Options{Dir: t.TempDir(), Rounds: 2, Quick: true, Logf: t.Logf, MongoDB: uri}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	suitetest.Check(t, o, res, []string{"≥ 5", nameInsert, nameUpsert, nameNewNames, nameSQLite, nameStore, nameLeast, "Hand-off", "Idle", "Recovery", "same machine"}, []string{"n/a"})
	if !strings.HasPrefix(res.Plots[plotFile], "<svg") {
		t.Error("the plot is missing")
	}
	noneLeft(t, uri, before)
}

func databases(t *testing.T, uri string) []string {
	names, err := server.Databases(t.Context(), uri, "lock")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// noneLeft fails if a run on the server has left its database behind. before are the databases that existed before, because
// other programs may be using the server.
func noneLeft(t *testing.T, uri string, before []string) {
	for _, name := range databases(t, uri) {
		if !slices.Contains(before, name) {
			t.Errorf("database %s was left behind", name)
		}
	}
}

func TestCancelledRunEnds(t *testing.T) {
	uri := mongotest.URI(t)
	before := databases(t, uri)
	t.Run("during", func(t *testing.T) {
		for _, at := range []string{"uncontended", "hand-off", "idle", "recovery"} {
			t.Run(at, func(t *testing.T) {
				t.Parallel() // each of them spends much of its time waiting
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				o := suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, MongoDB: uri}
				reached := false
				o.Logf = func(format string, _ ...any) {
					if strings.HasPrefix(format, at) {
						reached = true
						time.AfterFunc(20*time.Millisecond, cancel)
					}
				}
				start := time.Now()
				if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
				if !reached {
					t.Error("the run was not cancelled there: it has no such phase")
				}
				if took := time.Since(start); took > 30*time.Second {
					t.Errorf("ended after %v", took)
				}
			})
		}
	})
	noneLeft(t, uri, before)
}

func TestNoServer(t *testing.T) {
	o := suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=200"}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--mongodb: no server answers") {
		t.Errorf("got %v", err)
	}
	o.MongoDB = "http://nowhere"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--mongodb") {
		t.Errorf("got %v", err)
	}
}

// lax is a lock that every caller gets.
type lax struct{ tokens int64 }

func (l *lax) acquire(context.Context, string) (held, error)   { l.tokens++; return l, nil }
func (l *lax) try(ctx context.Context, n string) (held, error) { return l.acquire(ctx, n) }
func (*lax) close(context.Context) error                       { return nil }
func (*lax) release(context.Context) error                     { return nil }
func (l *lax) token() int64                                    { return l.tokens }

// stuck is a lock that no other caller gets after the first one.
type stuck struct{ lax }

func (*stuck) try(context.Context, string) (held, error) { return nil, lock.ErrHeld }

func TestProveNoticesLocksThatAreNone(t *testing.T) {
	s := &single{main: &lax{}, rival: &lax{}}
	if err := s.prove(t.Context()); err == nil || !strings.Contains(err.Error(), "two holders") {
		t.Errorf("got %v", err)
	}
	s.rival = &stuck{}
	if err := s.prove(t.Context()); err == nil || !strings.Contains(err.Error(), "after the release") {
		t.Errorf("got %v", err)
	}
	s = &single{main: &lax{}, increment: 2}
	if err := errors.Join(s.once(t.Context()), s.once(t.Context())); err == nil {
		t.Error("a token that is not the next one was not noticed")
	}
}

// TestRefereeNoticesTwoHolders: two processes that use locks of different names, and one referee.
func TestRefereeNoticesTwoHolders(t *testing.T) {
	b := &bench{o: suite.Options{Dir: t.TempDir()}, uri: mongotest.URI(t), database: server.NewDatabase("lock")}
	client, _, err := server.Dial(b.uri)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	defer client.Database(b.database).Drop(context.Background())
	c, err := b.newCrew(t.Context(), []string{nameFencepost}, terms{}, terms{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	for i, name := range []string{"one", "another"} {
		if err := c.tell(i, "acquire %s %s", name, nameFencepost); err != nil {
			t.Fatal(err)
		}
		_, err = c.hear(t.Context(), i, "granted", answerTimeout)
	}
	if err == nil || !strings.Contains(err.Error(), "two holders") {
		t.Errorf("got %v", err)
	}
}
