package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/examples/internal/exampletest"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// On a server without transactions, such as the one that the tests start, the example says so. On a replica set it works as described.
func TestOrderAndEvent(t *testing.T) {
	if os.Getenv(mongotest.EnvURI) == "" {
		t.Skip(mongotest.EnvURI + " names no server")
	}
	url, _ := mongotest.Fresh(t)
	out, err := exampletest.Output(t, run, "--url", url, "--dir", t.TempDir())
	if errors.Is(err, queue.ErrUnsupported) {
		if out != "" || !strings.Contains(err.Error(), "replica set") {
			t.Errorf("it printed %q, and: %v", out, err)
		}
		return
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 5 || lines[1] != "table: sold out: neither an order nor an event" || strings.Contains(strings.Join(lines[3:], ""), "table") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The file contains the events, including those of earlier runs. The test needs no transactions.
func TestDrain(t *testing.T) {
	dir := t.TempDir()
	url := "sqlite://" + filepath.Join(dir, "shop.db")
	b, err := fencepost.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context()) //nolint:errcheck // nothing is under way
	p, err := queue.NewPublisher(t.Context(), b.Queue, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context()) //nolint:errcheck // nothing is under way
	var want string
	for _, event := range []string{"1 × chair", "3 × lamp"} {
		if _, err := p.Publish(t.Context(), "ordered", []byte(event), nil); err != nil {
			t.Fatal(err)
		}
		want += "in the file: " + event + "\n"
		var out strings.Builder
		if err := drain(t.Context(), url, filepath.Join(dir, "data"), &out); err != nil || out.String() != want {
			t.Errorf("it printed %q, and: %v", out.String(), err)
		}
	}
}
