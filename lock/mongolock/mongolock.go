// Package mongolock keeps locks in a MongoDB collection, one document per name:
//
//	{ _id: name,
//	  token: int64,                       // last granted fencing token; only grows, survives release
//	  v: ObjectId,                        // record version: random, new with every write except those of q and rq
//	  h: { id: ObjectId, ms: int64,       // present = held; id is new per acquisition, ms the holder's lease
//	       owner: {host, pid, instance, boot, pidns, started}, why,
//	       rq },                          // the reason of a request to release
//	  s: [{ …as h, n: int64,              // the shared holders; n is the number of permits
//	       v: ObjectId }],                // version of this entry
//	  q: [{ …as s }],                     // the waiters in the queue; only the first may acquire
//	  f: { id: ObjectId, why },           // the last forced release
//	  since: Date, at: Date }             // last acquired, last written; for people and for garbage collection
//
// It needs only atomic updates of single documents and classic operators: standalone servers, replica
// sets, sharded clusters (shard key _id) and MongoDB-compatible servers all work, MongoDB from 4.4 on.
// No operation upserts (contention would surface as odd errors) or uses a transaction, $expr, $$NOW or
// an update pipeline.
//
// All writes are acknowledged by a majority: a grant that could be rolled back is no grant. All
// reads go to the primary, and are hints only.
//
// A TTL index on at removes names that have not been used for [Options.Retention]; nothing depends on
// it. Dates come from the server ($currentDate), with one exception: an insert cannot use the server's
// date, so a new record takes since from this machine's clock and has no at until the lock is first
// renewed or released. Documents without at are never removed.
package mongolock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"

	"github.com/fencepost/fencepost/internal/distance"
	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/mongourl"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/lock"
)

const (
	// DefaultCollection is the name of the collection of locks.
	DefaultCollection = "locks"
	// DefaultRetention is how long a name stays after its last use.
	DefaultRetention = 30 * 24 * time.Hour
	// MinRetention keeps the token counter of a name that is unused for a week. Even after its record
	// was removed, the tokens of a name keep growing, as long as the wall clocks of the workers are
	// wrong by less than the retention.
	MinRetention = 7 * 24 * time.Hour

	// maxNamespace is the longest database.collection that every server accepts, in bytes. MongoDB takes 255 for a collection that is
	// not sharded.
	maxNamespace = 235
	// connectTimeout bounds how long Open waits for the server.
	connectTimeout = 10 * time.Second
	// poolSize bounds the connections of Open's own client. A lock operation is one short round
	// trip, so few are in use. The application cannot exhaust a pool of our own
	// (rule: renewals never wait behind the application's work). One more connection is for the
	// change stream.
	poolSize = 16 + 1
)

// Options configures [Open] and [New]. The zero value is ready to use.
type Options struct {
	// Collection is the name of the collection. All processes must use the same one. Defaults to
	// [DefaultCollection]; for another one, fencepost locks takes --collection.
	Collection string
	// Retention is how long a name stays after its last use, even if a crashed process still
	// holds it. Defaults to [DefaultRetention]; at least [MinRetention].
	Retention time.Duration
	// Warn, if set, receives a problem that does not fail Open: the error of [Setup].
	Warn func(error)
}

