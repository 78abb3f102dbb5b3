package stores

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/bench/internal/suite/suitetest"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// TestQuick runs the whole suite on tiny sizes. The suite itself checks what it measures: every message, once, in order.
func TestQuick(t *testing.T) {
	uri := mongotest.URI(t)
	before, err := server.Databases(t.Context(), uri, "stores")
	if err != nil {
		t.Fatal(err)
	}
	o := suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: uri}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	suitetest.Check(t, o, res, []string{"≥ 0.7", nameLocal, nameMongo, nameS3, nameShared, "### Taking over", "### A trickle", "| create | read |"}, []string{"| n/a", "(n/a", "Inf"})
	after, err := server.Databases(t.Context(), uri, "stores")
	if err != nil || len(after) > len(before) {
		t.Errorf("databases were left behind: %d before, %d after, %v", len(before), len(after), err)
	}
}

// TestGatewayThatCannotBeHad: its row says why, and the run continues.
func TestGatewayThatCannotBeHad(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := startGateway(t.Context(), suite.Options{Dir: t.TempDir(), Quick: true, Logf: t.Logf}); !errors.Is(err, errNone) {
		t.Errorf("got %v", err)
	}
	b := &bench{all: []*kind{{name: nameS3, bare: "find, one PUT, deleteMany", why: errNone}}}
	if row := b.drainTable(); !strings.Contains(row, "| "+nameS3+" | find, one PUT, deleteMany | not measured |") {
		t.Errorf("got %s", row)
	}
}

// TestSinkNoticesWhatIsWrong: a bare loop that lost, repeated or damaged a message is no valid comparison.
func TestSinkNoticesWhatIsWrong(t *testing.T) {
	write := func(batches ...[]byte) *sink {
		s := &sink{ctx: context.Background(), store: slotstest.NewMem(1 << 20)}
		for _, p := range batches {
			if err := s.Append(p); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	if err := write(messages.Payload(0), messages.Payload(1)).Check(2); err != nil {
		t.Error(err)
	}
	for want, s := range map[string]*sink{
		"message 2 where 1 belongs": write(messages.Payload(0), messages.Payload(2)),
		"message 0 where 1 belongs": write(messages.Payload(0), messages.Payload(0)),
		"has 1 messages, want 2":    write(messages.Payload(0)),
		"ends within a message":     write(messages.Payload(0), messages.Payload(1)[:8]),
	} {
		if err := s.Check(2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestPartsWithoutAServer: taking over and a trickle, with the embedded queue and a shared directory.
func TestPartsWithoutAServer(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	store, err := dirslots.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	requests := &counted{n: map[string]int{}}
	files := slots.New(ctx, slots.Observe(store, requests.observe))

	f := &file{fs: files, dir: files.Dir()}
	if err := f.build(ctx, 2<<20, 600<<10); err != nil {
		t.Fatal(err)
	}
	c := f.takeOver(ctx, nameSmall)
	for range 2 {
		if err := errors.Join(c.Prepare(), c.Run()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Prepare(); err != nil {
		t.Fatal(err)
	}

	backend, err := fencepost.Open(ctx, "sqlite://"+filepath.Join(dir, "queue.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close(context.WithoutCancel(ctx))
	k := &kind{name: nameShared, open: func(context.Context, *messages.Place) (slots.Store, error) { return store, nil }}
	other := slots.New(ctx, slots.Observe(must(dirslots.Open(t.TempDir()))(t), requests.observe))
	p := &messages.Place{Dir: other.Dir(), FS: other, Backend: backend, Given: map[string]int{}, Drained: map[string]int{}}
	b := &bench{o: suite.Options{Quick: true, Logf: t.Logf}}
	b.drain.places, b.drain.requests = map[*kind]*messages.Place{k: p}, map[*kind]*counted{k: requests}
	trickle, err := b.measureTrickle(ctx, k, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(trickle.delays) != quickTrickle || trickle.creates <= 0 {
		t.Errorf("%d delays, %v creates per second", len(trickle.delays), trickle.creates)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
