// Package format_test compares the independent reader of this directory, read_fpl.py, with `fencepost`: on files that the
// real Writer wrote, in every state that writers, crashes and damage leave behind, both must report the same.
package format_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
	"golang.org/x/sync/errgroup"
)

var seed = flag.Uint64("seed", 1, "seed of the damage that is done to the files")

const (
	script     = "read_fpl.py"
	headerPage = 4096
	maxShown   = 20 // differences

	envRequire = "FENCEPOST_TEST_REQUIRE_PYTHON"
)

// A state is a file to read, and its special properties.
type state struct {
	name string
	data []byte

	// Not written by a worker: `fencepost verify` also checks IDs, and stops at the first that is not a message ID.
	foreignIDs bool

	// As a writer left it: fields that nothing depends on are right, too.
	written bool
}

// TestPythonReaderAgrees compares the outputs and exit codes of `fencepost cat` and read_fpl.py cat, and the findings of both
// verify commands.
func TestPythonReaderAgrees(t *testing.T) {
	python := findPython(t)
	bin := buildFencepost(t)
	deterministic(t)

	healthy, zombies, hostile, retracted := healthyFile(t), fencedFile(t), embeddingFile(t), retractedFile(t)
	groups := []struct {
		name   string
		states []state
	}{
		{"as written", []state{
			{name: "healthy", data: healthy, written: true}, {name: "fenced zombies", data: zombies, written: true}, {name: "payloads that are files", data: hostile, written: true},
			{name: "retracted", data: retracted, written: true}, {name: "no messages", data: openedFile(t), written: true}, {name: "sealed", data: sealed(healthy), written: true},
			{name: "repaired", data: repairedFile(t), written: true},
			{name: "other IDs", data: otherIDsFile(t), written: true, foreignIDs: true}, {name: "the example of FORMAT.md", data: example(t), written: true, foreignIDs: true},
		}},
		{"torn", slices.Concat(torn("healthy", healthy, 16), torn("fenced", zombies, 16), torn("payloads that are files", hostile, 8))},
		{"bit flips", slices.Concat(flips("healthy", healthy, 40), flips("fenced", zombies, 40), flips("retracted", retracted, 20), fenceFlips("fenced", zombies))},
		{"lost blocks", slices.Concat(blocks("healthy", healthy, 12), blocks("fenced", zombies, 12))},
		{"file headers", headers(healthy)},
		{"well-formed records that mean something else", resealed(healthy, 60)},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			compare(t, python, bin, g.states)
		})
	}
}

// TestSalvageLeavesOutWhatWasTakenBack: no format prints messages that a later writer did not find: their indexes belong to
// others.
func TestSalvageLeavesOutWhatWasTakenBack(t *testing.T) {
	bin := buildFencepost(t)
	data := retractedFile(t)
	path := filepath.Join(t.TempDir(), "retracted.fpl")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range catFormats {
		o, err := run(bin, "cat", "--salvage", "--format", format, path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(o.Stdout, []byte("message ")); n != 5 || o.Exit != exitIntegrity {
			t.Errorf("%s: %d messages, want 5; exit code %d\n%s%s", format, n, o.Exit, o.Stdout, o.Stderr)
		}
	}
}

func findPython(t testing.TB) string {
	t.Helper()
	// Reading the script also makes it an input of go test's cache.
	if _, err := os.ReadFile(script); err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv(envRequire) == "1" {
			t.Fatalf("no python3 in PATH, and %s=1: %v", envRequire, err)
		}
		t.Skipf("no python3 in PATH: the independent reader of the format cannot run; %s=1 makes this a failure", envRequire)
	}
	return python
}

// binaries is the directory of programs that were built.
var binaries string

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(binaries)
	os.Exit(code)
}

var buildOnce = sync.OnceValues(func() (out []byte, err error) {
	if binaries, err = os.MkdirTemp("", "format"); err != nil {
		return nil, err
	}
	return exec.Command("go", "build", "-o", binaries, "../../cmd/fencepost").CombinedOutput()
})

