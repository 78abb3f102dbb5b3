package sqlitedb_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// helperEnv makes the test binary run one of the helper processes below instead of the tests.
const helperEnv = "SQLITEDB_TEST_HELPER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(helperEnv); kind != "" {
		helper(kind)
		return
	}
	goleak.VerifyTestMain(m)
}

// helper: "kind path n". increment: n durable increments of the counter, one line with each write's wait in µs.
// count: prints the counter. hold: takes the write lock, says so, keeps it until standard input ends. crash: as hold, killed by the test.
func helper(kind string) {
	f := strings.Fields(kind)
	n, err := strconv.Atoi(f[2])
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	db, err := sqlitedb.Open(ctx, f[1], sqlitedb.Options{})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	switch f[0] {
	case "increment":
		if err := db.Migrate(ctx, counterTable); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		for range n {
			start := time.Now()
			if err := db.Write(ctx, increment); err != nil {
				fmt.Println("error:", err)
				os.Exit(1)
			}
			fmt.Fprintln(out, time.Since(start).Microseconds())
		}
		fmt.Fprintln(out, "end", time.Now().UnixMicro())
		out.Flush()
		if err := db.Close(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	case "count":
		err := db.Read(ctx, func(tx *sqlitedb.Tx) error {
			_, err := tx.Get([]any{&n}, "SELECT n FROM counter WHERE id = 1")
			return err
		})
		fmt.Println(n, err)
	case "hold":
		err := db.Write(ctx, func(tx *sqlitedb.Tx) error {
			if err := increment(tx); err != nil {
				return err
			}
			fmt.Fprintln(out, "holding")
			out.Flush()
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
}

const counterTable = "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, n INTEGER NOT NULL) STRICT"

func increment(tx *sqlitedb.Tx) error {
	// Read, then write: two processes that are not serialized would lose updates.
	var n int64
	if _, err := tx.Get([]any{&n}, "SELECT n FROM counter WHERE id = 1"); err != nil {
		return err
	}
	_, err := tx.Exec("INSERT INTO counter (id, n) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET n = excluded.n", n+1)
	return err
}

func counter(t testing.TB, db *sqlitedb.DB) int64 {
	t.Helper()
	var n int64
	err := db.Read(t.Context(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Get([]any{&n}, "SELECT n FROM counter WHERE id = 1")
		return err
	})
	if err != nil {
		t.Fatalf("read the counter: %v", err)
	}
	return n
}

func open(t testing.TB, path string) *sqlitedb.DB {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := db.Migrate(t.Context(), counterTable); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	return db
}

func startHelper(t *testing.T, args string) (stdin io.WriteCloser, stdout *bufio.Scanner, cmd *exec.Cmd) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+args)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return stdin, bufio.NewScanner(out), cmd
}

func TestCreatesDirectoryAndFileWithTheirModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b ?#%20c")
	path := filepath.Join(dir, "fence post?.db")
	open(t, path)
	for p, want := range map[string]os.FileMode{dir: 0o750, path: 0o640, path + "-wal": 0o640, path + "-shm": 0o640} {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if got := fi.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", p, got, want)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), ".fencepost-new") {
			t.Errorf("not removed: %s", e.Name())
		}
	}
}

