package fencepost_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
)

// The server shuts down after the queue is open and before the locks are.
func TestAServerThatGoesWhileItIsOpened(t *testing.T) {
	s := fake.StartWith(t, func(command string, doc bson.Raw) bson.D {
		if fake.IsHello(command) && bytes.Contains(doc, []byte("fencepost-locks")) {
			return fake.Failed(91)
		}
		return nil
	})
	_, err := fencepost.Open(t.Context(), "mongodb://"+s.Addr()+"/db?serverSelectionTimeoutMS=300")
	if !errors.Is(err, queue.ErrUnreachable) {
		t.Errorf("%v is not %v", err, queue.ErrUnreachable)
	}
}

// The hosts of mongodb+srv:// are looked up in DNS, which may not answer. A program that retries then gets in when DNS is back.
func TestANameServerThatDoesNotAnswer(t *testing.T) {
	const url = "mongodb+srv://bob:s3cret@cluster0.example.net/db"
	check := func(t *testing.T, err error, wants ...error) {
		t.Helper()
		all := []error{queue.ErrUnreachable, queue.ErrInvalidURL, fencepost.ErrURL, context.Canceled}
		for _, sentinel := range all {
			if errors.Is(err, sentinel) != slices.Contains(wants, sentinel) {
				t.Errorf("%q is %q: %t", err, sentinel, errors.Is(err, sentinel))
			}
		}
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "mongodb+srv://cluster0.example.net/db") {
			t.Errorf("it does not name the URL, or names a secret: %v", err)
		}
	}
	t.Run("until ctx ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		fake.Names(t, func(question context.Context) byte { cancel(); <-question.Done(); return 0 })
		_, err := fencepost.Open(ctx, url)
		check(t, err, queue.ErrUnreachable, context.Canceled)
	})
	t.Run("it fails", func(t *testing.T) {
		fake.Names(t, func(context.Context) byte { return fake.NameServerFails })
		_, err := fencepost.Open(t.Context(), "mongodb+srv://bob:x@s3cret/@cluster0.example.net/db") // the driver looks up s3cret
		check(t, err, queue.ErrUnreachable)
		_, err = fencepost.Open(t.Context(), url)
		check(t, err, queue.ErrUnreachable)
		if err != nil && !strings.Contains(err.Error(), "name servers") {
			t.Errorf("no remedy: %v", err)
		}
	})
	t.Run("it fails later", func(t *testing.T) { // the driver looks the hosts up several times
		for most := range int64(8) {
			var asked atomic.Int64
			fake.Names(t, func(context.Context) byte {
				if asked.Add(1) > most {
					return fake.NameServerFails
				}
				return fake.HostsFound
			})
			_, err := fencepost.Open(t.Context(), url+"?serverSelectionTimeoutMS=1")
			check(t, err, queue.ErrUnreachable)
		}
	})
	t.Run("no such name", func(t *testing.T) {
		fake.Names(t, func(context.Context) byte { return fake.NoSuchName })
		_, err := fencepost.Open(t.Context(), url)
		check(t, err, queue.ErrInvalidURL, fencepost.ErrURL)
	})
}

// A URL that no backend accepts is one kind of error, whichever package finds it.
func TestURLErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for url, says := range map[string]string{
		"x":                                "use mongodb://",
		"postgres://h/db":                  "use mongodb://",
		"mongodb://":                       "host",
		"mongodb://h:99999":                "port",
		"mongodb://h/a b":                  "database name",
		"sqlite://":                        "name the database file",
		"sqlite://:memory:":                "give a plain path",
		"sqlite://sqlite://x.db":           "give a plain path",
		"sqlite://" + dir:                  "is a directory",
		"sqlite://bob:s3cret@h/db":         "mongodb:// for a server",
		"sqlite://x.db?mode=ro":            "takes no options",
		"sqlite://" + dir + "/d?a=b/x.db":  "takes no options",
		"sqlite://x.db?_pragma=foo(5000)#": "takes no options",
	} {
		_, err := fencepost.Open(t.Context(), url)
		if !errors.Is(err, fencepost.ErrURL) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Open(%q): %v is not %q, or does not say %q", url, err, fencepost.ErrURL, says)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// All other characters belong to the path.
func TestPathsWithOddCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c# 100%", "a&b;c=d#e.db")
	b, err := fencepost.Open(t.Context(), "sqlite://"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
