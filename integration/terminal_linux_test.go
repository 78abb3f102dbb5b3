package integration

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/ptytest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// evil is the text of an attacker of the operator's terminal: ESC and C1 sequences, bidi, zero width, NUL, DEL, and every kind of
// line end. evilKey is the same for places that cannot contain NUL, evilBytes for those that can contain invalid UTF-8.
const (
	evil      = "\x1b[2J\u0085FORGED\u2028FORGED\x1b]0;title\x07\x1b[5m\u009b5m\u202etxt\u2066\u200b\U000e0041\x7f\r\nFORGED line\n\tX\v\f\u009d0;t\u009c\x00"
	evilKey   = "\x1b[2J\u0085FORGED\u2028FORGED\x1b]0;title\x07\x1b[5m\u009b5m\u202etxt\u2066\u200b\x7f\r\nFORGED line\n\tX"
	evilBytes = "\x9b5m\xff\x1b[2J" + evil

	placeholder = "QQQ" // stands for it until everything is stored
)

// onTerminal runs a program on a terminal. When the terminal shows until, stop ends the program; with a nil stop it ends by itself.
func onTerminal(t *testing.T, until string, stop func(keyboard *os.File, p *os.Process), program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Env = kit.Env()
	var stdout, stderr kit.Buffer
	var readers sync.WaitGroup
	screen, errors := openTerminal(t), openTerminal(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen.program, screen.program, errors.program
	for _, r := range []struct {
		from *os.File
		to   *kit.Buffer
	}{{screen.person, &stdout}, {errors.person, &stderr}} {
		readers.Go(func() { io.Copy(r.to, r.from) }) // until the other side is closed
		defer r.from.Close()
	}
	must(t, cmd.Start())
	screen.program.Close()
	errors.program.Close()
	if stop != nil {
		eventually(t, runTimeout, fmt.Sprintf("%q prints %q", args, until), func() bool { return strings.Contains(stdout.String(), until) })
		stop(screen.person, cmd.Process)
	}
	cmd.Wait()
	readers.Wait()
	if ctx.Err() != nil {
		t.Fatalf("%s %q did not end\nstdout: %q\nstderr: %q", program, args, stdout.String(), stderr.String())
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// terminal returns both sides of a terminal that passes every byte unchanged.
type terminal struct{ person, program *os.File }

func openTerminal(t *testing.T) terminal {
	t.Helper()
	person, program := ptytest.Open(t)
	modes, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	must(t, err)
	modes.Oflag &^= unix.OPOST
	modes.Lflag &^= unix.ECHO
	must(t, unix.IoctlSetTermios(int(program.Fd()), unix.TCSETS, modes))
	must(t, unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 60, Col: 2000}))
	return terminal{person, program}
}

// ours are the sequences that Fencepost's programs print: those of top, and the colours of a worker's log.
var ours = map[string]*strings.Replacer{
	"fencepost top": strings.NewReplacer("\x1b[?1049h\x1b[?25l\x1b[?7l", "", "\x1b[?7h\x1b[?25h\x1b[?1049l", "", "\x1b[H", "\n", "\x1b[K", "", "\x1b[J", "", "\r\n", "\n"),
	"worker":        strings.NewReplacer("\x1b[0m", "", "\x1b[1m", "", "\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[36m", "", "\x1b[90m", ""),
}

// wantTame checks that a program's output contains no control sequence and no forged line.
func wantTame(t *testing.T, command string, r result) {
	t.Helper()
	for name, out := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
		for prefix, sequences := range ours {
			if strings.HasPrefix(command, prefix) {
				out = sequences.Replace(out)
			}
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "FORGED") {
				t.Errorf("%s: %s has a forged line: %q", command, name, out)
			}
			for i, c := range strings.TrimSuffix(line, "\n") {
				_, size := utf8.DecodeRuneInString(line[i:])
				if unicode.In(c, unicode.C, unicode.Zl, unicode.Zp) || c == utf8.RuneError && size == 1 {
					t.Errorf("%s: %s has %+q: %q", command, name, line[i:i+size], line)
					break
				}
			}
		}
	}
}

