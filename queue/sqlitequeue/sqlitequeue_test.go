package sqlitequeue_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
)

// envPublish makes this test binary a publishing process: path, type, number of messages.
const envPublish = "FENCEPOST_TEST_SQLITEQUEUE_PUBLISH"

func TestMain(m *testing.M) {
	if job := os.Getenv(envPublish); job != "" {
		if err := publishProcess(strings.Split(job, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, path string) *sqlitequeue.Queue {
	t.Helper()
	q, err := sqlitequeue.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return q
}

func message(n int, payload []byte) queue.Message {
	return queue.Message{ID: queue.NewID(time.UnixMilli(1_700_000_000_000), 7, uint64(n)), Payload: payload}
}

func TestSQLiteConforms(t *testing.T) {
	queuetest.Run(t, func(t *testing.T) func(*testing.T) queue.Queue {
		path := filepath.Join(t.TempDir(), "queue.db")
		return func(t *testing.T) queue.Queue { return open(t, path) }
	})
}

func TestMessagesSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "queue.db")
	first := open(t, path)
	if err := first.Insert(t.Context(), "orders", []queue.Message{message(1, []byte("a"))}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, path).Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(got) != 1 || string(got[0].Payload) != "a" {
		t.Errorf("got %v, %v", got, err)
	}
}

// While another process holds the write lock, an insert ends with its context, and says that nothing was stored.
func TestInsertWhileLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := open(t, path)
	other, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	locked, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- other.Write(context.Background(), func(*sqlitedb.Tx) error { close(locked); <-release; return nil })
	}()
	<-locked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err = q.Insert(ctx, "orders", []queue.Message{message(1, nil)})
	var ie *queue.InsertError
	if !errors.As(err, &ie) || !ie.Refused || !ie.Temporary || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := q.Ack(ctx, "orders", []queue.ID{message(1, nil).ID}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ack: %v", err)
	}
	if d := time.Since(begin); d > 10*time.Second { // generous for a busy machine; without the context it would wait for the lock
		t.Errorf("took %v", d)
	}
	if got, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1}); err != nil || len(got) != 0 {
		t.Errorf("readers do not wait for writers: %v, %v", got, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := q.Insert(t.Context(), "orders", []queue.Message{message(1, nil)}); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesWithARemedy(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 300)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"a text file": text, "a directory": dir, "below a file": filepath.Join(text, "queue.db")} {
		q, err := sqlitequeue.Open(t.Context(), path)
		if err == nil {
			q.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: the error does not name the file: %v", name, err)
		}
	}
	if _, err := sqlitequeue.Open(t.Context(), text); !errors.Is(err, queue.ErrUnsupported) {
		t.Errorf("a text file: %v", err)
	}
	if after, err := os.ReadFile(text); err != nil || !strings.HasPrefix(string(after), "this is no database\n") {
		t.Error("a foreign file must be left alone")
	}
}

func TestFileValuesBeyond63Bits(t *testing.T) {
	q := open(t, filepath.Join(t.TempDir(), "queue.db"))
	for _, f := range []queue.RegistryEntry{{Generation: 1 << 63}, {Epoch: 1 << 63}, {DurableIndex: 1 << 63}} {
		if _, err := q.RegisterFile(t.Context(), "orders", f); err == nil {
			t.Errorf("%+v was registered", f)
		}
		if _, err := q.UpdateFile(t.Context(), "orders", f); err == nil {
			t.Errorf("%+v was updated", f)
		}
		if _, err := q.AckFile(t.Context(), "orders", f, nil); err == nil {
			t.Errorf("%+v was updated by an acknowledgement", f)
		}
		if _, _, err := q.SucceedFile(t.Context(), "orders", f.FileID, f); err == nil {
			t.Errorf("%+v succeeded", f)
		}
	}
}

// A database of a version without generations: its entries are those of first files, and can be succeeded.
func TestDatabaseWithoutGenerations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	first := queue.RegistryEntry{FileID: [16]byte{1}, Generation: 1, Epoch: 3, DurableIndex: 4}
	if _, err := open(t, path).RegisterFile(t.Context(), "orders", first); err != nil {
		t.Fatal(err)
	}
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err == nil {
		err = db.Migrate(t.Context(), `ALTER TABLE queue_files DROP COLUMN generation`)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		q := open(t, path)
		if got, ok, err := q.RegistryEntry(t.Context(), "orders"); got != first || !ok || err != nil {
			t.Errorf("RegistryEntry = %+v, %v, %v, want %+v", got, ok, err, first)
		}
	}
	next := queue.RegistryEntry{FileID: [16]byte{2}, Generation: 2, Epoch: 5, DurableIndex: 6}
	if got, ok, err := open(t, path).SucceedFile(t.Context(), "orders", first.FileID, next); got != next || !ok || err != nil {
		t.Errorf("SucceedFile = %+v, %v, %v, want %+v", got, ok, err, next)
	}
}