func buildFencepost(t *testing.T) string {
	t.Helper()
	if out, err := buildOnce(); err != nil {
		t.Fatalf("build fencepost: %v\n%s", err, out)
	}
	return filepath.Join(binaries, "fencepost")
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparing

var catFormats = []string{"json", "lines", "len32", "raw"}

// outcome is the result of a program.
type outcome struct {
	Exit   int    `json:"exit"`
	Stdout []byte `json:"stdout"`
	Stderr string `json:"stderr"`
}

// summary has the fields that `fencepost verify --json` and read_fpl.py verify have in common, and some of only one.
type summary struct {
	File        string            `json:"file"`
	OK          bool              `json:"ok"`
	Type        string            `json:"type"`
	FileID      string            `json:"file_id"`
	Messages    uint64            `json:"messages"`
	FirstIndex  uint64            `json:"first_index"`
	NextIndex   uint64            `json:"next_index"`
	Skipped     uint64            `json:"skipped"`
	Gaps        uint64            `json:"declared_gaps"`
	Lost        uint64            `json:"lost"`
	Size        int64             `json:"size"`
	DurableEnd  int64             `json:"durable_end"`
	TornBytes   int64             `json:"torn_bytes"`
	VoidBytes   int64             `json:"void_bytes"`
	Regions     []region          `json:"regions"`
	Corruptions []json.RawMessage `json:"corruptions"`
	TooNew      []string          `json:"too_new"`             // only python
	Remarks     []string          `json:"remarks"`             // only python
	Violations  int               `json:"sequence_violations"` // only fencepost: it also checks message IDs
}

type region struct {
	Epoch  uint64 `json:"epoch"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	First  uint64 `json:"first_index"`
	Next   uint64 `json:"next_index"`
	Offset int64  `json:"offset"`
	End    int64  `json:"end"`
}

// differences returns the differences of two summaries, field by field. Of corruptions it compares only the number.
func (want summary) differences(got summary) (diff []string) {
	if len(want.Corruptions) != len(got.Corruptions) {
		diff = append(diff, fmt.Sprintf("%d corruptions of fencepost, %d of %s", len(want.Corruptions), len(got.Corruptions), script))
	}
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		field := w.Type().Field(i)
		a, b := w.Field(i).Interface(), g.Field(i).Interface()
		switch field.Name {
		case "Corruptions", "TooNew", "Remarks", "Violations":
			continue
		case "OK":
			if want.Violations > 0 {
				continue
			}
		case "Regions":
			if len(want.Regions)+len(got.Regions) == 0 {
				continue
			}
			a = slices.Clone(want.Regions)
			for i := range min(len(want.Regions), len(got.Regions)) {
				if g := got.Regions[i]; g.Host == "" { // of an undecodable fence, one reader may report the tags before the error
					a.([]region)[i].Host, a.([]region)[i].PID = g.Host, g.PID
				}
			}
		}
		if !reflect.DeepEqual(a, b) {
			diff = append(diff, fmt.Sprintf("%s is %v of fencepost, %v of %s", field.Tag.Get("json"), a, b, script))
		}
	}
	return diff
}

func compare(t *testing.T, python, bin string, states []state) {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, len(states))
	for i, s := range states {
		paths[i] = filepath.Join(dir, fmt.Sprintf("%04d.fpl", i))
		if err := os.WriteFile(paths[i], s.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	// json has all data of a message; the other formats are tested on a few files of each group. So is the program: for the other files, package
	// storage is called without it, because a process per file takes most of the time.
	type job struct {
		state int
		args  []string
		calls bool // the package
	}
	var jobs []job
	for i, path := range paths {
		few := i < 8 || i%32 == 0
		for _, format := range catFormats {
			if format == "json" || few {
				jobs = append(jobs, job{i, []string{"cat", path, "--format", format}, !few})
			}
		}
	}
	for i, path := range paths[:min(8, len(paths))] {
		if !states[i].foreignIDs {
			jobs = append(jobs, job{i, []string{"verify", path}, false})
		}
	}
	wants, gots := make([]outcome, len(jobs)), []outcome(nil)
	var wantSums, gotSums []summary
	var g errgroup.Group
	g.SetLimit(3)
	g.Go(func() error {
		var commands [][]string
		for _, j := range jobs {
			commands = append(commands, j.args)
		}
		for _, path := range paths {
			commands = append(commands, []string{"verify", path})
		}
		all, err := runPython(python, commands)
		if err != nil {
			return err
		}
		gots = all[:len(jobs)]
		for i, o := range all[len(jobs):] {
			var s summary
			if err := json.Unmarshal(o.Stdout, &s); err != nil {
				return fmt.Errorf("%s verify, %s: %w\nstdout: %s\nstderr: %s", script, states[i].name, err, o.Stdout, o.Stderr)
			}
			gotSums = append(gotSums, s)
		}
		return nil
	})
	g.Go(func() error {
		var err error
		wantSums, err = runVerify(bin, paths)
		return err
	})
	for i, j := range jobs {
		g.Go(func() (err error) {
			if j.calls {
				var out bytes.Buffer
				err := catJSON(&out, paths[j.state])
				wants[i] = outcome{exitCode(err), out.Bytes(), fmt.Sprintln(err)}
				return nil
			}
			wants[i], err = run(bin, j.args...)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}

	differences, damaged := 0, 0
	differ := func(format string, args ...any) {
		t.Helper()
		if differences++; differences <= maxShown {
			t.Errorf(format, args...)
		}
	}
	for i, j := range jobs {
		want, got, what := wants[i], gots[i], states[j.state].name+": "+strings.Join(slices.Concat(j.args[:1], j.args[2:]), " ")
		if got.Exit != want.Exit {
			differ("%s: exit code %d of fencepost, %d of %s\nfencepost: %spython: %s", what, want.Exit, got.Exit, script, want.Stderr, got.Stderr)
		} else if j.args[0] == "cat" && !sameOutput(j.args, got.Stdout, want.Stdout) {
			differ("%s: fencepost printed %d bytes, %s %d; the first that differs is %d\nfencepost: %spython: %s", what, len(want.Stdout), script,
				len(got.Stdout), firstDifference(want.Stdout, got.Stdout), want.Stderr, got.Stderr)
		}
	}
	for i, s := range states {
		want, got := wantSums[i], gotSums[i]
		if !got.OK {
			damaged++
		}
		if s.written && len(got.Remarks) > 0 {
			differ("%s: fields that are not as FORMAT.md says: %q", s.name, got.Remarks)
		}
		if s.foreignIDs || len(got.TooNew) > 0 {
			continue // fencepost stopped there
		}
		if diff := want.differences(got); len(diff) > 0 {
			differ("%s: verify: %s\nfencepost: %s\npython:    %s", s.name, strings.Join(diff, "; "), want.Corruptions, got.Corruptions)
		}
	}
	if differences > maxShown {
		t.Errorf("and %d more differences", differences-maxShown)
	}
	t.Logf("%d files (%d of them damaged), %d runs", len(states), damaged, len(jobs))
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func run(bin string, args ...string) (outcome, error) {
	cmd := exec.Command(bin, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return outcome{}, fmt.Errorf("%s %q: %w", filepath.Base(bin), args, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.Bytes(), errOut.String()}, nil
}

// runVerify verifies all files with one process.
func runVerify(bin string, paths []string) ([]summary, error) {
	o, err := run(bin, append([]string{"verify", "--json"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var sums []summary
	for d := json.NewDecoder(bytes.NewReader(o.Stdout)); d.More(); {
		var s summary
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("fencepost verify: %w", err)
		}
		sums = append(sums, s)
	}
	if len(sums) != len(paths) {
		return nil, fmt.Errorf("fencepost verify printed %d reports for %d files\n%s", len(sums), len(paths), o.Stderr)
	}
	return sums, nil
}

// jsonMessage is a line of `fencepost cat --format json`.
type jsonMessage struct {
	Index         uint64            `json:"index"`
	ID            string            `json:"id"`
	Time          time.Time         `json:"time"`
	Epoch         uint64            `json:"epoch"`
	AfterGap      bool              `json:"after_gap,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
}

func printJSON(w io.Writer, r *storage.Record) error {
	m := jsonMessage{Index: r.Index, ID: hex.EncodeToString(r.ID), Time: r.When(), Epoch: r.Epoch, AfterGap: r.Kind == storage.KindAfterGap}
	if len(r.ID) == len(queue.ID{}) {
		m.ID = queue.ID(r.ID).String()
	}
	for _, h := range r.Headers {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[h.Key] = h.Value
	}
	if text := string(r.Payload); utf8.ValidString(text) {
		m.Payload = &text
	} else {
		m.PayloadBase64 = r.Payload
	}
	return json.NewEncoder(w).Encode(m)
}

// runPython runs many commands with one process.
func runPython(python string, commands [][]string) ([]outcome, error) {
	var in bytes.Buffer
	for _, c := range commands {
		line, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		in.Write(append(line, '\n'))
	}
	cmd := exec.Command(python, "-B", script, "batch") // -B: leave no __pycache__ behind
	var errOut bytes.Buffer
	cmd.Stdin, cmd.Stderr = &in, &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s batch: %w\n%s", script, err, errOut.String())
	}
	var outcomes []outcome
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var o outcome
		if err := d.Decode(&o); err != nil {
			return nil, fmt.Errorf("%s batch: %w", script, err)
		}
		outcomes = append(outcomes, o)
	}
	if len(outcomes) != len(commands) {
		return nil, fmt.Errorf("%s batch had %d commands and gave %d results\n%s", script, len(commands), len(outcomes), errOut.String())
	}
	return outcomes, nil
}

