//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/lock/locktest"
)

// The checks after a run has healed: files, locks, registry, processes.

// check compares files, journals and registry, with the product's own tools and with an independent reader.
func (r *run) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	before := violations{slices.Clone(r.found.list), maps.Clone(r.found.kinds)}
	defer func() {
		// rule: checks that did not finish find nothing, and prove nothing.
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.found = before
			r.failed(fmt.Errorf("the checks took longer than %v", checkWithin))
		}
	}()
	known, err := readJournals(r.dir)
	if err != nil {
		r.failed(err)
		return
	}
	r.result.Confirmed, r.result.Unknown, r.result.Refused = known.count(confirmed), known.count(unknown), known.count(refused)
	for _, typ := range r.types {
		r.checkFiles(ctx, typ, known)
	}
	if r.scenario.variant == "history" {
		r.checkLocks()
	}
	if left := processesWith(r.dir); len(left) > 0 {
		r.violate("end", "processes are left: %q", left)
	}
	if out, code, err := r.output(ctx, slices.Concat([]string{"doctor", "--url", r.url}, r.place())...); err != nil || code != 0 {
		r.violate("registry", "fencepost doctor: exit code %d, %v\n%s", code, err, out)
	}
	for _, m := range append(r.workers, r.producers...) {
		// A host's network is removed with it, and then nothing reports the end of its connections.
		if m.link == nil || (r.hosts != nil || r.scenario.nodes) && slices.Contains(r.workers, m) {
			continue
		}
		if !r.await(ctx, 10*time.Second, func(context.Context) bool { now, _ := m.link.connections(); return now == 0 }) {
			now, _ := m.link.connections()
			r.violate("connections", "%d connections of %s are left", now, m.name)
		}
	}
}

// checkLocks checks the recorded history of the locks.
func (r *run) checkLocks() {
	var steps []locktest.Step
	histories, err := filepath.Glob(filepath.Join(r.dir, "*.history"))
	for _, path := range histories {
		f, oerr := os.Open(path)
		if oerr != nil {
			err = errors.Join(err, oerr)
			continue
		}
		some, herr := locktest.ReadHistory(f)
		f.Close()
		err = errors.Join(err, herr)
		steps = append(steps, some...)
	}
	if err != nil {
		r.failed(err)
		return
	}
	v, err := locktest.Check(steps, 30*time.Second)
	if err != nil {
		r.violate("locks", "%v", err)
		return
	}
	if r.result.Grants = v.Grants; v.Grants < len(r.types) {
		r.failed(fmt.Errorf("the histories of the locks have %d grants", v.Grants))
	}
	r.logf("locks: %d histories, %+v", len(histories), *v)
}

// monotonic returns the clock that all processes of a machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every supported system has it
	}
	return ts.Nano()
}

// checkFiles checks all generations of a type's file, and what the registry says about the type.
func (r *run) checkFiles(ctx context.Context, typ string, known ledger) {
	var messages []entry
	var files []verified
	var last verified
	for generation := uint64(1); ; generation++ {
		path, there := r.generation(ctx, typ, generation)
		if !there {
			break
		}
		v, entries := r.checkFile(ctx, path, last)
		last, files, messages = v, append(files, v), append(messages, entries...)
	}
	r.mu.Lock()
	checkType(typ, known, messages, &r.found)
	r.mu.Unlock()
	r.result.InFiles += len(messages)
	r.checkRegistry(ctx, typ, files, len(messages))
}

// checkFile verifies the file at path, the successor of last, and reads its messages with fencepost cat and with the independent reader.
func (r *run) checkFile(ctx context.Context, path string, last verified) (v verified, messages []entry) {
	in := []string{path}
	if r.address != "" {
		in = append([]string{"--url", r.url, filepath.Base(path)}, r.place()...)
	}
	out, code, err := r.output(ctx, slices.Concat([]string{"verify", "--deep", "--json"}, in)...)
	if err != nil || code != 0 {
		r.violate("verify", "%s: exit code %d, %v\n%s", path, code, err, out)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		r.violate("verify", "%s: %v", path, err)
	}
	v.check(path, last, func(format string, args ...any) { r.violate("verify", format, args...) })
	r.result.Epochs += len(v.Regions)
	r.result.Void += v.Void + v.Torn

	ours, code, err := r.output(ctx, slices.Concat([]string{"cat", "--format", "json"}, in)...)
	if err != nil || code != 0 {
		r.violate("cat", "%s: exit code %d, %v", path, code, err)
	}
	theirs, err := exec.CommandContext(ctx, r.programs.python, r.programs.reader, "cat", "--format", "json", path).Output()
	if err != nil || !bytes.Equal(ours, theirs) {
		r.violate("reader", "the independent reader reads %s differently: %v", path, err)
	}
	messages, err = readEntries(ours)
	if err != nil {
		r.violate("cat", "%s: %v", path, err)
	}
	if len(messages) != v.Messages {
		r.violate("cat", "%s: %d messages, verify counted %d", path, len(messages), v.Messages)
	}
	return v, messages
}

