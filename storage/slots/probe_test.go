package slots_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// liar is a store that violates its contract.
type liar struct {
	*slotstest.Mem
	replaces bool // creates replace existing values
	refuses  bool // all creates are refused
	forgets  bool // created values are lost
	invents  bool // reads return values that were never created
	longer   bool // sizes are too large
	hurried  bool // creates soon after another one are rejected
	check    error

	mu   sync.Mutex
	last time.Time // create
}

// tooSoon reports whether a create is rejected.
func (l *liar) tooSoon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	soon := l.hurried && time.Since(l.last) < time.Second
	if !soon {
		l.last = time.Now()
	}
	return soon
}

func (l *liar) Check(context.Context) error { return l.check }

func (l *liar) Create(ctx context.Context, name string, data []byte) error {
	switch {
	case l.tooSoon():
		return errors.New("too many requests for this name")
	case l.forgets:
		return nil
	case l.refuses:
		return fs.ErrExist
	case l.replaces:
		l.Set(name, data) // like a gateway that ignores the condition
		return nil
	}
	return l.Mem.Create(ctx, name, data)
}

func (l *liar) Read(ctx context.Context, name string) ([]byte, error) {
	if l.invents {
		return []byte("x"), nil
	}
	return l.Mem.Read(ctx, name)
}

func (l *liar) Size(ctx context.Context, name string) (int64, error) {
	n, err := l.Mem.Size(ctx, name)
	if l.longer {
		n++
	}
	return n, err
}

func TestProbeRefusesStoresThatDoNotKeepTheirWord(t *testing.T) {
	for _, c := range []struct {
		name string
		liar *liar
		says string
	}{
		{"honest", &liar{}, ""},
		{"it replaces", &liar{replaces: true}, "32 succeeded, and exactly one must"},
		{"it replaces, but not so many at a time", &liar{replaces: true, hurried: true}, "replaced a value"},
		{"it takes not so many at a time", &liar{hurried: true}, ""},
		{"it refuses all", &liar{refuses: true}, "did not return a value that was created"},
		{"it forgets", &liar{forgets: true}, "did not return a value that was created"},
		{"it invents", &liar{invents: true}, "was never created"},
		{"sizes are wrong", &liar{longer: true}, "says that a value of"},
		{"its settings are wrong", &liar{check: &slots.RefusedError{Store: "memory:", Reason: "a setting", Remedy: "change it"}}, "a setting; change it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.liar.Mem = slotstest.NewMem(1 << 20)
				err := slots.Probe(t.Context(), c.liar)
				if c.says == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				var refused *slots.RefusedError
				if !errors.As(err, &refused) || !errors.Is(err, storage.ErrRefused) || !strings.Contains(fmt.Sprint(err), c.says) {
					t.Errorf("got %v; want a refusal that says %q", err, c.says)
				}
			})
		})
	}
}
