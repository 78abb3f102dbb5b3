package queue_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/queue"
)

func drawID(t *rapid.T, label string) queue.ID {
	return queue.NewID(time.UnixMilli(rapid.Int64Range(0, 1<<48-1).Draw(t, label+" ms")),
		rapid.Uint64().Draw(t, label+" producer"), rapid.Uint64Range(0, queue.MaxN).Draw(t, label+" n"))
}

func TestIDCarriesItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(0, 1<<48-1).Draw(t, "ms")
		producer := rapid.Uint64().Draw(t, "producer")
		n := rapid.Uint64Range(0, queue.MaxN).Draw(t, "n")
		id := queue.NewID(time.UnixMilli(ms), producer, n)
		if id.Time().UnixMilli() != ms || id.Producer() != producer || id.N() != n {
			t.Fatalf("got %d %x %d, want %d %x %d", id.Time().UnixMilli(), id.Producer(), id.N(), ms, producer, n)
		}
	})
}

func TestIDTextRoundTripsAndKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawID(t, "a"), drawID(t, "b")
		got, err := queue.ParseID(a.String())
		if err != nil || got != a {
			t.Fatalf("ParseID(%q) = %v, %v", a.String(), got, err)
		}
		if len(a.String()) != queue.IDLen {
			t.Fatalf("%q has %d characters", a.String(), len(a.String()))
		}
		if strings.Compare(a.String(), b.String()) != a.Compare(b) {
			t.Fatalf("text order of %v and %v differs from byte order", a, b)
		}
	})
}

// Time comes first, then the producer, then n: what a consumer's sweep and a file's verify rely on.
func TestIDOrder(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	ascending := []queue.ID{
		{},
		queue.NewID(at, 0, 1),
		queue.NewID(at, 0, 2),
		queue.NewID(at, 0, queue.MaxN),
		queue.NewID(at, 1, 0),
		queue.NewID(at, math.MaxUint64, 1),
		queue.NewID(at.Add(time.Millisecond), 0, 1),
		queue.NewID(time.UnixMilli(1<<48-1), math.MaxUint64, queue.MaxN),
	}
	for i := 1; i < len(ascending); i++ {
		if a, b := ascending[i-1], ascending[i]; a.Compare(b) >= 0 || a.String() >= b.String() || b.Compare(a) <= 0 {
			t.Errorf("%v is not before %v", a, b)
		}
	}
	if !ascending[0].IsZero() || ascending[1].IsZero() {
		t.Error("only the zero ID is zero")
	}
}

// The text form is part of the stored data: this must never change.
func TestIDTextIsFixed(t *testing.T) {
	id := queue.NewID(time.UnixMilli(0x0102030405_06), 0x1112131415161718, 0x212223242526)
	if got, want := id.String(), "041061050o8h44ok2kb1e61148hi8996"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := (queue.ID{}).String(); got != strings.Repeat("0", 32) {
		t.Errorf("zero ID is %s", got)
	}
}

func TestParseIDRefuses(t *testing.T) {
	good := queue.NewID(time.UnixMilli(1), 2, 3).String()
	for name, text := range map[string]string{
		"empty":         "",
		"short":         good[:31],
		"long":          good + "0",
		"upper case":    strings.Repeat("0", 31) + "V",
		"beyond v":      strings.Repeat("0", 31) + "w",
		"padding":       good[:31] + "=",
		"line break":    good[:31] + "\n",
		"carriage":      "\r" + good[1:],
		"part suffix":   good[:30] + "+1",
		"multi-byte":    good[:30] + "ö",
		"very long":     strings.Repeat("a", 1<<16),
		"one bad of 32": "!" + good[1:],
	} {
		t.Run(name, func(t *testing.T) {
			if id, err := queue.ParseID(text); !errors.Is(err, queue.ErrInvalidID) || len(err.Error()) > 400 {
				t.Errorf("got %v, %v", id, err)
			}
		})
	}
	id := queue.NewID(time.UnixMilli(1), 2, 3)
	if before := id; id.UnmarshalText([]byte("nonsense")) == nil || id != before {
		t.Error("a failing UnmarshalText must leave the ID alone")
	}
}

func TestNewIDBounds(t *testing.T) {
	if got := queue.NewID(time.UnixMilli(-5), 1, 1).Time().UnixMilli(); got != 0 {
		t.Errorf("before 1970: %d", got)
	}
	if got := queue.NewID(time.UnixMilli(1<<50), 1, 1).Time().UnixMilli(); got != 1<<48-1 {
		t.Errorf("beyond 48 bits: %d", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("n beyond 48 bits must panic: any other number belongs to another message")
		}
	}()
	queue.NewID(time.UnixMilli(1), 1, queue.MaxN+1)
}

func TestIDMarshalsAsText(t *testing.T) {
	type doc struct{ ID queue.ID }
	in := doc{queue.NewID(time.UnixMilli(1), 2, 3)}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"ID":"`+in.ID.String()+`"}` {
		t.Fatalf("%s, %v", b, err)
	}
	var out doc
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Errorf("got %v, %v", out, err)
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("041061050o8h44ok2kb1e61148hi8996")
	f.Add("041061050o8h44ok2kb1e61148hi899\n")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := queue.ParseID(s); err == nil && id.String() != s {
			t.Errorf("ParseID(%q) is accepted, but is written %q", s, id.String())
		}
	})
}

// FuzzDelayedID: the header of a promoted message, which any program can write. It names another message only together with its own.
func FuzzDelayedID(f *testing.F) {
	as := queue.NewID(time.UnixMilli(1_700_000_000_000), 1, 2)
	for _, s := range []string{as.Prev().String() + " " + as.String(), as.String(), " " + as.String(), as.String() + "  " + as.String(), as.String() + " " + as.Prev().String()} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if id, ok := queue.DelayedID(value, as); ok && value != id.String()+" "+as.String() {
			t.Errorf("%q is taken for %v as %v", value, id, as)
		}
	})
}

func TestPrevIsRightBefore(t *testing.T) {
	for _, id := range []queue.ID{{19: 1}, {0: 1}, {18: 1}, {18: 1, 19: 1}, {0: 0xff, 19: 0xff}, queue.NewID(time.UnixMilli(1_700_000_000_000), 1<<40, queue.MaxN)} {
		prev, next := id.Prev(), id.Prev()
		for i := len(next) - 1; i >= 0; i-- { // one more
			if next[i]++; next[i] != 0 {
				break
			}
		}
		if prev.Compare(id) >= 0 || next != id {
			t.Errorf("before %x is %x", id, prev)
		}
	}
}
