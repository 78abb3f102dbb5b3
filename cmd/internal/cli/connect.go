package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
)

// ConnectTimeout is the default of --connect-timeout: an election takes 12 s and more.
const ConnectTimeout = 30 * time.Second

// connectEvery bounds the jittered pause between two attempts. Each attempt itself waits for a server, by default for 5 s.
const connectEvery = time.Second

// errNoServer is the cause when the time to connect has run out.
var errNoServer = errors.New("no usable server in time")

// passing returns the reason of an error that may pass by itself, "" if only a person can resolve it.
func passing(err error) string {
	if errors.Is(err, storage.ErrNoSpace) {
		return "there is no room in it"
	}
	reason, _ := mongoerr.Passing(err)
	return reason
}

// Connect opens the backend, and waits for a usable server if the problem is temporary: an election, a restart, a machine that does not
// answer. It waits for at most within; 0 means forever. It calls waiting once, after the first attempt has failed.
func Connect(ctx context.Context, url string, within time.Duration, waiting func(reason string)) (*fencepost.Backend, error) {
	return Await(ctx, fencepost.Redact(url), within, waiting, func(ctx context.Context) (*fencepost.Backend, error) { return fencepost.Open(ctx, url) })
}

// TellWaiting says that a program waits for a server, for up to within, because of err; nil if there is no answer yet.
func TellWaiting(w io.Writer, name string, within time.Duration, err error) {
	reason := "no answer yet"
	if unreached, ok := errors.AsType[*slots.UnreachedError](err); ok {
		reason = unreached.Reason
	} else if err != nil {
		reason = cmp.Or(passing(err), err.Error())
	}
	printable.Fprintf(w, "waiting for a usable server at %s, for up to %v: %s\n", name, within, reason)
}

// Open is Connect without waiting.
func Open(ctx context.Context, url string) (*fencepost.Backend, error) {
	b, err := fencepost.Open(ctx, url)
	if err != nil {
		return nil, noServerAt(fencepost.Redact(url), err)
	}
	return b, nil
}

// noServer is the error of a search for a usable server. Its text replaces those of its causes: each layer of the libraries adds what it was
// doing.
type noServer struct {
	text  string
	cause error
}

func (e *noServer) Error() string { return e.text }
func (e *noServer) Unwrap() error { return e.cause }

// noServerAt returns err, as a noServer if it is one. where is the server's name, and how long it was waited for.
func noServerAt(where string, err error) error {
	if search, ok := errors.AsType[*mongoerr.Search](err); ok {
		return &noServer{fmt.Sprintf("no usable server at %s: %s; %s", where, search.Why, search.Check), err}
	}
	return err
}

// Await is Connect for anything that opens a connection to a server. name is the server's name in
// messages.
func Await[T any](ctx context.Context, name string, within time.Duration, waiting func(reason string), open func(context.Context) (T, error)) (T, error) {
	var none T
	attempt := ctx
	if within > 0 {
		var cancel context.CancelFunc
		attempt, cancel = context.WithTimeoutCause(ctx, within, errNoServer)
		defer cancel()
	}
	said := ""
	var cause error // of the last attempt that was not cut short
	for {
		opened, err := open(attempt)
		if err == nil || ctx.Err() != nil {
			return opened, err
		}
		over := attempt.Err() != nil
		reason := passing(err)
		if reason == "" && (!over || cause == nil) {
			return none, noServerAt(name, err)
		}
		if said == "" && !over {
			waiting(reason)
		}
		if cause == nil || !over {
			said, cause = reason, err
		}
		if !over && wait.For(attempt, wait.AtLeastHalf(connectEvery)) == nil {
			continue
		}
		if ctx.Err() != nil {
			return none, fmt.Errorf("connect: %w", context.Cause(ctx))
		}
		return none, timedOut(name, within, said, cause)
	}
}

// timedOut returns the error of Await when within has passed; reason and cause are those of the last attempt.
func timedOut(name string, within time.Duration, reason string, cause error) error {
	if errors.Is(cause, storage.ErrNoSpace) {
		return fmt.Errorf("there was no room within %v (--connect-timeout): %w", within, cause)
	}
	if _, search := errors.AsType[*mongoerr.Search](cause); search {
		return noServerAt(fmt.Sprintf("%s within %v (--connect-timeout)", name, within), cause)
	}
	if e, ok := errors.AsType[*slots.UnreachedError](cause); ok {
		return &noServer{fmt.Sprintf("no usable server at %s within %v (--connect-timeout): %s; %s", name, within, e.Reason, e.Check), cause}
	}
	return fmt.Errorf("no usable server at %s within %v (--connect-timeout): %s; check that the server runs, that host and port are right, "+
		"and that a replica set has a majority of its members: %w", name, within, reason, cause)
}
