package messages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// Server is the MongoDB server of a run, and everything that the run has created on it.
type Server struct {
	URI    string
	Name   string // the name it reports
	Client *mongo.Client

	base   string // prefix of the names of the run's databases
	dir    string
	places []*Place
	stop   func() error
}

// Connect returns the server of a suite's run: the one named in the options, or a new one.
func Connect(ctx context.Context, o suite.Options, name string) (_ *Server, err error) {
	uri, stop, err := server.Start(ctx, o.MongoDB, o.Logf)
	if err != nil {
		return nil, err
	}
	s := &Server{URI: uri, base: server.NewDatabase(name), dir: o.Dir, stop: stop}
	if s.Client, _, err = server.Dial(uri); err != nil {
		return nil, errors.Join(fmt.Errorf("--mongodb: %w", err), stop())
	}
	if s.Name, err = server.Describe(ctx, s.Client); err != nil {
		return nil, errors.Join(fmt.Errorf("--mongodb: no server answers: %w", err), s.Client.Disconnect(context.WithoutCancel(ctx)), stop())
	}
	return s, nil
}

// Close removes everything that the run has created.
func (s *Server) Close(ctx context.Context) (err error) {
	end, cancel := server.Undisturbed(ctx)
	defer cancel()
	var names []string
	for _, p := range s.places {
		err = errors.Join(err, p.close(end))
		if p.Messages != nil {
			names = append(names, p.Messages.Database().Name())
		}
	}
	return errors.Join(err, server.Drop(end, s.Client, names...), s.Client.Disconnect(end), s.stop())
}

// Keep makes the server's Close also close a place that was made without the server.
func (s *Server) Keep(p *Place) { s.places = append(s.places, p) }

// Place belongs to one contender: a database on the server, a directory, and the messages it has received so far.
type Place struct {
	URI      string // of the backend, with the database
	Dir      string
	Messages *mongo.Collection   // with Fencepost's write concern: a majority has it, in its journal
	Relaxed  *mongo.Collection   // for deletions
	Given    map[string]int      // by type: messages 0 … Given-1 were loaded
	Drained  map[string]int      // by type: … and 0 … Drained-1 were taken out
	Journals map[string]*Journal // nil: closed
	Backend  *fencepost.Backend  // of Fencepost

	Sink Sink       // if set, where Bare puts the messages of the only type, instead of a journal
	FS   storage.FS // the file system of Fencepost's files; nil: in Dir
}

// Sink is the destination of a bare loop's payloads.
type Sink interface {
	Append(p []byte) error // p is durable when it returns
	Check(n int) error     // checks that it has the messages 0, 1, 2 … n-1 in this order
}

// NewPlace makes a place; Close closes and drops it.
func (s *Server) NewPlace(name string) (*Place, error) {
	database := s.base + "_" + name
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	db := s.Client.Database(database)
	p := &Place{
		URI:      withDatabase(s.URI, database),
		Dir:      dir,
		Messages: db.Collection("messages", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: new(true)})),
		Relaxed:  db.Collection("messages", options.Collection().SetWriteConcern(writeconcern.W1())),
		Given:    map[string]int{}, Drained: map[string]int{}, Journals: map[string]*Journal{},
	}
	s.Keep(p)
	return p, nil
}

// NewBackend makes a place for Fencepost.
func (s *Server) NewBackend(ctx context.Context, name string) (*Place, error) {
	p, err := s.NewPlace(name)
	if err == nil {
		p.Backend, err = fencepost.Open(ctx, p.URI)
	}
	return p, err
}

// OpenEmbedded makes a place without a server, in a new directory, for Fencepost on SQLite. Keep closes it at the end, or the caller
// does.
func OpenEmbedded(ctx context.Context, dir string) (*Place, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	p := &Place{URI: "sqlite://" + filepath.Join(dir, "fencepost.db"), Dir: dir, Given: map[string]int{}, Drained: map[string]int{}}
	var err error
	p.Backend, err = fencepost.Open(ctx, p.URI)
	return p, err
}

// CloseJournals closes the files of all types; Journal opens them again.
func (p *Place) CloseJournals() (err error) {
	for typ := range p.Journals {
		err = errors.Join(err, p.closeJournal(typ))
	}
	return err
}

func (p *Place) closeJournal(typ string) (err error) {
	if j := p.Journals[typ]; j != nil {
		err = j.F.Close()
	}
	p.Journals[typ] = nil
	return err
}

func (p *Place) close(ctx context.Context) error {
	err := p.CloseJournals()
	if p.Backend != nil {
		err = errors.Join(err, p.Backend.Close(ctx))
	}
	return err
}

// withDatabase puts a database's name into a URI. It parses the URI by hand, because a list of hosts is not a valid URL.
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

// Clear creates a new collection, so that no contender pays for what others have deleted.
func (p *Place) Clear(ctx context.Context) error {
	if err := p.Messages.Drop(ctx); err != nil {
		return err
	}
	if err := p.Messages.Database().CreateCollection(ctx, p.Messages.Name()); err != nil {
		return err
	}
	return p.introduce(ctx)
}

