package format_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// TestPythonReaderAgreesOnChains: on series of files, healthy and broken, read_fpl.py and package storage report the same
// problems of the same files, and print the same messages.
func TestPythonReaderAgreesOnChains(t *testing.T) {
	python := findPython(t)
	deterministic(t)
	const files = 8
	name := func(dir string, g int) string { return filepath.Join(dir, storage.GenerationName("orders", uint64(g))) }
	sourceDir := filepath.Join(t.TempDir(), "data")
	writeChain(t, sourceDir, files)
	other := filepath.Join(t.TempDir(), "data")
	writeChain(t, other, files)
	move := func(t *testing.T, from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	copyFile := func(t *testing.T, from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, dir string, gs ...int) {
		for _, g := range gs {
			if err := os.Remove(name(dir, g)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(t *testing.T, path string, n int64) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, info.Size()-n); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		breaks int
		newest bool
	}{
		{"healthy", func(*testing.T, string) {}, 0, false},
		{"a copy kept beside", func(t *testing.T, dir string) { copyFile(t, name(dir, 2), filepath.Join(dir, "orders-old.fpl")) }, 0, false},
		{"older ones archived", func(t *testing.T, dir string) { remove(t, dir, 1, 2) }, 0, false},
		{"what a compaction replaced removed", func(t *testing.T, dir string) { remove(t, dir, 4) }, 0, false},
		{"cut, its seal", func(t *testing.T, dir string) { cut(t, name(dir, 3), 8) }, 1, false},
		{"cut, messages too", func(t *testing.T, dir string) { cut(t, name(dir, 3), 900) }, 1, false},
		{"removed", func(t *testing.T, dir string) { remove(t, dir, 6) }, 1, false},
		{"several removed", func(t *testing.T, dir string) { remove(t, dir, 2, 6, 7) }, 2, false},
		{"removed after a cut one", func(t *testing.T, dir string) { remove(t, dir, 3); cut(t, name(dir, 2), 900) }, 1, false},
		{"swapped", func(t *testing.T, dir string) {
			move(t, name(dir, 2), dir+"/s")
			move(t, name(dir, 3), name(dir, 2))
			move(t, dir+"/s", name(dir, 3))
		}, 1, false},
		{"in a circle", func(t *testing.T, dir string) {
			move(t, name(dir, 2), dir+"/s")
			move(t, name(dir, 3), name(dir, 2))
			move(t, name(dir, 4), name(dir, 3))
			move(t, dir+"/s", name(dir, 4))
		}, 3, false},
		{"a copy", func(t *testing.T, dir string) { copyFile(t, name(dir, 2), name(dir, 3)) }, 1, false},
		{"a copy after the newest", func(t *testing.T, dir string) { copyFile(t, name(dir, files), name(dir, files+1)) }, 1, false},
		{"a copy before the oldest", func(t *testing.T, dir string) { remove(t, dir, 1, 2); copyFile(t, name(dir, 5), name(dir, 1)) }, 1, false},
		{"another's", func(t *testing.T, dir string) { copyFile(t, name(other, 6), name(dir, 6)) }, 2, false},
		{"another's from one on", func(t *testing.T, dir string) {
			for g := 6; g <= files; g++ {
				copyFile(t, name(other, g), name(dir, g))
			}
		}, 1, false},
		{"a damaged header", func(t *testing.T, dir string) {
			data, err := os.ReadFile(name(dir, 3))
			if err != nil {
				t.Fatal(err)
			}
			data[300] ^= 1
			if err := os.WriteFile(name(dir, 3), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 0, false},
		{"removed after a damaged header", func(t *testing.T, dir string) {
			remove(t, dir, 3)
			data, err := os.ReadFile(name(dir, 2))
			if err != nil {
				t.Fatal(err)
			}
			data[300] ^= 1
			if err := os.WriteFile(name(dir, 2), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 1, false},
		{"the newest removed", func(t *testing.T, dir string) { remove(t, dir, files) }, 1, true},
		{"the newest given up", func(t *testing.T, dir string) {
			lost := storage.ReadLink(nil, name(dir, files))
			remove(t, dir, files)
			giveUp(t, dir, storage.Entry{FileID: lost.FileID, Generation: files, DurableIndex: lost.First})
		}, 0, false},
		{"later ones given up after an old copy", func(t *testing.T, dir string) {
			giveUp(t, dir, storage.Entry{FileID: storage.FileID{1}, Generation: files + 2})
		}, 0, false},
		{"the next one given up after an old copy", func(t *testing.T, dir string) {
			giveUp(t, dir, storage.Entry{FileID: storage.FileID{1}, Generation: files + 1})
			remove(t, dir, 6)
		}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(sourceDir)); err != nil {
				t.Fatal(err)
			}
			c.damage(t, dir)
			chain, err := storage.ReadChain(nil, dir, "orders")
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, l := range chain {
				paths = append(paths, l.Path)
			}
			type lost struct {
				Path       string
				Generation uint64
				First      uint64  `json:"lost_first"`
				Next       *uint64 `json:"lost_next"`
				Unknown    bool
			}
			var want, got []lost
			add := func(e *storage.ChainError) {
				l := lost{e.Path, e.Generation, e.LostFirst, &e.LostNext, e.Unknown}
				if e.LostNext == math.MaxUint64 {
					l.Next = nil
				}
				want = append(want, l)
			}
			for _, e := range chain.Check() {
				add(e)
			}
			if err := chain.CheckEnd(t.Context(), nil); err != nil {
				add(err.(*storage.ChainError))
			}
			if len(want) != c.breaks {
				t.Errorf("storage finds %d problems, want %d: %v", len(want), c.breaks, chain.Check())
			}
			catArgs := append([]string{"cat", "--format", "json"}, paths...)
			outcomes, err := runPython(python, [][]string{{"verify", dir}, append([]string{"verify"}, paths...), catArgs})
			if err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(outcomes[0].Stdout) {
				var r struct {
					OK    bool
					Chain []lost
				}
				if err := json.Unmarshal(line, &r); err != nil || r.OK && len(r.Chain) > 0 {
					t.Fatalf("%v: %s", err, line)
				}
				got = append(got, r.Chain...)
			}
			slices.SortStableFunc(got, func(a, b lost) int { return int(a.Generation) - int(b.Generation) })
			if a, b := jsonText(t, want), jsonText(t, got); a != b {
				t.Errorf("storage finds\n%s\npython\n%s\n%s", a, b, outcomes[0].Stderr)
			}
			damaged := strings.HasSuffix(c.name, "a damaged header")
			if wantExit := c.breaks > 0 || damaged; (outcomes[0].Exit == exitIntegrity) != wantExit || !wantExit && outcomes[0].Exit != 0 {
				t.Errorf("verify of the directory: exit code %d\n%s", outcomes[0].Exit, outcomes[0].Stderr)
			}
			// If files are named one by one, it is unknown whether the newest of them is the newest of the type.
			if wantExit := c.breaks > 0 && !c.newest || damaged; (outcomes[1].Exit == exitIntegrity) != wantExit || (outcomes[2].Exit == exitIntegrity) != wantExit {
				t.Errorf("verify of the files: exit code %d, cat %d\n%s", outcomes[1].Exit, outcomes[2].Exit, outcomes[1].Stderr)
			}
			switch {
			case damaged:
			case c.breaks > 0 && !c.newest:
				if len(outcomes[2].Stdout) > 0 {
					t.Errorf("cat prints %d bytes", len(outcomes[2].Stdout))
				}
			default:
				next := chain[0].First
				for line := range bytes.Lines(outcomes[2].Stdout) {
					var m struct{ Index uint64 }
					if err := json.Unmarshal(line, &m); err != nil || m.Index != next {
						t.Fatalf("%v: index %d of cat, want %d", err, m.Index, next)
					}
					next++
				}
				if next != chain[len(chain)-1].Next {
					t.Errorf("cat prints messages up to %d of %d", next, chain[len(chain)-1].Next)
				}
			}
		})
	}
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// writeChain writes n generations of type orders. The fifth is a compaction of the fourth.
func writeChain(t *testing.T, dir string, n int) {
	t.Helper()
	w := newWorld(t)
	writer, err := storage.Open(context.Background(), dir, "orders", 1, storage.Options{AllowOverlay: true})
	w.must(err)
	for g := 1; g <= n; g++ {
		for range 3 {
			w.must(writer.Append(w.messages(7)))
		}
		switch {
		case g == n:
		case g == 4:
			writer, _, err = writer.Compact(context.Background(), []byte("state"), storage.CompactOptions{})
		default:
			writer, err = writer.Rotate(context.Background(), []byte("state"))
		}
		w.must(err)
	}
	w.must(writer.Close())
}

// giveUp makes a file that replaces the registered one, which is lost.
func giveUp(t *testing.T, dir string, registered storage.Entry) {
	t.Helper()
	w := newWorld(t)
	r := &oneEntry{e: registered}
	writer, err := storage.Open(context.Background(), dir, "orders", 9, storage.Options{AllowOverlay: true, Registry: r, Salvage: true, AcceptLoss: true})
	w.must(err)
	if _, ok := writer.GivenUp(); !ok {
		writer, _, err = writer.Compact(context.Background(), []byte("state"), storage.CompactOptions{})
		w.must(err)
	}
	w.must(writer.Append(w.messages(3)))
	w.must(writer.Close())
	if r.e.Generation != registered.Generation+1 {
		t.Errorf("registered is %+v", r.e)
	}
}

// oneEntry is a registry of one type.
type oneEntry struct{ e storage.Entry }

func (r *oneEntry) Lookup(context.Context, string) (storage.Entry, bool, error) {
	return r.e, true, nil
}
func (r *oneEntry) Register(context.Context, string, storage.Entry) (storage.Entry, error) {
	return r.e, nil
}

func (r *oneEntry) Succeed(_ context.Context, _ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	if r.e.FileID == old {
		r.e = e
	}
	return r.e, true, nil
}

func (r *oneEntry) Update(_ context.Context, _ string, e storage.Entry) (bool, error) {
	return r.e.FileID == e.FileID, nil
}
