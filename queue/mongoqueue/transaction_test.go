package mongoqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// shop is a program with its own client and a queue of the same server.
type shop struct {
	t       *testing.T
	q       *mongoqueue.Queue
	client  *mongo.Client
	session *mongo.Session
}

func newShop(t *testing.T, queueURI, uri string) *shop {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		session.EndSession(context.Background())
		client.Disconnect(context.Background())
	})
	return &shop{t, open(t, queueURI, mongoqueue.Options{}), client, session}
}

// order stores an order and publishes messages in one transaction, that of the context.
func (s *shop) order(ctx context.Context, id string, msgs ...queue.Message) ([]queue.ID, error) {
	if _, err := s.client.Database(s.q.Database()).Collection("shop").InsertOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
		return nil, err
	}
	return s.q.PublishInTransaction(ctx, msgs...)
}

func (s *shop) orders() (ids []string) {
	s.t.Helper()
	cursor, err := s.client.Database(s.q.Database()).Collection("shop").Find(s.t.Context(), bson.D{})
	if err != nil {
		s.t.Fatal(err)
	}
	var docs []struct {
		ID string `bson:"_id"`
	}
	if err := cursor.All(s.t.Context(), &docs); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range docs {
		ids = append(ids, d.ID)
	}
	slices.Sort(ids)
	return ids
}

// pending returns the payloads of a type, sorted.
func (s *shop) pending(typ string) (payloads []string) {
	s.t.Helper()
	for _, m := range fetchAll(s.t, s.q, typ) {
		if !m.Loose() || m.Unfit() != "" {
			s.t.Errorf("message %v of a transaction is not loose: %v", m.ID, m.Headers)
		}
		payloads = append(payloads, string(m.Payload))
	}
	slices.Sort(payloads)
	return payloads
}

func (s *shop) want(typ string, payloads ...string) {
	s.t.Helper()
	if got := s.pending(typ); !slices.Equal(got, payloads) {
		s.t.Errorf("%s: %q are pending, want %q", typ, got, payloads)
	}
}

func news(typ, payload string) queue.Message {
	return queue.Message{Type: typ, Payload: []byte(payload), Headers: map[string]string{"k": "v", queue.KeyHeader: payload}}
}

// onTransactions runs f with the double of a replica set, and with a real one if the environment names one.
func onTransactions(t *testing.T, f func(t *testing.T, s *shop)) {
	t.Run("double", func(t *testing.T) {
		_, uri := startTxServer(t)
		f(t, newShop(t, uri, uri))
	})
	t.Run("real", func(t *testing.T) {
		uri, db := mongotest.Fresh(t)
		if !replicaSet(t, db) {
			t.Skip("the server is no replica set")
		}
		f(t, newShop(t, uri, uri))
	})
}

func replicaSet(t *testing.T, db *mongo.Database) bool {
	t.Helper()
	var hello struct {
		Set string `bson:"setName"`
		Msg string `bson:"msg"`
	}
	if err := db.RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	return hello.Set != "" || hello.Msg == "isdbgrid"
}

// Workers see the messages of a transaction once it is committed, all of them.
func TestMessagesOfATransactionComeWithItsCommit(t *testing.T) {
	onTransactions(t, func(t *testing.T, s *shop) {
		before := time.Now()
		var ids []queue.ID
		_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			var err error
			if ids, err = s.order(ctx, "1", news("orders", "chair"), news("audit", "who")); err != nil {
				return nil, err
			}
			more, err := s.q.PublishInTransaction(ctx, news("orders", "table"))
			ids = append(ids, more...)
			s.want("orders")
			s.want("audit")
			return nil, err
		})
		if err != nil {
			t.Fatal(err)
		}
		s.want("orders", "chair", "table")
		s.want("audit", "who")
		msgs := append(fetchAll(t, s.q, "orders"), fetchAll(t, s.q, "audit")...)
		for i, payload := range []string{"chair", "who", "table"} {
			k := slices.IndexFunc(msgs, func(m queue.Message) bool { return m.ID == ids[i] })
			if k < 0 || string(msgs[k].Payload) != payload || msgs[k].Headers["k"] != "v" || msgs[k].Headers[queue.KeyHeader] != payload || len(msgs[k].Headers) != 3 {
				t.Errorf("message %v is not %q with its headers", ids[i], payload)
			}
		}
		if types, err := s.q.Types(t.Context()); err != nil || !slices.Equal(types, []string{"audit", "orders"}) {
			t.Errorf("types %v, %v", types, err)
		}
		if got := s.orders(); !slices.Equal(got, []string{"1"}) || time.Since(before) > time.Hour {
			t.Errorf("orders %v", got)
		}
		if n, err := s.q.DB().Collection("messages").CountDocuments(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: "~"}, {Key: "$lt", Value: "~~"}}}}); err == nil && n > 0 {
			t.Errorf("%d documents of trials are left", n)
		}
		if err := s.q.Ack(t.Context(), "orders", ids); err != nil {
			t.Fatal(err)
		}
		s.want("orders")
	})
}