// textsIn returns all strings in a stream of JSON values, names included.
func textsIn(t *testing.T, command, stream string) (texts []string) {
	t.Helper()
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			texts = append(texts, v)
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			texts = slices.AppendSeq(texts, maps.Keys(v))
			for e := range maps.Values(v) {
				walk(e)
			}
		}
	}
	for d := json.NewDecoder(strings.NewReader(stream)); ; {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return texts
		} else if err != nil {
			t.Fatalf("%s: %v: %q", command, err, stream)
		}
		walk(v)
	}
}

// TestNothingStoredSpeaksToTheTerminal: every field of every document, a file and its name contain text that a terminal would obey, or that looks
// like a line of Fencepost. Every command shows it, but escaped.
func TestNothingStoredSpeaksToTheTerminal(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		letter := storeEvil(t, b)
		file := evilFiles(t, b.dir)
		odd := filepath.Join(b.dir, "odd")
		_, inMongo := strings.CutPrefix(b.url, "mongodb")
		for _, c := range []struct {
			command string
			shows   bool // the command shows at least a part of it, in some form
		}{
			{"fencepost locks ls --all", true},
			{"fencepost locks show orders", true},
			{"fencepost types ls", true},
			{"fencepost types show orders", true},
			{"fencepost types show spoiled", true},
			{"fencepost types peek orders", true},
			{"fencepost types peek spoiled", true},
			{"fencepost types peek orders --foreign", inMongo}, // else it is hexadecimal
			{"fencepost types purge orders --all --yes --wait 0", true},
			{"fencepost top --once", true},
			{"fencepost dead ls", true},
			{"fencepost dead show " + letter, true},
			{"fencepost dead show -o raw " + letter, true},
			{"fencepost dead rm --all --dry-run", true},
			{"fencepost scheduled ls", false},
			{"fencepost doctor --dir DIR", true},
			{"fencepost doctor --dir ODD", true},
			{"fencepost compact -q FILE", true}, // the lock is held
			{"fencepost repair -q --dry-run FILE", false},
			{"producer publish -q --backlog-wait 0 --type orders -m x", true}, // the type is paused
			{"worker --dir DIR --type spoiled --until-empty --gap-timeout 300ms --log-level debug --log-format text", true},
			{"worker --dir DIR --type spoiled --until-empty --gap-timeout 300ms --log-level debug --log-format json", true},
		} {
			t.Run(c.command, func(t *testing.T) {
				args := strings.Fields(c.command)
				args = append(replaceAll(args, "FILE", file, "DIR", b.dir, "ODD", odd), "--url", b.url)
				r := onTerminal(t, "", nil, args[0], args[1:]...)
				wantTame(t, c.command, r)
				if c.shows && !strings.Contains(r.stdout+r.stderr, "FORGED") {
					t.Errorf("it does not show it: %v", r)
				}
			})
		}
		for command, stop := range map[string]func(*os.File, *os.Process){
			"fencepost top":         func(keyboard *os.File, _ *os.Process) { io.WriteString(keyboard, "q") },
			"fencepost locks watch": func(_ *os.File, p *os.Process) { p.Signal(os.Interrupt) },
		} {
			t.Run(command, func(t *testing.T) {
				args := strings.Fields(command)
				wantTame(t, command, onTerminal(t, "FORGED", stop, args[0], append(args[1:], "--url", b.url)...))
			})
		}
		for _, command := range []string{
			"fencepost locks ls -o json", "fencepost locks show -o json orders", "fencepost types ls -o json", "fencepost types show -o json orders",
			"fencepost types peek -o json orders", "fencepost top --once -o json", "fencepost dead ls -o json", "fencepost dead show -o json " + letter,
		} {
			t.Run(command, func(t *testing.T) {
				args := strings.Fields(command)
				r := onTerminal(t, "", nil, args[0], append(args[1:], "--url", b.url)...)
				wantTame(t, command, r)
				if !slices.ContainsFunc(textsIn(t, command, r.stdout), func(s string) bool { return strings.Contains(s, evil) }) {
					t.Errorf("the value is not there: %v", r)
				}
			})
		}
	})
}

