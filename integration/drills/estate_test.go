package drills

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

const (
	typ     = "orders"
	patient = 4 * time.Minute // an upper bound for one program's run on a machine that is busy with other tests
)

// estate is everything an operator looks after: a database, a directory of files, and the programs that publish and drain.
type estate struct {
	t    testing.TB
	rng  *rand.Rand
	url  string
	db   kit.Database
	root string // everything of this estate on disk
	dir  string // directory of the files, below root

	made      int               // messages so far; each has its number as payload
	confirmed map[string]bool   // the programs confirmed them
	missing   map[string]string // accounted for by a command, or by the operator's own loss of the database; the reason
	owed      map[string]bool   // gone, but no command has reported it yet: the type must be refused
	blind     bool              // the registry is older than the files, or gone, until a worker has opened them
	dirs      int               // number of directories that e.dir has had

	databases []databaseBackup
	files     []string // directories with a copy each
	journals  []*journal

	played map[string]int // steps, by name
	story  []string       // all events so far, for a failure
}

type databaseBackup struct {
	restore   func() error
	published map[string]bool // messages in it, or in the files that it knew of
}

// journal is a publish with --resume that may have been interrupted.
type journal struct {
	input, state string
	lines        []string
}

// inventory records where messages are, by payload.
type inventory struct {
	file    map[string]int
	pending map[string]int // in the queue, delayed ones included
	letters map[string][]queue.ID
}

func newEstate(t testing.TB, seed uint64, url string, db kit.Database) *estate {
	e := &estate{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), url: url, db: db, root: t.TempDir(),
		confirmed: map[string]bool{}, missing: map[string]string{}, owed: map[string]bool{}, played: map[string]int{},
	}
	e.dir = filepath.Join(e.root, "data")
	return e
}

// logf adds a line to the story, which a failure prints.
func (e *estate) logf(format string, args ...any) {
	e.story = append(e.story, fmt.Sprintf(format, args...))
}

// fatalf ends the drill and prints the story.
func (e *estate) fatalf(format string, args ...any) {
	e.t.Helper()
	e.t.Fatalf("%s\n\nwhat has happened:\n%s", fmt.Sprintf(format, args...), strings.Join(e.story, "\n"))
}

func (e *estate) must(err error) {
	e.t.Helper()
	if err != nil {
		e.fatalf("%v", err)
	}
}

// result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

func (e *estate) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(programs, program), args...)
	cmd.Dir = e.root
	cmd.Env = append(kit.Env(), "FENCEPOST_URL="+e.url)
	return cmd
}

// run runs a program to its end.
func (e *estate) run(program string, args ...string) result {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	cmd := e.command(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		e.fatalf("%s %q: %v", program, args, err)
	}
	if ctx.Err() != nil {
		e.fatalf("%s %q did not end within %v\n%s", program, args, patient, stderr.String())
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	e.logf("$ %s %s → %d %s", program, strings.Join(args, " "), r.code, lastLine(r.stdout+r.stderr))
	return r
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// mustRun is run that expects exit code 0.
func (e *estate) mustRun(program string, args ...string) result {
	e.t.Helper()
	r := e.run(program, args...)
	if r.code != 0 {
		e.fatalf("%s %q: exit code %d\n%s%s", program, args, r.code, r.stdout, r.stderr)
	}
	return r
}

// lines makes n new messages.
func (e *estate) lines(n int) (lines []string) {
	for range n {
		e.made++
		lines = append(lines, fmt.Sprintf("m%06d", e.made))
	}
	return lines
}

// publish publishes n messages and records them as confirmed. Some are large, so that files reach their size limit.
func (e *estate) publish(n int, flags ...string) {
	e.t.Helper()
	lines := e.lines(n)
	input := filepath.Join(e.root, "input")
	text := strings.Join(lines, "\n") + "\n"
	for range e.rng.IntN(5) {
		m := lines[e.rng.IntN(n)]
		text = strings.Replace(text, m+"\n", m+padding+"\n", 1)
	}
	e.must(os.WriteFile(input, []byte(text), 0o600))
	r := e.mustRun("producer", append([]string{"publish", "--quiet", "--type", typ, input}, flags...)...)
	if !strings.HasPrefix(r.stdout, fmt.Sprintf("published=%d unknown=0 ", n)) {
		e.fatalf("%d messages were to be published: %s", n, r.stdout)
	}
	e.confirm(lines)
}

var padding = strings.Repeat(".", 400_000)

// message returns a payload without its padding.
func message[T string | []byte](payload T) string { return strings.TrimRight(string(payload), ".") }

func (e *estate) confirm(lines []string) {
	for _, m := range lines {
		e.confirmed[m] = true
	}
}

// began is a program that runs alongside the drill.
type began struct {
	*exec.Cmd
	e              *estate
	stdout, stderr kit.Buffer
	done           chan struct{}
}

func (e *estate) start(stdin io.Reader, program string, args ...string) *began {
	e.t.Helper()
	p := &began{Cmd: e.command(context.Background(), program, args...), e: e, done: make(chan struct{})}
	p.Stdin, p.Stdout, p.Stderr = stdin, &p.stdout, &p.stderr
	e.must(p.Start())
	e.logf("$ %s %s &", program, strings.Join(args, " "))
	go func() { _ = p.Wait(); close(p.done) }()
	e.t.Cleanup(func() { _ = p.Process.Kill(); <-p.done })
	return p
}

// end sends a signal, unless it is 0, and waits until the program has ended.
func (p *began) end(s syscall.Signal) result {
	p.e.t.Helper()
	if s != 0 {
		_ = p.Process.Signal(s)
	}
	select {
	case <-p.done:
	case <-time.After(patient):
		p.e.fatalf("%s did not end within %v\n%s", filepath.Base(p.Path), patient, p.stderr.String())
	}
	r := result{p.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
	p.e.logf("%s ended: %d %s", filepath.Base(p.Path), r.code, lastLine(r.stdout+r.stderr))
	return r
}

// eventually polls until f is true.
func (e *estate) eventually(what string, f func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patient); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.fatalf("not within %v: %s", patient, what)
		}
	}
}