func TestMessagesOfATransactionThatIsAborted(t *testing.T) {
	onTransactions(t, func(t *testing.T, s *shop) {
		no := errors.New("sold out")
		_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			if _, err := s.order(ctx, "1", news("orders", "chair")); err != nil {
				return nil, err
			}
			return nil, no
		})
		if err != no {
			t.Fatal(err)
		}
		s.want("orders")
		if got := s.orders(); len(got) != 0 {
			t.Errorf("orders %v", got)
		}
	})
}

// WithTransaction reruns its function after some errors: the messages of earlier attempts are gone.
func TestMessagesOfATransactionThatIsRepeated(t *testing.T) {
	onTransactions(t, func(t *testing.T, s *shop) {
		attempt := 0
		var ids []queue.ID
		_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			attempt++
			var err error
			if ids, err = s.order(ctx, "1", news("orders", fmt.Sprint("attempt ", attempt))); err == nil && attempt < 3 {
				err = fmt.Errorf("try again: %w", mongo.CommandError{Code: 112, Labels: []string{"TransientTransactionError"}})
			}
			return nil, err
		})
		if err != nil {
			t.Fatal(err)
		}
		s.want("orders", "attempt 3")
		if msgs := fetchAll(t, s.q, "orders"); msgs[0].ID != ids[0] || len(s.orders()) != 1 {
			t.Errorf("pending %v, returned %v", msgs[0].ID, ids)
		}
	})
}

// The server refuses the insert with an error that permits a retry: the driver has to recognise it in our error.
func TestErrorsOfATransactionKeepTheirLabels(t *testing.T) {
	server, uri := startTxServer(t)
	s := newShop(t, uri, uri)
	conflicts, attempts := 0, 0
	_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		if attempts++; attempts == 1 { // this first call includes the trial
			if _, err := s.q.PublishInTransaction(ctx, news("orders", "with the first attempt")); err != nil {
				return nil, err
			}
			server.failing(func(command, in string) bson.D {
				if command != "insert" || in != "messages" || conflicts == 2 {
					return nil
				}
				conflicts++
				return labelled(commandError(112), "TransientTransactionError")
			})
		}
		_, err := s.order(ctx, "1", news("orders", "chair"))
		return nil, err
	})
	if err != nil || conflicts != 2 || attempts != 3 {
		t.Fatalf("%v after %d conflicts and %d attempts", err, conflicts, attempts)
	}
	s.want("orders", "chair")
}

func labelled(answer bson.D, label string) bson.D {
	return append(answer, bson.E{Key: "errorLabels", Value: bson.A{label}})
}

// A commit is executed and its answer is lost: the driver repeats it, and the messages exist once.
func TestCommitWithoutAnAnswer(t *testing.T) {
	server, uri := startTxServer(t)
	s := newShop(t, uri, uri)
	lost := 0
	runs := 0
	_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		runs++
		ids, err := s.order(ctx, "1", news("orders", "chair"))
		server.failing(func(command, _ string) bson.D { // from here on: the trial has ended
			if command != "commitTransaction" || lost == 5 {
				return nil
			}
			lost++
			return labelled(commandError(91), "RetryableWriteError")
		})
		return ids, err
	})
	if err != nil || lost != 5 || runs != 1 {
		t.Fatalf("%v after %d lost answers, the function ran %d times", err, lost, runs)
	}
	s.want("orders", "chair")
}