// TestNothingInAFileSpeaksToTheTerminal: the same for a file, and the names of files and directories. Payloads are written to a pipe unchanged.
func TestNothingInAFileSpeaksToTheTerminal(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	file := evilFiles(t, dir)
	odd := filepath.Join(dir, "odd")
	names, err := filepath.Glob(filepath.Join(odd, "*"))
	if err != nil || len(names) != 2 {
		t.Fatalf("%q, %v", names, err)
	}
	for _, c := range []struct {
		command string
		shows   bool
	}{
		{"cat FILE", true}, {"cat --format raw FILE", true}, {"cat --format len32 FILE", true}, {"cat --format json FILE", true}, {"cat DIR", false},
		{"cat ODD", false}, {"cat NAME", true}, {"cat --salvage NAME", true}, {"cat NOTHING", true}, {"cat --id FORGED FILE", true},
		{"tail FILE", true}, {"tail --format raw FILE", true}, {"tail --format json FILE", true}, {"tail NAME", true},
		{"verify -q -v FILE", true}, {"verify -q --json FILE", true}, {"verify -q -v ODD", true}, {"verify -q --json ODD", true}, {"verify -q NOTHING", true},
		{"compact -q NAME", true}, {"repair -q --dry-run NAME", true},
		{"doctor --dir ODD --url sqlite://NAME", true}, {"types ls --url sqlite://NOTHING", true}, {"locks ls --url EVIL", true}, {"locks show EVIL", false},
		{"types show EVIL", true}, {"dead show EVIL", true}, {"verify --config NOTHING x", true}, {"EVIL", true}, {"--EVIL", true}, {"verify --EVIL", true},
	} {
		t.Run(c.command, func(t *testing.T) {
			args := replaceAll(strings.Fields(c.command), "FILE", file, "DIR", dir, "ODD", odd, "NAME", names[0], "NOTHING", filepath.Join(dir, evilKey), "EVIL", evilKey)
			r := onTerminal(t, "", nil, "fencepost", args...)
			wantTame(t, c.command, r)
			if c.shows && !strings.Contains(r.stdout+r.stderr, "FORGED") {
				t.Errorf("it does not show it: %v", r)
			}
			if strings.Contains(c.command, "json") {
				textsIn(t, c.command, r.stdout)
			}
		})
	}
	t.Run("tail -f", func(t *testing.T) {
		interrupt := func(_ *os.File, p *os.Process) { p.Signal(os.Interrupt) }
		wantTame(t, "tail -f", onTerminal(t, "FORGED", interrupt, "fencepost", "tail", "-f", file))
	})
	for _, c := range [][]string{{"cat", file}, {"tail", file}} {
		if got := mustRun(t, nil, "fencepost", c...).stdout; got != evilBytes+"\n" {
			t.Errorf("%q into a pipe: %q", c, got)
		}
	}
	r := mustRun(t, nil, "fencepost", "cat", "--format", "json", file)
	if texts := textsIn(t, "cat", r.stdout); !slices.Contains(texts, "k"+evil) || !slices.Contains(texts, "v"+evil) {
		t.Errorf("the headers are not there: %s", r.stdout)
	}
}

// replaceAll replaces parts of words, in pairs.
func replaceAll(words []string, pairs ...string) []string {
	replacer := strings.NewReplacer(pairs...)
	for i := range words {
		words[i] = replacer.Replace(words[i])
	}
	return words
}

// evilFiles creates a file of type orders in dir, with evil in every field, and copies of it under evil names in the directory odd. It returns the
// path of the first.
func evilFiles(t *testing.T, dir string) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "odd"), 0o750))
	w, err := storage.Open(t.Context(), dir, "orders", 1, storage.Options{AllowOverlay: true, Schema: evil,
		Holder: storage.Holder{ID: "x" + evil, Host: "h" + evilBytes, Version: "v" + evil}})
	must(t, err)
	must(t, w.Append([]storage.Record{{ID: []byte(evil), Time: 1, Payload: []byte(evilBytes), Headers: []storage.Header{{Key: "k" + evil, Value: "v" + evil}}}}))
	_, err = w.Sync()
	must(t, err)
	must(t, w.Close())
	path := filepath.Join(dir, storage.FileName("orders"))
	content, err := os.ReadFile(path)
	must(t, err)
	content[len(content)/2] ^= 1 // damage the file, too
	for _, name := range []string{evilKey, "y\x9b\xff" + evilKey} {
		must(t, os.WriteFile(filepath.Join(dir, "odd", storage.FileName(name)), content, 0o600))
	}
	return path
}