// ---------------------------------------------------------------------------------------------------------------------
// Files that the real Writer writes

const typ = "orders"

// world is a directory with one file, and the messages of one producer.
type world struct {
	t   testing.TB
	dir string
	n   uint64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{t: t, dir: t.TempDir()}
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

var holder = storage.Holder{ID: "w1", Host: "härz", PID: 4711, Version: "v1", Wall: start}

// deterministic makes the files the same in every run with the same seed, although their identities and sessions are random.
func deterministic(t *testing.T) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, *seed)
}

func (w *world) tryOpen(epoch uint64, fs storage.FS) (*storage.Writer, error) {
	return storage.Open(context.Background(), w.dir, typ, epoch,
		storage.Options{FS: fs, Holder: holder, Schema: "text/plain; test", AllowOverlay: true})
}

func (w *world) open(epoch uint64, fs storage.FS) *storage.Writer {
	w.t.Helper()
	x, err := w.tryOpen(epoch, fs)
	w.must(err)
	w.t.Cleanup(func() { x.Close() })
	return x
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// fails checks that a writer detected what happened to it.
func (w *world) fails(err error, what string) {
	w.t.Helper()
	if err == nil {
		w.t.Fatalf("%s succeeded", what)
	}
}

func (w *world) sync(x *storage.Writer) {
	w.t.Helper()
	_, err := x.Sync()
	w.must(err)
}

func (w *world) data() []byte {
	w.t.Helper()
	return w.read(storage.FileName(typ))
}

func (w *world) read(name string) []byte {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, name))
	w.must(err)
	le.PutUint64(data[80:], uint64(start.UnixNano())) // the time of creation is the only field that differs between runs
	le.PutUint32(data[headerPage-4:], checksum(data, data[:headerPage-4]))
	return data
}

// message returns the next message of the producer.
func (w *world) message(payload string, headers ...storage.Header) storage.Record {
	w.n++
	at := start.Add(time.Duration(w.n) * 1234567 * time.Microsecond)
	id := queue.NewID(at, 77, w.n)
	return storage.Record{ID: id[:], Time: at.UnixNano(), Payload: []byte(payload), Headers: headers}
}

func (w *world) messages(n int) (recs []storage.Record) {
	for range n {
		recs = append(recs, w.message(fmt.Sprintf("message %d\n%s", w.n+1, strings.Repeat("·", int(w.n%40)))))
	}
	return recs
}

