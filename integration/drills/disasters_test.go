package drills

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// step is an event in an estate: traffic, routine work, or a disaster with the operator's response.
type step struct {
	name string
	// do returns false if the step cannot happen in the current state of the estate.
	do func(e *estate) bool
	// disaster means that the step is not part of normal operation.
	disaster bool
}

// steps lists everything that can happen, as docs/operations.md describes it.
var steps = []step{
	{"publish", (*estate).publishSome, false},
	{"publish delayed messages", (*estate).publishDelayed, false},
	{"publish, killed", (*estate).publishKilled, false},
	{"go on with a killed publish", (*estate).resumeOne, false},
	{"drain", (*estate).drain, false},
	{"drain, killed", (*estate).drainKilled, false},
	{"compact", (*estate).compact, false},
	{"back up the database", (*estate).backUpDatabase, false},
	{"back up the files", (*estate).backUpFiles, false},
	{"dead letters", (*estate).settleSome, false},

	{"host lost", (*estate).loseHost, true},
	{"database set back", (*estate).setBackDatabase, true},
	{"database lost", (*estate).loseDatabase, true},
	{"part of the database lost", (*estate).losePart, true},
	{"files set back", (*estate).setBackFiles, true},
	{"database and files set back", (*estate).setBackBoth, true},
	{"files moved", (*estate).moveFiles, true},
	{"files cloned", (*estate).cloneFiles, true},
	{"newest file lost", (*estate).loseNewest, true},
	{"all files lost", (*estate).loseFiles, true},
	{"publisher set back", (*estate).setBackPublisher, true},
}

func stepNamed(name string) step {
	for _, s := range steps {
		if s.name == name {
			return s
		}
	}
	panic("no step " + name)
}

func (e *estate) publishSome() bool {
	e.publish(1 + e.rng.IntN(40))
	return true
}

// publishDelayed publishes messages that are due at once, so that the scheduler assigns their numbers.
func (e *estate) publishDelayed() bool {
	e.publish(1+e.rng.IntN(10), "--at", "2026-01-01T00:00:00Z")
	return true
}

// publishKilled starts a publish with --resume, and kills it at a random point.
func (e *estate) publishKilled() bool {
	j := &journal{lines: e.lines(20 + e.rng.IntN(40))}
	j.input, j.state = filepath.Join(e.root, "input-"+j.lines[0]), filepath.Join(e.root, "state-"+j.lines[0])
	e.must(os.WriteFile(j.input, []byte(strings.Join(j.lines, "\n")+"\n"), 0o600))
	p := e.start(nil, "producer", "publish", "--quiet", "--type", typ, "--rate", "500", "--linger", "5ms", "--resume", j.state, j.input)
	e.journals = append(e.journals, j)
	some := 1 + e.rng.IntN(len(j.lines))
	e.eventually("some of a publish is stored, or it has ended", func() bool {
		select {
		case <-p.done:
			return true
		default:
		}
		in := e.look()
		n := 0
		for _, m := range j.lines {
			n += in.pending[m]
		}
		return n >= some
	})
	p.end(syscall.SIGKILL)
	return true
}

func (e *estate) resumeOne() bool {
	if len(e.journals) == 0 {
		return false
	}
	i := e.rng.IntN(len(e.journals))
	e.resume(e.journals[i])
	e.journals = append(e.journals[:i], e.journals[i+1:]...)
	return true
}

func (e *estate) drain() bool { e.serve(); return true }

// drainKilled kills a worker after it has appended something.
func (e *estate) drainKilled() bool {
	if len(e.owed) > 0 || len(e.look().pending) == 0 {
		return false
	}
	size := e.size()
	p := e.start(nil, "worker", "--type", typ, "--dir", e.dir, "--lease", "5s", "--batch", "5", "--gap-timeout", "200ms", "--log-format", "json")
	e.eventually("a worker appends, or refuses", func() bool {
		select {
		case <-p.done:
			return true
		default:
			return e.size() > size
		}
	})
	p.end(syscall.SIGKILL)
	return true
}

// size returns the total size of the files.
func (e *estate) size() (n int64) {
	for _, path := range e.paths() {
		if info, err := os.Stat(path); err == nil {
			n += info.Size()
		}
	}
	return n
}