// A database of a version that stored no time with its notes about settled messages and with its numbers: the notes still count, and the numbers continue.
func TestDatabaseOfAVersionThatCountedNoTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := open(t, path)
	delay := func(q *sqlitequeue.Queue, ns ...uint64) {
		t.Helper()
		for _, n := range ns {
			m := queue.Message{Type: "orders", ID: queue.NewID(time.Now().Truncate(time.Hour), 7, n), Payload: []byte(fmt.Sprint(n)), Due: time.UnixMilli(1)}
			if err := q.Delay(t.Context(), []queue.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
	}
	delay(q, 1)
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err == nil {
		err = db.Migrate(t.Context(), `ALTER TABLE queue_delayed_settled DROP COLUMN passed`, `ALTER TABLE queue_sequences DROP COLUMN used`, `DROP TABLE queue_delayed_passed`)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	q = open(t, path)
	delay(q, 1, 2)
	if p, err := q.Promote(t.Context(), queue.Limit{Messages: 10}); err != nil || p.Messages != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	got, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(got) != 2 || string(got[1].Payload) != "2" || got[1].ID.N() != 2 || got[1].ID.Producer() != got[0].ID.Producer() {
		t.Errorf("%d messages: %+v, %v", len(got), got, err)
	}
}

// publishProcess publishes numbered messages and prints "stored N" after every batch that is certain.
func publishProcess(job []string) error {
	ctx := context.Background()
	total, err := strconv.Atoi(job[2])
	if err != nil {
		return err
	}
	q, err := sqlitequeue.Open(ctx, job[0])
	if err != nil {
		return err
	}
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	size := 256
	if len(job) > 3 {
		if size, err = strconv.Atoi(job[3]); err != nil {
			return err
		}
	}
	for from := 0; from < total; from += 500 {
		var msgs []queue.Message
		for i := from; i < min(from+500, total); i++ {
			payload := make([]byte, size)
			copy(payload, fmt.Sprintf("%s/%d ", job[1], i))
			msgs = append(msgs, queue.Message{Type: "orders", Payload: payload})
		}
		for _, r := range p.PublishAll(ctx, msgs) {
			if r.Err != nil {
				return r.Err
			}
		}
		fmt.Printf("stored %d\n", from+len(msgs))
	}
	return errors.Join(p.Close(ctx), q.Close())
}

// startPublisher starts a publishing process; its output says what is certainly stored.
func startPublisher(t testing.TB, path, name string, total, size int) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%d|%d", envPublish, path, name, total, size))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// drain fetches and acknowledges until done is closed and nothing is left, and returns the payloads per producer.
func drain(t testing.TB, q queue.Queue, done <-chan struct{}) map[uint64][]string {
	t.Helper()
	got := map[uint64][]string{}
	for finished := false; ; {
		select {
		case <-done:
			finished = true
		default:
		}
		msgs, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(msgs) == 0 && finished {
			return got
		}
		ids := make([]queue.ID, len(msgs))
		for i, m := range msgs {
			ids[i] = m.ID
			p := m.ID.Producer()
			if n := uint64(len(got[p]) + 1); m.ID.N() != n {
				t.Fatalf("producer %016x: n=%d, want %d", p, m.ID.N(), n)
			}
			text, _, _ := strings.Cut(string(m.Payload), " ")
			got[p] = append(got[p], text)
		}
		if err := q.Ack(t.Context(), "orders", ids); err != nil {
			t.Fatal(err)
		}
	}
}

// Several processes publish into one file, one of them is killed, another drains: messages that were certainly stored
// arrive once and in order, and those of the killed process are a prefix.
func TestProcessesShareTheFile(t *testing.T) {
	const total, publishers = 2000, 3
	path := filepath.Join(t.TempDir(), "queue.db")
	q := open(t, path)
	type outcome struct {
		name   string
		stored int
		killed bool
	}
	outcomes := make(chan outcome, publishers)
	done := make(chan struct{})
	var running sync.WaitGroup
	for i := range publishers {
		name, killed := fmt.Sprint("p", i), i == 0
		n := total
		if killed {
			n = 100 * total // never gets there
		}
		cmd, out := startPublisher(t, path, name, n, 64)
		running.Go(func() {
			o := outcome{name: name, killed: killed}
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				if _, err := fmt.Sscanf(lines.Text(), "stored %d", &o.stored); err != nil {
					t.Errorf("%s said %q", name, lines.Text())
				}
				if killed && o.stored >= 1000 {
					_ = cmd.Process.Kill()
				}
			}
			if err := cmd.Wait(); err != nil && !killed {
				t.Errorf("%s: %v", name, err)
			}
			outcomes <- o
		})
	}
	go func() { running.Wait(); close(done) }()
	perName := map[string][]string{}
	for _, list := range drain(t, q, done) {
		name, _, _ := strings.Cut(list[0], "/")
		perName[name] = append(perName[name], list...)
	}
	for range publishers {
		o := <-outcomes
		got := perName[o.name]
		if len(got) < o.stored || !o.killed && len(got) != total {
			t.Errorf("%s: %d messages arrived, %d were certain", o.name, len(got), o.stored)
		}
		for i, text := range got {
			if want := fmt.Sprintf("%s/%d", o.name, i); text != want {
				t.Fatalf("%s: at %d: %s", o.name, i, text)
			}
		}
	}
}

// Rows of other programs or earlier versions block nothing; the other members remove a member that has sent no heartbeat for long.
func TestMembersThatAreDamagedOrGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := open(t, path)
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	now := time.Now()
	for id, seen := range map[string]time.Time{"damaged": now, "old": now.Add(-queue.MemberRetention - time.Minute), "young": now.Add(-queue.MemberRetention + time.Minute)} {
		member := `{"beat": 1, "future": true}`
		if id == "damaged" {
			member = "["
		}
		err := db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
			_, err := tx.Exec(`INSERT INTO queue_members (id, member, seen) VALUES (?, ?, ?)`, id, member, seen.UnixMilli())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string) {
		t.Helper()
		members, err := q.Members(t.Context(), "", 0)
		var got []string
		for _, m := range members {
			got = append(got, m.Instance)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("Members = %v, %v, want %s", got, err, want)
		}
	}
	want("old young")
	if err := q.Heartbeat(t.Context(), queue.Member{Instance: "me"}); err != nil {
		t.Fatal(err)
	}
	want("me old young")
}
