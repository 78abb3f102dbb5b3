// Package mongolock keeps locks in a MongoDB collection, one document per name:
//
//	{ _id: name,
//	  token: int64,                       // last granted fencing token; only ever grows, survives release
//	  v: ObjectId,                        // record version: random, new with every write
//	  h: { id: ObjectId, ms: int64,       // present = held; id is new per acquisition, ms the holder's lease
//	       owner: {host, pid, instance, boot, pidns, started}, why },
//	  since: Date, at: Date }             // last acquired, last written; for people and for garbage collection
//
// It needs atomic updates of single documents and classic operators, nothing else: standalone servers, replica sets,
// sharded clusters (shard key _id) and MongoDB-compatible servers all work, MongoDB from 4.4 on. No operation upserts
// (contention would surface as odd errors), none uses a transaction, $expr, $$NOW or an update pipeline.
//
// All writes are acknowledged by a majority: a grant that could be rolled back is no grant. All reads go to the
// primary, and are hints only.
//
// A TTL index on at removes names that nobody has touched for [Options.Retention]; nothing depends on it. Dates come from
// the server ($currentDate), except since of the very first acquisition of a name, which an insert cannot ask the
// server for; at is missing until that lock is first renewed or released, and a record without it is never swept.
package mongolock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"

	"github.com/fencepost/fencepost/lock"
)

const (
	// DefaultCollection is the name of the collection of locks.
	DefaultCollection = "locks"
	// DefaultRetention is how long a name that nobody touches stays.
	DefaultRetention = 30 * 24 * time.Hour
	// MinRetention keeps the token counters of names in use over a long holiday. Tokens stay increasing even after a
	// record was swept, as long as the wall clocks of workers are right to within the retention.
	MinRetention = 7 * 24 * time.Hour

	// connectTimeout bounds how long Open waits for the server.
	connectTimeout = 10 * time.Second
	// poolSize is the number of connections of Open's own client. A lock operation is one short round trip; the point
	// of the pool is that the application cannot use it up (rule: renewals never wait behind the application's work).
	poolSize = 4
)

// Options configures [Open] and [New]. The zero value is ready to use.
type Options struct {
	// Collection defaults to [DefaultCollection]. All processes must use the same one.
	Collection string
	// Retention is how long a name stays that nobody touches, crashed holders included. Defaults to
	// [DefaultRetention]; at least [MinRetention].
	Retention time.Duration
	// Warn, if set, is told what went wrong without doing harm: the TTL index could not be made.
	Warn func(error)
}

type store struct {
	locks  *mongo.Collection
	hosts  string
	client *mongo.Client // to disconnect at Close; nil = the caller's
}

// Open connects to the server at uri with a small client of its own and keeps the locks in database. It fails after at
// most 10 s when no server answers, and says what to check.
func Open(ctx context.Context, uri, database string, o Options) (lock.Store, error) {
	co := options.Client().ApplyURI(uri)
	if err := co.Validate(); err != nil {
		return nil, fmt.Errorf("lock store: the MongoDB URL is wrong: %w; it looks like mongodb://host:27017/database", err)
	}
	co.SetMaxPoolSize(poolSize)
	// The engine repeats what failed and knows what that means; a driver that repeats a release on a server that does not
	// recognize the repetition would report the second try's answer, "not yours". It also saves the server the images
	// that it keeps of documents for repeated findAndModify commands.
	co.SetRetryWrites(false)
	if co.AppName == nil {
		co.SetAppName("fencepost-locks")
	}
	client, err := mongo.Connect(co)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	s, err := open(ctx, client.Database(database), strings.Join(co.Hosts, ","), o)
	if err != nil {
		disconnect(client)
		return nil, err
	}
	s.client = client
	return s, nil
}

