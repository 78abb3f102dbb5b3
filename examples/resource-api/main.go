// Command resource-api is an HTTP service that reads, changes and updates a resource under a lock shared by all its
// instances.
//
//	GET  /resources/{id}               the resource, without a lock
//	POST /resources/{id}?add=1         reads it, adds, and updates it, under the lock "resource/{id}"
//
// The answer to a POST says how long it took to get the lock. The service waits up to 10 s (--timeout); the header
// "Prefer: wait=2" limits the wait to two seconds. When nothing was changed, the status says why:
//
//	423 Locked, Retry-After                another request held the lock all the time
//	409 Conflict, Retry-After              the lock was lost, or a later holder has changed the resource
//	503 Service Unavailable, Retry-After   the lock store does not answer
//
// The lease is shorter than the timeout: when an instance dies during a change, waiting requests get the lock before
// they give up. The interrupted change has no effect, as the update is a single step.
//
// Without --listen the program demonstrates itself: it starts two instances as processes, lets clients increment one resource
// through both, kills one instance in the middle of a change, and counts.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "resource-api:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var s service
	flags := flag.NewFlagSet("resource-api", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	listen := flags.String("listen", "", "address to serve at, such as localhost:8080 (default: run a demonstration)")
	flags.StringVar(&s.dir, "dir", "", "directory of the resources (default: a temporary directory)")
	flags.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long to wait for a lock")
	flags.DurationVar(&s.lease, "lease", 5*time.Second, "how long a lock outlives an instance that died on another machine")
	flags.DurationVar(&s.work, "work", 5*time.Millisecond, "how long a change takes")
	clients := flags.Int("clients", 50, "demonstration: number of concurrent clients")
	flags.Parse(args)
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *url == "" {
		*url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	}
	if s.dir == "" {
		s.dir = dir
	}
	if *listen == "" {
		return demonstrate(ctx, out, *clients, "--url", *url, "--dir", s.dir, "--timeout", s.timeout.String(), "--lease",
			s.lease.String(), "--work", s.work.String())
	}
	b, err := fencepost.Open(ctx, *url)
	if err != nil {
		return err
	}
	s.locker = b.Locker
	err = s.serve(ctx, *listen, out)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.lease)
	defer cancel()
	return errors.Join(err, b.Close(closing))
}

// serve serves until ctx ends. It prints the address that it listens at.
func (s *service) serve(ctx context.Context, listen string, out io.Writer) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "http://%s\n", l.Addr())
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.lease)
		defer cancel()
		stopped <- server.Shutdown(grace)
	})
	err = server.Serve(l)
	if !stop() { // it stopped because ctx ended
		return <-stopped
	}
	return err
}

// service is one instance.
type service struct {
	locker               *lock.Locker
	dir                  string // directory of the resources, shared by all instances
	timeout, lease, work time.Duration
}

// Resource is the resource that the service manages. Token is the fencing token of its last change.
type Resource struct {
	ID    string `json:"id"`
	Value int64  `json:"value"`
	Token int64  `json:"token"`
}

// Answer is the body of every answer.
type Answer struct {
	*Resource
	Lock  *Acquisition `json:"lock,omitempty"`
	Error string       `json:"error,omitempty"`
}

// Acquisition describes how a change acquired its lock.
type Acquisition struct {
	Name     string  `json:"name"`
	Acquired bool    `json:"acquired"`
	WaitedMS float64 `json:"waited_ms"`
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /resources/{id}", func(w http.ResponseWriter, r *http.Request) {
		res, err := s.read(r.PathValue("id"))
		if err != nil {
			fail(w, err, nil)
			return
		}
		reply(w, http.StatusOK, Answer{Resource: &res})
	})
	mux.HandleFunc("POST /resources/{id}", s.change)
	return mux
}

