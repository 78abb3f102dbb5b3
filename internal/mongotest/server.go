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

// Options limits what [Start] may do.
type Options struct {
	// Build allows [Start] to build the image or the tree with integration/mongo-image/build.sh if there is nothing
	// else: this takes minutes, as root, and installs debootstrap with apt-get if necessary. Defaults to false.
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

// ErrNone means that this machine has no server to start, no image of one, and no way to get either: a reason to skip
// tests. A server that exists and does not start is no such reason: a silently skipped test protects nothing.
var ErrNone = errors.New("no server for this machine")

// Server is a private server for fault injection. Its address stays the same over Kill and Start. Its methods may be
// called from several goroutines; each returns when its effect is complete, or with an error by the end of its
// context.
//
//	         Pause              Kill
//	paused <------- running ----------> down
//	       ------->    ^     <----------
//	       Unpause     |        Start
//	                NewServer
//
// A paused server can also be killed. Nothing confirmed is lost by any of this: see the durability settings in
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
	// remove ends the server in any state and deletes its data.
	remove(ctx context.Context) error
	// removeCommand returns the shell command equivalent to remove, for the guard; empty if there is none.
	removeCommand() string
	// alive reports whether the server process exists. Without one, waiting for an answer is pointless.
	alive(ctx context.Context) bool
	// logs returns the last output of the server, for error messages.
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

// Start starts a server; [NewServer] is the form for tests. The caller must call Terminate; if its process dies first,
// a guard does it. The error is [ErrNone] if this machine has nothing to start; any other error means that a start
// failed.
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

// Pause stops every process of the server in place, like a machine that hangs: connections stay open, nothing answers.
func (s *Server) Pause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// On a busy machine the kernel may not stop all processes within the time that it is given.
	err := s.engine.pause(ctx)
	for attempt := 1; err != nil && ctx.Err() == nil && attempt < pauseAttempts; attempt++ {
		time.Sleep(time.Duration(attempt) * 200 * time.Millisecond)
		err = s.engine.pause(ctx)
	}
	return s.wrap("pause", err)
}

// Unpause resumes a paused server, which then executes what clients sent in the meantime.
func (s *Server) Unpause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrap("unpause", s.engine.unpause(ctx))
}

// Kill ends the server by SIGKILL. Its data stays, including what it has just confirmed.
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

// launch starts a server for the first time. If it fails, nothing is left behind.
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
		return errors.Join(err, rerr) // the guard may succeed
	}
	s.guard.dismiss()
	return err
}

// waitReady polls until the server executes commands and, for a replica set, is the primary.
func (s *Server) waitReady(ctx context.Context) error {
	for {
		err := s.probe(ctx)
		if err == nil {
			return nil
		}
		if !s.engine.alive(ctx) {
			return fmt.Errorf("it has ended; its last output: %s", s.engine.logs(ctx))
		}
		if perr := pollPause(ctx, 50*time.Millisecond); perr != nil {
			return fmt.Errorf("it does not answer: %w (%w); its last output: %s", err, perr, s.engine.logs(context.WithoutCancel(ctx)))
		}
	}
}

// probe queries once, with its own client: one that has seen a failure would wait half a second before the next try.
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
	if hello.SetName == "" { // the first start; later it reads its configuration from disk, and this reports it
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

// pollPause waits between two checks of a condition.
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

// freePort returns a port of this machine that was free a moment ago. It is chosen here and not by Docker, which
// chooses another one at every start. Another process may take it in between: callers then retry with another port.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