// check sets the defaults. It refuses a database or a collection in which no lock could be acquired, and a retention so short that tokens
// in use could be forgotten.
func (o *Options) check(db *mongo.Database) error {
	if db == nil {
		return &lock.InvalidError{What: "database of locks", Value: "nil", Problem: "pass one of a connected client"}
	}
	if !mongourl.ValidDatabase(db.Name()) {
		return &lock.InvalidError{What: "database of locks", Value: strconv.Quote(db.Name()), Problem: "it must be " + mongourl.DatabaseRule}
	}
	if o.Collection == "" {
		o.Collection = DefaultCollection
	}
	if !validCollection(db.Name(), o.Collection) {
		return &lock.InvalidError{What: "collection of locks", Value: strconv.Quote(o.Collection), Problem: fmt.Sprintf("it must be UTF-8 without "+
			"$ and zero bytes, must not begin with . or system., and %s.COLLECTION must have at most %d bytes", db.Name(), maxNamespace)}
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Retention < MinRetention {
		return &lock.InvalidError{What: "retention of locks", Value: o.Retention.String(),
			Problem: "it must be at least " + MinRetention.String()}
	}
	return nil
}

// validCollection reports whether every server accepts name as that of a collection in db.
func validCollection(db, name string) bool {
	return utf8.ValidString(name) && !strings.ContainsAny(name, "$\x00") && !strings.HasPrefix(name, ".") &&
		!strings.HasPrefix(name, "system.") && len(db+"."+name) <= maxNamespace
}

// locks is the collection of locks in db, whatever settings db has.
func (o *Options) locks(db *mongo.Database) *mongo.Collection {
	return db.Collection(o.Collection, options.Collection().
		// rule: a grant that a failover can roll back is no grant.
		SetWriteConcern(writeconcern.Majority()).
		// Reads are only hints, but a lagging secondary would give bad ones.
		SetReadPreference(readpref.Primary()))
}

// store implements lock.Store. Each method is one command on one document; its comment has the
// filter, the update (take, touch, remove: see filter.go), the index, and the meaning of no match.
type store struct {
	locks  *mongo.Collection
	hosts  string        // for errors
	client *mongo.Client // to disconnect at Close; nil if the client is the caller's
	shared shared
}

// Open connects to the server at uri with a small client of its own and keeps the locks in database,
// whatever database the URI names. If no server answers, it fails after at most 10 s.
//
// Errors say what to check, and never contain a password. They are a [*lock.InvalidError] for a wrong
// URI, database or option; they wrap [lock.ErrPermanent] if the server refuses the user, and
// [lock.ErrUnavailable] if it does not answer.
func Open(ctx context.Context, uri, database string, o Options) (lock.Store, error) {
	co, _, err := mongourl.Parse(ctx, uri)
	if err != nil {
		return nil, urlError(uri, err)
	}
	co.SetMinPoolSize(0).SetMaxPoolSize(poolSize) // the URL's pool sizes are for the queue
	// Package lock does its own retries, and knows which answers of a retry count. If the driver
	// retried a release on a server that does not recognize retries, it would report the second
	// answer, "not yours". Without retryable writes the server also need not store an image of the
	// document for each findAndModify.
	co.SetRetryWrites(false)
	if co.AppName == nil {
		co.SetAppName("fencepost-locks")
	}
	far := distance.Of(co)
	client, err := mongourl.Connect(ctx, uri, co)
	if err != nil {
		return nil, urlError(uri, err)
	}
	s, err := open(ctx, client.Database(database), far, strings.Join(co.Hosts, ","), o)
	if err != nil {
		disconnect(client)
		return nil, err
	}
	s.client = client
	return s, nil
}

// urlError is the error of Open for an error of package mongourl.
func urlError(uri string, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && !dns.IsNotFound {
		return fmt.Errorf("lock store: %w (%w)", err, lock.ErrUnavailable)
	}
	return &lock.InvalidError{What: "MongoDB URL", Value: redact.URL(uri), Problem: strings.TrimPrefix(err.Error(), redact.URL(uri)+": ")}
}

// New keeps the locks in db, on the caller's client, which Close does not disconnect. The client's pool must always have
// free connections: a renewal that waits too long for one loses the lock. New assumes a nearby server: if it is some
// milliseconds away, [Open] is faster for many concurrent lock operations. Errors are those of Open.
func New(ctx context.Context, db *mongo.Database, o Options) (lock.Store, error) {
	s, err := open(ctx, db, nil, "the server", o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// open prepares the collection on a client, waits until a primary answers, and creates the TTL index.
func open(ctx context.Context, db *mongo.Database, far *distance.Meter, hosts string, o Options) (*store, error) {
	if err := o.check(db); err != nil {
		return nil, err
	}
	s := &store{hosts: hosts, locks: o.locks(db)}
	s.shared = newShared(s, far)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.Client().Ping(ctx, readpref.Primary()); err != nil {
		if refused := s.explain("open", err); errors.Is(refused, lock.ErrPermanent) {
			return nil, fmt.Errorf("lock store: %w", refused)
		}
		return nil, fmt.Errorf("lock store: MongoDB at %s does not answer: %w; check that it runs, that host, port and "+
			"credentials in the URL are right, and that a replica set has a primary (%w)", hosts, mongoerr.Brief(err), lock.ErrUnavailable)
	}
	// Some servers and users cannot create indexes. Locks work without the index, so this is not an
	// error; CheckSetup reports it.
	if err := Setup(ctx, db, o); err != nil && o.Warn != nil {
		o.Warn(err)
	}
	return s, nil
}

// Read finds {_id: name}. Index: _id. Nothing found = the name has no record. It reads from the
// primary, but a deposed primary may still answer, so the result is a hint.
func (s *store) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	raw, err := s.shared.reads.Do(ctx, name)
	if err != nil || raw == nil {
		return lock.Record{}, false, s.explain("read", err)
	}
	r, err := decode(name, raw)
	return r, err == nil, err
}

// RemoveDamaged finds {_id: name} and deletes it if it cannot be decoded. Index: _id. The delete
// filter includes the version found, so that a record written since is not deleted.
func (s *store) RemoveDamaged(ctx context.Context, name string) (bool, error) {
	raw, err := s.readOne(ctx, name)
	if err != nil || raw == nil {
		return false, s.explain("read", err)
	}
	if _, err := decode(name, raw); err == nil {
		return false, nil
	}
	filter := and(name, absent("v"))
	if v, err := raw.LookupErr("v"); err == nil {
		filter = and(name, is("v", v))
	}
	res, err := s.locks.DeleteOne(ctx, filter)
	if err != nil {
		return false, s.explain("remove the damaged", err)
	}
	return res.DeletedCount == 1, nil
}

// Create inserts the document. Index: _id, whose uniqueness decides which insert wins. A duplicate key
// = another insert was first, or an earlier try of ours was applied (then the next Read shows our id).
// No operation upserts: MongoDB can retry an upsert internally only if the filter is the unique key
// alone, and compatible servers report the conflict as a different error.
func (s *store) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	ok, err := s.shared.creates.Do(ctx, request{name: name, hold: h, v: v})
	return ok, s.explain("create", err)
}

// created is the document that Create inserts. It has no at: an insert cannot use the server's date, and with a wrong date the
// TTL index could remove the lock.
func created(name string, h lock.Hold, v lock.Version) bson.D {
	d := bson.D{
		{Key: "_id", Value: name},
		{Key: "token", Value: int64(0)},
		{Key: "v", Value: bson.ObjectID(v)},
		{Key: "since", Value: time.Now()},
	}
	if h.Shared() {
		return append(d, is("s", bson.A{entry(h, v)})...)
	}
	return append(d, is("h", held(h))...)
}

// Acquire: {_id: name, h: null}, room, turn → take. Index: _id. Nothing matched = held, not our
// turn, or no record. It takes one round trip, unless it shares a command with other operations (see
// shared.go), as Read, Create, Confirm and Release also can.
func (s *store) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	if h.Shared() {
		return s.update(ctx, "acquire", acquiring(name, h), take(h, v))
	}
	g, err := s.shared.acquires.Do(ctx, request{name: name, hold: h, v: v})
	return g.token, g.ok, s.explain("acquire", err)
}