// New keeps the locks in db, on the caller's client, which Close leaves alone. The client's pool must have connections to
// spare at all times: a renewal that waits for one for too long costs the lock.
func New(ctx context.Context, db *mongo.Database, o Options) (lock.Store, error) {
	s, err := open(ctx, db, "the server", o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func open(ctx context.Context, db *mongo.Database, hosts string, o Options) (*store, error) {
	if o.Collection == "" {
		o.Collection = DefaultCollection
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Retention < MinRetention {
		return nil, &lock.InvalidError{What: "retention of locks", Value: o.Retention.String(),
			Problem: "it must be at least " + MinRetention.String()}
	}
	s := &store{
		hosts: hosts,
		locks: db.Collection(o.Collection, options.Collection().
			// rule: a grant that a failover can roll back is no grant.
			SetWriteConcern(writeconcern.Majority()).
			// Reads are hints, but a hint from a lagging secondary would be a bad one.
			SetReadPreference(readpref.Primary())),
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.Client().Ping(ctx, readpref.Primary()); err != nil {
		return nil, fmt.Errorf("lock store: MongoDB at %s does not answer: %w; check that it runs, that host, port and "+
			"credentials in the URL are right, and that a replica set has a primary", hosts, err)
	}
	// rule: TTL is garbage collection of idle names, never the way a lock gets free. Safe to repeat; a server that
	// cannot, or an index with another retention, is no reason not to lock.
	_, err := s.locks.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "at", Value: 1}},
		Options: options.Index().SetName("at_ttl").SetExpireAfterSeconds(int32(min(o.Retention/time.Second, 1<<31-1))),
	})
	if err != nil && o.Warn != nil {
		o.Warn(fmt.Errorf("lock store: no TTL index on %s.%s, idle names will stay: %w", db.Name(), o.Collection, err))
	}
	return s, nil
}

// document is a record as it is stored.
type document struct {
	ID      string        `bson:"_id"`
	Token   int64         `bson:"token"`
	Version bson.ObjectID `bson:"v"`
	Hold    *hold         `bson:"h,omitempty"`
	Since   time.Time     `bson:"since,omitempty"`
	At      time.Time     `bson:"at,omitempty"`
}

type hold struct {
	ID    bson.ObjectID `bson:"id"`
	MS    int64         `bson:"ms"`
	Owner owner         `bson:"owner"`
	Why   string        `bson:"why,omitempty"`
}

type owner struct {
	Host         string `bson:"host,omitempty"`
	PID          int    `bson:"pid,omitempty"`
	Instance     string `bson:"instance,omitempty"`
	Boot         string `bson:"boot,omitempty"`
	PIDNamespace string `bson:"pidns,omitempty"`
	Started      string `bson:"started,omitempty"`
}

func held(h lock.Hold) *hold {
	return &hold{ID: bson.ObjectID(h.ID), MS: h.Lease.Milliseconds(), Owner: owner(h.Owner), Why: h.Why}
}

func (d document) record() lock.Record {
	r := lock.Record{Name: d.ID, Token: d.Token, Version: lock.Version(d.Version), Since: d.Since, At: d.At}
	if d.Hold != nil {
		r.Hold = &lock.Hold{ID: lock.HoldID(d.Hold.ID), Lease: time.Duration(d.Hold.MS) * time.Millisecond,
			Owner: lock.Owner(d.Hold.Owner), Why: d.Hold.Why}
	}
	return r
}

// take is the update of an acquisition: the new hold, a token above the last one, the server's dates.
func take(h lock.Hold, v lock.Version) bson.D {
	return bson.D{
		{Key: "$set", Value: bson.D{{Key: "h", Value: held(h)}, {Key: "v", Value: bson.ObjectID(v)}}},
		{Key: "$inc", Value: bson.D{{Key: "token", Value: int64(1)}}},
		{Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}, {Key: "since", Value: true}}},
	}
}

// touch is the update of a renewal.
func touch(v lock.Version) bson.D {
	return bson.D{
		{Key: "$set", Value: bson.D{{Key: "v", Value: bson.ObjectID(v)}}},
		{Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}}},
	}
}

// mine is the filter of everything a holder does.
//
// rule: by the id of the acquisition, not by name alone (that would touch a successor), and not by version (a renewal
// whose answer was lost would end the own lease).
func mine(name string, id lock.HoldID) bson.D {
	return bson.D{{Key: "_id", Value: name}, {Key: "h.id", Value: bson.ObjectID(id)}}
}

// Read finds {_id: name}. Index: _id. Nothing found = the name has no record. On the primary, possibly a deposed one: a
// hint.
func (s *store) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	var d document
	err := s.locks.FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return lock.Record{}, false, nil
	}
	if err != nil {
		return lock.Record{}, false, s.explain("read", err)
	}
	return d.record(), true, nil
}

// Create inserts the document. Index: _id, the arbiter: a duplicate key = somebody was first, or an earlier try of the
// driver was applied (the engine finds its own id then). There is no upsert anywhere: MongoDB can retry one by itself
// only if the filter is the unique key alone, and compatible servers report the conflict as another error.
func (s *store) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	// No at: an insert cannot ask for the server's date, and a wrong one could have the TTL sweep the lock.
	_, err := s.locks.InsertOne(ctx, bson.D{
		{Key: "_id", Value: name},
		{Key: "token", Value: int64(0)},
		{Key: "v", Value: bson.ObjectID(v)},
		{Key: "h", Value: held(h)},
		{Key: "since", Value: time.Now()},
	})
	if mongo.IsDuplicateKeyError(err) {
		return false, nil
	}
	return err == nil, s.explain("create", err)
}

