package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// place is a contender's own: a database on the server, a directory, and what it was given so far.
type place struct {
	uri      string // with the database
	dir      string
	messages *mongo.Collection // as Fencepost writes: a majority has it, in its journal
	relaxed  *mongo.Collection // for deletions
	given    map[string]int    // by type: messages 0 … given-1 were loaded
	drained  map[string]int    // by type: … and 0 … drained-1 were taken out
	journals map[string]*journal
	backend  *fencepost.Backend // of Fencepost
}

// newPlace makes a place; it is closed and dropped with the run.
func (b *bench) newPlace(name string) (*place, error) {
	database := b.base + "_" + name
	dir := filepath.Join(b.o.Dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	db := b.client.Database(database)
	p := &place{
		uri:      withDatabase(b.uri, database),
		dir:      dir,
		messages: db.Collection("messages", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: new(true)})),
		relaxed:  db.Collection("messages", options.Collection().SetWriteConcern(writeconcern.W1())),
		given:    map[string]int{}, drained: map[string]int{}, journals: map[string]*journal{},
	}
	b.places = append(b.places, p)
	return p, nil
}

// newBackend makes a place where Fencepost works.
func (b *bench) newBackend(ctx context.Context, name string) (*place, error) {
	p, err := b.newPlace(name)
	if err == nil {
		p.backend, err = fencepost.Open(ctx, p.uri)
	}
	return p, err
}

func (p *place) close(ctx context.Context) (err error) {
	for _, j := range p.journals {
		err = errors.Join(err, j.f.Close())
	}
	if p.backend != nil {
		err = errors.Join(err, p.backend.Close(ctx))
	}
	return err
}

// withDatabase puts a database's name into a URI. By hand, as a list of hosts is no proper URL.
func withDatabase(uri, name string) string {
	scheme, rest, _ := strings.Cut(uri, "://")
	rest, query, asks := strings.Cut(rest, "?")
	hosts, _, _ := strings.Cut(rest, "/")
	uri = scheme + "://" + hosts + "/" + name
	if asks {
		uri += "?" + query
	}
	return uri
}

// clear begins with a new collection, so that nobody pays for what others have deleted.
func (p *place) clear(ctx context.Context) error {
	if err := p.messages.Drop(ctx); err != nil {
		return err
	}
	return p.messages.Database().CreateCollection(ctx, p.messages.Name())
}

// source makes documents as a publisher would have stored them.
type source struct {
	producer uint64
	n        uint64
}

func newSource() *source { return &source{producer: rand.Uint64()} }

// documents returns the next n messages of a type.
func (p *place) documents(from *source, typ string, n int) []any {
	docs := make([]any, n)
	at := time.Now()
	for i := range docs {
		from.n++
		id := queue.NewID(at, from.producer, from.n)
		docs[i] = bson.D{{Key: "_id", Value: typ + "/" + id.String()}, {Key: "b", Value: bson.Binary{Data: payload(p.given[typ])}}}
		p.given[typ]++
	}
	return docs
}

// load stores n messages of each type with raw inserts, in batches; a type's have one producer.
func (p *place) load(ctx context.Context, n int, types ...string) error {
	for _, typ := range types {
		from := newSource()
		for left := n; left > 0; left -= batchSize {
			if _, err := p.relaxed.InsertMany(ctx, p.documents(from, typ, min(left, batchSize))); err != nil {
				return err
			}
		}
	}
	return nil
}

// journal returns the raw file of a type.
func (p *place) journal(typ string) (j *journal, err error) {
	if j = p.journals[typ]; j == nil {
		if j, err = openJournal(p.dir, typ); err == nil {
			p.journals[typ] = j
		}
	}
	return j, err
}

// bare is the loop that every drain is compared with: find, write, fdatasync, deleteMany; no lock, no framing, no check of
// anything. It ends when a find returns nothing, or at limit messages if that is not 0. batch, if not nil, is called
// after each batch.
func (p *place) bare(ctx context.Context, typ string, limit int, batch func(n int)) error {
	j, err := p.journal(typ)
	if err != nil {
		return err
	}
	after := typ + "/"
	buf := make([]byte, 0, batchSize*messageSize)
	for total := 0; limit == 0 || total < limit; {
		cursor, err := p.messages.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: typ + "0"}}}},
			options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(batchSize).SetBatchSize(batchSize))
		if err != nil {
			return err
		}
		keys := make([]string, 0, batchSize)
		buf = buf[:0]
		for cursor.Next(ctx) {
			after = cursor.Current.Lookup("_id").StringValue()
			keys = append(keys, after)
			_, b := cursor.Current.Lookup("b").Binary()
			buf = append(buf, b...)
		}
		if err := errors.Join(cursor.Err(), cursor.Close(ctx)); err != nil {
			return err
		}
		if len(keys) == 0 {
			return nil
		}
		if err := j.append(buf); err != nil {
			return err
		}
		if _, err := p.relaxed.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}}); err != nil {
			return err
		}
		total += len(keys)
		p.drained[typ] += len(keys)
		if batch != nil {
			batch(len(keys))
		}
	}
	return nil
}

// fencepost drains with a pool, from New to the end of Run: the lock is acquired, the file opened, everything drained, the
// type seen empty by a sweep from the start, the file closed, the lock released.
func (p *place) fencepost(ctx context.Context, types ...string) error {
	pool, err := worker.New(worker.Config{Queue: p.backend.Queue, Locker: p.backend.Locker, Dir: p.dir, Types: types, UntilEmpty: true})
	if err == nil {
		err = pool.Run(ctx)
	}
	if err != nil {
		return err
	}
	want := 0
	for _, typ := range types {
		want += p.given[typ] - p.drained[typ]
		p.drained[typ] = p.given[typ]
	}
	return complete("what the pool appended", int(pool.Stats().Appended), want)
}

// empty checks that nothing is left of what was given.
func (p *place) empty(ctx context.Context) error {
	for typ, n := range p.given {
		if err := complete("what was drained of "+typ, p.drained[typ], n); err != nil {
			return err
		}
	}
	err := p.messages.FindOne(ctx, bson.D{}).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("messages are left in %s", p.messages.Database().Name()))
}

// verify checks all files: Fencepost's by Verify, and that each has its type's messages in order, each once.
func (p *place) verify(ctx context.Context) error {
	for typ, n := range p.drained {
		if j := p.journals[typ]; j != nil {
			if err := j.check(n); err != nil {
				return err
			}
			continue
		}
		next := 0
		if err := p.visit(ctx, typ, inOrder(&next)); err != nil {
			return err
		}
		if err := complete(typ+".fpl", next, n); err != nil {
			return err
		}
	}
	return nil
}

// visit verifies the file of a type and calls f with the number of each message.
func (p *place) visit(ctx context.Context, typ string, f func(int) error) error {
	report, err := storage.Verify(ctx, filepath.Join(p.dir, typ+".fpl"), storage.VerifyOptions{Deep: true, Visit: func(r storage.Record) error {
		i, err := number(r.Payload)
		if err == nil {
			err = f(i)
		}
		return err
	}})
	if err == nil {
		err = report.Err()
	}
	if err == nil && report.Gaps+report.Skipped+report.Lost > 0 {
		err = fmt.Errorf("%s.fpl: %d gaps, %d skipped, %d lost", typ, report.Gaps, report.Skipped, report.Lost)
	}
	return err
}

// verifyAll checks the files of several places.
func verifyAll(ctx context.Context, places ...*place) error {
	for _, p := range slices.Compact(places) {
		if err := p.verify(ctx); err != nil {
			return err
		}
	}
	return nil
}
