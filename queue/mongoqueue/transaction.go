package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Messages in the program's own transaction: its documents and its messages are both stored, or neither. See docs/decisions/0311.
//
//	the program                              the server                     a worker
//	WithTransaction(ctx, f)
//	  f: orders.InsertOne(ctx, …)            in the transaction
//	     q.PublishInTransaction(ctx, …)      in the transaction             sees nothing
//	  commit                                 majority: both                 fetches the messages
//	  or abort, or f again                   neither                        has never seen them
//
// They are loose messages (queue.LooseHeader): an aborted transaction leaves no gap in any sequence of numbers, and f may create new
// messages each time it runs.

const (
	proofTimeout = 10 * time.Second // of the trial of a client's transactions
	provenMost   = 100              // clients whose trial is remembered
)

// PublishInTransaction publishes messages, of any types, in the transaction of ctx, which is the context
// that Session.WithTransaction passes to its function, or one of mongo.NewSessionContext. The session
// may belong to any client of the same server. Workers see the messages when the transaction is
// committed, and never if it is aborted. With a MongoDB URL, the Queue of fencepost.Open is a
// *mongoqueue.Queue.
//
//	_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
//		if _, err := orders.InsertOne(ctx, order); err != nil {
//			return nil, err
//		}
//		_, err := q.PublishInTransaction(ctx, queue.Message{Type: "orders", Payload: payload})
//		return nil, err
//	})
//	if err == nil {
//		_ = q.Notify(ctx, []string{"orders"}) // workers look now
//	}
//
// It does not notify workers, because the messages do not exist before the commit. Call Notify after it, which is always safe. Without it,
// workers read the messages within 30 s of the commit.
//
// The returned IDs are valid if the transaction is committed. Your function must return an error
// unchanged or wrapped, because WithTransaction runs the function again after some errors. Commit with
// write concern majority, the servers' default: with a weaker one a failover may lose the whole
// transaction, including the messages.
//
// The messages have no order, neither among themselves nor relative to those of a Publisher. Headers and idempotency keys work as with a
// Publisher, but its Middleware does not see these messages. They cannot be delayed.
//
// Nothing is sent if a message breaks a limit, its type is paused (*queue.PausedError), or its backlog
// is full (*queue.BacklogFullError, at once, because a transaction must not wait). Changed settings
// apply within 2 s, as with a Publisher. The first call with a client makes a trial transaction, which
// takes some round trips; if the server has no transactions, the error is queue.ErrUnsupported. Safe for
// concurrent use in different sessions.
func (q *Queue) PublishInTransaction(ctx context.Context, msgs ...queue.Message) ([]queue.ID, error) {
	ids, err := q.publishInTransaction(ctx, msgs)
	if err != nil {
		return nil, fmt.Errorf("publish in a transaction: %w", err)
	}
	return ids, nil
}

