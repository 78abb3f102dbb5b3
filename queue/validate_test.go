package queue_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

func TestValidateTypeIsTheDocumentedRule(t *testing.T) {
	rule := regexp.MustCompile(`\A[a-z0-9][a-z0-9._-]{0,63}\z`)
	check := func(t interface {
		Helper()
		Errorf(string, ...any)
	}, s string) {
		t.Helper()
		err := queue.ValidateType(s)
		if (err == nil) != rule.MatchString(s) {
			t.Errorf("ValidateType(%q) = %v", s, err)
		}
		var te *queue.TypeError
		if err != nil && (!errors.Is(err, queue.ErrInvalidType) || !errors.As(err, &te) || te.Type != s || !strings.Contains(err.Error(), "a-z")) {
			t.Errorf("ValidateType(%q): the error must be typed and name the rule: %v", s, err)
		}
	}
	for _, s := range []string{"", "a", "0", "orders", "a-b", "a.b", "a_b", "a0", ".a", "-a", "_a", "A", "aB", "a b", "a/b", "a#b", "a\n", "a\x00",
		"ä", "aä", "a+", strings.Repeat("a", 64), strings.Repeat("a", 65), "../a", "a*", "a$"} {
		check(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9._/ -]{0,66}`), rapid.String()).Draw(t, "type"))
	})
}

func TestATypeErrorNamesTheCharacter(t *testing.T) {
	for typ, reason := range map[string]string{"Orders": "it has an upper-case letter", "_orders": "it starts with '_'", "ärger": "it starts with 'ä'", "a b": "it contains ' '"} {
		var te *queue.TypeError
		if err := queue.ValidateType(typ); !errors.As(err, &te) || te.Reason != reason {
			t.Errorf("%q: %v, want %s", typ, err, reason)
		}
	}
}

// TestSizeIsWhatAMessageTakes compares Message.Size with the memory that messages take.
func TestSizeIsWhatAMessageTakes(t *testing.T) {
	if race.Enabled {
		t.Skip("with the race detector everything takes more")
	}
	const messages = 2000
	for _, n := range []int{0, 1, 2, 8, 9, 57, 113, 225, queue.MaxHeaderCount} { // a map grows after some of them
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			kept := make([]queue.Message, messages)
			before := heap()
			for i := range kept {
				kept[i].Payload = make([]byte, 100)
				if n > 0 {
					kept[i].Headers = map[string]string{}
				}
				for k := range n {
					kept[i].Headers[strings.Clone(strconv.Itoa(k))] = strings.Clone("v")
				}
			}
			took := int(heap()-before) / messages
			if took += int(unsafe.Sizeof(kept[0])); took > kept[0].Size() {
				t.Errorf("a message with %d headers takes %d bytes and counts for %d", n, took, kept[0].Size())
			}
			runtime.KeepAlive(kept)
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func headers(n int) map[string]string {
	h := map[string]string{}
	for i := range n {
		h[strconv.Itoa(i)] = ""
	}
	return h
}

func TestValidateMessage(t *testing.T) {
	header := func(k, v string) queue.Message { return queue.Message{Type: "t", Headers: map[string]string{k: v}} }
	for name, tc := range map[string]struct {
		m    queue.Message
		want error
		says string
	}{
		"empty payload":         {queue.Message{Type: "t"}, nil, ""},
		"largest payload":       {queue.Message{Type: "t", Payload: make([]byte, queue.MaxPayload)}, nil, ""},
		"payload too large":     {queue.Message{Type: "t", Payload: make([]byte, queue.MaxPayload+1)}, queue.ErrTooLarge, "15728641 bytes, at most 15728640"},
		"bad type":              {queue.Message{Type: "T"}, queue.ErrInvalidType, "a-z"},
		"header":                {header("k", ""), nil, ""},
		"header $ and .":        {header("$a.b", "ü"), nil, ""},
		"empty header key":      {header("", "v"), queue.ErrInvalidHeader, "empty"},
		"NUL in header key":     {header("a\x00b", "v"), queue.ErrInvalidHeader, "NUL"},
		"NUL in header value":   {header("a", "\x00"), nil, ""},
		"header key not UTF-8":  {header("\xff", "v"), queue.ErrInvalidHeader, "UTF-8"},
		"header value not UTF8": {header("k", "\xff"), queue.ErrInvalidHeader, "put binary data into the payload"},
		"largest headers":       {header("k", strings.Repeat("v", queue.MaxHeaders-1)), nil, ""},
		"most headers":          {queue.Message{Type: "t", Headers: headers(queue.MaxHeaderCount)}, nil, ""},
		"too many headers":      {queue.Message{Type: "t", Headers: headers(queue.MaxHeaderCount + 1)}, queue.ErrTooLarge, "257 headers, at most 256 are allowed; move"},
		"most when delayed":     {queue.Message{Type: "t", Headers: headers(queue.MaxHeaderCount - 1), Due: time.UnixMilli(1)}, nil, ""},
		"too many when delayed": {queue.Message{Type: "t", Headers: headers(queue.MaxHeaderCount), Due: time.UnixMilli(1)}, queue.ErrTooLarge, "256 headers, at most 255"},
		"headers too large":     {header("k", strings.Repeat("v", queue.MaxHeaders)), queue.ErrTooLarge, "move the data into the payload"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.m.Validate()
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%q does not say %q", err, tc.says)
			}
		})
	}
}

func TestCheckInsertRefusesForCertain(t *testing.T) {
	id := queue.NewID(time.UnixMilli(1), 2, 3)
	for name, tc := range map[string]struct {
		typ  string
		msg  queue.Message
		want error
	}{
		"type":       {"T", queue.Message{ID: id}, queue.ErrInvalidType},
		"no ID":      {"t", queue.Message{}, queue.ErrInvalidID},
		"size":       {"t", queue.Message{ID: id, Payload: make([]byte, queue.MaxPayload+1)}, queue.ErrTooLarge},
		"other type": {"t", queue.Message{ID: id, Type: "u"}, nil},
		"incomplete": {"t", queue.Message{ID: id, Incomplete: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var ie *queue.InsertError
			err := queuedriver.CheckInsert(tc.typ, []queue.Message{{ID: id}, tc.msg})
			if !errors.As(err, &ie) || ie.Stored != 0 || !ie.Refused || ie.Temporary {
				t.Fatalf("got %v", err)
			}
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if err := queuedriver.CheckInsert("t", []queue.Message{{ID: id}, {ID: id, Type: "t"}}); err != nil {
		t.Error(err)
	}
}

func TestInsertErrorSaysWhatIsLeftBehind(t *testing.T) {
	cause := errors.New("boom")
	for want, e := range map[string]*queue.InsertError{
		"insert: boom (3 stored; the others are not stored)":                                                       {Stored: 3, Refused: true, Err: cause},
		"insert: boom (0 stored; the others may or may not be stored; insert the same messages again to find out)": {Err: cause},
	} {
		if e.Error() != want || !errors.Is(e, cause) {
			t.Errorf("got %q", e.Error())
		}
	}
}
