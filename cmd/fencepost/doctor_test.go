package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// ahead is a queue whose clock is ahead of this machine's.
type ahead struct {
	queue.Queue
	by time.Duration
}

func (q ahead) Now(context.Context) (time.Time, error) { return time.Now().Add(q.by), nil }

func TestDoctorComparesClocks(t *testing.T) {
	for by, want := range map[time.Duration]finding{
		0:                 {"ok", "clock", "at most 1m0s apart"},
		30 * time.Second:  {"ok", "clock", "at most 1m0s apart"},
		-30 * time.Second: {"ok", "clock", "at most 1m0s apart"},
		2 * time.Hour:     {"warning", "clock", "the server's is 2h0m0s ahead of this machine's"},
		-48 * time.Hour:   {"warning", "clock", "the server's is 48h0m0s behind this machine's"},
	} {
		d := &doctor{}
		d.examineServer(t.Context(), &fencepost.Backend{Queue: ahead{queuetest.NewMemory(), by}})
		if len(d.findings) != 1 || d.findings[0].Verdict != want.Verdict || d.findings[0].What != want.What || !strings.Contains(d.findings[0].Text, want.Text) || d.code != 0 {
			t.Errorf("%v ahead: %+v, exit code %d; want %+v", by, d.findings, d.code, want)
		}
		if d.findings[0].Verdict == "warning" && !strings.Contains(d.findings[0].Text, "correct the one that is wrong") {
			t.Errorf("%v ahead: no remedy in %q", by, d.findings[0].Text)
		}
	}
}

// oneFile is a database in which one type has a file.
type oneFile struct {
	queue.FileRegistry
	entry queue.RegistryEntry
}

func (f oneFile) RegistryEntry(context.Context, string) (queue.RegistryEntry, bool, error) {
	return f.entry, true, nil
}

// TestDoctorFindsMissingSlots: doctor finds a slot that is missing in the middle of a file, and reports which bytes it did not read.
func TestDoctorFindsMissingSlots(t *testing.T) {
	mem := slotstest.NewMem(1 << 20)
	fsys := slots.New(t.Context(), mem)
	w, err := storage.Open(t.Context(), fsys.Dir(), "orders", 1, storage.Options{FS: fsys})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		err := w.Append([]storage.Record{{ID: []byte{byte(i) + 1}, Payload: []byte("message")}})
		if err == nil && i == 4 {
			err = w.Checkpoint(nil)
		}
		if err == nil {
			_, err = w.Sync()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e := w.Entry()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	db := oneFile{entry: queue.RegistryEntry{FileID: e.FileID, Generation: e.Generation, Epoch: e.Epoch, DurableIndex: e.DurableIndex}}
	examine := func() *doctor {
		d := &doctor{types: []string{"orders"}, within: time.Hour, files: fileFlags{place: &store.Place{FS: fsys, Dir: fsys.Dir(), Name: "shared:/srv/slots", Address: "shared:/srv/slots"}}}
		if err := d.examineFiles(t.Context(), db, fsys.Dir()); err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := examine(); d.code != 0 || len(d.findings) != 1 || !strings.Contains(d.findings[0].Text, "from the last checkpoint on, were read; fencepost verify --store shared:/srv/slots reads all of them") {
		t.Errorf("a file that is whole: %+v", d.findings)
	}
	gone := mem.Names()[4]
	if err := mem.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if d := examine(); d.code != cli.ExitIntegrity || !strings.Contains(d.findings[0].Text, "slot "+gone+" was removed") ||
		!strings.Contains(d.findings[0].Text, "fencepost verify --store shared:/srv/slots") {
		t.Errorf("a slot is missing before the last checkpoint: exit code %d, %+v", d.code, d.findings)
	}
}

// Types for which no time is left are counted, and are not reported as good.
func TestDoctorSaysWhatItDidNotLookAt(t *testing.T) {
	q := queuetest.NewMemory()
	types := []string{"a", "b", "c"}
	for within, want := range map[time.Duration]string{0: "3 of 3 types were not checked, the first one is a", time.Hour: "can be appended"} {
		d := &doctor{types: types, within: within}
		if err := d.examineMessages(t.Context(), q); err != nil || len(d.findings) != 1 || !strings.Contains(d.findings[0].Text, want) {
			t.Errorf("messages within %v: %+v, %v; want %q", within, d.findings, err, want)
		}
	}
	d := &doctor{types: types}
	if err := d.examineFiles(t.Context(), q, t.TempDir()); err != nil || len(d.findings) != 1 || d.findings[0].Verdict != "warning" || !strings.Contains(d.findings[0].Text, "3 of 3 types were not checked") {
		t.Errorf("files: %+v, %v", d.findings, err)
	}
}

// On a volume that fills up, the doctor warns before workers have to wait.
func TestDoctorLooksAtTheRoom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system; run the tests as root to include this one")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	defer exec.Command("umount", dir).Run()
	for _, test := range []struct {
		used int
		want finding
	}{
		{0, finding{"ok", "directory", "on a trusted file system, 32 MiB of 32 MiB free"}},
		{30 << 20, finding{"warning", "directory", "2.0 MiB of 32 MiB free: when it is full, every type waits; free space"}},
		{32 << 20, finding{"bad", "directory", "0 B of 32 MiB free: every type waits; free space"}},
	} {
		if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, test.used), 0o600); err != nil {
			t.Fatal(err)
		}
		var d doctor
		d.examineDirectory(dir)
		got := d.findings[len(d.findings)-1]
		if got.Verdict != test.want.Verdict || got.What != test.want.What || !strings.Contains(got.Text, test.want.Text) || (d.code != 0) != (got.Verdict == "bad") {
			t.Errorf("with %d bytes used: %+v, code %d; want %+v", test.used, d.findings, d.code, test.want)
		}
	}
	// A shared: store is a directory of this machine, too.
	for used, want := range map[int]finding{
		0:        {"ok", "store", "let one of 32 creates of the same value succeed, as required, 32 MiB of 32 MiB free"},
		30 << 20: {"warning", "store", " of 32 MiB free: when it is full, every type waits; free space"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, used), 0o600); err != nil {
			t.Fatal(err)
		}
		address, url := "shared:"+dir, ""
		d := doctor{files: fileFlags{address: &address, url: &url, stderr: func() io.Writer { return io.Discard }}}
		if !d.examineStore(t.Context()) {
			t.Fatal(d.findings)
		}
		d.files.close()
		if got := d.findings; len(got) != 1 || got[0].Verdict != want.Verdict || got[0].What != want.What || !strings.Contains(got[0].Text, want.Text) || d.code != 0 {
			t.Errorf("a store with %d bytes used: %+v, code %d; want %+v", used, got, d.code, want)
		}
	}
}