// TakeOver: {_id: name, v: seen}, no shares, turn → take. Index: _id. Nothing matched = the record was
// written since, or it is not our turn.
//
// rule: the only write bound to the version: it must fail if the holder has written the record since.
func (s *store) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (int64, bool, error) {
	return s.update(ctx, "take over", and(name, is("v", bson.ObjectID(seen)), absent("s.0"), turn(h)), take(h, v))
}

// HandOff: {_id: name, "h.id": from}, turn → take. Index: _id. Nothing matched = no longer ours, or
// another waiter is first in the queue.
func (s *store) HandOff(ctx context.Context, name string, from lock.HoldID, h lock.Hold, v lock.Version) (int64, bool, error) {
	return s.update(ctx, "hand over", and(name, is("h.id", bson.ObjectID(from)), turn(h)), take(h, v))
}

// Renew: mine → touch, returning the request to release. Index: _id. Nothing matched = lost.
func (s *store) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (string, bool, error) {
	d, ok, err := s.modify(ctx, "renew", mine(name, h), touch(h, v), bson.D{{Key: "h.rq", Value: 1}, {Key: "s.id", Value: 1},
		{Key: "s.rq", Value: 1}})
	if !ok {
		return "", false, err
	}
	if d.Hold != nil {
		return d.Hold.Asked, true, nil
	}
	for _, e := range d.Shares {
		if e.ID == bson.ObjectID(h.ID) {
			return e.Asked, true, nil
		}
	}
	return "", true, nil
}