// Invalid calls are refused before anything is sent.
func TestPublishInTransactionRefuses(t *testing.T) {
	server, uri := startTxServer(t)
	s := newShop(t, uri, uri)
	inTransaction := func(msgs ...queue.Message) (err error) {
		t.Helper()
		_, _ = s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			_, err = s.q.PublishInTransaction(ctx, msgs...)
			return nil, err
		})
		return err
	}
	if err := inTransaction(news("orders", "a")); err != nil {
		t.Fatal(err)
	}
	before := server.count("messages")
	refused := func(name string, err, want error, says string) {
		t.Helper()
		if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %v and %q", name, err, want, says)
		}
		if n := server.count("messages"); n != before {
			t.Errorf("%s: something was sent", name)
		}
	}
	_, err := s.q.PublishInTransaction(t.Context(), news("orders", "b"))
	refused("no session", err, nil, "Session.WithTransaction")
	_, err = s.q.PublishInTransaction(mongo.NewSessionContext(t.Context(), s.session), news("orders", "b"))
	refused("no transaction", err, nil, "Session.WithTransaction")
	refused("too large", inTransaction(news("orders", "b"), queue.Message{Type: "orders", Payload: make([]byte, queue.MaxPayload+1)}), queue.ErrTooLarge, "message 1")
	refused("no type", inTransaction(news("Orders", "b")), queue.ErrInvalidType, "message 0")
	refused("delayed", inTransaction(queue.Message{Type: "orders", Due: time.Now()}), nil, "PublishAt")
	if err := inTransaction(); err != nil {
		t.Errorf("no messages: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	if err := s.session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = s.q.PublishInTransaction(mongo.NewSessionContext(cancelled, s.session), news("orders", "b"))
	refused("a context that has ended", err, context.Canceled, "")
	if err := s.session.AbortTransaction(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.q.Close()
	refused("closed", inTransaction(news("orders", "b")), queue.ErrClosed, "")
}

// A paused type refuses all messages, and a full backlog refuses at once. Each publisher, of this process or another, reads the
// settings every two seconds.
func TestPublishInTransactionFollowsSettings(t *testing.T) {
	server, uri := startTxServer(t)
	server.put("types", "paused", bson.D{{Key: "publish_paused", Value: true}, {Key: "why", Value: "moving house"}})
	server.put("types", "bounded", bson.D{{Key: "max_backlog", Value: int64(3)}})
	server.put("types", "aborted", bson.D{{Key: "max_backlog", Value: int64(1)}})
	s := newShop(t, uri, uri)
	publish := func(msgs ...queue.Message) error {
		t.Helper()
		_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			return s.order(ctx, fmt.Sprint(time.Now().UnixNano()), msgs...)
		})
		return err
	}
	var paused *queue.PausedError
	if err := publish(news("orders", "a"), news("paused", "a")); !errors.As(err, &paused) || paused.Type != "paused" || paused.Why != "moving house" {
		t.Errorf("a paused type: %v", err)
	}
	var full *queue.BacklogFullError
	if err := publish(news("bounded", "1"), news("bounded", "2")); err != nil {
		t.Error(err)
	}
	if err := publish(news("bounded", "3"), news("bounded", "4")); !errors.As(err, &full) || full.Type != "bounded" || full.Limit != 3 {
		t.Errorf("a full backlog: %v", err)
	}
	if err := publish(news("bounded", "3")); err != nil {
		t.Error(err)
	}
	if err := publish(news("bounded", "4")); !errors.As(err, &full) {
		t.Errorf("a full backlog: %v", err)
	}
	s.want("bounded", "1", "2", "3")
	// Aborted messages take no room. A count of the backlog is not repeated at once: it may be slow.
	began := time.Now()
	_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		if _, err := s.order(ctx, "aborted", news("aborted", "1")); err != nil {
			t.Error(err)
		}
		return nil, context.Canceled
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	time.Sleep(10 * time.Since(began))
	if err := publish(news("aborted", "1")); err != nil {
		t.Errorf("nothing is pending: %v", err)
	}
	s.want("orders")
	if n := len(s.orders()); n != 3 {
		t.Errorf("%d orders, want those whose messages were taken", n)
	}
	// Unreadable settings block no publisher.
	blind, uri := startTxServer(t)
	s = newShop(t, uri, uri)
	blind.failing(func(command, in string) bson.D {
		if command == "find" && in == "types" || command == "insert" && in == "types" {
			return commandError(1)
		}
		return nil
	})
	if err := publish(news("orders", "a")); err != nil {
		t.Error(err)
	}
}

