package integration

import (
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/queue"
)

// hostileTypes are names that would lead outside the directory if they became parts of paths.
var hostileTypes = []string{"../evil", "../../evil", "/tmp/fencepost-evil", "a/../../evil", "a/b", "..", ".", "", ".evil", "EVIL", "evil\x00", "evil\n", "evil@0002", "é"}

// insertForeign inserts a message and a registered type into the queue, bypassing all checks of Fencepost, as a foreign publisher could.
func insertForeign(t *testing.T, b backend, typ string) {
	t.Helper()
	id := queue.NewID(time.Now().Add(-time.Minute), 7, 1)
	if path, ok := strings.CutPrefix(b.url, "sqlite://"); ok {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, ?)", typ, id[:], []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("INSERT INTO queue_types (type) VALUES (?)", typ); err != nil {
			t.Fatal(err)
		}
		return
	}
	client, err := mongo.Connect(options.Client().ApplyURI(b.url))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(t.Context())
	u, _, _ := strings.Cut(b.url[strings.LastIndex(b.url, "/")+1:], "?")
	db := client.Database(u)
	if _, err := db.Collection("messages").InsertOne(t.Context(), bson.D{{Key: "_id", Value: typ + "/" + id.String()}, {Key: "b", Value: []byte("x")}}); err != nil {
		t.Logf("the server refuses a message of type %q: %v", typ, err)
	}
	if _, err := db.Collection("types").InsertOne(t.Context(), bson.D{{Key: "_id", Value: typ}}); err != nil {
		t.Logf("the server refuses the type %q: %v", typ, err)
	}
}

// tree lists everything below dir, with modes.
func tree(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	found := map[string]fs.FileMode{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		found[rel] = info.Mode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Whatever a foreign publisher calls its types, no worker leaves its directory, and valid types are still served.
func TestForeignTypesLeadNowhere(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		root := t.TempDir()
		b.dir = filepath.Join(root, "deep", "er", "data")
		drainable(t, b, 10)
		for _, typ := range hostileTypes {
			insertForeign(t, b, typ)
		}
		foreign := b.server == nil && strings.HasPrefix(b.url, "mongodb") // "a/b/ID" and "a/../../evil/ID" are of type "a" there, under keys that do not belong to messages
		want := 0
		if foreign {
			want = 7
		}
		if r := run(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--until-empty"); r.code != want {
			t.Errorf("exit code %d, want %d: %v", r.code, want, r)
		}
		if got := len(payloads(t, b, "t")); got != 10 {
			t.Errorf("%d of 10 messages in the file", got)
		}
		made := []string{".", "deep", "deep/er", "deep/er/data", "deep/er/data/t.fpl"}
		if foreign {
			made = append(made, "deep/er/data/a.fpl")
		}
		for path := range tree(t, root) {
			if !slices.Contains(made, path) {
				t.Errorf("the worker made %s", path)
			}
		}
		if _, err := os.Lstat("/tmp/fencepost-evil.fpl"); err == nil {
			t.Error("the worker made /tmp/fencepost-evil.fpl")
		}
		// Naming such types in arguments does not work either.
		for _, typ := range hostileTypes {
			if strings.ContainsAny(typ, "\x00\n") {
				continue // an argument cannot contain NUL, and a line feed ends a list of values
			}
			for _, args := range [][]string{
				{"worker", "--url", b.url, "--dir", b.dir, "--until-empty", "--type=" + typ},
				{"producer", "publish", "--url", b.url, "--message", "x", "--type=" + typ},
				{"fencepost", "types", "pause", "--url", b.url, "--", typ},
			} {
				r := run(t, nil, args[0], args[1:]...)
				if r.code != usage {
					t.Errorf("%q: %v; want exit code %d", args, r, usage)
				}
			}
		}
	})
}