// storeEvil writes evil to all collections or tables, and returns the ID of a dead letter.
func storeEvil(t *testing.T, b backend) (letter string) {
	t.Helper()
	const p = placeholder
	publish := func(args ...string) {
		t.Helper()
		mustRun(t, nil, "producer", append([]string{"publish", "--url", b.url, "--header", "k" + p + "=v" + p}, args...)...)
	}
	publish("--type", "dead", "-m", evilKey)
	publish("--type", "orders", "-m", evilKey)
	publish("--type", "orders", "-m", evilKey, "--delay", "1h")
	publish("--type", "spoiled", "-m", "x")
	be, closeIt := open(t, b)
	defer closeIt()
	q := be.Queue
	msgs, err := q.Fetch(t.Context(), "dead", queue.ID{}, queue.Limit{Messages: 1})
	must(t, err)
	must(t, q.MoveToDeadLetters(t.Context(), "dead", []queue.DeadLetter{{Message: msgs[0], Reason: p, Attempts: 5, Worker: p}}))
	for _, change := range []queue.SettingsPatch{{PublishPaused: new(true), MaxBacklog: new(1000), Why: p}} {
		_, err := q.PatchSettings(t.Context(), "orders", change)
		must(t, err)
	}
	must(t, q.Heartbeat(t.Context(), queue.Member{Instance: "m" + p, Host: p, Version: p, Types: []string{"*", p}, Held: []string{"orders", p}, Errors: map[string]string{"orders": p}}))
	if path, embedded := strings.CutPrefix(b.url, "sqlite://"); embedded {
		poisonSQLite(t, path)
	} else {
		poisonMongo(t, b.url)
	}
	return msgs[0].ID.String()
}

func newID() (id [12]byte) {
	rand.Read(id[:])
	return id
}

// lockedNames are the names of locks that evil holds and others wait for.
var lockedNames = []string{"orders", queue.AdminLock("orders"), evilKey}

func poisonSQLite(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	must(t, err)
	defer db.Close()
	exec := func(statement string, args ...any) {
		t.Helper()
		result, err := db.ExecContext(t.Context(), statement, args...)
		must(t, err)
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			t.Errorf("%s: %d rows, %v", statement, n, err)
		}
	}
	quoted, err := json.Marshal(evil)
	must(t, err)
	inJSON := strings.Trim(string(quoted), `"`)
	exec(`UPDATE queue_messages SET headers = ? WHERE type = 'spoiled'`, `{"`+inJSON+`": 1}`)
	for _, c := range []string{"queue_messages.headers", "queue_delayed.headers", "queue_dead.headers", "queue_members.member"} {
		table, column, _ := strings.Cut(c, ".")
		exec(`UPDATE `+table+` SET `+column+` = replace(`+column+`, ?, ?)`, placeholder, inJSON)
	}
	for _, c := range []string{"queue_dead.reason", "queue_dead.worker", "queue_settings.why", "queue_members.id"} {
		table, column, _ := strings.Cut(c, ".")
		exec(`UPDATE `+table+` SET `+column+` = replace(`+column+`, ?, ?)`, placeholder, evilBytes)
	}
	exec(`UPDATE queue_members SET seen = seen + 3600000`) // it stays alive
	exec(`INSERT INTO queue_messages (type, id, payload) VALUES ('orders', ?, x'78')`, []byte(evilBytes))
	exec(`INSERT INTO queue_messages (type, id, payload) VALUES (?, ?, x'78')`, evilKey, make([]byte, 20))
	exec(`INSERT INTO queue_types (type) VALUES (?)`, evilKey)
	waiting := lock.Entry{Hold: lock.Hold{ID: newID(), Lease: time.Hour, Owner: lock.Process{Host: evil, Instance: evil}, Why: evil}, Version: newID()}
	more, err := json.Marshal(map[string]any{"Asked": evil, "Queue": []lock.Entry{waiting}, "Forced": lock.Forced{ID: newID(), Why: evil}})
	must(t, err)
	for _, name := range lockedNames {
		hold, version := newID(), newID()
		exec(`INSERT INTO locks (name, token, version, hold_id, lease_ms, host, pid, instance, boot, pid_namespace, started, why, since_us, at_us, more)
			VALUES (?, 1, ?, ?, 3600000, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)`, name, version[:], hold[:], evilBytes, evilBytes, evilBytes, evilBytes, evilBytes, evilBytes,
			time.Now().UnixMicro(), time.Now().UnixMicro(), string(more))
	}
}