// Processes that start together all initialize the same new file.
func TestConcurrentFirstOpens(t *testing.T) {
	for range 100 {
		path := filepath.Join(t.TempDir(), "new.db")
		var g errgroup.Group
		for i := range 8 {
			g.Go(func() error {
				time.Sleep(time.Duration(i) * 500 * time.Microsecond) // so that each meets another step of the first one
				db, err := sqlitedb.Open(context.Background(), path, sqlitedb.Options{})
				if err != nil {
					return err
				}
				return db.Close()
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWritesAreKeptAndErrorsRollBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	db := open(t, path)
	boom := errors.New("boom")
	for name, write := range map[string]func(context.Context, func(*sqlitedb.Tx) error) error{
		"Write": db.Write, "WriteRelaxed": db.WriteRelaxed,
	} {
		before := counter(t, db)
		if err := write(t.Context(), increment); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err := write(t.Context(), func(tx *sqlitedb.Tx) error {
			if err := increment(tx); err != nil {
				return err
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Errorf("%s returned %v, want the function's error", name, err)
		}
		if got := counter(t, db); got != before+1 {
			t.Errorf("after one commit and one rollback by %s the counter went %d → %d", name, before, got)
		}
	}
	if got := counter(t, open(t, path)); got != 2 {
		t.Errorf("a second handle reads %d, want 2", got)
	}
}

func TestReadIsASnapshotAndCannotWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	a, b := open(t, path), open(t, path)
	if err := a.Write(t.Context(), increment); err != nil {
		t.Fatal(err)
	}
	err := a.Read(t.Context(), func(tx *sqlitedb.Tx) error {
		var first, second int64
		if _, err := tx.Get([]any{&first}, "SELECT n FROM counter"); err != nil {
			return err
		}
		// A writer proceeds while the snapshot is open: neither waits for the other.
		if err := b.Write(t.Context(), increment); err != nil {
			return err
		}
		if _, err := tx.Get([]any{&second}, "SELECT n FROM counter"); err != nil {
			return err
		}
		if first != 1 || second != 1 {
			return fmt.Errorf("snapshot moved: %d then %d", first, second)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Read(t.Context(), increment); !errors.Is(err, sqlitedb.ErrReadOnly) {
		t.Errorf("a write in Read returned %v, want ErrReadOnly", err)
	}
	if got := counter(t, a); got != 2 {
		t.Errorf("counter is %d, want 2", got)
	}
}

func TestForgottenRowsAndPanicsDoNotBlockTheHandle(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	for range 3 {
		if err := db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
			if err := increment(tx); err != nil {
				return err
			}
			rows, err := tx.Query("SELECT n FROM counter")
			if err == nil {
				rows.Next() // and never closed
			}
			return errors.Join(err, rows.Err())
		}); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not reach the caller")
				}
			}()
			_ = db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
				_ = increment(tx)
				panic("in a transaction")
			})
		}()
	}
	if got := counter(t, db); got != 3 {
		t.Errorf("counter is %d, want the 3 commits without the 3 panics", got)
	}
}

// soon is an upper bound for "at once" on a busy machine: the operations that these tests cancel would never end.
const soon = 10 * time.Second

func TestAWaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	db := open(t, path)
	stdin, out, _ := startHelper(t, "hold "+path+" 0")
	if !out.Scan() || out.Text() != "holding" {
		t.Fatalf("helper said %q", out.Text())
	}
	for name, f := range map[string]func(context.Context) error{
		"Write":        func(ctx context.Context) error { return db.Write(ctx, increment) },
		"WriteRelaxed": func(ctx context.Context) error { return db.WriteRelaxed(ctx, increment) },
		"Migrate":      func(ctx context.Context) error { return db.Migrate(ctx, counterTable) },
		"Open": func(ctx context.Context) error {
			db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{})
			if err == nil {
				_ = db.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // Open does other things first
			defer cancel()
			err := f(ctx)
			late := time.Since(deadline(ctx))
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sqlitedb.ErrNotBegun) {
				t.Errorf("got %v, want ErrNotBegun and the context's error", err)
			}
			if late > soon {
				t.Errorf("returned %v after the context's end", late)
			}
		})
	}
	// Reads continue meanwhile, and do not see the uncommitted write.
	if got := counter(t, db); got != 0 {
		t.Errorf("read %d while another process holds the write lock, want 0", got)
	}
	// A queue of writers inside the process ends with its context as well.
	inside := make(chan struct{})
	first, cancelFirst := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		close(inside)
		if err := db.Write(first, increment); !errors.Is(err, context.Canceled) {
			t.Errorf("the first writer got %v", err)
		}
	})
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := db.Write(ctx, increment); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second writer got %v", err)
	}
	cancelFirst()
	wg.Wait()
	_ = stdin.Close() // the other process commits
	if err := db.Write(t.Context(), increment); err != nil {
		t.Fatal(err)
	}
	if got := counter(t, db); got != 2 {
		t.Errorf("counter is %d, want 2: one of each process", got)
	}
}