// checkRegistry checks what the registry says about a type, after its workers have ended, against its files.
func (r *run) checkRegistry(ctx context.Context, typ string, files []verified, messages int) {
	var shown shownType
	out, code, err := r.output(ctx, "types", "show", typ, "--url", r.url, "-o", "json")
	if err == nil && code == 0 {
		err = json.Unmarshal(out, &shown)
	}
	switch {
	case err != nil || code != 0:
		if messages > 0 {
			r.violate("registry", "types show %s: exit code %d, %v\n%s", typ, code, err, out)
		}
	case shown.Dead > 0:
		r.violate("dead", "%s: %d dead letters", typ, shown.Dead)
	case shown.Lock.Held:
		r.violate("locks", "%s: every worker has ended, and the lock is still held", typ)
	default:
		if problem := shown.ahead(files); problem != "" {
			r.violate("registry", "%s: %s", typ, problem)
		}
	}
}

// shownType is the output of `fencepost types show` for a type.
type shownType struct {
	FileID  string `json:"file_id"`
	Durable int    `json:"durable_index"`
	Epoch   uint64 `json:"epoch"`
	Pending int    `json:"pending"`
	Dead    int    `json:"dead"`
	Lock    struct {
		Held bool `json:"held"`
	} `json:"lock"`
}

// ahead reports how the registry is ahead of the files; "" if it is not. It may be behind them, by messages, by an epoch, by a file: it is
// updated after the file is durable, and not at all by a worker that has to stop during an election. The next holder catches up. If it were
// ahead, a worker would reject the file as an old copy.
func (s shownType) ahead(files []verified) string {
	for _, f := range files {
		switch {
		case f.FileID != s.FileID:
		case s.Durable > f.Next:
			return fmt.Sprintf("%d messages are registered as durable, file %s holds those below index %d", s.Durable, f.FileID, f.Next)
		case s.Epoch > f.epoch():
			return fmt.Sprintf("epoch %d is registered, file %s ends with epoch %d", s.Epoch, f.FileID, f.epoch())
		default:
			return ""
		}
	}
	if len(files) == 0 && s.FileID == "" {
		return ""
	}
	return fmt.Sprintf("file %q is registered, and is none of the %d files", s.FileID, len(files))
}

// processesWith returns the command lines of processes that mention a path, if the system shows them.
func processesWith(path string) (lines []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte(path)) {
			lines = append(lines, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// verified is the output of `fencepost verify --json` for a file.
type verified struct {
	OK         bool   `json:"ok"`
	FileID     string `json:"file_id"`
	Messages   int    `json:"messages"`
	First      int    `json:"first_index"`
	Next       int    `json:"next_index"`
	Gaps       int    `json:"declared_gaps"`
	Lost       int    `json:"lost"`
	Skipped    int    `json:"skipped"`
	Duplicates int    `json:"duplicates"`
	Violations int    `json:"sequence_violations"`
	Void       int64  `json:"void_bytes"`
	Torn       int64  `json:"torn_bytes"`
	Regions    []struct {
		Epoch uint64 `json:"epoch"`
	} `json:"regions"`
}

func (v verified) epoch() uint64 {
	if len(v.Regions) == 0 {
		return 0
	}
	return v.Regions[len(v.Regions)-1].Epoch
}

// check checks a file by itself, and as successor of the previous one.
func (v verified) check(path string, before verified, bad func(format string, args ...any)) {
	if !v.OK || v.Gaps+v.Lost+v.Skipped+v.Duplicates+v.Violations > 0 || v.Next-v.First != v.Messages || v.First != before.Next {
		bad("%s: %+v, after index %d", path, v, before.Next)
	}
	for i := 1; i < len(v.Regions); i++ {
		if v.Regions[i].Epoch <= v.Regions[i-1].Epoch {
			bad("%s: epoch %d after epoch %d", path, v.Regions[i].Epoch, v.Regions[i-1].Epoch)
		}
	}
	if len(v.Regions) > 0 && v.Regions[0].Epoch < before.epoch() {
		bad("%s: epoch %d, its predecessor ends with %d", path, v.Regions[0].Epoch, before.epoch())
	}
}