// publishInTransaction first does, outside the transaction, everything that can fail there: a server error inside it would abort it.
func (q *Queue) publishInTransaction(ctx context.Context, msgs []queue.Message) ([]queue.ID, error) {
	session := mongo.SessionFromContext(ctx)
	// rule: without a transaction nothing is inserted: it would be visible at once, whatever becomes of the rest
	if session == nil || !session.TransactionRunning() {
		return nil, errors.New("mongoqueue: the context has no transaction; call it in the function that Session.WithTransaction runs, with the context which that function gets")
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	// rule: limits are checked before anything is sent: an error of the server aborts the whole transaction
	loose, err := queuedriver.MakeLoose(msgs, q.now())
	if err != nil {
		return nil, fmt.Errorf("mongoqueue: %w", err)
	}
	outside := mongo.NewSessionContext(ctx, nil) // for requests outside the transaction
	if err := q.proveTransactions(outside, session.Client()); err != nil {
		return nil, err
	}
	ids := make([]queue.ID, len(loose))
	docs := make([]document, 0, len(loose))
	types := map[string]int{}
	for i := range loose {
		m := &loose[i]
		ids[i] = m.ID
		docs = append(docs, documents(m.Type, loose[i:i+1])...)
		types[m.Type]++
	}
	for _, typ := range slices.Sorted(maps.Keys(types)) {
		if err := q.admitLoose(outside, typ, types[typ]); err != nil {
			return nil, err
		}
	}
	for typ := range types {
		q.registerOnce(outside, typ)
	}
	return ids, q.insertInTransaction(ctx, session.Client(), docs)
}

// insertInTransaction inserts documents in the transaction of ctx.
//
//	insert into messages, ordered: true, with the transaction's lsid and txnNumber; index: _id. Any error: the server has aborted the
//	transaction, none of it is stored. No answer: the transaction can no longer be committed, and the driver labels the error.
func (q *Queue) insertInTransaction(ctx context.Context, client *mongo.Client, docs []document) error {
	to := target{write: client.Database(q.Database()).Collection(q.messages.Name())}
	for len(docs) > 0 {
		n := commandLen(docs)
		if _, _, err := to.insertOrdered(ctx, docs[:n]); err != nil {
			return q.explain(ctx, "insert", err) // rule: wrapped, so that WithTransaction finds the label that makes it run the function again
		}
		docs = docs[n:]
	}
	return nil
}

// proveTransactions makes a trial transaction once per client, with a document in messages that sorts after the keys of all types:
//
//	insert {_id: "~probe/<random>", b} in a transaction  an error: the server has no transactions
//	find it, with the queue's client                     it exists: the server ignores transactions
//	commit
//	find it, with the queue's client                     it does not exist: the client is connected to another server
//	delete it
//
// rule: a server's transactions are trusted only after a trial. Some servers accept the fields of a transaction and ignore them; a message
// would be visible although the rest was aborted.
func (q *Queue) proveTransactions(ctx context.Context, client *mongo.Client) error {
	t := &q.transactions
	t.mu.Lock()
	proven := slices.Contains(t.proven, client)
	t.mu.Unlock()
	if proven {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	there, err := q.tryTransaction(ctx, client)
	switch {
	case err != nil && withoutTransactions(err):
		return fmt.Errorf("mongoqueue: %w: %s has no transactions; use a replica set, of one member at least (start mongod with --replSet, run rs.initiate() once, and "+
			"add replicaSet=… to the URL), or a sharded cluster: %w", queue.ErrUnsupported, q.name, err)
	case err != nil:
		return q.explain(ctx, "try a transaction", err)
	case !there:
		// rule: a session of another server is refused. Its messages would be stored where no worker looks.
		return fmt.Errorf("mongoqueue: the session's client is connected to another server than %s; start the session with a client of the same URL", q.name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.proven) == provenMost {
		t.proven = t.proven[1:]
	}
	t.proven = append(t.proven, client)
	return nil
}

// errNotIsolated is the error of a server that ignores transactions.
var errNotIsolated = errors.New("what a transaction inserts is visible before the commit")

// withoutTransactions reports whether the error of a trial means that the server has no transactions.
func withoutTransactions(err error) bool {
	switch errorCode(err) {
	case codeIllegalOperation, codeCommandNotFound, codeCommandNotSupported, codeFailedToParse, codeNotImplemented:
		return true
	}
	return errors.Is(err, errNotIsolated) || strings.Contains(err.Error(), "does not support sessions") // as the driver says it
}

// tryTransaction inserts a document in a transaction of client, and commits it. there reports whether the queue's client finds it
// afterwards. An interrupted trial leaves little behind, and nothing reads it.
func (q *Queue) tryTransaction(ctx context.Context, client *mongo.Client) (there bool, err error) {
	session, err := client.StartSession()
	if err != nil {
		return false, err
	}
	defer session.EndSession(ctx)
	key := probeKey + headSeparator + queue.NewLooseID(q.now()).String()
	messages := client.Database(q.Database()).Collection(q.messages.Name())
	defer messages.DeleteOne(ctx, in([]string{key}))
	visible := func() (bool, error) {
		err := q.messages.FindOne(ctx, in([]string{key}), options.FindOne().SetProjection(idOnly)).Err()
		if errors.Is(err, mongo.ErrNoDocuments) {
			return false, nil
		}
		return err == nil, err
	}
	_, err = session.WithTransaction(ctx, func(inside context.Context) (any, error) {
		if _, err := messages.InsertOne(inside, bson.D{{Key: "_id", Value: key}, {Key: "b", Value: bson.Binary{}}}); err != nil {
			return nil, err
		}
		early, err := visible()
		if err == nil && early {
			err = errNotIsolated
		}
		return nil, err
	}, options.Transaction().SetWriteConcern(durable).SetReadPreference(readpref.Primary()))
	if err != nil {
		return false, err
	}
	return visible()
}

// transactions is the state of a Queue for PublishInTransaction. Its settings and counts correspond to the controls and backlogs of a
// Publisher.
type transactions struct {
	mu       sync.Mutex
	proven   []*mongo.Client // have transactions, the latest ones
	settings map[string]queue.Settings
	until    time.Time       // when they are read again
	room     map[string]room // of types whose backlog has a limit
}

// room is how much space a backlog had left when it was counted.
type room struct {
	limit, left int
	until       time.Time // when it is counted again …
	next        time.Time // … or when, if it is full: messages that used it up may have been aborted
}

// As in a Publisher, see queue.Settings.
const (
	settingsEvery        = 2 * time.Second // how long settings that were read, and a count, are used
	settingsTimeout      = time.Second
	firstSettingsTimeout = 10 * time.Second
	countTimeout         = 10 * time.Second
	countShare           = 9 // a slow count is used for this many times its duration
)

// admitLoose checks whether the settings of a type allow n more messages.
//
// rule: unreadable settings, and a backlog that cannot be counted, block no message. The last known values apply.
func (q *Queue) admitLoose(ctx context.Context, typ string, n int) error {
	set := q.settingsOf(ctx, typ)
	switch {
	case set.PublishPaused:
		return &queue.PausedError{Type: typ, Why: set.Why}
	case set.MaxBacklog == 0:
		return nil
	}
	t := &q.transactions
	t.mu.Lock()
	known := t.room[typ]
	t.mu.Unlock()
	if began := time.Now(); known.limit != set.MaxBacklog || began.After(known.until) || n > known.left && began.After(known.next) {
		counting, cancel := context.WithTimeout(ctx, countTimeout)
		d, err := q.Depth(counting, typ, set.MaxBacklog)
		cancel()
		now := time.Now()
		rest := countShare * now.Sub(began)
		known.until, known.next = now.Add(max(settingsEvery, rest)), now.Add(rest)
		if err == nil {
			known.limit, known.left = set.MaxBacklog, set.MaxBacklog-d.Pending
		} else if known.limit != set.MaxBacklog {
			known.limit, known.left = set.MaxBacklog, set.MaxBacklog
		}
	}
	full := n > known.left
	if !full {
		known.left -= n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.room == nil {
		t.room = map[string]room{}
	}
	t.room[typ] = known
	if full {
		return &queue.BacklogFullError{Type: typ, Limit: set.MaxBacklog}
	}
	return nil
}

// settingsOf returns the settings of a type, at most settingsEvery old if they can be read.
func (q *Queue) settingsOf(ctx context.Context, typ string) queue.Settings {
	t := &q.transactions
	t.mu.Lock()
	old, timeout := !time.Now().Before(t.until), settingsTimeout
	if t.until.IsZero() {
		timeout = firstSettingsTimeout
	}
	t.mu.Unlock()
	if old {
		reading, cancel := context.WithTimeout(ctx, timeout)
		all, err := q.AllSettings(reading)
		cancel()
		t.mu.Lock()
		t.until = time.Now().Add(settingsEvery)
		if err == nil {
			t.settings = all
		}
		t.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settings[typ]
}
