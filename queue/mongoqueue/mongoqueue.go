package mongoqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/distance"
	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/mongourl"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Defaults of Options.
const (
	// DefaultConnectTimeout bounds the search for a server.
	DefaultConnectTimeout = 5 * time.Second
	// DefaultDatabase is the database when the URI names none.
	DefaultDatabase = mongourl.DefaultDatabase

	closeTimeout = 5 * time.Second
)

// Options configures [Open]. The zero value is ready to use.
type Options struct {
	// AppName is the name of this client in the server's logs. Defaults to the URI's appName, or
	// "fencepost".
	AppName string
	// ConnectTimeout is how long Open and every later operation search for a server before they fail with
	// ErrUnreachable. Defaults to the URI's serverSelectionTimeoutMS, or 5 s. The URI's connectTimeoutMS, if set,
	// bounds each attempt to connect.
	ConnectTimeout time.Duration
	// Monitor, if set, observes every command, for tracing and metrics.
	Monitor *event.CommandMonitor
}

// Queue is a queue.Queue in MongoDB. Safe for concurrent use.
type Queue struct {
	client *mongo.Client
	name   string // the URI without credentials and options, for messages

	messages   *mongo.Collection // w:majority
	relaxed    *mongo.Collection // messages, w:1: for deletions, which need not be durable
	store      target            // messages, for inserts
	dead       target            // dead letters
	scheduled  target            // delayed messages, and the plan
	promoter   *promoter
	types      *mongo.Collection  // w:majority
	files      *mongo.Collection  // w:majority
	notes      *mongo.Collection  // of holders; w:majority
	workers    *mongo.Collection  // w:1
	connectFor time.Duration      // effective Options.ConnectTimeout, for errors
	failures   *mongoerr.Failures // nil: unknown
	direct     bool               // the URI has directConnection: the driver does not search for the primary

	notifications *mongo.Collection // w:1

	clock clock.Server

	mu     sync.Mutex
	closed bool
	size   map[string]int64 // per type, recent mean payload, see Fetch
	large  map[string]bool  // types with large fetches

	registered  map[string]bool // types that this process has registered
	gotMessages map[string]bool // types with promoted messages that no Promotion has reported yet: the call failed afterwards
	forgot      time.Time       // when old notes about settled messages were last removed

	seed     maphash.Seed
	kept     map[uint64]time.Time // delayed messages that are skipped for keptFor: hash of the key, and when it was read
	examined string               // key of the last due message that was read and can be promoted
	walk     walk                 // position of the search for due messages

	scans  map[string]scan // by collection: unfinished scans
	strays queuedriver.StrayRecord

	transactions transactions
	shared       shared
	unionless    atomic.Bool // the server has no $unionWith
}

var _ queue.Queue = (*Queue)(nil)

// Open connects to the server that uri names (mongodb:// or mongodb+srv://, with the database as
// path, by default "fencepost") and checks that it answers. Errors wrap queue.ErrInvalidURL,
// queue.ErrUnreachable (also if DNS does not answer) or queue.ErrPermission, and never contain a
// password. ctx bounds everything. Without its end, each of the two look-ups of the hosts that
// mongodb+srv:// needs takes at most 15 s.
func Open(ctx context.Context, uri string, opt Options) (*Queue, error) {
	if opt.ConnectTimeout < 0 {
		return nil, errors.New("mongoqueue options: ConnectTimeout must not be negative")
	}
	co, database, err := mongourl.Parse(ctx, uri)
	if err != nil {
		return nil, explainURL(err)
	}
	uriTimeout := DefaultConnectTimeout
	if co.ServerSelectionTimeout != nil && *co.ServerSelectionTimeout > 0 {
		uriTimeout = *co.ServerSelectionTimeout
	}
	wait := cmp.Or(opt.ConnectTimeout, uriTimeout)
	if co.SetServerSelectionTimeout(wait); co.ConnectTimeout == nil {
		co.SetConnectTimeout(wait)
	}
	// rule: an error describes the one attempt that was made; retrying is up to the publisher
	co.SetRetryWrites(false)
	// rule: reads see everything that is acknowledged, whatever the URI asks for
	co.SetReadPreference(readpref.Primary())
	appName := "fencepost"
	if co.AppName != nil {
		appName = *co.AppName
	}
	co.SetAppName(cmp.Or(opt.AppName, appName))
	if opt.Monitor != nil {
		co.SetMonitor(opt.Monitor)
	}
	far, failures := distance.Of(co), mongoerr.Watch(co)
	client, err := mongourl.Connect(ctx, uri, co)
	if err != nil {
		return nil, explainURL(err)
	}
	q := newQueue(client, database, far)
	q.name, q.connectFor, q.failures = redact.URL(uri), wait, failures
	q.direct = co.Direct != nil && *co.Direct
	if err := q.hello(ctx); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Disconnect(closing) // nothing was sent that could be lost
		return nil, err
	}
	return q, nil
}

