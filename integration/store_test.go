package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// Given files in a store, when a worker is killed and another one, which shares only database and store
// with it, takes over, then every message is there once and in order, and the tools find, follow,
// compact and repair the files by type.
func TestFilesInAStore(t *testing.T) {
	t.Parallel()
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		b, dir := embedded(t), t.TempDir()
		filesInAStore(t, b, "shared:"+dir, func(t *testing.T) {
			slot := newestSlot(t, filepath.Join(dir, "orders"))
			content, err := os.ReadFile(slot)
			must(t, err)
			content[len(content)/2] ^= 1
			must(t, os.WriteFile(slot, content, 0o600))
		})
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		bucket := s3mem.New()
		must(t, bucket.CreateBucket("files"))
		server := httptest.NewServer(gofakes3.New(bucket, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
		t.Cleanup(server.Close)
		filesInAStore(t, embedded(t), "s3://files/some/prefix?endpoint="+server.URL+"&path-style=true", func(t *testing.T) {
			prefix := gofakes3.NewFolderPrefix("some/prefix/orders/")
			prefix.HasDelimiter = false
			list, err := bucket.ListBucket("files", &prefix, gofakes3.ListBucketPage{})
			must(t, err)
			var slot string
			var size int64
			for _, o := range list.Contents {
				if !strings.Contains(o.Key, "/generations/") && newer(o.Key, int(o.Size), slot, int(size)) {
					slot, size = o.Key, o.Size
				}
			}
			object, err := bucket.GetObject("files", slot, nil)
			must(t, err)
			content, err := io.ReadAll(object.Contents)
			must(t, err)
			content[len(content)/2] ^= 1
			_, err = bucket.PutObject("files", slot, map[string]string{}, bytes.NewReader(content), int64(len(content)), nil)
			must(t, err)
		})
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		filesInAStore(t, backend{url: uri}, "mongodb:", func(t *testing.T) {
			// The newest batches: the largest value of the newest generation.
			slots := db.Collection("slots")
			cur, err := slots.Find(t.Context(), bson.D{{Key: "_id", Value: bson.Regex{Pattern: "^orders/[0-9]"}}})
			must(t, err)
			type value struct {
				ID   string      `bson:"_id"`
				Data bson.Binary `bson:"b"`
			}
			var docs []value
			must(t, cur.All(t.Context(), &docs))
			var doc value
			for _, d := range docs {
				if newer(d.ID, len(d.Data.Data), doc.ID, len(doc.Data.Data)) {
					doc = d
				}
			}
			doc.Data.Data[len(doc.Data.Data)/2] ^= 1
			_, err = slots.UpdateByID(t.Context(), doc.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: doc.Data}}}})
			must(t, err)
		})
	})
}

// newer reports whether value a belongs to a later generation than b, or is larger.
func newer(a string, size int, b string, than int) bool {
	generation := func(name string) string {
		return strings.Join(strings.Split(name, "/")[:min(2, strings.Count(name, "/"))], "/")
	}
	if ga, gb := generation(a), generation(b); ga != gb {
		return ga > gb
	}
	return size > than
}

// newestSlot returns the largest value of the newest generation below a type's folder.
func newestSlot(t *testing.T, dir string) (slot string) {
	t.Helper()
	size := 0
	generations, err := filepath.Glob(filepath.Join(dir, "0*"))
	must(t, err)
	values, err := filepath.Glob(filepath.Join(slices.Max(generations), "*", "*"))
	must(t, err)
	for _, v := range values {
		info, err := os.Stat(v)
		must(t, err)
		if n := int(info.Size()); n > size {
			slot, size = v, n
		}
	}
	return slot
}