func (e *estate) compact() bool {
	paths := e.paths()
	if len(paths) == 0 {
		return false
	}
	switch r := e.run("fencepost", "compact", "--quiet", "--wait", "1m", paths[len(paths)-1]); r.code {
	case 0:
	case 3:
		if !strings.Contains(r.stderr, "--accept-loss") {
			return true // the next worker repeats the advice, which is then followed
		}
	default:
		e.fatalf("compact: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	return true
}

func (e *estate) backUpDatabase() bool {
	e.logf("# database backup %d", len(e.databases))
	in := e.look()
	published := map[string]bool{}
	known := []map[string]int{in.pending}
	if !e.blind { // a blind registry does not know of the files
		known = append(known, in.file)
	}
	for _, where := range known {
		for m := range where {
			published[m] = true
		}
	}
	for m := range in.letters {
		published[m] = true
	}
	restore, err := e.db.BackUp()
	e.must(err)
	e.databases = append(e.databases, databaseBackup{restore, published})
	return true
}

func (e *estate) backUpFiles() bool {
	if len(e.paths()) == 0 {
		return false
	}
	dir := filepath.Join(e.root, fmt.Sprintf("backup-%d", len(e.files)))
	e.logf("# files backup %d", len(e.files))
	e.copyFiles(e.dir, dir)
	e.files = append(e.files, dir)
	return true
}

// copyFiles makes the directory to an exact copy of the files in from.
func (e *estate) copyFiles(from, to string) {
	e.t.Helper()
	e.must(os.RemoveAll(to))
	e.must(os.MkdirAll(to, 0o700))
	entries, err := os.ReadDir(from)
	e.must(err)
	for _, entry := range entries {
		in, err := os.Open(filepath.Join(from, entry.Name()))
		e.must(err)
		out, err := os.OpenFile(filepath.Join(to, entry.Name()), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		e.must(err)
		_, err = io.Copy(out, in)
		e.must(errors.Join(err, in.Close(), out.Close()))
	}
}

func (e *estate) settleSome() bool {
	if len(e.look().letters) == 0 {
		return false
	}
	e.settle()
	return true
}

// loseHost kills a publisher and a worker in the middle of their work.
func (e *estate) loseHost() bool {
	e.publishKilled()
	return e.drainKilled()
}

func (e *estate) setBackDatabase() bool {
	if len(e.databases) == 0 || len(e.owed) > 0 {
		return false
	}
	i := e.rng.IntN(len(e.databases))
	e.change(fmt.Sprintf("the database is set back to backup %d", i), func() { e.must(e.databases[i].restore()) })
	e.blind = true
	return true
}

func (e *estate) loseDatabase() bool {
	if len(e.owed) > 0 {
		return false
	}
	e.change("the database is lost, and an empty one takes its place", func() { e.must(e.db.Empty()) })
	e.blind = true
	return true
}

// losePart drops a collection of the database. Only the loss of the files collection has consequences.
func (e *estate) losePart() bool {
	if len(e.owed) > 0 {
		return false
	}
	parts := []string{"locks", "files", "types", "workers", "marks", "notifications"}
	part := parts[e.rng.IntN(len(parts))]
	e.change("the database loses its "+part, func() { e.must(e.db.Drop(part)) })
	e.blind = e.blind || part == "files"
	return true
}

func (e *estate) setBackFiles() bool {
	if len(e.files) == 0 || e.blind {
		return false
	}
	i := e.rng.IntN(len(e.files))
	e.withTraffic(fmt.Sprintf("the files are set back to backup %d", i), func() { e.copyFiles(e.files[i], e.dir) })
	return true
}

// setBackBoth restores a backup of everything, or two of different times. Messages published after the backup of the database are lost, and
// the operator knows it. Earlier ones must be in the files, in the database, or be reported as missing.
func (e *estate) setBackBoth() bool {
	if len(e.databases) == 0 || len(e.files) == 0 || len(e.owed) > 0 {
		return false
	}
	i, j := e.rng.IntN(len(e.databases)), e.rng.IntN(len(e.files))
	e.change(fmt.Sprintf("the database is set back to backup %d, and the files to backup %d", i, j), func() {
		e.must(e.databases[i].restore())
		e.copyFiles(e.files[j], e.dir)
	})
	for m := range e.owed {
		if !e.databases[i].published[m] {
			e.missing[m] = "was published after the database that was restored"
			delete(e.owed, m)
		}
	}
	e.blind = true
	return true
}

// withTraffic calls f, which changes the files. Half of the time a publisher keeps publishing until a worker has drained the type again.
func (e *estate) withTraffic(what string, f func()) {
	e.t.Helper()
	if e.rng.IntN(2) == 0 {
		e.change(what, f)
		return
	}
	in, out, err := os.Pipe()
	e.must(err)
	p := e.start(in, "producer", "publish", "--quiet", "--type", typ, "--linger", "5ms", "-")
	e.must(in.Close())
	lines := e.lines(60)
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		defer out.Close()
		for i, m := range lines {
			select {
			case <-stop:
				stopped <- i
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := io.WriteString(out, m+"\n"); err != nil {
				stopped <- -1
				return
			}
		}
		<-stop
		stopped <- len(lines)
	}()
	e.change(what, f)
	e.serve()
	close(stop)
	n := <-stopped
	if r := p.end(0); n < 0 || r.code != 0 || !strings.HasPrefix(r.stdout, fmt.Sprintf("published=%d unknown=0 ", n)) {
		e.fatalf("a publisher that was given %d messages: exit code %d\n%s%s", n, r.code, r.stdout, r.stderr)
	}
	e.confirm(lines[:n])
}

// loseNewest removes the file that workers append to.
func (e *estate) loseNewest() bool {
	paths := e.paths()
	if len(paths) == 0 || e.blind {
		return false
	}
	e.withTraffic("the newest file is lost", func() { e.must(os.Remove(paths[len(paths)-1])) })
	return true
}

func (e *estate) loseFiles() bool {
	if len(e.paths()) == 0 || e.blind {
		return false
	}
	e.withTraffic("all files are lost", func() { e.must(os.RemoveAll(e.dir)) })
	return true
}

// setBackPublisher restores an earlier state of a publish, as a snapshot of a virtual machine does, and resumes from there.
func (e *estate) setBackPublisher() bool {
	if len(e.journals) == 0 {
		return false
	}
	j := e.journals[e.rng.IntN(len(e.journals))]
	state, err := os.ReadFile(j.state)
	if err != nil { // killed before it had a state
		return false
	}
	e.resume(j)
	if e.rng.IntN(2) == 0 {
		e.serve()
	}
	e.logf("# the state of the publisher is set back")
	e.must(os.WriteFile(j.state, state, 0o600))
	e.resume(j)
	return true
}

func (e *estate) moveFiles() bool {
	if len(e.look().file) == 0 || e.blind { // a file that was just created may not be registered yet
		return false
	}
	old := e.dir
	e.newDir()
	e.withTraffic("the files are moved", func() { e.must(os.Rename(old, e.dir)) })
	e.refusedIn(old)
	return true
}

// newDir chooses a new directory for the files.
func (e *estate) newDir() {
	e.dirs++
	e.dir = filepath.Join(e.root, fmt.Sprintf("data-%d", e.dirs))
}

// refusedIn checks that no worker serves the type from a directory that no longer contains its files.
func (e *estate) refusedIn(dir string) {
	e.t.Helper()
	e.publish(1)
	if r := e.run("worker", "--type", typ, "--dir", dir, "--until-empty", "--log-format", "json"); r.code != 3 {
		e.fatalf("a worker on %s, where the files are not: exit code %d, want 3\n%s", dir, r.code, r.stderr)
	}
}

// cloneFiles continues with a copy of the directory. A worker that still uses the original is refused.
func (e *estate) cloneFiles() bool {
	if len(e.look().file) == 0 || len(e.owed) > 0 || e.blind {
		return false
	}
	old := e.dir
	e.newDir()
	e.change("the files are cloned", func() { e.copyFiles(old, e.dir) })
	e.publish(1)
	e.serve()
	e.refusedIn(old)
	return true
}
