package mongotest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Options say how far [Start] may go.
type Options struct {
	// Build allows to build the image or the tree with integration/mongo-image/build.sh when there is nothing else:
	// minutes, as root, installing debootstrap with apt-get if need be. Defaults to false.
	Build bool
	// Log receives a line for every slow step. Defaults to none.
	Log io.Writer
}

func (o Options) timeout() time.Duration {
	if o.Build {
		return startTimeout + buildTimeout
	}
	return startTimeout
}

func (o Options) logf(format string, args ...any) {
	if o.Log != nil {
		fmt.Fprintf(o.Log, "mongotest: "+format+"\n", args...)
	}
}

// ErrNone says that this machine has no server to start, no image of one, and no way to get either. That is a reason
// to skip tests. A server that exists and does not start is not: a silently skipped test protects nothing.
var ErrNone = errors.New("no server for this machine")

// Server is a private server to inject faults into. Its address stays the same over Kill and Start. Its methods may
// be called from several goroutines; each returns when its effect is complete, or with an error by the end of its
// context.
//
//	         Pause              Kill
//	paused <------- running ----------> down
//	       ------->    ^     <----------
//	       Unpause     |        Start
//	                NewServer
//
// A paused server also can be killed. Nothing confirmed is lost by any of this: see the durability settings in
// integration/mongo-image/postgresql.conf.
type Server struct {
	addr   string
	member string // of a replica set of one: its own address, by which it finds itself; "" for any other server

	mu     sync.Mutex // one change of state at a time
	engine engine
	guard  *guard
}

// engine is a way to run a server process: in a container or in a chroot.
type engine interface {
	// start creates the server process, or starts it again after kill. The server need not answer yet.
	start(ctx context.Context) error
	pause(ctx context.Context) error
	unpause(ctx context.Context) error
	// kill ends every process of the server by SIGKILL and returns when all are gone.
	kill(ctx context.Context) error
	// remove ends the server in any state and forgets its data.
	remove(ctx context.Context) error
	// removeCommand is the shell command that does what remove does, for the guard; empty if there is none.
	removeCommand() string
	// alive says whether the server process is there. Waiting for an answer makes no sense when it is not.
	alive(ctx context.Context) bool
	// logs returns the last of what the server said, for error messages.
	logs(ctx context.Context) string
}

// NewServer starts a server for this test alone and removes it when the test ends. It skips or fails the test if that
// is not possible. It ignores [EnvURI], so it never harms another server.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s, err := startForTests()
	if err != nil {
		unavailable(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := s.Terminate(ctx); err != nil {
			t.Logf("mongotest: %v", err)
		}
	})
	return s
}

// Start starts a server; [NewServer] is the form for tests. The caller must call Terminate; should its process die
// before, a guard does it. The error is [ErrNone] if this machine has nothing to start; any other error means that a
// start failed.
func Start(ctx context.Context, o Options) (*Server, error) {
	docker, dockerErr := newDocker(ctx)
	if dockerErr == nil {
		return docker.startServer(ctx, o)
	}
	path, treeErr := tree(ctx, o)
	if treeErr != nil {
		return nil, fmt.Errorf("%w: no Docker: %w; no chroot: %w", ErrNone, dockerErr, treeErr)
	}
	return startChroot(ctx, o, path)
}

// URI returns the server's URI without a database in its path.
func (s *Server) URI() string { return uriOf(s.addr) }

func uriOf(addr string) string { return "mongodb://" + addr + "/?directConnection=true" }

// Addr returns host:port of the server, for proxies and the like.
func (s *Server) Addr() string { return s.addr }

// Database is [Database] on this server.
func (s *Server) Database(t testing.TB) *mongo.Database {
	t.Helper()
	_, db := s.Fresh(t)
	return db
}

// Fresh is [Fresh] on this server.
func (s *Server) Fresh(t testing.TB) (uri string, db *mongo.Database) {
	t.Helper()
	return freshOn(t, s.URI())
}

const pauseAttempts = 6

// Pause stops every process of the server where it is, like a machine that hangs: connections stay, nothing answers.
func (s *Server) Pause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// On a busy machine the kernel may not get all processes stopped in the time that it is given.
	err := s.engine.pause(ctx)
	for attempt := 1; err != nil && ctx.Err() == nil && attempt < pauseAttempts; attempt++ {
		time.Sleep(time.Duration(attempt) * 200 * time.Millisecond)
		err = s.engine.pause(ctx)
	}
	return s.wrap("pause", err)
}

// Unpause resumes a paused server. It executes now what clients sent meanwhile.
func (s *Server) Unpause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrap("unpause", s.engine.unpause(ctx))
}

// Kill ends the server by SIGKILL. Its data stays, also what it confirmed a moment before.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrap("kill", s.engine.kill(ctx))
}

// Start starts a killed server again with its data, at the same address, and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.engine.start(ctx); err != nil {
		return s.wrap("start", err)
	}
	return s.wrap("start", s.waitReady(ctx))
}

// Terminate ends the server in any state and removes it with its data.
func (s *Server) Terminate(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.engine.remove(ctx)
	if err == nil {
		s.guard.dismiss()
	}
	return s.wrap("terminate", err)
}

func (s *Server) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the MongoDB test server at %s: %w", what, s.addr, err)
}

// launch starts a server for the first time. Whatever fails, nothing is left behind.
func launch(ctx context.Context, s *Server) error {
	err := s.engine.start(ctx)
	if err == nil {
		s.guard = newGuard(s.engine.removeCommand())
		err = s.waitReady(ctx)
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	if rerr := s.engine.remove(ctx); rerr != nil {
		return errors.Join(err, rerr) // and the guard may have more luck
	}
	s.guard.dismiss()
	return err
}

// waitReady polls until the server carries out commands, and for a replica set until it is the primary.
func (s *Server) waitReady(ctx context.Context) error {
	for {
		err := s.probe(ctx)
		if err == nil {
			return nil
		}
		if !s.engine.alive(ctx) {
			return fmt.Errorf("it ended by itself; its last words: %s", s.engine.logs(ctx))
		}
		if perr := pollPause(ctx, 50*time.Millisecond); perr != nil {
			return fmt.Errorf("it does not answer: %w (%w); its last words: %s", err, perr, s.engine.logs(context.WithoutCancel(ctx)))
		}
	}
}

// probe asks once, with a client of its own: one that has seen a failure would wait half a second before the next try.
func (s *Server) probe(ctx context.Context) error {
	const timeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()).SetServerSelectionTimeout(timeout))
	if err != nil {
		return err
	}
	defer client.Disconnect(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was checked out

	admin := client.Database("admin")
	if s.member == "" {
		return admin.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
	}
	var hello struct {
		SetName           string `bson:"setName"`
		IsWritablePrimary bool   `bson:"isWritablePrimary"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return err
	}
	if hello.SetName == "" { // the first start; after a later one it reads its configuration from disk, and this says so
		config := bson.D{{Key: "_id", Value: replicaSetName}, {Key: "members", Value: bson.A{
			bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: s.member}}, // clients connect directly
		}}}
		err := admin.RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: config}}).Err()
		var command mongo.CommandError
		if err != nil && !(errors.As(err, &command) && command.Name == "AlreadyInitialized") {
			return err
		}
	}
	if !hello.IsWritablePrimary {
		return errors.New("it is not primary yet")
	}
	return nil
}

// pollPause is the pause between two looks at a condition.
func pollPause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// freePort returns a port of this machine that was free a moment ago. Chosen by us and not by Docker, because Docker
// chooses another one at every start. Somebody else may take it in between: callers try again with another then.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