// introduce uses a new collection with many concurrent commands. A server with a process for each connection (PostgreSQL behind
// FerretDB) learns of the collection in each of them. Otherwise a loop with one connection would pay for that once, and a contender with
// several connections several times, in each round.
func (p *Place) introduce(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range introductions {
		g.Go(func() error {
			for range 3 {
				if err := p.useEmpty(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// useEmpty sends each command that drains use, and finds nothing.
func (p *Place) useEmpty(ctx context.Context) error {
	none := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: "/"}, {Key: "$lt", Value: "0"}}}}
	for _, ask := range []func() (*mongo.Cursor, error){
		func() (*mongo.Cursor, error) { return p.Messages.Find(ctx, none) },
		func() (*mongo.Cursor, error) {
			return p.Messages.Aggregate(ctx, bson.A{bson.D{{Key: "$match", Value: none}}})
		},
	} {
		cursor, err := ask()
		if err != nil {
			return err
		}
		if err := cursor.Close(ctx); err != nil {
			return err
		}
	}
	_, err := p.Relaxed.DeleteMany(ctx, none)
	return err
}

const introductions = 16 // concurrent commands

// Source creates documents as a publisher would have stored them.
type Source struct {
	producer uint64
	n        uint64
}

// NewSource returns a producer that has stored nothing yet.
func NewSource() *Source { return &Source{producer: rand.Uint64()} }

// Documents returns the next n messages of a type.
func (p *Place) Documents(from *Source, typ string, n int) []any {
	docs := make([]any, n)
	at := time.Now()
	for i := range docs {
		from.n++
		id := queue.NewID(at, from.producer, from.n)
		docs[i] = bson.D{{Key: "_id", Value: typ + "/" + id.String()}, {Key: "b", Value: bson.Binary{Data: Payload(p.Given[typ])}}}
		p.Given[typ]++
	}
	return docs
}

// Load stores n messages of each type with raw inserts, in batches; each type has one producer.
func (p *Place) Load(ctx context.Context, n int, types ...string) error {
	var batch []any
	for i, typ := range types {
		from := NewSource()
		for left := n; left > 0; {
			docs := p.Documents(from, typ, min(left, BatchSize-len(batch)))
			batch, left = append(batch, docs...), left-len(docs)
			if len(batch) < BatchSize && (left > 0 || i < len(types)-1) {
				continue
			}
			if _, err := p.Relaxed.InsertMany(ctx, batch); err != nil {
				return err
			}
			batch = nil
		}
	}
	return nil
}

// Journal returns the raw file of a type.
func (p *Place) Journal(typ string) (j *Journal, err error) {
	if j = p.Journals[typ]; j == nil {
		if j, err = OpenJournal(p.Dir, typ); err == nil {
			p.Journals[typ] = j
		}
	}
	return j, err
}

func (p *Place) sink(typ string) (Sink, error) {
	if p.Sink != nil {
		return p.Sink, nil
	}
	return p.Journal(typ)
}

// Bare is the loop that every drain is compared with: find, write, fdatasync, deleteMany; no lock, no framing, no checks. It ends when a
// find returns nothing, or at limit messages if that is not 0. batch, if not nil, is called after each batch.
func (p *Place) Bare(ctx context.Context, typ string, limit int, batch func(n int)) error {
	sink, err := p.sink(typ)
	if err != nil {
		return err
	}
	after := typ + "/"
	buf := make([]byte, 0, BatchSize*MessageSize)
	for total := 0; limit == 0 || total < limit; {
		cursor, err := p.Messages.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: typ + "0"}}}},
			options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(BatchSize).SetBatchSize(BatchSize))
		if err != nil {
			return err
		}
		keys := make([]string, 0, BatchSize)
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
		if err := sink.Append(buf); err != nil {
			return err
		}
		if _, err := p.Relaxed.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}}); err != nil {
			return err
		}
		total += len(keys)
		p.Drained[typ] += len(keys)
		if batch != nil {
			batch(len(keys))
		}
	}
	return nil
}

// Drain drains with a pool, from New to the end of Run: the lock is acquired, the file opened, everything drained, the type seen empty
// by a sweep from the start, the file closed, the lock released.
func (p *Place) Drain(ctx context.Context, types ...string) error {
	pool, err := worker.New(worker.Config{Queue: p.Backend.Queue, Locker: p.Backend.Locker, To: worker.Files{Dir: p.Dir, Storage: storage.Options{FS: p.FS}}, Types: types, UntilEmpty: true})
	if err == nil {
		err = pool.Run(ctx)
	}
	if err != nil {
		return err
	}
	want := 0
	for _, typ := range types {
		want += p.Given[typ] - p.Drained[typ]
		p.Drained[typ] = p.Given[typ]
	}
	return Complete("what the pool appended", int(pool.Stats().Appended), want)
}

// Empty checks that everything given was drained.
func (p *Place) Empty(ctx context.Context) error {
	for typ, n := range p.Given {
		if err := Complete("what was drained of "+typ, p.Drained[typ], n); err != nil {
			return err
		}
	}
	err := p.Messages.FindOne(ctx, bson.D{}).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("messages are left in %s", p.Messages.Database().Name()))
}

// Verify checks all files: Fencepost's by Verify, and that each has the messages of its type in order, each once.
func (p *Place) Verify(ctx context.Context) error {
	for typ, n := range p.Drained {
		if j, bare := p.Journals[typ]; bare || p.Sink != nil {
			sink, err := p.sink(typ)
			if err == nil {
				err = sink.Check(n)
			}
			if j == nil && p.Sink == nil {
				err = errors.Join(err, p.closeJournal(typ))
			}
			if err != nil {
				return err
			}
			continue
		}
		next := 0
		if err := p.Visit(ctx, typ, InOrder(&next)); err != nil {
			return err
		}
		if err := Complete(typ+".fpl", next, n); err != nil {
			return err
		}
	}
	return nil
}

// Visit verifies the file of a type and calls f with the number of each message.
func (p *Place) Visit(ctx context.Context, typ string, f func(int) error) error {
	report, err := storage.Verify(ctx, filepath.Join(p.Dir, typ+".fpl"), storage.VerifyOptions{FS: p.FS, Deep: true, Visit: func(r storage.Record) error {
		i, err := Number(r.Payload)
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