func TestALongStatementEndsWithItsContext(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	endless := func(tx *sqlitedb.Tx) error {
		var n int64
		_, err := tx.Get([]any{&n}, `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM r) SELECT count(*) FROM r`)
		return err
	}
	for name, f := range map[string]func(context.Context, func(*sqlitedb.Tx) error) error{"Read": db.Read, "Write": db.Write} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		err := f(ctx, endless)
		late := time.Since(deadline(ctx))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		if late > soon {
			t.Errorf("%s returned %v late", name, late)
		}
	}
	if err := db.Write(t.Context(), increment); err != nil {
		t.Errorf("after an interrupted statement: %v", err)
	}
	if got := counter(t, db); got != 1 {
		t.Errorf("counter %d", got)
	}
}

func TestAKilledWriterLeavesNothingBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	db := open(t, path)
	_, out, cmd := startHelper(t, "hold "+path+" 0")
	if !out.Scan() || out.Text() != "holding" {
		t.Fatalf("helper said %q", out.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := db.Write(ctx, increment); err != nil {
		t.Fatal(err)
	}
	if got := counter(t, db); got != 1 {
		t.Errorf("counter is %d, want 1: the killed process had not committed", got)
	}
}

// Eight processes open one fresh file at the same moment and each increments one counter durably: every increment
// counts, and no process waits disproportionately long.
func TestManyProcessesWriteOneFile(t *testing.T) {
	const processes, each = 8, 60
	path := filepath.Join(t.TempDir(), "f.db")
	type result struct {
		waits []time.Duration
		end   int64
		err   string
	}
	results := make([]result, processes)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range processes {
		_, out, cmd := startHelper(t, fmt.Sprintf("increment %s %d", path, each))
		wg.Go(func() {
			r := &results[i]
			for out.Scan() {
				switch f := strings.Fields(out.Text()); f[0] {
				case "error:":
					r.err = out.Text()
				case "end":
					r.end, _ = strconv.ParseInt(f[1], 10, 64)
				default:
					us, _ := strconv.Atoi(f[0])
					r.waits = append(r.waits, time.Duration(us)*time.Microsecond)
				}
			}
			if err := cmd.Wait(); err != nil && r.err == "" {
				r.err = err.Error()
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	var all []time.Duration
	for i, r := range results {
		if r.err != "" {
			t.Errorf("process %d: %s", i, r.err)
		}
		all = append(all, r.waits...)
	}
	db := open(t, path)
	if got := counter(t, db); got != processes*each {
		t.Fatalf("counter is %d, want %d: updates were lost", got, processes*each)
	}
	slices.Sort(all)
	t.Logf("%d processes × %d durable writes in %v: p50 %v, p99 %v, max %v", processes, each, took,
		all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	if worst := all[len(all)-1]; worst > time.Minute { // a busy machine may not run a process for seconds
		t.Errorf("one write waited %v of %v: a process was starved", worst, took)
	}
}

// One process writes back to back with several goroutines; the single write of another handle must get its turn.
func TestABusyWriterDoesNotStarveOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	busy, other := open(t, path), open(t, path)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := busy.WriteRelaxed(ctx, increment); err != nil && ctx.Err() == nil {
					t.Errorf("busy writer: %v", err)
					return
				}
			}
		})
	}
	var waits []time.Duration
	for range 30 {
		for seen := counter(t, busy); counter(t, busy) < seen+20; {
			runtime.Gosched() // let the busy one get going again
		}
		start := time.Now()
		if err := other.Write(t.Context(), increment); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, time.Since(start))
	}
	stop()
	wg.Wait()
	slices.Sort(waits)
	t.Logf("beside %d back-to-back writes: median wait %v, max %v", counter(t, busy), waits[len(waits)/2], waits[len(waits)-1])
	if usual, worst := waits[len(waits)/2], waits[len(waits)-1]; usual > 2*time.Second || worst > time.Minute {
		t.Errorf("a writer waited %v, and once %v, beside a busy one", usual, worst)
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		return p
	}
	sqliteFile := func(name, ddl string) string {
		p := filepath.Join(dir, name)
		raw, err := sql.Open("sqlite", p)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if _, err := raw.Exec(ddl); err != nil {
			t.Fatal(err)
		}
		return p
	}
	newer := filepath.Join(dir, "newer.db")
	open(t, newer)
	sqliteFile("newer.db", "PRAGMA user_version=99")
	for _, tc := range []struct {
		name, path string
		want       error
		says       string
	}{
		{"empty path", "", sqlitedb.ErrPath, "give a file"},
		{"in memory", ":memory:", sqlitedb.ErrPath, "plain path"},
		{"a URL of the same database", "sqlite://q.db", sqlitedb.ErrPath, "plain path"},
		{"a URL of a server", "mongodb://host/shop", sqlitedb.ErrPath, "plain path"},
		{"a directory", dir, sqlitedb.ErrPath, "is a directory"},
		{"below a file", filepath.Join(write("plain", "x"), "f.db"), nil, "not a directory"},
		{"text", write("text.db", strings.Repeat("hello world\n", 1000)), sqlitedb.ErrNotDatabase, "another path"},
		{"other program", sqliteFile("other.db", "CREATE TABLE bookmarks (x)"), sqlitedb.ErrForeign, "another path"},
		{"other program, empty", sqliteFile("other2.db", "PRAGMA user_version=7"), sqlitedb.ErrForeign, "another path"},
		{"newer schema", newer, sqlitedb.ErrNewerSchema, "upgrade"},
		{"a device", "/dev/null", sqlitedb.ErrPath, "not a regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db, err := sqlitedb.Open(t.Context(), tc.path, sqlitedb.Options{})
			if err == nil {
				_ = db.Close()
				t.Fatalf("opened %s", tc.path)
			}
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), tc.path) {
				t.Errorf("error %q should say %q and name %q", err, tc.says, tc.path)
			}
		})
	}
	if b, err := os.ReadFile(filepath.Join(dir, "text.db")); err != nil || string(b) != strings.Repeat("hello world\n", 1000) {
		t.Errorf("the foreign file was touched: %v", err)
	}
}

