package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
)

// The locks.
const (
	lockNone        = "none"
	lockOne         = "one"           // in the process
	lockPerID       = "per-id"        // in the process
	lockOneShared   = "one-shared"    // by all processes
	lockPerIDShared = "per-id-shared" // by all processes
)

// instance runs a process of the service, which serves POST /notify/{id}. It prints its address.
func instance(ctx context.Context, world, how, url string, out io.Writer) error {
	b, err := fencepost.Open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is held any more
	locked, err := locking(how, b.Locker)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /notify/{id}", func(w http.ResponseWriter, r *http.Request) {
		var (
			id     = r.PathValue("id")
			began  = time.Now()
			waited time.Duration
		)
		err := locked(r.Context(), id, func(ctx context.Context) error {
			waited = time.Since(began)
			return notified(ctx, world, id)
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(waited)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "http://%s\n", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// notified is the part that needs the lock: read, ask, merge, store.
func notified(ctx context.Context, world, id string) error {
	var stored, delta int
	if err := request(ctx, http.MethodGet, world+"/database/"+id, &stored); err != nil {
		return err
	}
	if err := request(ctx, http.MethodPost, world+"/provider/"+id, &delta); err != nil {
		return err
	}
	return request(ctx, http.MethodPut, fmt.Sprintf("%s/database/%s?amount=%d", world, id, stored+delta), nil)
}

// locking returns the function that runs fn under the lock for a payment.
func locking(how string, l *lock.Locker) (func(ctx context.Context, id string, fn func(context.Context) error) error, error) {
	type f = func(context.Context) error
	var keyed lock.Keyed[string]
	switch how {
	case lockNone:
		return func(ctx context.Context, _ string, fn f) error { return fn(ctx) }, nil
	case lockOne:
		return func(ctx context.Context, _ string, fn f) error {
			return keyed.Do(ctx, "payments", func() error { return fn(ctx) })
		}, nil
	case lockPerID:
		return func(ctx context.Context, id string, fn f) error {
			return keyed.Do(ctx, id, func() error { return fn(ctx) })
		}, nil
	case lockOneShared:
		return func(ctx context.Context, _ string, fn f) error { return l.Do(ctx, "payments", fn, lock.WithFair()) }, nil
	case lockPerIDShared:
		// The in-process lock comes first, so that only one goroutine of each process waits for the shared lock.
		return func(ctx context.Context, id string, fn f) error {
			return keyed.Do(ctx, id, func() error { return l.Do(ctx, "payment/"+id, fn, lock.WithFair()) })
		}, nil
	}
	return nil, fmt.Errorf("unknown lock %q", how)
}

// client uses each connection once, so that none stays idle.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// request sends a request and decodes the answer into result, unless result is nil.
func request(ctx context.Context, method, url string, result any) error {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, body)
	}
	if result == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(result)
}
