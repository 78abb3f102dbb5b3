package integration

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// scripts are an operator's manual changes of the database.
type scripts struct {
	spoil   func(first int) // adds a numeric header to the oldest messages, as a script that counts attempts might
	mend    func()          // removes it again
	foreign []string        // keys, as fencepost prints them
	plant   func()          // inserts documents under them
}

func scriptsFor(t *testing.T, b backend) scripts {
	t.Helper()
	if path, embedded := strings.CutPrefix(b.url, "sqlite://"); embedded {
		db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
		must(t, err)
		t.Cleanup(func() { db.Close() })
		exec := func(statement string, args ...any) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), statement, args...)
			must(t, err)
		}
		return scripts{
			spoil: func(first int) {
				exec(`UPDATE queue_messages SET headers = json_set(coalesce(headers, '{}'), '$.attempts', 1) WHERE id IN (SELECT id FROM queue_messages ORDER BY id LIMIT ?)`, first)
			},
			mend: func() {
				exec(`UPDATE queue_messages SET headers = json_remove(headers, '$.attempts') WHERE headers IS NOT NULL`)
			},
			foreign: []string{"x'6e6f74652d31'", "x'6e6f74652d32'"},
			plant: func() {
				exec(`INSERT INTO queue_messages (type, id, payload) VALUES ('orders', x'6e6f74652d31', x'78'), ('orders', x'6e6f74652d32', x'78')`)
			},
		}
	}
	client, err := mongo.Connect(options.Client().ApplyURI(b.url))
	must(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	messages := client.Database(regexp.MustCompile(`^mongodb://[^/]*/([^?]*)`).FindStringSubmatch(b.url)[1]).Collection("messages")
	return scripts{
		spoil: func(first int) {
			t.Helper()
			cursor, err := messages.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(first)))
			must(t, err)
			var docs []struct {
				ID string `bson:"_id"`
			}
			must(t, cursor.All(t.Context(), &docs))
			for _, doc := range docs {
				_, err := messages.UpdateByID(t.Context(), doc.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "h.attempts", Value: int32(1)}}}})
				must(t, err)
			}
		},
		mend: func() {
			t.Helper()
			_, err := messages.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$unset", Value: bson.D{{Key: "h.attempts", Value: 1}}}})
			must(t, err)
		},
		foreign: []string{"orders/note-1", "orders/note-2"},
		plant: func() {
			t.Helper()
			_, err := messages.InsertMany(t.Context(), []any{bson.D{{Key: "_id", Value: "orders/note-1"}}, bson.D{{Key: "_id", Value: "orders/note-2"}}})
			must(t, err)
		},
	}
}

// TestScriptThatSpoilsMessages: an operator's script makes pending messages undecodable, and is undone. Nothing is lost, and all programs
// report the problem meanwhile.
func TestScriptThatSpoilsMessages(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		publish := func(lines string, args ...string) result {
			t.Helper()
			return run(t, strings.NewReader(lines), "producer", append([]string{"publish", "--url", b.url, "--type", "orders"}, args...)...)
		}
		drain := func() result {
			t.Helper()
			return run(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "orders", "--until-empty", "--gap-timeout", "300ms", "--log-format", "text")
		}
		types := func(args ...string) result {
			t.Helper()
			return run(t, nil, "fencepost", append([]string{"types", args[0], "--url", b.url}, args[1:]...)...)
		}
		doctor := func() result { return run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir) }
		file := func() (lines []string) {
			t.Helper()
			for _, p := range payloads(t, b, "orders") {
				lines = append(lines, string(p))
			}
			return lines
		}
		var lines []string
		for n := range 100 {
			lines = append(lines, fmt.Sprint(n+1))
		}
		if r := publish(strings.Join(lines, "\n")); r.code != 0 {
			t.Fatal(r)
		}
		s := scriptsFor(t, b)
		s.spoil(59)

		r := drain()
		says(t, r, partial, "59 of its pending messages cannot be appended", `"attempts"`, "want string", "fencepost types show orders", "gone=0", "not_appendable=59", "duplicates=0")
		if strings.Contains(r.stderr, "gone from the queue") {
			t.Errorf("the log says that messages are gone which are in the queue: %v", r)
		}
		if got := file(); !slices.Equal(got, lines[59:]) {
			t.Fatalf("the file has %d messages, want the 41 that can be decoded: %q", len(got), got)
		}
		s.plant()
		says(t, types("ls"), 0, "foreign keys", "  59  ")
		says(t, types("show", "orders"), 0, `the header "attempts"`, "59 of the oldest 59 messages", s.foreign[0], s.foreign[1])
		says(t, types("peek", "orders", "-n", "1"), 0, `(cannot be appended: the header "attempts"`)
		says(t, doctor(), failed, "bad      messages", `"attempts"`, "warning  messages", s.foreign[0], "types purge --foreign")

		// Foreign keys block no publisher.
		says(t, types("limit", "orders", "--max-backlog", "60"), 0)
		says(t, publish("101\n", "--backlog-wait", "0"), 0)

		s.mend()
		says(t, drain(), partial, "2 foreign keys", s.foreign[0])
		got := file()
		if want := slices.Concat(lines[59:], lines[:59], []string{"101"}); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Fatalf("the file has %d messages, want each of %d once: %q", len(got), len(want), got)
		}
		mustRun(t, nil, "fencepost", "verify", "-q", b.dir)

		says(t, types("peek", "orders"), nothing, "foreign keys", "types peek --foreign orders")
		says(t, types("peek", "orders", "--foreign"), 0, s.foreign[0]+"\n"+s.foreign[1]+"\n")
		says(t, types("purge", "orders", "--foreign", "--dry-run"), 0, "purged=0 matching=2")
		says(t, types("purge", "orders", "--foreign", "--older", "1h", "--yes"), usage, "cannot be combined")
		says(t, types("purge", "orders", "--foreign", "--yes"), 0, "purged=2")
		says(t, types("purge", "orders", "--foreign", "--yes"), nothing, "no foreign keys")
		says(t, drain(), 0)
		says(t, doctor(), 0, "ok       messages")

		// One message of several can be given up.
		if r := publish("102\n103\n"); r.code != 0 {
			t.Fatal(r)
		}
		s.spoil(1)
		var pending []struct{ ID, Unfit string }
		if err := json.Unmarshal([]byte(types("peek", "orders", "-o", "json").stdout), &pending); err != nil || len(pending) != 2 || !strings.Contains(pending[0].Unfit, `"attempts"`) || pending[1].Unfit != "" {
			t.Fatalf("peek: %+v, %v", pending, err)
		}
		says(t, types("purge", "orders", pending[0].ID, "--dry-run"), 0, "purged=0 matching=1")
		says(t, types("purge", "orders", pending[0].ID, "--yes"), 0, "purged=1")
		says(t, types("purge", "orders", pending[0].ID, "--yes"), nothing, pending[0].ID)
		says(t, drain(), 0)
		if got := file(); len(got) != 102 || got[101] != "103" {
			t.Errorf("the file has %d messages and ends with %q", len(got), got[len(got)-1:])
		}
	})
}
