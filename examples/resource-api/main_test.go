package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestIncrementsAndCrash(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url, "--clients", "20")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"20 increments through 2 instances: the value is 20\n",
			"during a slow change: status 423 after ",
			`, lock "resource/slow" is held by `,
			": POST /resources/slow",
			"the value is 21: the interrupted change has not happened\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the output does not say %q", want)
			}
		}
	})
}

// The answers to a client, with and without a change.
func TestStatus(t *testing.T) {
	for _, test := range []struct {
		name    string
		request string
		prepare func(mem *locktest.Memory, s *service)
		status  int
		retry   string
		waited  float64 // ms
	}{
		{"changed", "/resources/a", nil, http.StatusOK, "", 0},
		{"held", "/resources/a", hold, http.StatusLocked, "1", 10_000},
		{"unavailable", "/resources/a", refuse, http.StatusServiceUnavailable, "5", 10_000},
		{"lost", "/resources/a?work=1m", lose, http.StatusConflict, "0", 0},
		{"a later change", "/resources/a", changeLater, http.StatusConflict, "0", 0},
		{"bad id", "/resources/a.b", nil, http.StatusBadRequest, "", 0},
		{"bad number", "/resources/a?add=x", nil, http.StatusBadRequest, "", 0},
		{"bad duration", "/resources/a?work=1h", nil, http.StatusBadRequest, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				mem := locktest.NewMemory()
				defer mem.Stop()
				start := time.Now()
				l, err := lock.New(mem.Open(), lock.Options{Clock: func() time.Duration { return time.Since(start) }})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(t.Context()) //nolint:errcheck // the store may be the broken one
				s := &service{locker: l, dir: dir, timeout: 10 * time.Second, lease: 5 * time.Second, work: time.Millisecond}
				if test.prepare != nil {
					test.prepare(mem, s)
				}
				w := httptest.NewRecorder()
				s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, test.request, nil))
				mem.Inject(nil)
				var a Answer
				if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
					t.Fatal(err)
				}
				if w.Code != test.status || w.Header().Get("Retry-After") != test.retry {
					t.Errorf("status %d, Retry-After %q: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
				}
				if a.Lock != nil && a.Lock.WaitedMS != test.waited {
					t.Errorf("waited %v ms, want %v", a.Lock.WaitedMS, test.waited)
				}
				if (w.Code == http.StatusOK) != (a.Error == "") {
					t.Errorf("error %q", a.Error)
				}
			})
		})
	}
}

// hold holds the lock of the resource until the end of the test.
func hold(_ *locktest.Memory, s *service) {
	if _, err := s.locker.Acquire(context.Background(), "resource/a"); err != nil {
		panic(err)
	}
}

func refuse(mem *locktest.Memory, _ *service) {
	mem.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{Refuse: true} })
}

// lose deletes the record of the lock during the change.
func lose(mem *locktest.Memory, _ *service) {
	time.AfterFunc(10*time.Second, func() { mem.Edit("resource/a", func(*lock.Record) bool { return false }) })
}

// changeLater stores a change with a token that no clock will reach.
func changeLater(_ *locktest.Memory, s *service) {
	if err := s.update(context.Background(), &Resource{ID: "a"}, 1<<62); err != nil {
		panic(err)
	}
}

// An update after the lock was lost is refused even if the resource has not changed since.
func TestNoUpdateAfterTheLock(t *testing.T) {
	s := &service{dir: t.TempDir()}
	lost := errors.New("the lock is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if err := s.update(ctx, &Resource{ID: "a", Value: 1}, 7); err != lost {
		t.Errorf("got %v", err)
	}
	if res, err := s.read("a"); err != nil || res.Value != 0 {
		t.Errorf("read %v, %v", res, err)
	}
}