// look takes an inventory with the library, without writing anything.
func (e *estate) look() inventory {
	e.t.Helper()
	in := inventory{map[string]int{}, map[string]int{}, map[string][]queue.ID{}}
	for _, m := range e.readFiles() {
		in.file[m]++
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	b, err := fencepost.Open(ctx, e.url)
	e.must(err)
	defer b.Queue.Close()
	limit := queue.Limit{Messages: 1000}
	for after := (queue.ID{}); ; {
		page, err := b.Queue.Fetch(ctx, typ, after, limit)
		e.must(err)
		for i := range page {
			in.pending[message(page[i].Payload)]++
			after = page[i].ID
		}
		if len(page) == 0 {
			break
		}
	}
	for after := (queue.ScheduleKey{}); ; {
		page, err := b.Queue.Delayed(ctx, after, limit)
		e.must(err)
		for i := range page {
			in.pending[message(page[i].Payload)]++
			after = queue.ScheduleKeyOf(&page[i])
		}
		if len(page) == 0 {
			break
		}
	}
	for l, err := range queue.DeadLetters(ctx, b.Queue, queue.DeadLetterFilter{Type: typ}) {
		e.must(err)
		in.letters[message(l.Payload)] = append(in.letters[message(l.Payload)], l.ID)
	}
	return in
}

// paths are the files of the type, oldest first.
func (e *estate) paths() (paths []string) {
	entries, err := os.ReadDir(e.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.fatalf("%v", err)
	}
	generations := map[string]uint64{}
	for _, entry := range entries {
		if t, generation, ok := storage.ParseName(entry.Name()); ok && t == typ {
			path := filepath.Join(e.dir, entry.Name())
			generations[path] = generation
			paths = append(paths, path)
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return int(generations[a]) - int(generations[b]) })
	return paths
}

// readFiles reads every message of the type's files, as cat prints them.
func (e *estate) readFiles() []string {
	e.t.Helper()
	paths := e.paths()
	if len(paths) == 0 {
		return nil
	}
	// Other commands have to report what is missing; here only the readable messages count.
	r := e.command(context.Background(), "fencepost", append([]string{"cat", "--salvage"}, paths...)...)
	out, err := r.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 3) {
		e.fatalf("cat: %v", err)
	}
	messages := strings.Fields(string(out))
	for i := range messages {
		messages[i] = message(messages[i])
	}
	return messages
}

// keep checks the guarantee.
func (e *estate) keep(after string) {
	e.t.Helper()
	in := e.look()
	for m, n := range in.file {
		if n > 1 {
			e.fatalf("after %s: %s is in the file %d times", after, m, n)
		}
	}
	var lost []string
	for m := range e.confirmed {
		if in.file[m] == 0 && in.pending[m] == 0 && len(in.letters[m]) == 0 && e.missing[m] == "" && !e.owed[m] {
			lost = append(lost, m)
		}
	}
	if slices.Sort(lost); len(lost) > 0 {
		e.fatalf("after %s: %d confirmed messages are nowhere, and no command says so: %q", after, len(lost), lost)
	}
	if len(e.owed) > 0 {
		if r := e.run("fencepost", "doctor", "--dir", e.dir); r.code == 0 {
			e.fatalf("after %s: %d messages are gone from the files, and doctor is content:\n%s", after, len(e.owed), r.stdout)
		}
	}
}

// change changes the database or the files while no program is draining. Messages that were only in the database and are gone count as
// knowingly lost by the operator. Acknowledged messages that are gone from the files must be reported by a command.
func (e *estate) change(what string, f func()) {
	e.t.Helper()
	e.logf("# %s", what)
	before := e.look()
	f()
	after := e.look()
	gone := func(m string) bool { return after.file[m] == 0 && after.pending[m] == 0 && len(after.letters[m]) == 0 }
	for m := range before.pending {
		if gone(m) && before.file[m] == 0 {
			e.missing[m] = "was only in the database that was lost"
		}
	}
	for m := range before.letters {
		if gone(m) && before.file[m] == 0 {
			e.missing[m] = "was a dead letter of the database that was lost"
		}
	}
	for m := range before.file {
		if gone(m) {
			e.owed[m] = true
		}
	}
	for m := range e.owed {
		if !gone(m) {
			delete(e.owed, m) // it came back
		}
	}
	for m := range e.missing {
		if !gone(m) {
			delete(e.missing, m)
		}
	}
}