// Confirm: mine → touch, and $max of token with floor+1. Index: _id. Nothing matched = not ours.
//
// A share always gets a new token, because the record's token may belong to another share: floor+1 if
// that is greater than the present token, otherwise the present token + 1. A classic update cannot
// express "the greater of the two", so Confirm tries two commands, of which one matches.
func (s *store) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (int64, bool, error) {
	if !h.Shared() {
		g, err := s.shared.confirms.Do(ctx, request{name: name, hold: h, v: v, floor: floor})
		return g.token, g.ok, s.explain("confirm", err)
	}
	up := touch(h, v)
	up[0].Value = append(up[0].Value.(bson.D), is("token", floor+1)...)
	token, ok, err := s.update(ctx, "confirm", append(mine(name, h), is("token", is("$lte", floor))...), up)
	if ok || err != nil {
		return token, ok, err
	}
	return s.update(ctx, "confirm", mine(name, h), append(touch(h, v), bson.E{Key: "$inc", Value: is("token", int64(1))}))
}

// Release: mine → remove. Index: _id. Nothing matched = lost before. The document stays, and with it
// the token.
func (s *store) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (bool, error) {
	if h.Shared() {
		return s.write(ctx, "release", mine(name, h), remove(h, v))
	}
	ok, err := s.shared.releases.Do(ctx, request{name: name, hold: h, v: v})
	return ok, s.explain("release", err)
}

// Expire: a share with this id and version → remove. Index: _id. Nothing matched = it was renewed or
// released.
func (s *store) Expire(ctx context.Context, name string, e lock.Entry, v lock.Version) (bool, error) {
	return s.write(ctx, "expire", and(name, is("s", seen(e.ID, e.Version))), remove(e.Hold, v))
}

// Ask: mine → $set rq, and no new v. Index: _id. Nothing matched = no longer held.
func (s *store) Ask(ctx context.Context, name string, h lock.Hold, why string) (bool, error) {
	key := "h.rq"
	if h.Shared() {
		key = "s.$.rq"
	}
	return s.write(ctx, "ask for", mine(name, h), is("$set", is(key, why)))
}

// Force: mine → remove, token+1, $set f. Index: _id. Nothing matched = no longer held.
func (s *store) Force(ctx context.Context, name string, h lock.Hold, why string, v lock.Version) (bool, error) {
	up := remove(h, v)
	up[0].Value = append(up[0].Value.(bson.D), is("f", forced{ID: bson.ObjectID(h.ID), Why: why})...)
	return s.write(ctx, "release by force", mine(name, h), append(up, bson.E{Key: "$inc", Value: is("token", int64(1))}))
}

// Enqueue: id not in q, q not full → $push, and no new v, returning the document. Index: _id. Nothing
// matched = no record, or id is in q, or q is full.
func (s *store) Enqueue(ctx context.Context, name string, e lock.Entry) (lock.Record, bool, error) {
	filter := and(name, is("q.id", is("$ne", bson.ObjectID(e.ID))), absent("q."+strconv.Itoa(lock.MaxEntries-1)))
	raw, err := s.locks.FindOneAndUpdate(ctx, filter, is("$push", is("q", entry(e.Hold, e.Version))),
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return lock.Record{}, false, nil
	}
	if err != nil {
		return lock.Record{}, false, s.explain("queue for", err)
	}
	r, err := decode(name, raw)
	return r, err == nil, err
}

// RenewPlace: id in q → $set its v, and no new v. Index: _id. Nothing matched = it was removed.
func (s *store) RenewPlace(ctx context.Context, name string, e lock.Entry) (bool, error) {
	return s.write(ctx, "renew the place in the queue for", and(name, is("q.id", bson.ObjectID(e.ID))), is("$set", is("q.$.v", bson.ObjectID(e.Version))))
}

