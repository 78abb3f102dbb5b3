package queuedriver

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

var looseAt = time.UnixMilli(1_700_000_000_000)

func TestMakeLoose(t *testing.T) {
	shared := map[string]string{"k": "v", queue.LooseHeader: "something else"}
	msgs := []queue.Message{{Type: "orders", Payload: []byte("a"), Headers: shared}, {Type: "audit"}}
	got, err := MakeLoose(msgs, looseAt)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if len(shared) != 2 || shared[queue.LooseHeader] != "something else" || !msgs[0].ID.IsZero() {
		t.Errorf("the caller's messages were changed: %v, %v", shared, msgs[0].ID)
	}
	for i, m := range got {
		if !m.Loose() || m.Unfit() != "" || !m.ID.Time().Equal(looseAt) || m.Type != msgs[i].Type || string(m.Payload) != string(msgs[i].Payload) {
			t.Errorf("%+v", m)
		}
	}
	if got[0].Headers["k"] != "v" || len(got[0].Headers) != 2 || len(got[1].Headers) != 1 {
		t.Errorf("headers %v, %v", got[0].Headers, got[1].Headers)
	}
	if got[0].ID.Producer() == got[1].ID.Producer() {
		t.Error("two messages have the same producer number")
	}
	// Neither the number alone nor the header alone makes a message loose.
	for _, m := range []queue.Message{{ID: queue.NewID(looseAt, 5, 0)}, {ID: queue.NewID(looseAt, 5, 1), Headers: got[0].Headers}} {
		if m.Loose() {
			t.Errorf("%+v is loose", m)
		}
	}
}

// Limits are checked with the header that a message gets.
func TestMakeLooseChecksEachMessage(t *testing.T) {
	room := queue.MaxHeaders - len(queue.LooseHeader) - len(queue.LooseValue)
	many := map[string]string{}
	for i := range queue.MaxHeaderCount - 1 {
		many[fmt.Sprint(i)] = ""
	}
	tooMany := map[string]string{"one more": ""}
	for k := range many {
		tooMany[k] = ""
	}
	for name, c := range map[string]struct {
		m    queue.Message
		want error
		says string
	}{
		"headers that just fit":  {queue.Message{Type: "t", Headers: map[string]string{"k": strings.Repeat("v", room-1)}}, nil, ""},
		"headers too large":      {queue.Message{Type: "t", Headers: map[string]string{"k": strings.Repeat("v", room)}}, queue.ErrTooLarge, queue.LooseHeader},
		"as many as fit":         {queue.Message{Type: "t", Headers: many}, nil, ""},
		"too many":               {queue.Message{Type: "t", Headers: tooMany}, queue.ErrTooLarge, queue.LooseHeader},
		"payload too large":      {queue.Message{Type: "t", Payload: make([]byte, queue.MaxPayload+1)}, queue.ErrTooLarge, "message 1: "},
		"no type":                {queue.Message{}, queue.ErrInvalidType, "message 1"},
		"an empty key":           {queue.Message{Type: "t", Headers: map[string]string{queue.KeyHeader: ""}}, queue.ErrInvalidHeader, "message 1"},
		"an ID":                  {queue.Message{Type: "t", ID: queue.NewID(looseAt, 5, 1)}, nil, "it has an ID"},
		"a message that is late": {queue.Message{Type: "t", Due: looseAt}, nil, "PublishAt"},
		"one that is not whole":  {queue.Message{Type: "t", Incomplete: true}, queue.ErrIncomplete, "message 1"},
	} {
		got, err := MakeLoose([]queue.Message{{Type: "t"}, c.m}, looseAt)
		switch {
		case c.want == nil && c.says == "":
			if err != nil || len(got) != 2 {
				t.Errorf("%s: %v", name, err)
			}
		case err == nil || got != nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v; want %v and %q", name, err, c.want, c.says)
		}
	}
}