func filesInAStore(t *testing.T, b backend, store string, damage func(*testing.T)) {
	in := []string{"--url", b.url, "--store", store}
	n := 0
	var want strings.Builder
	publish := func(k int) {
		t.Helper()
		var lines strings.Builder
		for range k {
			fmt.Fprintf(&lines, "%06d all work and no play makes Jack a dull boy\n", n)
			n++
		}
		want.WriteString(lines.String())
		mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "orders", "-")
	}
	tool := func(command string, args ...string) result {
		t.Helper()
		return run(t, nil, "fencepost", slices.Concat([]string{command}, in, args)...)
	}
	work := slices.Concat(in, []string{"--type", "orders", "--lease", "5s"})

	refused(t, tool("verify"), nothing, "no files in "+store)
	publish(2000)
	w, address := startAnswering(t, work...)
	eventually(t, time.Minute, "everything drained", func() bool { return pending(t, b)["orders"] == 0 })
	if _, body := ask(address + "/metrics"); !strings.Contains(body, `fencepost_store_requests_total{answer="ok",request="create"}`) {
		t.Errorf("/metrics does not tell of the store: %s", body)
	}
	follower := start(t, "tail", "fencepost", slices.Concat([]string{"tail", "--follow", "--from", "0"}, in, []string{"orders"})...)
	followed := func() bool { return follower.stdout.String() == want.String() }
	eventually(t, runTimeout, "tail prints everything", followed)
	publish(3000)
	w.signal(t, syscall.SIGKILL)
	w.wait(t, runTimeout)
	mustRun(t, nil, "worker", append(slices.Clone(work), "--until-empty")...)
	eventually(t, runTimeout, "tail prints everything", followed)

	if r := tool("verify", "--deep"); r.code != 0 || !strings.Contains(r.stdout, "orders.fpl in "+store+"  OK  5,000 messages") {
		t.Errorf("verify: %v", r)
	}
	if r := tool("compact", "orders"); r.code != 0 || !strings.HasPrefix(r.stdout, "orders@0002.fpl in "+store) {
		t.Errorf("compact: %v", r)
	}
	publish(100)
	mustRun(t, nil, "worker", append(slices.Clone(work), "--until-empty")...)
	eventually(t, runTimeout, "tail prints everything", followed)
	follower.signal(t, syscall.SIGINT)
	if code := follower.wait(t, time.Minute); code != stopped {
		t.Errorf("tail ended with %d: %s", code, follower.stderr.String())
	}
	if r := tool("cat", "orders"); r.code != 0 || r.stdout != want.String() {
		t.Errorf("cat prints %d bytes, want %d: %s", len(r.stdout), want.Len(), r.stderr)
	}
	if r := run(t, nil, "fencepost", "types", "show", "orders", "--url", b.url); r.code != 0 || !strings.Contains(r.stdout, store) {
		t.Errorf("types show: %v", r)
	}
	if r := tool("doctor"); r.code != 0 || !strings.Contains(r.stdout, store+" let one of 32 creates") {
		t.Errorf("doctor: %v", r)
	}

	damage(t)
	refused(t, tool("verify", "orders"), integrity, "orders@0002.fpl in "+store)
	if r := tool("repair", "orders"); r.code != partial || !strings.Contains(r.stdout, "orders@0003.fpl in "+store) {
		t.Errorf("repair: %v", r)
	}
	publish(10)
	// A program that looks for the file in another place is told its location.
	elsewhere := t.TempDir()
	refused(t, run(t, nil, "worker", "--url", b.url, "--dir", elsewhere, "--type", "orders", "--until-empty"), integrity, "last kept in "+store,
		"start workers of this type with --store ", store)
	refused(t, run(t, nil, "worker", "--url", b.url, "--store", "shared:"+elsewhere, "--type", "orders", "--until-empty"), integrity, "last kept in "+store)
	mustRun(t, nil, "worker", append(slices.Clone(work), "--until-empty")...)
	if r := tool("verify", "--deep"); r.code != 0 || !strings.Contains(r.stdout, "REPLACED") {
		t.Errorf("verify after the repair: %v", r)
	}
	if r := tool("tail", "-n", "10", "orders.fpl"); r.stdout != tail(want.String(), 10)+"\n" {
		t.Errorf("the last messages are %v", r)
	}

	// To a directory and back.
	dir := filepath.Join(t.TempDir(), "data")
	if r := run(t, nil, "fencepost", "copy", "--yes", "--url", b.url, store, dir); r.code != 0 || !strings.Contains(r.stdout, "orders  from "+store+" to "+dir) {
		t.Fatalf("copy: %v", r)
	}
	other := filepath.Join(t.TempDir(), "other")
	refused(t, run(t, nil, "fencepost", "copy", "--yes", "--url", b.url, store, other), integrity, ".fpl in "+store, "--dir "+dir)
	if _, err := os.Stat(other); err == nil {
		t.Error("something was copied of files that are old")
	}
	publish(10)
	refused(t, run(t, nil, "worker", append(slices.Clone(work), "--until-empty")...), integrity, "--dir "+dir)
	mustRun(t, nil, "worker", "--url", b.url, "--dir", dir, "--type", "orders", "--until-empty")
	if r := run(t, nil, "fencepost", "verify", "--deep", dir); r.code != 0 {
		t.Errorf("verify of the directory: %v", r)
	}
	if r := run(t, nil, "fencepost", "copy", "--yes", "--url", b.url, dir, store, "orders"); r.code != 0 || !strings.Contains(r.stdout, "of them already there") {
		t.Fatalf("copy back: %v", r)
	}
	publish(10)
	mustRun(t, nil, "worker", append(slices.Clone(work), "--until-empty")...)
	if r := tool("verify", "--deep"); r.code != 0 {
		t.Errorf("verify after all: %v", r)
	}
	if r := tool("tail", "-n", "30", "orders"); r.stdout != tail(want.String(), 30)+"\n" { // they are in three files
		t.Errorf("the last messages are %v", r)
	}
}
