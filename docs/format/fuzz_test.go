package format_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// FuzzPythonReader compares package storage and read_fpl.py on files that the fuzzer changes, and that mutate changes afterwards with a seed: most
// changes of the fuzzer alone only break a checksum. One Python process reads them all.
func FuzzPythonReader(f *testing.F) {
	py := startPython(f, findPython(f))
	path := filepath.Join(f.TempDir(), "fuzz.fpl")
	healthy := healthyFile(f)
	for i, data := range [][]byte{healthy, fencedFile(f), embeddingFile(f), retractedFile(f), sealed(healthy), compressedFile(f), repairedFile(f), openedFile(f), example(f)} {
		if len(data) > 1<<20 {
			continue // the fuzzer accepts no larger ones
		}
		f.Add(data, uint64(0), byte(0))
		f.Add(data, uint64(i), byte(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, times byte) {
		s := state{data: data}
		r := rand.New(rand.NewPCG(seed, 1))
		for range times % 5 {
			s = mutate(r, s)
		}
		if len(s.data) > 4<<20 {
			return // the Python reader would take seconds
		}
		if err := os.WriteFile(path, s.data, 0o600); err != nil {
			t.Fatal(err)
		}
		cat, verify := py.run(t, "cat", path, "--format", "json"), py.run(t, "verify", path)
		got, err := pythonFinding(cat, verify)
		if err != nil {
			t.Fatal(err)
		}
		want := storageFinding(t, path)
		if diff := want.differences(got); diff != "" {
			t.Fatalf("%s:\n%s\nstorage: %v\npython:  %v", s.name, diff, want, got)
		}
	})
}

// reader is a read_fpl.py process that runs one command after the other.
type reader struct {
	in  io.Writer
	out *json.Decoder
}

func startPython(t testing.TB, python string) *reader {
	t.Helper()
	cmd := exec.Command(python, "-B", "-u", script, "batch") // -u: each outcome is written immediately
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
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
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	})
	return &reader{in, json.NewDecoder(out)}
}

func (r *reader) run(t testing.TB, args ...string) (o outcome) {
	t.Helper()
	line, err := json.Marshal(args)
	if err == nil {
		_, err = fmt.Fprintf(r.in, "%s\n", line)
	}
	if err == nil {
		err = r.out.Decode(&o)
	}
	if err != nil {
		t.Fatalf("%s %q: %v", script, args, err)
	}
	return o
}