// Servers without transactions answer in several ways. Some do not notice: their inserts are visible.
func TestServersWithoutTransactions(t *testing.T) {
	for name, change := range map[string]func(*txServer){
		"ignores them": func(s *txServer) { s.early = true },
		"standalone": func(s *txServer) {
			s.fails = func(command, in string) bson.D {
				if command == "insert" && in == "messages" {
					return commandError(20)
				}
				return nil
			}
		},
		"knows no commit": func(s *txServer) {
			s.fails = func(command, _ string) bson.D {
				if command == "commitTransaction" {
					return commandError(59)
				}
				return nil
			}
		},
		"no sessions": func(s *txServer) { s.plain = true },
	} {
		t.Run(name, func(t *testing.T) {
			server, uri := startTxServer(t)
			change(server)
			s := newShop(t, uri, uri)
			for range 2 {
				_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
					return s.q.PublishInTransaction(ctx, news("orders", "chair"))
				})
				wantNoTransactions(t, err)
			}
			if ids := server.ids("messages"); len(ids) != 0 {
				t.Errorf("%q are stored", ids)
			}
		})
	}
}

func wantNoTransactions(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, queue.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "has no transactions") || !strings.Contains(fmt.Sprint(err), "replica set") {
		t.Errorf("got %v", err)
	}
}

// The tests' own server has none.
func TestRealServerWithoutTransactions(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	if replicaSet(t, db) {
		t.Skip("the server has transactions")
	}
	s := newShop(t, uri, uri)
	_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		return s.q.PublishInTransaction(ctx, news("orders", "chair"))
	})
	t.Log(err)
	wantNoTransactions(t, err)
	s.want("orders")
	if n := count(t, db); n != 0 {
		t.Errorf("%d documents are left", n)
	}
}

// A session of another server would hide the messages from all workers.
func TestSessionOfAnotherServer(t *testing.T) {
	other, otherURI := startTxServer(t)
	_, uri := startTxServer(t)
	s := newShop(t, uri, otherURI)
	_, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		return s.q.PublishInTransaction(ctx, news("orders", "chair"))
	})
	if err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("got %v", err)
	}
	if ids := other.ids("messages"); len(ids) != 0 {
		t.Errorf("%q are stored there", ids)
	}
}

// A client is tried once, and so is each new one.
func TestTransactionsAreTriedOnce(t *testing.T) {
	server, uri := startTxServer(t)
	s := newShop(t, uri, uri)
	publish := func(s *shop) {
		t.Helper()
		if _, err := s.session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			return s.q.PublishInTransaction(ctx, news("orders", "chair"))
		}); err != nil {
			t.Fatal(err)
		}
	}
	publish(s)
	publish(s)
	if n := server.count("messages"); n != 3 {
		t.Errorf("%d inserts, want one for the trial and two", n)
	}
	other := newShop(t, uri, uri)
	other.q = s.q
	publish(other)
	if n := server.count("messages"); n != 5 {
		t.Errorf("%d inserts, want a trial for the other client", n)
	}
}

// A message that no majority has may be rolled back. Fetch waits, or finds that it was.
func TestFetchWaitsForTheMajorityOfLooseMessages(t *testing.T) {
	for name, c := range map[string]struct {
		after string // what happens to the message after it has been missing twice
		want  []string
	}{
		"it comes":         {"", []string{"a", "late", "z"}},
		"it is taken back": {"gone", []string{"a", "z"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, uri := startTxServer(t)
			q := open(t, uri, mongoqueue.Options{})
			id := func(ms int64, n uint64) string { return "orders/" + queue.NewID(time.UnixMilli(ms), 7, n).String() }
			body := func(payload string, headers ...bson.E) bson.D {
				return bson.D{{Key: "b", Value: bson.Binary{Data: []byte(payload)}}, {Key: "h", Value: append(bson.D{}, headers...)}}
			}
			server.put("messages", id(1, 1), body("a"))
			server.put("messages", id(2, 0), body("late", bson.E{Key: queue.LooseHeader, Value: queue.LooseValue}))
			server.put("messages", id(3, 2), body("z"))
			reads := 0
			server.ahead = func(ids []string) []string {
				if !slices.Contains(ids, id(2, 0)) {
					return nil
				}
				switch reads++; {
				case reads <= 2:
					return ids
				case c.after == "gone":
					delete(server.stored["messages"], id(2, 0))
				}
				return nil
			}
			var got []string
			for _, m := range fetchAll(t, q, "orders") {
				got = append(got, string(m.Payload))
			}
			if !slices.Equal(got, c.want) || reads != 3 {
				t.Errorf("fetched %q after %d reads of what a majority has, want %q", got, reads, c.want)
			}
			server.put("messages", id(2, 0), nil)
			reads = 0
			if fetchAll(t, q, "orders"); reads != 0 {
				t.Error("numbered messages are read twice")
			}
		})
	}
}
