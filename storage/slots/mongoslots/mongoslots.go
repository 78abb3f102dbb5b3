// Package mongoslots keeps slots in a MongoDB collection, one document per value:
//
//	{ _id: name, n: int64,  // length of the value, bytes
//	  b: binary }           // the value
//
// The unique _id decides: of two inserts under one name the server accepts one. The rest of this
// package interprets answers, because two events can make an answer differ from the lasting state:
//
//	a failover rolls back what only the old primary had    → write concern majority, journal
//	a primary that was deposed, and does not know it yet,   → read concern linearizable
//	answers from stale data
//
// So Create is acknowledged by a majority of the members, each with its journal on disk. A
// duplicate key error (E11000) may refer to a value that is about to be rolled back; it counts only if
// a linearizable read finds the value, which waits until a majority has it. Read and Size return
// values that a majority has; only a linearizable read proves that a value is absent.
//
// # Requirements
//
// MongoDB from 4.4 on, a replica set (one member is enough) or a sharded cluster. The collection is
// an ordinary one: [Store.Check] refuses one whose documents the server removes (capped, TTL), or in
// which _id is not unique (a shard key other than _id), and names the remedy. The user needs the
// role readWrite on the database, and on a sharded cluster, if the collection is sharded, also read
// on the database config.
//
// A standalone server works, too: there is no failover, and a value is in its journal before
// Create returns. Until then, for at most 0.1 s, a Read can see a value that a crash of the machine
// rolls back. MongoDB-compatible servers are as reliable as their write and read concerns; FerretDB
// with one PostgreSQL rolls nothing back.
//
// In a replica set configured with writeConcernMajorityJournalDefault: false, a majority
// acknowledges from memory: do not use such a set. Check refuses it if the user may read the setting
// (clusterMonitor).
//
// # Cost
//
// Create and Delete take one round trip, and the replication to a majority. Read and Size take one
// round trip if the value exists, two if not; the second one waits for a write of the primary to
// reach a majority. List takes two round trips for each folder in the folder, and one for some
// thousand values; the server reads the values to determine their lengths. Between costs the same for
// a part of the folder. Last and Count take one round trip each, Folders one for each folder; Count and
// Folders use the index alone.
package mongoslots

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/mongourl"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/storage/slots"
)

const (
	// DefaultCollection is the name of the collection of slots.
	DefaultCollection = "slots"
	// MaxValue is the maximum length of a value, in bytes. A document may have 16 MiB, and on some servers
	// a whole command as well; the rest is for the name and the command's other fields.
	MaxValue = 15 << 20

	connectTimeout = 5 * time.Second  // for the server selection, if the URL sets no timeout
	openTimeout    = 10 * time.Second // for all of Open
	closeTimeout   = 5 * time.Second
	// certainTimeout bounds a linearizable read, which otherwise waits as long as there is no majority.
	certainTimeout = 10 * time.Second
)

// Linger is what [Store.Linger] returns. A Create is a document, replicated to a majority: a few
// messages that share a document cost the servers little more than one message.
const Linger = 20 * time.Millisecond

// Options configures [New] and [Open]. The zero value is ready to use.
type Options struct {
	// Collection defaults to [DefaultCollection]. All processes must use the same one.
	Collection string
	// Address is returned by String and begins errors; it must contain no secret. It defaults to
	// the hosts, the database and the collection, as far as known: mongodb://db1,db2/shop.slots
	// with Open, mongodb:shop.slots with New.
	Address string
}

// Store is a [slots.Store] in MongoDB. Safe for concurrent use.
type Store struct {
	address    string
	db         *mongo.Database
	collection string
	majority   *mongo.Collection  // reads what a majority has
	certain    *mongo.Collection  // reads linearizably
	client     *mongo.Client      // disconnected by Close; nil: the client belongs to the caller
	failures   *mongoerr.Failures // of client; nil: unknown
}

var (
	_ slots.Store   = (*Store)(nil)
	_ slots.Costly  = (*Store)(nil)
	_ slots.Ordered = (*Store)(nil)
)