// healthyFile has several epochs, and everything that a record may contain.
func healthyFile(t testing.TB) []byte {
	w := newWorld(t)
	a := w.open(1, nil)
	w.must(a.Append(w.messages(3)))
	w.sync(a)
	w.must(a.Append([]storage.Record{
		w.message(""),
		w.message("", storage.Header{Key: "empty", Value: ""}),
		w.message("\x00\x01\xfe\xff not UTF-8"),
		w.message("cut \xe2\x82"),
		w.message("surrogate \xed\xa0\x80"),
		w.message("<a href=\"x\">&amp;\\ \u2028\u2029\ufffd \b\f\n\r\t\x1b\x7f \U0001F600 \U0010FFFF"),
	}))
	gap := w.message("behind a gap")
	gap.Kind = storage.KindAfterGap
	skipped := w.message("why it was put aside", storage.Header{Key: "reason", Value: "too large"})
	skipped.Kind = storage.KindSkipped
	w.must(a.Append([]storage.Record{gap, skipped, w.message("next")}))
	w.must(a.Checkpoint([]byte("what the caller knows")))
	w.must(a.Append(w.messages(1)))
	w.must(a.Close())

	b := w.open(2, nil)
	w.must(b.Append([]storage.Record{
		w.message("headers", storage.Header{Key: "b", Value: "1"}, storage.Header{Key: "a", Value: "<2>"}, storage.Header{Key: "b", Value: "3"},
			storage.Header{Key: "", Value: "no key"}, storage.Header{Key: "Z", Value: "\u00e4"}),
		w.message("bad headers", storage.Header{Key: "k\xff", Value: "v\xc3"}, storage.Header{Key: "k\ufffd", Value: "\xe2\x82"}),
	}))
	early, late := w.message("1677"), w.message("2262")
	early.Time, late.Time = -1<<63, 1<<63-1
	third, whole := w.message("a third"), w.message("whole second")
	third.Time, whole.Time = 1_000_000_000_300_000_000, 1_000_000_000_000_000_000
	w.must(b.Append([]storage.Record{early, late, third, whole}))
	w.sync(b)
	w.must(b.Checkpoint(nil))
	for range 6 {
		w.must(b.Append(w.messages(2)))
	}
	w.must(b.Checkpoint(bytes.Repeat([]byte("state "), 50)))
	w.must(b.Append(w.messages(2)))
	w.sync(b)
	w.must(b.Close())

	c := w.open(1<<40, nil)
	for range 5 {
		w.must(c.Append(w.messages(1)))
		w.sync(c)
	}
	w.must(c.Append(w.messages(2)))
	w.must(c.Append(w.messages(2)))
	return w.data()
}

// onAppend returns a file system that calls f before its n-th append, counted from 0.
func onAppend(n int, f func() *storagetest.Fault) storage.FS {
	return &storagetest.Tap{FS: storage.OS(), Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op != storagetest.OpAppend {
			return nil
		}
		if n--; n == -1 {
			return f()
		}
		return nil
	}}
}

// fencedFile has the traces of competing writers: batches after another writer's fence, torn writes, fences without an open record,
// fences with epochs that are too low.
func fencedFile(t testing.TB) []byte {
	w := newWorld(t)
	one := w.open(1, nil)
	w.must(one.Append(w.messages(2)))
	w.sync(one)
	w.must(one.Append(w.messages(1)))

	// One writer appends after another has read the size and before it appends its fence, and then after that fence.
	first := true
	two := w.open(2, onAppend(0, func() *storagetest.Fault {
		if first {
			first = false
			w.must(one.Append(w.messages(2)))
		}
		return nil
	}))
	w.fails(one.Append(w.messages(3)), "appending after the fence of epoch 2")
	lost := w.n
	w.n = lost - 3

	// One has just written where two's first batch would belong, so two is dead, too.
	w.fails(two.Append(w.messages(1)), "appending after a zombie's batch")
	w.n--

	// The same between fence and open record.
	three := w.open(3, nil)
	w.must(three.Append(w.messages(2)))
	w.sync(three)
	_, err := w.tryOpen(4, onAppend(1, func() *storagetest.Fault {
		w.fails(three.Append(w.messages(2)), "appending after the fence of epoch 4")
		w.n -= 2
		return nil
	}))
	w.fails(err, "opening where a zombie's batch is")

	// A writer that dies between fence and open record.
	_, err = w.tryOpen(5, onAppend(1, func() *storagetest.Fault { return &storagetest.Fault{Err: os.ErrDeadlineExceeded} }))
	w.fails(err, "opening without an open record")

	// A torn batch, and a late, low epoch.
	six := w.open(6, onAppend(3, func() *storagetest.Fault { return &storagetest.Fault{Short: 150} }))
	w.must(six.Append(w.messages(2)))
	w.fails(six.Append(w.messages(4)), "a short write")
	w.n -= 4
	var eight *storage.Writer // opens after seven has read the end of the file and before seven's fence
	_, err = w.tryOpen(7, onAppend(0, func() *storagetest.Fault {
		if eight == nil {
			eight = w.open(8, nil)
			w.must(eight.Append(w.messages(1)))
		}
		return nil
	}))
	w.fails(err, "opening with a low epoch")
	w.fails(eight.Append(w.messages(1)), "appending after a void fence")
	w.n--

	// A torn fence, which its writer repeats, and a torn open record.
	w.must(w.open(9, onAppend(0, func() *storagetest.Fault { return &storagetest.Fault{Short: 50} })).Close())
	_, err = w.tryOpen(10, onAppend(1, func() *storagetest.Fault { return &storagetest.Fault{Short: 120} }))
	w.fails(err, "a torn open record")
	eleven := w.open(11, nil)
	w.must(eleven.Append(w.messages(2)))
	w.must(eleven.Checkpoint([]byte("state")))
	w.must(eleven.Append(w.messages(2)))
	w.sync(eleven)
	w.must(eleven.Append(w.messages(1)))

	// The file ends with a fence without an open record, and a batch after it.
	_, err = w.tryOpen(12, onAppend(1, func() *storagetest.Fault { return &storagetest.Fault{Err: os.ErrDeadlineExceeded} }))
	w.fails(err, "opening without an open record")
	w.fails(eleven.Append(w.messages(1)), "appending after the fence of epoch 12")
	return w.data()
}

