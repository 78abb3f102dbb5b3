package format_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// TestPythonReaderAgreesOnDamage applies one to four random mutations to files of all kinds, thousands of times, and compares the
// findings of package storage and read_fpl.py. It calls the package instead of the program: a process per file would take most
// of the time, and TestPythonReaderAgrees covers the program.
func TestPythonReaderAgreesOnDamage(t *testing.T) {
	python := findPython(t)
	files := 1000
	if testing.Short() {
		files = 300
	}
	if os.Getenv("FENCEPOST_TEST_LONG") == "1" {
		files = 20_000
	}
	deterministic(t)
	healthy := healthyFile(t)
	bases := []state{
		{name: "healthy", data: healthy}, {name: "fenced", data: fencedFile(t)}, {name: "payloads that are files", data: embeddingFile(t)},
		{name: "retracted", data: retractedFile(t)}, {name: "sealed", data: sealed(healthy)}, {name: "compressed", data: compressedFile(t)},
		{name: "repaired", data: repairedFile(t)},
	}
	r := random("damage")
	dir := t.TempDir()
	differences, exits := 0, map[int]int{}
	for done := 0; done < files && differences < maxShown; done += 250 {
		var states []state
		var paths []string
		for i := range 250 {
			s := bases[r.IntN(len(bases))]
			for range 1 + r.IntN(4) {
				s = mutate(r, s)
			}
			states = append(states, s)
			paths = append(paths, filepath.Join(dir, fmt.Sprintf("%d.fpl", i)))
			if err := os.WriteFile(paths[i], s.data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		gots, err := pythonFindings(python, paths)
		if err != nil {
			t.Fatal(err)
		}
		for i, path := range paths {
			want := storageFinding(t, path)
			exits[want.verify]++
			if diff := want.differences(gots[i]); diff != "" {
				differences++
				t.Errorf("file %d, %s:\n%s\nstorage: %v\npython:  %v", done+i, states[i].name, diff, want, gots[i])
			}
		}
	}
	t.Logf("%d files; exit codes of verify: %v", files, exits)
	for _, code := range []int{exitOK, exitFailed, exitIntegrity} {
		if exits[code] == 0 {
			t.Errorf("no file with exit code %d: the damage is too uniform", code)
		}
	}
}

// TestWrittenByANewerVersion: a batch with an unknown codec or flag is not damage. Both readers read the messages before it, verify
// the batches around it, and call such a file neither healthy nor damaged.
func TestWrittenByANewerVersion(t *testing.T) {
	python := findPython(t)
	deterministic(t)
	data := healthyFile(t)
	rs := findRecords(data)
	var names, paths []string
	dir := t.TempDir()
	for _, flags := range []uint16{2, 3, 4, 5, 6, 7, 0x10, 0x80, 0x8000, 0xFFF9} {
		for _, broken := range []bool{false, true} {
			c := bytes.Clone(data)
			last := rs[len(rs)-1]
			le.PutUint16(c[last.head+36:], flags)
			reseal(c, last)
			if broken {
				c[rs[3].head+50] ^= 1
			}
			names = append(names, fmt.Sprintf("flags %#x, damage before: %v", flags, broken))
			paths = append(paths, filepath.Join(dir, fmt.Sprintf("%d.fpl", len(paths))))
			if err := os.WriteFile(paths[len(paths)-1], c, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	gots, err := pythonFindings(python, paths)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		want := storageFinding(t, path)
		cat := exitFailed
		if i%2 == 1 {
			cat = exitIntegrity // the damage comes first
		}
		for who, f := range map[string]finding{"storage": want, "python": gots[i]} {
			if f.verify != exitFailed || f.cat != cat || len(f.damage) != i%2 || len(f.out) == 0 {
				t.Errorf("%s: %s says %v", names[i], who, f)
			}
		}
		if !bytes.Equal(want.out, gots[i].out) {
			t.Errorf("%s: the outputs of cat differ", names[i])
		}
	}
}

// TestPythonWithoutZstd: the reader checks compressed batches even if it cannot decode them, and reports that.
func TestPythonWithoutZstd(t *testing.T) {
	python := findPython(t)
	deterministic(t)
	data := compressedFile(t)
	damaged := bytes.Clone(data)
	rs := findRecords(data)
	first := slices.IndexFunc(rs, func(r record) bool { return r.magic == "FPB1" && data[r.head+36]&7 == 1 })
	damaged[rs[first].end-20] ^= 1
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "healthy.fpl"), filepath.Join(dir, "damaged.fpl")}
	for i, c := range [][]byte{data, damaged} {
		if err := os.WriteFile(paths[i], c, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gots, err := pythonFindings(python, paths)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		want := storageFinding(t, path)
		if diff := want.differences(gots[i]); diff != "" || want.sum.Messages < 100 || len(want.damage) != i {
			t.Errorf("%s: %s\nstorage: %v\npython:  %v", path, diff, want, gots[i])
		}
	}
	if len(gots[0].sum.TooNew) == 0 {
		t.Skip("this Python decodes zstd")
	}
	if f := gots[0]; f.cat != exitFailed || f.verify != exitFailed || !bytes.Contains(f.out, []byte(`"index":0,`)) || !strings.Contains(f.text, "needs Python 3.14") {
		t.Errorf("healthy: %v, printed %q", f, f.out)
	}
}

// finding is what a reader reports about a file.
type finding struct {
	cat, verify int // exit codes
	out         []byte
	sum         summary
	damage      []damage
	text        string // its messages for users
}

func (f finding) String() string {
	return fmt.Sprintf("cat %d, verify %d, %d messages, torn %d, void %d, %v; %s", f.cat, f.verify, f.sum.Messages, f.sum.TornBytes, f.sum.VoidBytes, f.damage, f.text)
}

// damage is one entry of a report: a corruption, or a retraction.
type damage struct {
	Kind   string `json:"kind"`
	Offset int64  `json:"offset"`
	End    int64  `json:"end"`
	First  uint64 `json:"lost_first"`
	Next   uint64 `json:"lost_next"`
}

// same reports whether two readers report the same damage: its bytes, and the lost messages. The bytes of a retraction may differ: one
// reader reports the position of the open record.
func same(a, b damage) bool {
	if a.Kind != b.Kind || (a.First < a.Next || b.First < b.Next) && (a.First != b.First || a.Next != b.Next) {
		return false
	}
	return a.Offset == b.Offset && a.End == b.End || a.Kind == "retraction"
}

func (want finding) differences(got finding) string {
	var diff []string
	if slices.ContainsFunc(got.sum.TooNew, func(s string) bool { return strings.Contains(s, "Python") }) {
		// It cannot decode zstd, and says so; everything else must agree.
		if got.verify != exitFailed || got.cat == exitOK || !bytes.HasPrefix(want.out, got.out) {
			diff = append(diff, "it read a body that it cannot decode")
		}
		want.cat, want.verify, want.out, want.sum.OK = got.cat, got.verify, got.out, false
		want.sum.Messages += want.sum.Skipped + want.sum.Lost - got.sum.Skipped - got.sum.Lost
		want.sum.Skipped, want.sum.Gaps, want.sum.Lost = got.sum.Skipped, got.sum.Gaps, got.sum.Lost
		if len(want.damage) > len(got.damage) { // bodies that do not decode
			want.damage = got.damage
		}
	}
	if want.cat != got.cat {
		diff = append(diff, fmt.Sprintf("cat: exit code %d of storage, %d of python", want.cat, got.cat))
	} else if !bytes.Equal(want.out, got.out) {
		diff = append(diff, fmt.Sprintf("cat: the outputs differ from byte %d on", firstDifference(want.out, got.out)))
	}
	if want.verify != got.verify {
		diff = append(diff, fmt.Sprintf("verify: exit code %d of storage, %d of python", want.verify, got.verify))
	} else if want.verify != exitFailed { // a reader without a verdict may stop anywhere
		diff = append(diff, want.sum.differences(got.sum)...)
		if !slices.EqualFunc(want.damage, got.damage, same) {
			diff = append(diff, fmt.Sprintf("damage %v of storage, %v of python", want.damage, got.damage))
		}
	}
	return strings.Join(diff, "\n")
}

// The exit codes of `fencepost verify` and of the Python reader.
const (
	exitOK        = 0
	exitFailed    = 1
	exitIntegrity = 3
)

func exitCode(err error) int {
	var (
		foreign *storage.ForeignFileError
		other   *storage.WrongTypeError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, storage.ErrIntegrity), errors.As(err, &foreign), errors.As(err, &other):
		return exitIntegrity
	}
	return exitFailed
}

// storageFinding runs the code of `fencepost cat --format json` and `fencepost verify`.
func storageFinding(t testing.TB, path string) finding {
	t.Helper()
	var f finding
	var out bytes.Buffer
	err := catJSON(&out, path)
	f.cat, f.out = exitCode(err), out.Bytes()
	rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{})
	if err == nil {
		err = rep.Err()
	}
	f.verify, f.text = exitCode(err), fmt.Sprint(err)
	f.sum = summary{File: path, OK: err == nil}
	if rep == nil {
		return f
	}
	f.sum = summary{File: path, OK: err == nil, Type: rep.Type, FileID: rep.FileID.String(), Messages: rep.Messages - rep.Skipped - rep.Lost, FirstIndex: rep.FirstIndex,
		NextIndex: rep.NextIndex, Skipped: rep.Skipped, Gaps: rep.Gaps, Lost: rep.Lost, Size: rep.Size, DurableEnd: rep.DurableEnd, TornBytes: rep.Torn.End - rep.Torn.Offset}
	for _, v := range rep.Void {
		f.sum.VoidBytes += v.End - v.Offset
	}
	for _, g := range rep.Regions {
		f.sum.Regions = append(f.sum.Regions, region{g.Epoch, g.Holder.Host, g.Holder.PID, g.First, g.Next, g.Offset, g.End})
	}
	for _, err := range rep.Corrupt {
		var c *storage.CorruptError
		var gone *storage.RetractedError
		switch {
		case errors.As(err, &c):
			f.damage = append(f.damage, damage{"corruption", c.Offset, c.End, c.LostFirst, c.LostNext})
		case errors.As(err, &gone):
			f.damage = append(f.damage, damage{"retraction", gone.Offset, gone.Offset, gone.First, gone.Next})
		}
		f.sum.Corruptions = append(f.sum.Corruptions, json.RawMessage(err.Error()))
	}
	return f
}

// catJSON prints what `fencepost cat --format json` prints.
func catJSON(w io.Writer, path string) error {
	r, err := storage.OpenReader(path, storage.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if rec.Kind != storage.KindSkipped && rec.Kind != storage.KindLost {
			if err := printJSON(w, &rec); err != nil {
				return err
			}
		}
	}
}

// pythonFindings runs read_fpl.py on all of the files, with one process.
func pythonFindings(python string, paths []string) ([]finding, error) {
	var commands [][]string
	for _, path := range paths {
		commands = append(commands, []string{"cat", path, "--format", "json"}, []string{"verify", path})
	}
	outcomes, err := runPython(python, commands)
	if err != nil {
		return nil, err
	}
	var fs []finding
	for o := range slices.Chunk(outcomes, 2) {
		f, err := pythonFinding(o[0], o[1])
		if err != nil {
			return nil, err
		}
		fs = append(fs, f)
	}
	return fs, nil
}

// pythonFinding returns the finding in the outcomes of read_fpl.py cat and verify.
func pythonFinding(cat, verify outcome) (finding, error) {
	f := finding{cat: cat.Exit, out: cat.Stdout, verify: verify.Exit, text: verify.Stderr}
	if err := json.Unmarshal(verify.Stdout, &f.sum); err != nil {
		return f, fmt.Errorf("%w: %s %s", err, verify.Stdout, verify.Stderr)
	}
	for _, c := range f.sum.Corruptions {
		var d damage
		if err := json.Unmarshal(c, &d); err != nil {
			return f, err
		}
		f.damage = append(f.damage, d)
	}
	return f, nil
}

// mutate applies one mutation to a file, such as devices, file systems, operators and newer or broken programs cause.
func mutate(r *rand.Rand, s state) state {
	c := bytes.Clone(s.data)
	size := []int{8, 64, 512, 4096}[r.IntN(4)]
	// Blocks are anywhere after the header, sometimes in it.
	block := func() []byte {
		at := r.IntN(len(c)/size + 1)
		if at*size < headerPage && r.IntN(20) > 0 {
			at = min(headerPage/size, len(c)/size)
		}
		return c[at*size : min((at+1)*size, len(c))]
	}
	noise := func(b []byte) {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
	var what string
	switch r.IntN(12) {
	case 0, 1:
		n := 1 + r.IntN(3)
		what = fmt.Sprintf("%d bits flipped", n)
		for range n {
			if b := block(); len(b) > 0 {
				b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			}
		}
	case 2:
		n := len(c) - r.IntN(len(c)/4+1)
		if r.IntN(20) == 0 {
			n = r.IntN(len(c) + 1)
		}
		c, what = c[:n], fmt.Sprintf("cut at %d", n)
	case 3:
		what = fmt.Sprintf("zeros in %d bytes", size)
		clear(block())
	case 4:
		what = fmt.Sprintf("noise in %d bytes", size)
		noise(block())
	case 5:
		what = fmt.Sprintf("a block of %d bytes where another one was", size)
		copy(block(), bytes.Clone(block()))
	case 6:
		what = fmt.Sprintf("two blocks of %d bytes swapped", size)
		a, b := block(), block()
		was := bytes.Clone(a)
		copy(a, b)
		copy(b, was)
	case 7:
		what = fmt.Sprintf("%d bytes of garbage appended", size)
		garbage := make([]byte, size)
		if noise(garbage); r.IntN(2) == 0 {
			copy(garbage, block())
		}
		c = append(c, garbage...)
	case 8:
		what = "the file appended to itself"
		if len(c) > 1<<20 {
			break
		}
		c = append(c, c[min(len(c), headerPage)*r.IntN(2):]...)
	case 9, 10:
		c, what = forge(r, c)
	case 11:
		n := 1 + r.IntN(size)
		what = fmt.Sprintf("%d bytes lost in the middle", n)
		at := min(len(c), headerPage) + r.IntN(max(1, len(c)-headerPage))
		c = slices.Delete(c, min(at, len(c)), min(at+n, len(c)))
	}
	return state{name: s.name + ", " + what, data: c}
}

// forge changes a field of a record or a byte of its body, gives it correct checksums, and sometimes moves it to the
// end or makes all records after it continue from it: as a newer version or a broken program might write it.
func forge(r *rand.Rand, c []byte) ([]byte, string) {
	rs := findRecords(c)
	if len(rs) == 0 {
		return c, "nothing"
	}
	i := r.IntN(len(rs))
	rec := rs[i]
	what := fmt.Sprintf("%s at %d", rec.magic, rec.off)
	if r.IntN(4) == 0 {
		c = append(c, make([]byte, -len(c)&7)...)
		c, rec = copyToEnd(c, rec, func(h, _ []byte) { le.PutUint64(h[16:], le.Uint64(h[16:])+uint64(r.IntN(3))) })
		what += fmt.Sprintf(" copied to %d", rec.off)
		rs = append(rs, rec)
		i = len(rs) - 1
	}
	h := c[rec.head:rec.end]
	fields := []struct {
		name     string
		at, size int
	}{{"magic", 0, 4}, {"offset", 8, 8}, {"epoch", 16, 8}, {"base_index", 24, 8}, {"count", 32, 4}, {"flags", 36, 2}, {"flags", 36, 2},
		{"header_len", 38, 2}, {"stored_len", 40, 4}, {"raw_len", 44, 4}, {"durable_end", 48, 8}, {"anchor_off", 56, 8}, {"chain", 64, 8},
		{"session", 72, 8}, {"base_time", 80, 8}, {"schema_id", 92, 4}}
	switch f := fields[r.IntN(len(fields))]; r.IntN(8) {
	case 0, 1: // unchanged
	case 2, 3:
		if len(h) > 96 {
			at := 96 + r.IntN(len(h)-96)
			h[at] ^= 1 << r.IntN(8)
			what += fmt.Sprintf(" with a bit of byte %d flipped", at)
		}
	case 4:
		b := h[f.at : f.at+f.size]
		v := uint64(r.IntN(1 << 16))
		if r.IntN(2) == 0 {
			v = []uint64{0, 1, 1<<63 - 1, 1 << 63, 1<<63 + 1, 1<<64 - 1, uint64(rec.off), uint64(len(c)), 96, 104}[r.IntN(10)]
		}
		var all [8]byte
		le.PutUint64(all[:], v)
		copy(b, all[:])
		what += fmt.Sprintf(" with %s %d", f.name, v)
	default:
		b := h[f.at : f.at+f.size]
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		what += fmt.Sprintf(" with a bit of %s flipped", f.name)
	}
	reseal(c, rec)
	if r.IntN(2) == 0 {
		what += ", all after it continue from it"
		for k := i + 1; k < len(rs); k++ {
			if next, before := c[rs[k].head:], c[rs[k-1].head:]; rs[k].magic != "FPF1" && rs[k-1].magic != "FPF1" {
				le.PutUint64(next[64:], uint64(le.Uint32(before[88:]))<<32|uint64(le.Uint32(before[4:])))
				reseal(c, rs[k])
			}
		}
	}
	return c, what
}

// reseal gives a record correct checksums.
func reseal(c []byte, r record) {
	h := c[r.head:r.end]
	le.PutUint32(h[88:], checksum(c, h[96:]))
	le.PutUint32(h[4:], checksum(c, h[:4], h[8:96]))
}

// findRecords finds bytes that look like a record and contain their own offset, in files of any state.
func findRecords(c []byte) (rs []record) {
	for p := headerPage; p+112 <= len(c); p += 8 {
		r := record{off: p, head: p}
		if bytes.Equal(c[p:p+16], c[32:48]) {
			r.head += 16
		}
		h := c[r.head:]
		r.magic, r.headerLen, r.stored = string(h[:4]), int(le.Uint16(h[38:])), int(le.Uint32(h[40:]))
		r.end = r.head + (r.headerLen+r.stored+7)&^7
		if strings.HasPrefix(r.magic, "FP") && r.headerLen >= 96 && int(le.Uint64(h[8:])) == p && r.end > p && r.end <= len(c) {
			rs = append(rs, r)
		}
	}
	return rs
}