// Dequeue: id (and version, if not zero) in q → $pull it. Index: _id.
func (s *store) Dequeue(ctx context.Context, name string, id lock.HoldID, v lock.Version) (bool, error) {
	filter := is("q.id", bson.ObjectID(id))
	if v != (lock.Version{}) {
		filter = is("q", seen(id, v))
	}
	return s.write(ctx, "leave the queue for", and(name, filter), is("$pull", is("q", is("id", bson.ObjectID(id)))))
}

// List finds all documents sorted by _id. Index: _id.
func (s *store) List(ctx context.Context) ([]lock.Record, error) {
	cur, err := s.locks.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, s.explain("list", err)
	}
	var docs []bson.Raw
	if err := cur.All(ctx, &docs); err != nil {
		return nil, s.explain("list", err)
	}
	list := make([]lock.Record, 0, len(docs))
	for _, raw := range docs {
		name, ok := raw.Lookup("_id").StringValueOK()
		if !ok {
			continue // not a lock: names are strings
		}
		r, err := decode(name, raw)
		if err != nil {
			r = lock.Record{Name: name}
			errors.As(err, &r.Damaged)
		}
		list = append(list, r)
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

// write runs an updateOne, without upsert, for operations that need nothing from the document: it is
// cheaper for the server than a findAndModify.
func (s *store) write(ctx context.Context, doing string, filter, update bson.D) (bool, error) {
	res, err := s.locks.UpdateOne(ctx, filter, update)
	if err != nil {
		return false, s.explain(doing, err)
	}
	return res.MatchedCount == 1, nil
}

// update is modify for operations that return the token.
func (s *store) update(ctx context.Context, doing string, filter, update bson.D) (int64, bool, error) {
	d, ok, err := s.modify(ctx, doing, filter, update, is("token", 1))
	return d.Token, ok, err
}

// modify runs a findOneAndUpdate, without upsert, and returns the fields in want of the updated
// document. ok is false if the filter matched nothing.
func (s *store) modify(ctx context.Context, doing string, filter, update, want bson.D) (d document, ok bool, err error) {
	d, ok, err = s.found(ctx, filter, update, want)
	return d, ok, s.explain(doing, err)
}

// found is modify without explain.
func (s *store) found(ctx context.Context, filter, update, want bson.D) (d document, ok bool, err error) {
	err = s.locks.FindOneAndUpdate(ctx, filter, update, options.FindOneAndUpdate().
		SetReturnDocument(options.After).SetProjection(want)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return d, false, nil
	}
	return d, err == nil, err
}

// Server error codes that a retry cannot fix. Source: mongodb/mongo,
// src/mongo/base/error_codes.yml.
const (
	codeUnauthorized         = 13
	codeAuthenticationFailed = 18
	codeMechanismUnavailable = 334
)

// explain adds the operation, the server and, if known, the remedy to an error. It marks an error as
// lock.ErrPermanent if a retry cannot help and the server has certainly not run the command.
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
	// rule: of the server's errors, only those about the user are permanent. While a server shuts down
	// or an election is under way, handshakes and authentication fail too.
	_, greeting := errors.AsType[*auth.Error](err)
	if se, ok := errors.AsType[mongo.ServerError](err); ok {
		switch {
		case se.HasErrorCode(codeAuthenticationFailed), greeting && se.HasErrorCode(codeUnauthorized), greeting && se.HasErrorCode(codeMechanismUnavailable):
			return permanent("check user, password, authMechanism and authSource in the URL")
		case se.HasErrorCode(codeUnauthorized):
			return permanent("give the user the role readWrite on the database of " + s.locks.Database().Name() + "." +
				s.locks.Name())
		}
	}
	if remedy := mongoerr.TLS(err); remedy != "" {
		return fmt.Errorf("%s lock on MongoDB at %s: %s: %w", doing, s.hosts, remedy, mongoerr.Brief(err))
	}
	return fmt.Errorf("%s lock on MongoDB at %s: %w", doing, s.hosts, mongoerr.Brief(err))
}

// disconnect has its own timeout, because the caller's context may have ended.
func disconnect(c *mongo.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	return c.Disconnect(ctx)
}