// TestStraysAreReported: the list of types, doctor and a worker's log report types with invalid names.
func TestStraysAreReported(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		drainable(t, b, 10)
		if r := mustRun(t, nil, "fencepost", "types", "ls", "--url", b.url); r.stderr != "" {
			t.Errorf("a warning without a cause: %v", r)
		}
		insertForeign(t, b, "EVIL")
		for _, args := range [][]string{{"types", "ls", "--url", b.url}, {"types", "ls", "--url", b.url, "-o", "json"}, {"doctor", "--url", b.url, "--dir", b.dir}} {
			r := mustRun(t, nil, "fencepost", args...)
			out := r.stderr
			if args[0] == "doctor" {
				out = r.stdout
			}
			for _, part := range []string{"warning", "EVIL", "messages", "types", "removes them"} {
				if !strings.Contains(out, part) {
					t.Errorf("%v does not say %q: %v", args, part, r)
				}
			}
			if strings.Contains(r.stderr+r.stdout, "error") {
				t.Errorf("%v: %v", args, r)
			}
		}
		if r := mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--until-empty"); strings.Count(r.stderr, "EVIL") != 2 {
			t.Errorf("the worker says %v; want one warning of messages and one of types", r)
		}
	})
}

// Files and directories are accessible only to owner and group, whatever the umask allows; the umask may restrict them further.
func TestFileModes(t *testing.T) {
	for _, umask := range []fs.FileMode{0o000, 0o022, 0o027, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", umask), func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "made")
			url := "sqlite://" + filepath.Join(dir, "db", "fencepost.db")
			input := filepath.Join(t.TempDir(), "input")
			write(t, input, []byte(strings.Repeat("line\n", 100)))
			for _, args := range [][]string{
				{"producer", "publish", "--url", url, "--type", "t", "--resume", filepath.Join(root, "state"), input},
				{"worker", "--url", url, "--dir", filepath.Join(dir, "files"), "--type", "t", "--until-empty"},
				{"fencepost", "compact", "--url", url, filepath.Join(dir, "files", "t.fpl")},
			} {
				cmd := exec.Command("sh", "-c", fmt.Sprintf(`umask %03o; exec "$0" "$@"`, umask), filepath.Join(bin, args[0]))
				cmd.Args = append(cmd.Args, args[1:]...)
				cmd.Env = kit.Env()
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%q: %v\n%s", args, err, out)
				}
			}
			modes := tree(t, root)
			delete(modes, ".")
			for _, name := range []string{"made/db/fencepost.db", "made/files/t.fpl", "made/files/t@0002.fpl", "state"} {
				if _, ok := modes[name]; !ok {
					t.Errorf("%s was not made", name)
				}
			}
			for path, mode := range modes {
				want := fs.FileMode(0o640)
				if mode.IsDir() {
					want = 0o750
				}
				if got := mode.Perm(); got != want&^umask {
					t.Errorf("%s has mode %03o, want %03o", path, got, want&^umask)
				}
			}
		})
	}
}

// A link planted where a program is about to write does not redirect the write.
func TestLinksAreNotFollowed(t *testing.T) {
	b := embedded(t)
	drainable(t, b, 10)
	if err := os.Mkdir(b.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, []byte("precious"))
	link := func(path string) {
		t.Helper()
		if err := os.Symlink(victim, path); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(b.dir, "t.fpl")
	link(file)
	refused(t, drain(t, b), failed, file, "symbolic link")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}

	state := filepath.Join(t.TempDir(), "state")
	link(state + ".tmp")
	mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--resume", state, oneLine(t))
	dangling := filepath.Join(t.TempDir(), "not-made")
	other := filepath.Join(t.TempDir(), "state")
	if err := os.Symlink(dangling, other+".lock"); err != nil {
		t.Fatal(err)
	}
	refused(t, run(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--resume", other, oneLine(t)), usage, "--resume", other+".lock")
	if _, err := os.Lstat(dangling); err == nil {
		t.Error("a file was made through the link of a lock file")
	}
	if content, err := os.ReadFile(victim); err != nil || string(content) != "precious" {
		t.Errorf("the target of the links was changed: %q, %v", content, err)
	}
}

// oneLine returns an input of one line.
func oneLine(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "input")
	write(t, path, []byte("a\n"))
	return path
}