// embeddingFile has payloads that are log files: another file, and the file itself at every alignment.
func embeddingFile(t testing.TB) []byte {
	other := newWorld(t)
	x := other.open(1, nil)
	other.must(x.Append(other.messages(2)))
	other.must(x.Close())

	w := newWorld(t)
	a := w.open(1, nil)
	w.must(a.Append(w.messages(1)))
	self := w.data()[headerPage:]
	for pad := range 8 {
		w.must(a.Append([]storage.Record{w.message(strings.Repeat("-", pad) + string(other.data()[headerPage-16:])),
			w.message(strings.Repeat("-", pad) + string(self))}))
	}
	w.must(a.Checkpoint(self))
	w.sync(a)
	b := w.open(2, onAppend(3, func() *storagetest.Fault { return &storagetest.Fault{Short: 3000} }))
	w.must(b.Append(w.messages(1)))
	w.fails(b.Append([]storage.Record{w.message(string(w.data()[headerPage:]))}), "a short write")
	w.n--
	c := w.open(3, nil)
	w.must(c.Append([]storage.Record{w.message(string(w.data()))}))
	w.sync(c)
	return w.data()
}

// blind is a file system on which a range of a file reads as zeros.
type blind struct {
	storage.FS
	off, end int64
}

type blindFile struct {
	storage.File
	fs *blind
}

func (b *blind) Open(name string, mode storage.Mode) (storage.File, error) {
	f, err := b.FS.Open(name, mode)
	if err != nil {
		return nil, err
	}
	return &blindFile{f, b}, nil
}

func (f *blindFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	for i := range p[:n] {
		if at := off + int64(i); at >= f.fs.off && at < f.fs.end {
			p[i] = 0
		}
	}
	return n, err
}

// retractedFile has a batch that the second writer did not find.
func retractedFile(t testing.TB) []byte {
	w := newWorld(t)
	a := w.open(1, nil)
	w.must(a.Append(w.messages(2)))
	w.sync(a)
	kept, from := w.n, a.Size()
	w.must(a.Append(w.messages(3)))
	b := w.open(2, &blind{storage.OS(), from, a.Size()})
	w.n = kept
	w.must(b.Append(w.messages(2)))
	w.sync(b)
	w.must(b.Append(w.messages(1)))
	return w.data()
}

// otherIDsFile has IDs that are not message IDs.
func otherIDsFile(t testing.TB) []byte {
	w := newWorld(t)
	a := w.open(1, nil)
	for _, n := range []int{1, 19, 21, 255} {
		m := w.message(fmt.Sprintf("ID of %d bytes", n))
		m.ID = bytes.Repeat([]byte{0xAB}, n)
		w.must(a.Append([]storage.Record{m}))
	}
	return w.data()
}

// repairedFile is the result of repairing a file with damage in two places.
func repairedFile(t testing.TB) []byte {
	w := newWorld(t)
	a := w.open(1, nil)
	for range 8 {
		w.must(a.Append(w.messages(2)))
		w.sync(a)
	}
	w.must(a.Close())
	data := w.data()
	for _, i := range []int{3, 7} {
		data[findRecords(data)[i].head+110] ^= 1
	}
	w.must(os.WriteFile(a.Path(), data, 0o600))
	b, err := storage.Open(context.Background(), w.dir, typ, 2, storage.Options{Holder: holder, AllowOverlay: true, Salvage: true})
	w.must(err)
	c, report, err := b.Compact(context.Background(), []byte("state"), storage.CompactOptions{})
	w.must(err)
	if report.Lost != 4 {
		t.Fatalf("%d messages are lost, not 4", report.Lost)
	}
	w.must(c.Append(w.messages(2)))
	w.must(c.Close())
	return w.read(filepath.Base(c.Path()))
}

// compressedFile has some batches with codec zstd.
func compressedFile(t testing.TB) []byte {
	w := newWorld(t)
	x, err := storage.Open(context.Background(), w.dir, typ, 1, storage.Options{Holder: holder, AllowOverlay: true, Compress: true})
	w.must(err)
	w.must(x.Append(w.messages(1)))
	for range 3 {
		w.must(x.Append(w.messages(40)))
		w.sync(x)
		w.must(x.Append(w.messages(2)))
	}
	w.must(x.Checkpoint([]byte("state")))
	w.must(x.Append(w.messages(60)))
	w.must(x.Close())
	return w.data()
}

func openedFile(t testing.TB) []byte {
	w := newWorld(t)
	w.must(w.open(1, nil).Close())
	return w.data()
}