// Acquire: {_id: name, h: null} → take. Index: _id. Nothing matched = held, or no record. One round trip.
func (s *store) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	return s.update(ctx, "acquire", bson.D{{Key: "_id", Value: name}, {Key: "h", Value: nil}}, take(h, v))
}

// TakeOver: {_id: name, v: seen} → take. Index: _id. Nothing matched = somebody wrote the record since it was seen.
//
// rule: the only write bound to the version: it must fail if the holder gave any sign of life.
func (s *store) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (int64, bool, error) {
	return s.update(ctx, "take over", bson.D{{Key: "_id", Value: name}, {Key: "v", Value: bson.ObjectID(seen)}}, take(h, v))
}

// Renew: mine → touch. Index: _id. Nothing matched = lost. An updateOne, not a findAndModify: that would make the server
// keep an image of the document for retries.
func (s *store) Renew(ctx context.Context, name string, id lock.HoldID, v lock.Version) (bool, error) {
	res, err := s.locks.UpdateOne(ctx, mine(name, id), touch(v))
	if err != nil {
		return false, s.explain("renew", err)
	}
	return res.MatchedCount == 1, nil
}

// Confirm: mine → touch, and $max of token with floor+1. Index: _id. Nothing matched = not ours.
func (s *store) Confirm(ctx context.Context, name string, id lock.HoldID, floor int64, v lock.Version) (int64, bool, error) {
	return s.update(ctx, "confirm", mine(name, id),
		append(touch(v), bson.E{Key: "$max", Value: bson.D{{Key: "token", Value: floor + 1}}}))
}

// Release: mine → $unset h, new v, server's date. Index: _id. Nothing matched = lost before. The document stays, and with it
// the token.
func (s *store) Release(ctx context.Context, name string, id lock.HoldID, v lock.Version) (bool, error) {
	res, err := s.locks.UpdateOne(ctx, mine(name, id),
		append(touch(v), bson.E{Key: "$unset", Value: bson.D{{Key: "h", Value: ""}}}))
	if err != nil {
		return false, s.explain("release", err)
	}
	return res.MatchedCount == 1, nil
}

// List finds all documents sorted by _id. Index: _id.
func (s *store) List(ctx context.Context) ([]lock.Record, error) {
	cur, err := s.locks.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, s.explain("list", err)
	}
	var docs []document
	if err := cur.All(ctx, &docs); err != nil {
		return nil, s.explain("list", err)
	}
	list := make([]lock.Record, len(docs))
	for i, d := range docs {
		list[i] = d.record()
	}
	return list, nil
}

// Close disconnects the client that Open made.
func (s *store) Close() error {
	if s.client == nil {
		return nil
	}
	return disconnect(s.client)
}

// update runs a findOneAndUpdate, without upsert, and returns the token after it.
func (s *store) update(ctx context.Context, doing string, filter, update bson.D) (int64, bool, error) {
	var d struct {
		Token int64 `bson:"token"`
	}
	err := s.locks.FindOneAndUpdate(ctx, filter, update, options.FindOneAndUpdate().
		SetReturnDocument(options.After).SetProjection(bson.D{{Key: "token", Value: 1}})).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, s.explain(doing, err)
	}
	return d.Token, true, nil
}

// The server's error codes for what no repetition cures. Source: mongodb/mongo, src/mongo/base/error_codes.yml.
const (
	codeUnauthorized         = 13
	codeAuthenticationFailed = 18
)

// explain says where an error comes from and marks those that no repetition cures.
func (s *store) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	permanent := func(remedy string) error {
		return fmt.Errorf("%s lock on MongoDB at %s: %w: %s (%w)", doing, s.hosts, err, remedy, lock.ErrPermanent)
	}
	if errors.Is(err, mongo.ErrClientDisconnected) {
		return permanent("the client was closed while its locks were in use")
	}
	if _, ok := errors.AsType[*auth.Error](err); ok {
		return permanent("check user, password and authSource in the URL")
	}
	if se, ok := errors.AsType[mongo.ServerError](err); ok {
		switch {
		case se.HasErrorCode(codeAuthenticationFailed):
			return permanent("check user, password and authSource in the URL")
		case se.HasErrorCode(codeUnauthorized):
			return permanent("give the user the role readWrite on the database of " + s.locks.Database().Name() + "." +
				s.locks.Name())
		}
	}
	return fmt.Errorf("%s lock on MongoDB at %s: %w", doing, s.hosts, err)
}

func disconnect(c *mongo.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	return c.Disconnect(ctx)
}
