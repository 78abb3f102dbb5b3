package mongoqueue_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// The role for publishers in docs/security.md permits what a publisher does, and nothing else.
func TestPublisherNeedsItsRoleOnly(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	operator := open(t, uri, mongoqueue.Options{})
	if _, err := operator.PatchSettings(t.Context(), "orders", queue.SettingsPatch{MaxBacklog: new(100_000)}); err != nil { // so that it is counted
		t.Fatal(err)
	}
	w := &wire{}
	q := open(t, uri, mongoqueue.Options{Monitor: w.monitor()})
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delayed := queue.Message{Type: "orders", Due: time.Now().Add(time.Hour)}
	for _, r := range p.PublishAll(t.Context(), append(manyMessages("orders", 300), delayed)) {
		if r.Status != queue.Stored {
			t.Fatal(r.Err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What a publisher does after a lost answer.
	for range 2 {
		mustInsert(t, q, "audit", message("audit", 1, nil), message("audit", 2, nil))
		first, second := delayed, delayed
		first.ID, second.ID = message("", 1, nil).ID, message("", 2, nil).ID
		if err := q.Delay(t.Context(), []queue.Message{first, second}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Notify(t.Context(), []string{"audit"}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Depth(t.Context(), "orders", 100_000); err != nil {
		t.Fatal(err)
	}

	used := map[string]bool{}
	names, commands := w.take()
	for i, name := range names {
		action := map[string]string{"find": "find", "count": "find", "aggregate": "find", "getMore": "find", "killCursors": "find",
			"insert": "insert", "update": "update", "hello": "none", "isMaster": "none", "endSessions": "none"}[name]
		switch action {
		case "none":
		case "":
			t.Errorf("a publisher sends %s", name)
		default:
			collection, ok := commands[i].Lookup("collection").StringValueOK() // of getMore
			if !ok {
				collection = commands[i].Index(0).Value().StringValue()
			}
			used[action+" "+collection] = true
		}
	}
	document, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	permitted := map[string]bool{}
	for _, m := range regexp.MustCompile(`collection: "([a-z]+)"}, actions: \[(.*?)\]`).FindAllStringSubmatch(string(document), -1) {
		for action := range strings.SplitSeq(m[2], ", ") {
			permitted[strings.Trim(action, `"`)+" "+m[1]] = true
		}
	}
	if got, want := fmt.Sprint(slices.Sorted(maps.Keys(used))), fmt.Sprint(slices.Sorted(maps.Keys(permitted))); got != want {
		t.Errorf("a publisher uses %s, and docs/security.md permits %s", got, want)
	}
}

func manyMessages(typ string, n int) []queue.Message {
	return slices.Repeat([]queue.Message{{Type: typ, Payload: []byte("x")}}, n)
}