// example returns the example file of FORMAT.md.
func example(t testing.TB) []byte {
	t.Helper()
	page, err := os.ReadFile("../../storage/FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	_, dump, _ := strings.Cut(string(page), "## 10. Example")
	var data []byte
	for _, line := range regexp.MustCompile(`(?m)^([0-9a-f]{4})((?: {1,2}[0-9a-f]{2})+)$`).FindAllStringSubmatch(dump, -1) {
		at, err := strconv.ParseUint(line[1], 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(line[2], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		data = append(append(data, make([]byte, int(at)-len(data))...), b...)
	}
	if len(data) != 4504 {
		t.Fatalf("the example in FORMAT.md has %d bytes", len(data))
	}
	return data
}

// sealed returns a copy of a healthy file with a seal appended.
func sealed(data []byte) []byte {
	c := bytes.Clone(data)
	last := lastRecord(data)
	body := append(bytes.Repeat([]byte{0x5E}, 16), 2, 0, 0, 0, 0, 0, 0, 0, 4, 'f', 'u', 'l', 'l')
	h := make([]byte, 96)
	copy(h, "FPS1")
	le.PutUint64(h[8:], uint64(len(c)))
	copy(h[16:24], data[last.head+16:])                                                                    // epoch
	le.PutUint64(h[24:], le.Uint64(data[last.head+24:])+uint64(le.Uint32(data[last.head+32:])))            // base_index
	le.PutUint16(h[38:], 96)                                                                               // header_len
	le.PutUint32(h[40:], uint32(len(body)))                                                                // stored_len
	le.PutUint32(h[44:], uint32(len(body)))                                                                // raw_len
	le.PutUint64(h[48:], uint64(len(c)))                                                                   // durable_end
	copy(h[56:64], data[last.head+56:])                                                                    // anchor_off
	le.PutUint64(h[64:], uint64(le.Uint32(data[last.head+88:]))<<32|uint64(le.Uint32(data[last.head+4:]))) // chain
	copy(h[72:80], data[last.head+72:])                                                                    // session
	body = append(body, make([]byte, -len(body)&7)...)
	le.PutUint32(h[88:], checksum(c, body))
	le.PutUint32(h[4:], checksum(c, h[:4], h[8:]))
	return slices.Concat(c, data[32:48], h, body)
}

func lastRecord(data []byte) record {
	rs := findRecords(data)
	return rs[len(rs)-1]
}

// copyToEnd appends a changed copy of a record, with the offset and the checksums of its new position.
func copyToEnd(c []byte, r record, change func(h, body []byte)) ([]byte, record) {
	by := len(c) - r.off
	moved := record{r.magic, r.off + by, r.head + by, r.end + by, r.headerLen, r.stored}
	c = slices.Concat(c, c[r.off:r.end])
	h := c[moved.head:]
	le.PutUint64(h[8:], uint64(moved.off))
	change(h[:96], h[r.headerLen:r.headerLen+r.stored])
	reseal(c, moved)
	return c, moved
}

// ---------------------------------------------------------------------------------------------------------------------
// What happens to them

func random(name string) *rand.Rand {
	return rand.New(rand.NewPCG(*seed, uint64(crc32.ChecksumIEEE([]byte(name)))))
}

func fewer(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

// torn returns copies that end early, n of them anywhere and some at places of interest.
func torn(name string, data []byte, n int) (states []state) {
	lengths := []int{0, 7, 8, 9, 12, 100, headerPage - 1, headerPage, headerPage + 1, len(data) - 1}
	r := random(name)
	for range fewer(n) {
		lengths = append(lengths, headerPage+r.IntN(len(data)-headerPage))
	}
	for i := headerPage; i < len(data); i += 8 { // where records start, judged by their first bytes
		if fits := bytes.HasPrefix(data[i:], []byte("FPB1")) || bytes.Equal(data[i:min(i+16, len(data))], data[32:48]); fits && r.IntN(4) == 0 {
			lengths = append(lengths, i, min(i+112, len(data)))
		}
	}
	for _, length := range lengths {
		states = append(states, state{name: fmt.Sprintf("%s, the first %d bytes", name, length), data: data[:length]})
	}
	return states
}

// flips returns copies with one bit flipped.
func flips(name string, data []byte, n int) (states []state) {
	r := random(name)
	for i := range fewer(n) {
		at := headerPage + r.IntN(len(data)-headerPage)
		if i%20 == 0 {
			at = r.IntN(headerPage)
		}
		bit := r.IntN(8)
		flipped := bytes.Clone(data)
		flipped[at] ^= 1 << bit
		states = append(states, state{name: fmt.Sprintf("%s, bit %d of byte %d flipped", name, bit, at), data: flipped})
	}
	return states
}

// fenceFlips returns copies with one fence damaged, including that of the writer whose open record is torn.
func fenceFlips(name string, data []byte) (states []state) {
	fence := append(bytes.Clone(data[32:48]), "FPF1"...)
	for at := headerPage; ; at += len(fence) {
		i := bytes.Index(data[at:], fence)
		if i < 0 {
			return states
		}
		at += i
		flipped := bytes.Clone(data)
		flipped[min(at+120, len(data)-1)] ^= 1
		states = append(states, state{name: fmt.Sprintf("%s, the fence at %d damaged", name, at), data: flipped})
	}
}

// blocks returns copies in which whole blocks are zeros, have other contents, or were swapped.
func blocks(name string, data []byte, n int) (states []state) {
	const size = 512
	r := random(name)
	last := (len(data) - headerPage) / size
	for i := range fewer(n) {
		damaged := bytes.Clone(data)
		at := headerPage + r.IntN(last)*size
		block := damaged[at : at+size]
		var what string
		switch i % 4 {
		case 0:
			what = "zeros"
			clear(block)
		case 1:
			what = "noise"
			for i := range block {
				block[i] = byte(r.Uint32())
			}
		case 2:
			from := headerPage + r.IntN(last)*size
			what = fmt.Sprintf("those at %d", from)
			copy(block, data[from:from+size])
		case 3:
			what = "zeros, as all after them,"
			clear(damaged[at:])
		}
		states = append(states, state{name: fmt.Sprintf("%s, %s in the %d bytes at %d", name, what, size, at), data: damaged})
	}
	return states
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the checksum of section 1 of the format.
func checksum(data []byte, parts ...[]byte) uint32 {
	return crc32.Checksum(append(bytes.Clone(data[16:32]), bytes.Join(parts, nil)...), castagnoli)
}

var le = binary.LittleEndian

// headers returns copies with file headers that are well formed except for one field.
func headers(data []byte) (states []state) {
	add := func(name string, length int, change func(page []byte)) {
		c := bytes.Clone(data[:length])
		change(c)
		if length >= headerPage {
			le.PutUint32(c[headerPage-4:], checksum(c, c[:headerPage-4]))
		}
		states = append(states, state{name: "file header: " + name, data: c})
	}
	put := func(name string, at, size int, v uint64) {
		add(name, len(data), func(page []byte) {
			var b [8]byte
			le.PutUint64(b[:], v)
			copy(page[at:at+size], b[:])
		})
	}
	add("unchanged", len(data), func([]byte) {})
	add("alone", headerPage, func([]byte) {})
	add("too new, and short", 100, func(page []byte) { page[8] = 2 })
	put("major 0", 8, 2, 0)
	put("major 2", 8, 2, 2)
	put("minor 1", 10, 2, 1)
	put("incompat", 92-4, 4, 1)
	put("ro_compat", 92, 4, 1)
	put("compat", 96, 4, 1)
	put("header_len 8192", 12, 4, 8192)
	put("header_len 0", 12, 4, 0)
	put("generation 0", 48, 8, 0)
	put("generation 2", 48, 8, 2)
	put("first_index 5", 56, 8, 5)
	put("first_index 2^63+1", 56, 8, 1<<63+1)
	put("created_ns -1", 80, 8, 1<<64-1)
	put("type_len 0", 100, 2, 0)
	put("type_len 65", 100, 2, 65)
	put("schema_len 1024", 102, 2, 1024)
	put("schema_len 1025", 102, 2, 1025)
	put("schema not UTF-8", 104+len(typ), 1, 0xFF)
	put("upper case type", 104, 1, 'A')
	put("type that starts with a dot", 104, 1, '.')
	put("type with a newline at its end", 104+len(typ)-1, 1, '\n')
	put("no zeros after the schema", headerPage-8, 4, 7)
	put("sync marker of zeros", 32, 8, 0)
	add("wrong magic, damaged", len(data), func(page []byte) { page[0] = 'x' })

	// With an unchanged checksum, a damaged magic still identifies a Fencepost file.
	c := bytes.Clone(data)
	c[3] ^= 1
	states = append(states, state{name: "file header: magic damaged", data: c})
	c = bytes.Clone(data)
	c[3] ^= 1
	c[300] ^= 1
	states = append(states, state{name: "file header: magic and more damaged", data: c})
	return states
}

// A record is the position of one in a file.
type record struct {
	magic          string
	off, head, end int
	headerLen      int
	stored         int
}

// resealed returns copies in which a record has another field or body, with correct checksums, as a newer version or a broken
// writer could write them.
func resealed(data []byte, n int) (states []state) {
	rs := findRecords(data)
	rnd := random("resealed")
	add := func(name string, r record, rest []byte, change func(h, body []byte)) {
		c := bytes.Clone(data[:r.end])
		h := c[r.head:]
		change(h[:96], h[r.headerLen:r.headerLen+r.stored])
		reseal(c, r)
		what := "at the end"
		if rest != nil {
			what = "with what follows"
		}
		states = append(states, state{name: fmt.Sprintf("%s at %d %s, %s", r.magic, r.off, what, name), data: append(c, rest...)})
	}
	fields := []struct {
		name     string
		at, size int
		values   []uint64
	}{
		{"magic", 0, 4, []uint64{uint64(le.Uint32([]byte("FPB2"))), uint64(le.Uint32([]byte("FPC1"))), uint64(le.Uint32([]byte("FPS1")))}},
		{"offset", 8, 8, []uint64{0, 4096}},
		{"epoch", 16, 8, []uint64{0, 1, 1 << 41}},
		{"base_index", 24, 8, []uint64{0, 1000, 1 << 63, 1<<63 + 1}},
		{"count", 32, 4, []uint64{0, 1, 5, 1048576, 1048577}},
		{"flags", 36, 2, []uint64{0, 2, 8, 16, 1<<15 | 8}},
		{"header_len", 38, 2, []uint64{88, 97, 104}},
		{"stored_len", 40, 4, []uint64{0, 1, 67108865}},
		{"raw_len", 44, 4, []uint64{1, 67108865}},
		{"durable_end", 48, 8, []uint64{4088, 4097, 1 << 50}},
		{"anchor_off", 56, 8, []uint64{0, 1 << 50}},
		{"chain", 64, 8, []uint64{1}},
		{"session", 72, 8, []uint64{1}},
		{"base_time", 80, 8, []uint64{1<<63 - 1}},
		{"schema_id", 92, 4, []uint64{9}},
	}
	// One record of each kind early on, and the last one.
	var some []record
	seen := map[string]bool{}
	for _, r := range rs {
		if !seen[r.magic] && r.off > rs[3].off {
			some = append(some, r)
			seen[r.magic] = true
		}
	}
	some = append(some, rs[len(rs)-1])
	for _, r := range some {
		for _, f := range fields {
			for _, v := range f.values {
				if testing.Short() && rnd.IntN(4) > 0 {
					continue
				}
				var rest []byte
				if rnd.IntN(2) == 0 {
					rest = data[r.end:]
				}
				add(fmt.Sprintf("%s = %d", f.name, v), r, rest, func(h, _ []byte) {
					var b [8]byte
					le.PutUint64(b[:], v)
					copy(h[f.at:f.at+f.size], b[:])
				})
			}
		}
	}

	// Bodies.
	for range fewer(n) {
		r := rs[rnd.IntN(len(rs))]
		at, bit := rnd.IntN(r.stored), rnd.IntN(8)
		var rest []byte
		if rnd.IntN(3) == 0 {
			rest = data[r.end:]
		}
		add(fmt.Sprintf("bit %d of byte %d of its body", bit, at), r, rest, func(_, body []byte) { body[at] ^= 1 << bit })
		states[len(states)-1].foreignIDs = true
	}

	for _, r := range rs {
		if r.magic != "FPO1" {
			continue
		}
		for _, rest := range [][]byte{nil, data[r.end:]} {
			add("another fence's", r, rest, func(_, body []byte) {
				le.PutUint64(body[8:], le.Uint64(body[8:])+8)
				le.PutUint64(body[24:], 8)
			})
			if at := le.Uint64(data[r.head+96:]); at > headerPage {
				add("accepted_end 8 bytes less", r, rest, func(_, body []byte) {
					le.PutUint64(body, at-8)
					le.PutUint64(body[24:], 8)
				})
			}
		}
	}

	// After a seal, and at the end.
	var fence, open record
	for _, r := range rs {
		switch r.magic {
		case "FPF1":
			fence = r
		case "FPO1":
			open = r
		}
	}
	last := rs[len(rs)-1]
	move := func(c []byte, r record, epoch uint64) []byte {
		c, _ = copyToEnd(c, r, func(h, _ []byte) { le.PutUint64(h[16:], epoch) })
		return c
	}
	// A region after a seal, and one whose fence is damaged so that its open record proves the damage.
	region := func(c []byte, epoch uint64) []byte {
		off, was := uint64(len(c)), c
		seal := lastRecord(c)
		c, _ = copyToEnd(move(c, fence, epoch), open, func(h, body []byte) {
			le.PutUint64(h[16:], epoch)
			copy(h[24:32], was[seal.head+24:]) // base_index
			le.PutUint64(h[64:], uint64(le.Uint32(was[seal.head+88:]))<<32|uint64(le.Uint32(was[seal.head+4:])))
			copy(h[72:80], was[fence.head+72:]) // session
			le.PutUint64(h[48:], off+152)
			le.PutUint64(body, off)
			le.PutUint64(body[8:], off)
			le.PutUint64(body[24:], 0)
		})
		return c
	}
	// An open record that proves damage, without a fence. Its body names the offset of the fence and the end of the accepted records.
	claim := func(distance uint64) []byte {
		c := append(bytes.Clone(data), 1, 2, 3, 4, 5, 6, 7, 8)
		at := uint64(len(c))
		c, _ = copyToEnd(c, open, func(h, body []byte) {
			le.PutUint64(h[16:], 1<<41) // epoch
			le.PutUint64(h[24:], 1<<50) // base_index
			le.PutUint64(h[48:], at)    // durable_end
			le.PutUint64(body, at+distance)
			le.PutUint64(body[8:], at+distance)
			le.PutUint64(body[24:], 0)
		})
		return c
	}
	unfenced := region(sealed(data), 1<<41)
	unfenced[len(sealed(data))+120] ^= 1
	states = append(states,
		state{name: "a batch after a seal", data: move(sealed(data), last, 1<<40)},
		state{name: "a fence after a seal", data: move(sealed(data), fence, 1<<41)},
		state{name: "a fence with too low an epoch after a seal", data: move(sealed(data), fence, 5)},
		state{name: "a region after a seal", data: region(sealed(data), 1<<41)},
		state{name: "a region after a seal, its fence damaged", data: unfenced},
		state{name: "a fence where none can start", data: move(append(bytes.Clone(data), 1, 2, 3, 4), fence, 1<<41)},
		state{name: "a fence at the end", data: move(bytes.Clone(data), fence, 1<<41)},
		state{name: "two fences at the end", data: move(move(bytes.Clone(data), fence, 1<<41), fence, 1<<42)},
		state{name: "a batch of a later epoch at the end", data: move(bytes.Clone(data), last, 1<<41)},
		state{name: "an open record whose fence is before it", data: claim(1<<64 - 8)},
		state{name: "an open record whose fence is where it is", data: claim(0)},
		state{name: "an open record whose fence is far after it", data: claim(1 << 50)},
	)
	return states
}

// sameOutput compares bytes, except for JSON, of which it compares values: the format does not define which characters are escaped.
func sameOutput(args []string, a, b []byte) bool {
	if !slices.Contains(args, "json") {
		return bytes.Equal(a, b)
	}
	one, other := json.NewDecoder(bytes.NewReader(a)), json.NewDecoder(bytes.NewReader(b))
	one.UseNumber()
	other.UseNumber()
	for {
		var x, y any
		end, otherEnd := one.Decode(&x), other.Decode(&y)
		if end != nil || otherEnd != nil {
			return end == io.EOF && otherEnd == io.EOF
		}
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
}

func TestSameOutput(t *testing.T) {
	for _, c := range []struct {
		format, a, b string
		same         bool
	}{
		{"json", `{"a":"\u200b","n":1}` + "\n", "{\"a\":\"\u200b\",\"n\":1}\n", true}, {"json", `{"a":1}`, `{"a":2}`, false},
		{"json", `{"a":1}`, "{\"a\":1}\n{}", false}, {"json", `{"a":1}`, `{"a":1}{`, false}, {"json", `{"n":9007199254740993}`, `{"n":9007199254740992}`, false},
		{"lines", "a", "a", true}, {"lines", "a", "b", false},
	} {
		if sameOutput([]string{"cat", "--format", c.format}, []byte(c.a), []byte(c.b)) != c.same {
			t.Errorf("%+v", c)
		}
	}
}