func TestDiskFull(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "f.db"))
	err := db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec("PRAGMA max_page_count=10"); err != nil { // what a full disk looks like to SQLite
			return err
		}
		if err := increment(tx); err != nil {
			return err
		}
		if _, err := tx.Exec("CREATE TABLE big (b BLOB)"); err != nil {
			return err
		}
		_, err := tx.Exec("INSERT INTO big VALUES (randomblob(1000000))")
		return err
	})
	if !errors.Is(err, sqlitedb.ErrDiskFull) || !strings.Contains(err.Error(), "free space") {
		t.Errorf("got %v, want ErrDiskFull with a remedy", err)
	}
	if got := counter(t, db); got != 0 {
		t.Errorf("half of a failed transaction was kept: counter %d", got)
	}
}

func TestClosedHandle(t *testing.T) {
	db, err := sqlitedb.Open(t.Context(), filepath.Join(t.TempDir(), "f.db"), sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	for name, f := range map[string]func(context.Context, func(*sqlitedb.Tx) error) error{
		"Read": db.Read, "Write": db.Write, "WriteRelaxed": db.WriteRelaxed,
	} {
		if err := f(t.Context(), increment); !errors.Is(err, sqlitedb.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
}

func TestCloseEndsWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	holder := open(t, path)
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = holder.Write(t.Context(), func(*sqlitedb.Tx) error {
		var wg sync.WaitGroup
		errs := make(chan error, 3)
		for range cap(errs) {
			wg.Go(func() { errs <- db.Write(t.Context(), increment) })
		}
		for db.BusyRetries() == 0 {
			runtime.Gosched() // until one of them has met the lock
		}
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, sqlitedb.ErrClosed) {
				t.Errorf("a waiting writer got %v, want ErrClosed", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

func BenchmarkWrite(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "f.db"))
	for b.Loop() {
		if err := db.Write(b.Context(), increment); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWriteRelaxed(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "f.db"))
	for b.Loop() {
		if err := db.WriteRelaxed(b.Context(), increment); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "f.db"))
	for b.Loop() {
		counter(b, db)
	}
}