func poisonMongo(t *testing.T, url string) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(url))
	must(t, err)
	defer client.Disconnect(context.Background())
	db := client.Database(regexp.MustCompile(`^mongodb://[^/]*/([^?]*)`).FindStringSubmatch(url)[1])
	for _, name := range []string{"messages", "dead", "scheduled", "types", "workers"} {
		c := db.Collection(name)
		cursor, err := c.Find(t.Context(), bson.D{})
		must(t, err)
		var docs []bson.D
		must(t, cursor.All(t.Context(), &docs))
		poisoned := 0
		for _, doc := range docs {
			id := doc[0].Value
			text := fmt.Sprint(doc)
			if !strings.Contains(text, placeholder) {
				continue
			}
			poisoned++
			doc = poison(doc).(bson.D)
			if name == "messages" && strings.HasPrefix(id.(string), "spoiled/") {
				doc[2].Value = bson.D{{Key: evilKey, Value: int32(1)}}
			}
			for i := range doc {
				if doc[i].Key == "seen" {
					doc[i].Value = time.Now().Add(time.Hour) // it stays alive
				}
			}
			_, err := c.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
			must(t, err)
			_, err = c.InsertOne(t.Context(), doc)
			must(t, err)
		}
		if poisoned == 0 {
			t.Errorf("nothing in %s", name)
		}
	}
	insert := func(collection string, doc bson.D) {
		t.Helper()
		_, err := db.Collection(collection).InsertOne(t.Context(), doc)
		must(t, err)
	}
	insert("messages", bson.D{{Key: "_id", Value: "orders/" + evil}})
	insert("messages", bson.D{{Key: "_id", Value: evil + "/" + strings.Repeat("0", 32)}})
	insert("types", bson.D{{Key: "_id", Value: evilBytes}, {Key: "why", Value: evilBytes}})
	hold := func() bson.D {
		return bson.D{{Key: "id", Value: bson.ObjectID(newID())}, {Key: "v", Value: bson.ObjectID(newID())}, {Key: "ms", Value: int64(3_600_000)}, {Key: "why", Value: evilBytes}, {Key: "rq", Value: evilBytes},
			{Key: "owner", Value: bson.D{{Key: "host", Value: evilBytes}, {Key: "pid", Value: 1}, {Key: "instance", Value: evilBytes}, {Key: "boot", Value: evilBytes}, {Key: "pidns", Value: evilBytes}, {Key: "started", Value: evilBytes}}}}
	}
	for _, name := range append(lockedNames, evil) {
		insert("locks", bson.D{{Key: "_id", Value: name}, {Key: "token", Value: int64(1)}, {Key: "v", Value: bson.ObjectID(newID())}, {Key: "h", Value: hold()}, {Key: "q", Value: bson.A{hold()}},
			{Key: "f", Value: bson.D{{Key: "id", Value: bson.ObjectID(newID())}, {Key: "why", Value: evilBytes}}}, {Key: "since", Value: time.Now()}, {Key: "at", Value: time.Now()}})
	}
	insert("locks", bson.D{{Key: "_id", Value: "damaged" + evil}, {Key: "token", Value: evilBytes}})
}

// poison replaces the placeholder with evil everywhere in a value.
func poison(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, placeholder, evilBytes)
	case bson.A:
		for i := range v {
			v[i] = poison(v[i])
		}
	case bson.D:
		for i := range v {
			v[i].Key, v[i].Value = strings.ReplaceAll(v[i].Key, placeholder, evilKey), poison(v[i].Value)
		}
	}
	return v
}