// serve drains the type. It follows the advice of a refusal to the letter.
func (e *estate) serve() {
	e.t.Helper()
	if len(e.owed) > 0 {
		e.publish(1) // a worker that has nothing to do does not open the file; doctor does, see keep
	}
	for range 5 {
		args := []string{"--type", typ, "--dir", e.dir, "--until-empty", "--gap-timeout", "200ms", "--log-format", "json"}
		if e.rng.IntN(2) == 0 {
			args = append(args, "--max-file-size", "1MiB")
		}
		r := e.run("worker", args...)
		switch r.code {
		case 0:
			if !strings.Contains(r.stderr, `"sessions":0,`) { // one without a session has not opened the file
				e.blind = false
			}
			if len(e.owed) > 0 {
				e.fatalf("%d messages are gone from the files, and the worker is content:\n%s", len(e.owed), r.stderr)
			}
			return
		case 3:
			e.obey(r.stderr)
		default:
			e.fatalf("the worker ended with %d:\n%s", r.code, r.stderr)
		}
	}
	e.fatalf("the type is still refused after five times the advice")
}

var (
	advice    = regexp.MustCompile(`fencepost repair (--accept-loss|--adopt)(?: (\S+\.fpl))?`)
	namedFile = regexp.MustCompile(`[^\s"]*` + typ + `(@\d+)?\.fpl`)
	lostCount = regexp.MustCompile(`([\d,]+) (?:(?:records of type \S+ )?are )?lost`)
)

// obey follows the advice in the last line of a refusal.
func (e *estate) obey(refusal string) {
	e.t.Helper()
	refusal = lastLine(refusal)
	m := advice.FindStringSubmatch(refusal)
	if m == nil {
		e.fatalf("the refusal gives no advice:\n%s", refusal)
	}
	path := m[2]
	if path == "" {
		path = namedFile.FindString(refusal)
	}
	if m[1] == "--adopt" {
		e.mustRun("fencepost", "repair", "--quiet", "--adopt", path)
		return
	}
	e.acceptLoss(path)
}

// acceptLoss gives up the missing messages. Repair must report how many they are.
func (e *estate) acceptLoss(path string) {
	e.t.Helper()
	if path == "" {
		e.fatalf("the refusal names no file")
	}
	r := e.run("fencepost", "repair", "--quiet", "--accept-loss", path)
	if r.code == 1 && strings.Contains(r.stderr, "create the directory") {
		e.must(os.MkdirAll(filepath.Dir(path), 0o700))
		r = e.run("fencepost", "repair", "--quiet", "--accept-loss", path)
	}
	if r.code != 7 && r.code != 0 {
		e.fatalf("repair: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	told := 0
	for _, m := range lostCount.FindAllStringSubmatch(r.stdout+r.stderr, -1) {
		n, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
		e.must(err)
		told = max(told, n)
	}
	if told < len(e.owed) {
		e.fatalf("%d messages are gone, and repair says\n%s%s", len(e.owed), r.stdout, r.stderr)
	}
	for m := range e.owed {
		e.missing[m] = "repair said that it is lost"
	}
	clear(e.owed)
}

// settle handles dead letters as docs/operations.md says: it removes those whose message is in the file, and requeues the others.
func (e *estate) settle() {
	e.t.Helper()
	in := e.look()
	for _, m := range slices.Sorted(maps.Keys(in.letters)) {
		for _, id := range in.letters[m] {
			action := []string{"dead", "requeue", id.String()}
			if in.file[m] > 0 {
				action = []string{"dead", "rm", id.String(), "--yes"}
			}
			e.mustRun("fencepost", action...)
			in.file[m]++
		}
	}
}

// finish ends a drill: it resumes interrupted publishes, drains the type, and expects that every check succeeds.
func (e *estate) finish() {
	e.t.Helper()
	for _, j := range e.journals {
		e.resume(j)
	}
	e.publish(1) // so that a worker opens the file
	e.serve()
	e.settle()
	e.serve()
	e.keep("the end")
	in := e.look()
	if len(in.pending)+len(in.letters) > 0 {
		e.fatalf("at the end %d messages are pending and %d are letters", len(in.pending), len(in.letters))
	}
	e.mustRun("fencepost", "verify", "--quiet", e.dir)
	e.mustRun("fencepost", "doctor", "--dir", e.dir)
}

// resume runs an interrupted publish to its end.
func (e *estate) resume(j *journal) {
	e.t.Helper()
	e.mustRun("producer", "publish", "--quiet", "--type", typ, "--resume", j.state, j.input)
	e.confirm(j.lines)
}
