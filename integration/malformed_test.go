package integration

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/integration/kit"
)

// TestMalformedDocuments: malformed dead letters, file entry and lock of one type do not stop the commands for other types. The row is
// marked, the field is named, and removable documents are removed by ID.
func TestMalformedDocuments(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		fencepost := func(args ...string) result {
			t.Helper()
			return run(t, nil, "fencepost", append(args, "--url", b.url)...)
		}
		for _, typ := range []string{"bad", "good"} {
			mustRun(t, strings.NewReader("1\n"), "producer", "publish", "--url", b.url, "--type", typ)
			mustRun(t, nil, "worker", "--url", b.url, "--type", typ, "--dir", b.dir, "--until-empty")
		}
		damage := "file_id has 1 bytes"
		var letters []string
		var remove func() // removes the damaged documents, as the errors advise
		switch db := b.db.(type) {
		case kit.Embedded: // its tables are strict: they accept no value of another type
			change := func(statement string) {
				t.Helper()
				q, err := sql.Open("sqlite", db.Path)
				must(t, err)
				defer q.Close()
				_, err = q.Exec(statement)
				must(t, err)
			}
			change("UPDATE queue_files SET file_id = x'01' WHERE type = 'bad'")
			remove = func() { change("DELETE FROM queue_files WHERE type = 'bad'") }
		case kit.Server:
			damage = "cannot decode array"
			_, err := db.Collection("files").UpdateByID(t.Context(), "bad", bson.D{{Key: "$set", Value: bson.D{{Key: "epoch", Value: bson.A{"x"}}}}})
			must(t, err)
			_, err = db.Collection("locks").UpdateByID(t.Context(), "bad", bson.D{{Key: "$set", Value: bson.D{{Key: "token", Value: "x"}}}})
			must(t, err)
			says(t, fencepost("types", "show", "bad"), 0, `the record of lock "bad" is damaged`)
			says(t, fencepost("locks", "ls"), 0, "damaged")
			remove = func() {
				_, err := db.Collection("files").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "bad"}})
				must(t, err)
				says(t, fencepost("locks", "release", "--force", "--why", "damaged", "bad"), 0)
			}
			for i, field := range []string{"reason", "attempts", "worker", "at"} {
				letters = append(letters, fmt.Sprintf("06h0agmo07trok8rldblg2o00000000%d", i+1))
				letter := bson.D{{Key: "_id", Value: "bad/" + letters[i]}, {Key: "b", Value: []byte("x")}}
				for k, v := range map[string]any{"reason": "too late", "attempts": int64(1), "worker": "w", "at": bson.DateTime(0)} {
					if k == field {
						v = bson.A{"evil"}
					}
					letter = append(letter, bson.E{Key: k, Value: v})
				}
				_, err := db.Collection("dead").InsertOne(t.Context(), letter)
				must(t, err)
			}
		}
		says(t, fencepost("types", "ls"), 0, "file entry damaged", "good ")
		says(t, fencepost("types", "ls", "-o", "json"), 0, damage, `"good"`)
		says(t, fencepost("types", "show", "bad"), 0, damage, "the next worker registers the file again")
		says(t, fencepost("top", "--once"), 0, "file entry damaged", "good ")
		says(t, fencepost("doctor", "--dir", b.dir), failed, damage, "1 of 2 types have their registered files here")
		if letters != nil {
			says(t, fencepost("dead", "ls"), 0, "damaged: field reason is of the type array, want a text", "damaged: field attempts", "damaged: field worker", "damaged: field at")
			says(t, fencepost("dead", "show", letters[1]), 0, "field attempts is of the type array, want a number", "too late")
			says(t, fencepost("dead", "show", letters[1], "-o", "json"), 0, `"damaged": "field attempts`)
			says(t, fencepost("dead", "rm", letters[0], "--yes"), 0)
			says(t, fencepost("dead", "requeue", letters[1], letters[2], letters[3]), 0)
			says(t, fencepost("dead", "ls"), 0, "no dead letters")
		}

		remove()
		mustRun(t, strings.NewReader("2\n"), "producer", "publish", "--url", b.url, "--type", "bad")
		mustRun(t, nil, "worker", "--url", b.url, "--type", "bad", "--dir", b.dir, "--until-empty")
		mustRun(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir)
		if got, want := len(payloads(t, b, "bad")), 2+max(len(letters)-1, 0); got != want {
			t.Errorf("%d messages in the file, want %d", got, want)
		}
	})
}