// Database is the name of the database, from the URI or DefaultDatabase.
func (q *Queue) Database() string { return q.messages.Database().Name() }

// DB is the database on this queue's client, for tools that inspect the server.
func (q *Queue) DB() *mongo.Database { return q.messages.Database() }

// durable is the write concern of everything that must not be lost. rule: a confirmed message survives a failover
// (majority) and, on a standalone server, where a majority is that server's memory, a crash (journal).
var durable = &writeconcern.WriteConcern{W: "majority", Journal: new(true)}

// newQueue prepares the collections, each with the write and read concern that its use needs.
func newQueue(client *mongo.Client, database string, far *distance.Meter) *Queue {
	db := client.Database(database)
	must := options.Collection().SetWriteConcern(durable)
	readMajority := options.Collection().SetReadConcern(readconcern.Majority())
	q := &Queue{
		client:    client,
		messages:  db.Collection("messages", must),
		relaxed:   db.Collection("messages", options.Collection().SetWriteConcern(writeconcern.W1())),
		store:     target{write: db.Collection("messages", must), majority: db.Collection("messages", readMajority)},
		dead:      target{write: db.Collection("dead", must), majority: db.Collection("dead", readMajority)},
		scheduled: target{write: db.Collection("scheduled", must), majority: db.Collection("scheduled", readMajority)},
		types:     db.Collection("types", must),
		files:     db.Collection("files", must),
		notes:     db.Collection("marks", must),
		workers:   db.Collection("workers", options.Collection().SetWriteConcern(writeconcern.W1())),
		size:      map[string]int64{},
		large:     map[string]bool{},

		notifications: db.Collection("notifications", options.Collection().SetWriteConcern(writeconcern.W1())),

		registered:  map[string]bool{},
		gotMessages: map[string]bool{},
		seed:        maphash.MakeSeed(),
		kept:        map[uint64]time.Time{},
		scans:       map[string]scan{},
	}
	q.promoter = &promoter{store: planned{q}}
	q.shared = newShared(q, far)
	return q
}

// hello checks that the server answers and accepts writes, and reads its clock.
func (q *Queue) hello(ctx context.Context) error {
	reply, err := q.readClock(ctx)
	if err != nil {
		return q.explain(ctx, "connect", err)
	}
	if reply.IsWritablePrimary != nil && !*reply.IsWritablePrimary {
		err := fmt.Errorf("%w: %s is not the primary; name the replica set in the URI (?replicaSet=…) and leave out directConnection",
			queue.ErrUnreachable, q.name)
		if reply.Primary == "" || !q.direct { // the driver finds the new primary
			err = fmt.Errorf("%w: %w", err, mongoerr.ErrNoPrimary)
		}
		return err
	}
	return nil
}

// helloReply is the part of the reply to hello that is used here.
type helloReply struct {
	LocalTime         time.Time `bson:"localTime"`
	IsWritablePrimary *bool     `bson:"isWritablePrimary"`
	Primary           string    `bson:"primary"` // as far as this member knows; "" during an election
}

// readClock reads the server's clock and the rest of helloReply.
//
//	runCommand {hello: 1} on admin; index: none. localTime is the server's wall clock in ms. Before MongoDB 4.4.2 the
//	command is unknown (59) and named isMaster.
func (q *Queue) readClock(ctx context.Context) (reply helloReply, err error) {
	admin := q.client.Database("admin")
	begin := time.Now()
	err = admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&reply)
	if hasCode(err, codeCommandNotFound) {
		begin = time.Now()
		err = admin.RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Decode(&reply)
	}
	if err != nil {
		return reply, err
	}
	now := time.Now()
	server := reply.LocalTime.Add(now.Sub(begin) / 2) // it was read about halfway through
	if reply.LocalTime.IsZero() {
		server = now
	}
	q.clock.Read(server, now)
	return reply, nil
}

// Now implements queue.Queue: the server's clock as last read by Open, Heartbeat or Promote, advanced by
// the time that has passed since.
func (q *Queue) Now(ctx context.Context) (time.Time, error) {
	if err := q.enter(ctx); err != nil {
		return time.Time{}, err
	}
	return q.now(), nil
}

func (q *Queue) now() time.Time { return q.clock.Now() }

// enter rejects an operation on a closed queue, or with an ended context.
func (q *Queue) enter(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("mongoqueue: %w", queue.ErrClosed)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("mongoqueue: %w", context.Cause(ctx))
	}
	return nil
}

// Close implements queue.Queue. It waits up to 5 s for running operations. Closing twice is not an error.
func (q *Queue) Close() error { return q.CloseWithin(context.Background()) }

// CloseWithin is Close with a wait that also ends with ctx.
func (q *Queue) CloseWithin(ctx context.Context) error {
	q.mu.Lock()
	closed := q.closed
	q.closed = true
	q.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := q.client.Disconnect(ctx); err != nil {
		return fmt.Errorf("mongoqueue: close: %w", err)
	}
	return nil
}