// A directory that is none is one finding, whatever the number of types.
func TestDoctorOfNoDirectory(t *testing.T) {
	_, url := storeWith(t)
	file := filepath.Join(t.TempDir(), "f.txt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runRoot(t, "doctor", "--url", url, "--dir", file, "--allow-overlay"); code != cli.ExitFailed || strings.Count(out, "\nbad ") != 1 || !strings.Contains(out, "directory") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// In a directory that is another one than the registered one, the first type has the whole text, and the others are counted.
func TestDoctorOfAnotherDirectory(t *testing.T) {
	_, url := storeWith(t)
	types := []string{}
	for i := range 13 {
		types = append(types, fmt.Sprintf("t%02d", i))
		publish(t, url, types[i], "one")
	}
	if code, _, errs := runRoot(t, "worker", "--url", url, "--dir", t.TempDir(), "--allow-overlay", "--type", "t*", "--until-empty"); code != 0 {
		t.Fatal(errs)
	}
	for want, types := range map[string][]string{
		"the same is true of 12 more types: t01, t02, t03, t04, t05, t06, t07, t08, t09, t10 and others\n": types,
		"the same is true of t01, t02\n":    types[:3],
		"t00.fpl does not exist, but file ": types[:1],
	} {
		code, out, errs := runRoot(t, append([]string{"doctor", "--url", url, "--dir", t.TempDir(), "--allow-overlay"}, types...)...)
		if bad := min(len(types), 2); code != cli.ExitIntegrity || strings.Count(out, "\nbad ") != bad || !strings.Contains(out, want) || !strings.Contains(out, "last kept in ") {
			t.Errorf("%v: exit code %d, want %d findings and %q: %s%s", types, code, bad, want, out, errs)
		}
	}
}

// Types that were moved to another kind of place are not bad: doctor says where they are, and how to check them. If no type has its files here,
// it is the wrong place.
func TestDoctorOfTypesThatWereMoved(t *testing.T) {
	store, url := storeWith(t)
	dir := t.TempDir()
	publish(t, url, "local", "one")
	if code, _, errs := runRoot(t, "worker", "--url", url, "--dir", dir, "--allow-overlay", "--type", "local", "--until-empty"); code != 0 {
		t.Fatal(errs)
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--allow-overlay --dir " + dir, cli.ExitOK, "warning  files      audit, orders: the files are in " + store + ", and are not checked here; to check them: fencepost doctor --store " + store + " audit orders\n"},
		{"--store " + store, cli.ExitOK, "fencepost doctor --dir " + dir + " local\n"},
		{"--allow-overlay --dir " + dir + " audit orders", cli.ExitIntegrity, "bad      files      the same is true of orders\n"},
	} {
		if code, out, errs := runRoot(t, append([]string{"doctor", "--url", url}, strings.Fields(test.args)...)...); code != test.code || !strings.Contains(out, test.want) {
			t.Errorf("%s: exit code %d, want %d with %q: %s%s", test.args, code, test.code, test.want, out, errs)
		}
	}
}
