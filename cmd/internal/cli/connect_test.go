package cli

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
)

// At startup a program waits for room in a store as it waits for a server.
func TestAwaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room atomic.Bool
		said := ""
		await := func() error {
			_, err := Await(t.Context(), "s3://b", 30*time.Second, func(reason string) { said = reason }, func(context.Context) (bool, error) {
				if !room.Load() {
					return false, slots.Full("s3://b", errors.New("QuotaExceeded: no"))
				}
				return true, nil
			})
			return err
		}
		began := time.Now()
		err := await()
		if !errors.Is(err, storage.ErrNoSpace) || time.Since(began) < 29*time.Second || !strings.Contains(said, "no room") {
			t.Errorf("%v after %v, and said %q", err, time.Since(began), said)
		}
		for _, says := range []string{"within 30s (--connect-timeout)", "the store is full", "raise its quota"} {
			if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "host and port") {
				t.Errorf("it does not say %q: %v", says, err)
			}
		}
		time.AfterFunc(10*time.Second, func() { room.Store(true) })
		if err := await(); err != nil {
			t.Errorf("when there is room: %v", err)
		}
	})
}

// A program that starts while DNS does not answer waits for it, too.
func TestConnectWithoutNames(t *testing.T) {
	var back atomic.Bool
	fake.Names(t, func(context.Context) byte {
		if back.Load() {
			return fake.NoSuchName
		}
		return fake.NameServerFails
	})
	const url = "mongodb+srv://bob:s3cret@cluster0.example.net/db"
	said := ""
	_, err := Connect(t.Context(), url, 0, func(reason string) { said = reason; back.Store(true) })
	if !strings.Contains(said, "name service") {
		t.Errorf("it said %q", said)
	}
	if Code(err) != ExitUsage || !errors.Is(err, fencepost.ErrURL) { // the last answer: there is no such name
		t.Errorf("exit code %d: %v", Code(err), err)
	}
	back.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, err = Await(t.Context(), "h", time.Nanosecond, func(string) {}, func(context.Context) (*fencepost.Backend, error) { return fencepost.Open(ctx, url) })
	if err == nil || !strings.Contains(err.Error(), "--connect-timeout") || !strings.Contains(err.Error(), "name service") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("at the end of the time: %v", err)
	}
}

// Nobody has to read what each layer of the libraries was doing, or the driver's list of servers, to learn that a server is down.
func TestNoServerInOneSentence(t *testing.T) {
	const url = "mongodb://bob:s3cret@127.0.0.1:1/shop?serverSelectionTimeoutMS=100"
	for name, open := range map[string]func() error{
		"at once": func() error { _, err := Open(t.Context(), url); return err },
		"awaited": func() error { _, err := Connect(t.Context(), url, 300*time.Millisecond, func(string) {}); return err },
	} {
		err := open()
		if !errors.Is(err, queue.ErrUnreachable) && !errors.Is(err, errNoServer) {
			t.Fatalf("%s: %v is another error", name, err)
		}
		text := err.Error()
		for _, want := range []string{"no usable server at mongodb://127.0.0.1:1/shop", ": 127.0.0.1:1: connection refused; check that the server runs"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in %s", name, want, text)
			}
		}
		if !strings.HasPrefix(text, "no usable server at ") || strings.Count(text, "127.0.0.1:1") != 2 || strings.Contains(text, "topology") || strings.Contains(text, "s3cret") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A store that cannot be reached is one sentence, too, and says what to check.
func TestNoStoreInOneSentence(t *testing.T) {
	const check = "check that the store runs"
	cause := &slots.UnreachedError{Store: "s3://b/p", Reason: "connection refused", Check: check, Err: syscall.ECONNREFUSED}
	_, err := Await(t.Context(), "s3://b/p", time.Millisecond, func(string) {}, func(context.Context) (int, error) { return 0, cause })
	if want := "no usable server at s3://b/p within 1ms (--connect-timeout): connection refused; " + check; err == nil || err.Error() != want || !errors.Is(err, cause) {
		t.Errorf("%v; want %s", err, want)
	}
	_, err = mongoslots.Open(t.Context(), "mongodb://127.0.0.1:1/files?serverSelectionTimeoutMS=100", mongoslots.Options{})
	if err = WithRemedy(err); err == nil || strings.Count(err.Error(), "check that the server runs") != 1 {
		t.Errorf("of a command that does not wait: %v", err)
	}
	_, err = Open(t.Context(), "mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=100")
	if err = WithRemedy(err); err == nil || strings.Count(err.Error(), "check that the server runs") != 1 {
		t.Errorf("of the database: %v", err)
	}
}