// change is the read-change-update cycle. No two of them for one resource may overlap, on any instance.
func (s *service) change(w http.ResponseWriter, r *http.Request) {
	add, wait, work, err := s.parameters(r)
	if err != nil {
		fail(w, err, nil)
		return
	}
	var (
		res   Resource
		done  bool
		a     = Acquisition{Name: "resource/" + r.PathValue("id")}
		began = time.Now()
	)
	err = s.locker.Do(r.Context(), a.Name, func(ctx context.Context) error {
		a.Acquired, a.WaitedMS = true, ms(time.Since(began))
		if res, err = s.read(r.PathValue("id")); err != nil {
			return err
		}
		select { // the work that needs mutual exclusion
		case <-time.After(work):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		res.Value += add
		err := s.update(ctx, &res, lock.From(ctx)[a.Name])
		done = err == nil
		return err
	}, lock.WithWait(wait), lock.WithLease(s.lease), lock.WithWhy(r.Method+" "+r.URL.Path))
	if !a.Acquired {
		a.WaitedMS = ms(time.Since(began))
	}
	if !done { // a change that was made counts even if the lock could not be released
		fail(w, err, &a)
		return
	}
	reply(w, http.StatusOK, Answer{Resource: &res, Lock: &a})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// parameters reads a request: what to add, how long to wait for the lock, and, for experiments, how long to work.
func (s *service) parameters(r *http.Request) (add int64, wait, work time.Duration, err error) {
	add, wait, work = 1, s.timeout, s.work
	if v := r.FormValue("add"); v != "" {
		if add, err = strconv.ParseInt(v, 10, 64); err != nil {
			return 0, 0, 0, &requestError{"add is not a number"}
		}
	}
	if v := r.FormValue("work"); v != "" {
		if work, err = time.ParseDuration(v); err != nil || work < 0 || work > time.Minute {
			return 0, 0, 0, &requestError{"work is not a duration of up to a minute"}
		}
	}
	if v, ok := strings.CutPrefix(r.Header.Get("Prefer"), "wait="); ok { // RFC 7240
		if n, err := strconv.Atoi(v); err == nil && n > 0 && n < int(wait/time.Second) {
			wait = time.Duration(n) * time.Second
		}
	}
	return add, wait, work, nil
}

type requestError struct{ problem string }

func (e *requestError) Error() string { return e.problem }

// errConflict means that the resource is newer than the lock under which it was to be updated.
var errConflict = errors.New("a later holder of the lock has changed the resource")

// fail reports an error to the client. Nothing was changed, except perhaps after a 500.
func fail(w http.ResponseWriter, err error, a *Acquisition) {
	status, retry := http.StatusInternalServerError, ""
	var bad *requestError
	switch {
	case errors.As(err, &bad):
		status = http.StatusBadRequest
	case errors.Is(err, lock.ErrLost), errors.Is(err, errConflict):
		status, retry = http.StatusConflict, "0"
	case errors.Is(err, lock.ErrHeld):
		status, retry = http.StatusLocked, "1"
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrClosed):
		status, retry = http.StatusServiceUnavailable, "5"
	}
	if retry != "" {
		w.Header().Set("Retry-After", retry)
	}
	reply(w, status, Answer{Lock: a, Error: err.Error()})
}

func reply(w http.ResponseWriter, status int, a Answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // fails only if the client is gone
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// read returns a resource; one that does not exist is 0.
func (s *service) read(id string) (Resource, error) {
	res := Resource{ID: id}
	if !validID.MatchString(id) {
		return res, &requestError{"an id has 1 to 64 letters, digits, _ and -"}
	}
	data, err := os.ReadFile(s.file(id))
	if errors.Is(err, os.ErrNotExist) {
		return res, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &res)
	}
	return res, err
}

// update stores a resource in one step. It refuses to overwrite the change of a later holder: this instance may have been
// suspended for so long that it lost the lock without knowing. (A race remains between the check of the token and the rename.
// Only a conditional update can close it, such as that of a database.)
func (s *service) update(ctx context.Context, res *Resource, token int64) error {
	stored, err := s.read(res.ID)
	switch {
	case err != nil:
		return err
	case stored.Token > token:
		return errConflict
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	res.Token = token
	data, err := json.Marshal(res)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, res.ID+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone when the rename has worked
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.file(res.ID))
}

func (s *service) file(id string) string { return filepath.Join(s.dir, id+".json") }