// New keeps slots in db, on the caller's client, which Close leaves open. It sends no request: call
// [Store.Check] before the first use. The client's read and write concerns, its read preference and
// retryWrites do not matter.
func New(db *mongo.Database, o Options) (*Store, error) {
	if o.Collection == "" {
		o.Collection = DefaultCollection
	}
	if o.Address == "" {
		o.Address = "mongodb:" + db.Name() + "." + o.Collection
	}
	if err := checkPlace(o.Address, db.Name(), o.Collection); err != nil {
		return nil, err
	}
	// Reads go to the primary: a secondary may lack values, and may have values that were deleted.
	read := func(rc *readconcern.ReadConcern) *mongo.Collection {
		return db.Collection(o.Collection,
			options.Collection().SetReadConcern(rc).SetReadPreference(readpref.Primary()))
	}
	return &Store{
		address: o.Address, db: db, collection: o.Collection,
		majority: read(readconcern.Majority()), certain: read(readconcern.Linearizable()),
	}, nil
}

// checkPlace refuses collections that accept no insert, and databases that are not for users.
func checkPlace(address, database, collection string) error {
	if strings.ContainsAny(collection, "$\x00") || strings.HasPrefix(collection, "system.") {
		return &slots.RefusedError{Store: address,
			Reason: fmt.Sprintf("%q is no name of a collection", collection),
			Remedy: "leave out $ and a leading system."}
	}
	// rule: local is not replicated, so nothing in it survives a failover
	if slices.Contains([]string{"admin", "config", "local"}, strings.ToLower(database)) {
		return &slots.RefusedError{Store: address, Reason: "the database " + database + " is the server's own",
			Remedy: "name another one"}
	}
	return nil
}

// Open connects to the server that url names (mongodb:// or mongodb+srv://, with the database as
// path, by default "fencepost") with a client of its own, and calls [Store.Check]. It fails after
// at most 10 s if no server answers. A [*slots.RefusedError] is permanent and needs an operator;
// other errors may be temporary. No error contains a secret.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	co, database, err := mongourl.Parse(ctx, url)
	if reason, _ := mongoerr.Passing(err); reason != "" {
		return nil, fmt.Errorf("slots in MongoDB: %w", err)
	}
	if err != nil {
		return nil, &slots.RefusedError{Store: "slots in MongoDB", Reason: "the URL is wrong", Err: err,
			Remedy: "it looks like mongodb://host:27017/database"}
	}
	if o.Address == "" {
		o.Address = addressOf(url, database, cmp.Or(o.Collection, DefaultCollection))
	}
	if co.ServerSelectionTimeout == nil || *co.ServerSelectionTimeout <= 0 {
		co.SetServerSelectionTimeout(connectTimeout)
	}
	co.SetReadPreference(readpref.Primary())
	if co.AppName == nil {
		co.SetAppName("fencepost-slots")
	}
	failures := mongoerr.Watch(co)
	client, err := mongourl.Connect(ctx, url, co)
	if err != nil {
		return nil, fmt.Errorf("slots in MongoDB: %w", err)
	}
	s, err := New(client.Database(database), o)
	if err == nil {
		s.client, s.failures = client, failures
		within, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		err = s.Check(within)
	}
	if err != nil {
		_ = disconnect(client) // no write was sent that could be lost
		return nil, err
	}
	return s, nil
}

func addressOf(url, database, collection string) string {
	scheme, rest, _ := strings.Cut(redact.URL(url), "://")
	hosts, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + hosts + "/" + database + "." + collection
}

// Close disconnects the client that Open created. It waits a few seconds for requests in flight. It leaves
// a client passed to New open.
func (s *Store) Close() error {
	if s.client == nil {
		return nil
	}
	if err := disconnect(s.client); err != nil {
		return fmt.Errorf("%s: close: %w", s.address, err)
	}
	return nil
}

func disconnect(c *mongo.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.Disconnect(ctx)
}

// Linger returns [Linger].
func (s *Store) Linger() time.Duration { return Linger }

// MaxValue returns [MaxValue].
func (s *Store) MaxValue() int { return MaxValue }

// String returns the address: hosts, database and collection.
func (s *Store) String() string { return s.address }

// alone returns ctx without the MongoDB session that it may carry.
//
// rule: no request is part of a caller's transaction, which could be aborted after Create.
func alone(ctx context.Context) context.Context { return mongo.NewSessionContext(ctx, nil) }
