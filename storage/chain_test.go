package storage_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// chainMem returns n generations of type orders with ten messages each: generation g has the indexes 10 (g-1) to 10 g - 1.
func chainMem(t *testing.T, n int) *storagetest.Mem {
	t.Helper()
	mem := storagetest.NewMem(512)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	for g := range n {
		if g > 0 {
			var err error
			w, err = w.Rotate(context.Background(), []byte("state"))
			must(t, err)
		}
		mustAppend(t, w, messages(10*g, 5))
		mustAppend(t, w, messages(10*g+5, 5))
	}
	must(t, w.Close())
	return mem
}

// generation returns the path of a generation in /d.
func generation(g uint64) string { return "/d/" + storage.GenerationName("orders", g) }

// swap exchanges the names of two files.
func swap(t *testing.T, mem *storagetest.Mem, a, b string) {
	t.Helper()
	must(t, mem.Rename(a, "/swap"))
	must(t, mem.Rename(b, a))
	must(t, mem.Rename("/swap", b))
}

// cutAfter cuts the file in the middle of the k-th batch.
func cutAfter(t *testing.T, mem *storagetest.Mem, path string, k int) {
	t.Helper()
	data := mem.ReadFile(path)
	at := 0
	for range k {
		i := strings.Index(string(data[at:]), "FPB1")
		if i < 0 {
			t.Fatalf("%s has fewer than %d batches", path, k)
		}
		at += i + 4
	}
	mem.WriteFile(path, data[:at+100])
}

// TestBrokenChains: however the files of a type are damaged, the check names the file and the missing messages.
func TestBrokenChains(t *testing.T) {
	type lost struct{ generation, first, next uint64 }
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, mem *storagetest.Mem)
		wrong  []lost
		says   []string
	}{
		{"cut with its seal and messages", func(t *testing.T, mem *storagetest.Mem) { cutAfter(t, mem, generation(3), 2) },
			[]lost{{3, 25, 30}}, []string{"orders: generation 3 (/d/orders@0003.fpl) is cut", "messages 25 to 29 are missing", "restore"}},
		{"cut, only the seal is gone", func(t *testing.T, mem *storagetest.Mem) {
			data := mem.ReadFile(generation(3))
			mem.WriteFile(generation(3), data[:len(data)-40])
		}, []lost{{3, 30, 30}}, []string{"generation 3 (/d/orders@0003.fpl) is cut", "no message is missing"}},
		{"removed", func(t *testing.T, mem *storagetest.Mem) { must(t, mem.Remove(generation(5))) },
			[]lost{{5, 40, 50}}, []string{"generation 5 (/d/orders@0005.fpl) is missing", "messages 40 to 49 are missing", "older generations to an archive"}},
		{"several removed", func(t *testing.T, mem *storagetest.Mem) {
			must(t, mem.Remove(generation(5)))
			must(t, mem.Remove(generation(6)))
			must(t, mem.Remove(generation(8)))
		}, []lost{{5, 40, 60}, {8, 70, 80}}, []string{"generations 5 to 6 (/d/orders@0005.fpl to orders@0006.fpl) are missing", "messages 40 to 59", "generation 8", "messages 70 to 79"}},
		{"removed after one that is cut", func(t *testing.T, mem *storagetest.Mem) {
			must(t, mem.Remove(generation(5)))
			cutAfter(t, mem, generation(4), 2)
		}, []lost{{5, 35, 50}}, []string{"generation 5", "so is the end of generation 4 (/d/orders@0004.fpl)", "messages 35 to 49"}},
		{"swapped", func(t *testing.T, mem *storagetest.Mem) { swap(t, mem, generation(4), generation(5)) },
			[]lost{{4, 0, 0}}, []string{"/d/orders@0004.fpl and orders@0005.fpl have swapped names", "generations 5 and 4", "no message is missing"}},
		{"renamed in a circle", func(t *testing.T, mem *storagetest.Mem) {
			swap(t, mem, generation(4), generation(5))
			swap(t, mem, generation(5), generation(6))
		}, []lost{{4, 0, 0}, {5, 0, 0}, {6, 0, 0}}, []string{"/d/orders@0004.fpl holds generation 5", "rename it to orders@0005.fpl", "/d/orders@0006.fpl holds generation 4"}},
		{"a copy of the one before it", func(t *testing.T, mem *storagetest.Mem) { mem.WriteFile(generation(4), mem.ReadFile(generation(3))) },
			[]lost{{4, 30, 40}}, []string{"generation 4 (/d/orders@0004.fpl) is missing", "orders@0004.fpl is a copy of orders@0003.fpl", "messages 30 to 39"}},
		{"a copy of the newest after it", func(t *testing.T, mem *storagetest.Mem) { mem.WriteFile(generation(11), mem.ReadFile(generation(10))) },
			[]lost{{11, 100, math.MaxUint64}}, []string{"/d/orders@0011.fpl is not generation 11", "a copy of orders@0010.fpl", "messages from 100 on"}},
		{"a copy where only an older one was", func(t *testing.T, mem *storagetest.Mem) {
			for g := uint64(1); g <= 4; g++ {
				must(t, mem.Remove(generation(g)))
			}
			mem.WriteFile(generation(2), mem.ReadFile(generation(7)))
		}, []lost{{2, 0, 0}}, []string{"/d/orders@0002.fpl is not generation 2", "a copy of orders@0007.fpl"}},
		{"the newest is another one's", func(t *testing.T, mem *storagetest.Mem) {
			other := chainMem(t, 10)
			mem.WriteFile(generation(10), other.ReadFile(generation(10)))
		}, []lost{{10, 90, math.MaxUint64}}, []string{"generation 10 (/d/orders@0010.fpl) is another file than its predecessor names", "orders@0009.fpl"}},
		{"all from one on are another's", func(t *testing.T, mem *storagetest.Mem) {
			other := chainMem(t, 10)
			for g := uint64(6); g <= 10; g++ {
				mem.WriteFile(generation(g), other.ReadFile(generation(g)))
			}
		}, []lost{{6, 50, math.MaxUint64}}, []string{"generation 6 (/d/orders@0006.fpl) is another file"}},
		{"another type's", func(t *testing.T, mem *storagetest.Mem) {
			w, err := storage.Open(context.Background(), "/e", "other", 1, storage.Options{FS: mem})
			must(t, err)
			must(t, w.Close())
			mem.WriteFile(generation(4), mem.ReadFile("/e/other.fpl"))
		}, []lost{{4, 30, 40}}, []string{"generation 4 (/d/orders@0004.fpl) is missing", "holds generation 1 of type other", "messages 30 to 39"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := chainMem(t, 10)
			c.damage(t, mem)
			chain, err := storage.ReadChain(mem, "/d", "orders")
			must(t, err)
			wrong := chain.Check()
			var got []lost
			var text string
			for _, e := range wrong {
				got = append(got, lost{e.Generation, e.LostFirst, e.LostNext})
				text += e.Error() + "\n"
				if !errors.Is(e, storage.ErrIntegrity) {
					t.Errorf("%v is not an integrity violation", e)
				}
			}
			if !slices.Equal(got, c.wrong) {
				t.Errorf("found %v, want %v", got, c.wrong)
			}
			for _, s := range c.says {
				if !strings.Contains(text, s) {
					t.Errorf("it does not say %q:\n%s", s, text)
				}
			}
			// The reports of Verify give the same result as the headers and ends alone.
			var verified storage.Chain
			for _, l := range chain {
				verified = append(verified, mustVerify(t, mem, l.Path).Link())
			}
			if a, b := fmt.Sprint(wrong), fmt.Sprint(verified.Check()); a != b {
				t.Errorf("with the reports:\n%s\nwith the files:\n%s", b, a)
			}
		})
	}
}

// TestForgedChains checks headers and seals that no writer writes.
func TestForgedChains(t *testing.T) {
	mem := chainMem(t, 4)
	chain, err := storage.ReadChain(mem, "/d", "orders")
	must(t, err)
	for _, c := range []struct {
		name   string
		change func(c storage.Chain)
		says   string
	}{
		{"begins too late", func(c storage.Chain) { c[2].First = 23 }, "begins at index 23 instead of 20, where generation 2 (/d/orders@0002.fpl) ends: messages 20 to 22 are missing"},
		{"begins too early", func(c storage.Chain) { c[2].First = 17 }, "begins at index 17 instead of 20, where generation 2 (/d/orders@0002.fpl) ends: no message is missing"},
		{"continues another one", func(c storage.Chain) { c[2].PrevFileID[3] ^= 1 }, "generation 3 (/d/orders@0003.fpl) continues file"},
		{"another successor", func(c storage.Chain) { c[1].Sealed = &storage.SealedError{Successor: storage.FileID{1}, Generation: 3} }, "another file than its predecessor names"},
		{"another generation", func(c storage.Chain) {
			c[1].Sealed = &storage.SealedError{Successor: c[2].FileID, Generation: 4}
		}, "another file than its predecessor names"},
	} {
		changed := slices.Clone(chain)
		c.change(changed)
		if wrong := changed.Check(); len(wrong) != 1 || !strings.Contains(wrong[0].Error(), c.says) {
			t.Errorf("%s: %v", c.name, wrong)
		}
	}
	chain[1].Err = errors.New("its end cannot be read")
	if wrong := slices.Delete(slices.Clone(chain), 2, 3).Check(); len(wrong) != 1 || !strings.Contains(wrong[0].Error(), "generation 3 (/d/orders@0003.fpl) is missing: it is not known which messages are missing") {
		t.Errorf("a hole after a file with an unreadable end: %v", wrong)
	}
}

// TestHealthyChains: files that writers, compactions, repairs and archiving leave behind have no problems.
func TestHealthyChains(t *testing.T) {
	ctx := context.Background()
	mem := storagetest.NewMem(512)
	o := storage.Options{FS: mem}
	var starts string
	check := func(what string) {
		t.Helper()
		c, err := storage.ReadChain(mem, "/d", "orders")
		must(t, err)
		if wrong := c.Check(); len(wrong) > 0 {
			t.Errorf("%s: %v", what, wrong)
		}
		must(t, c.CheckEnd(ctx, mem))
		starts = ""
		for _, l := range c {
			starts += fmt.Sprintf("%d:%d ", l.Generation, int64(c.Starts()[l.Path]))
		}
	}
	w := mustOpen(t, "/d", 1, o)
	check("no message")
	mustAppend(t, w, messages(0, 10))
	check("one file")
	w, err := w.Rotate(ctx, nil)
	must(t, err)
	check("a successor without messages")
	mustAppend(t, w, messages(10, 10))
	w, _, err = w.Compact(ctx, nil, storage.CompactOptions{})
	must(t, err)
	check("compacted")
	mustAppend(t, w, messages(20, 5))
	w, _, err = w.Compact(ctx, nil, storage.CompactOptions{})
	must(t, err)
	mustAppend(t, w, messages(25, 5))
	w, err = w.Rotate(ctx, nil)
	must(t, err)
	mustAppend(t, w, messages(30, 10))
	must(t, w.Close())
	check("compacted again")
	if starts != "1:10 2:10 3:10 4:30 5:-1 " {
		t.Errorf("files end at %s", starts)
	}
	// A repair keeps the indexes.
	data := mem.ReadFile(generation(5))
	i := strings.LastIndex(string(data), "payload of message 35")
	data[i] ^= 1
	mem.WriteFile(generation(5), data)
	w = mustOpen(t, "/d", 2, storage.Options{FS: mem, Salvage: true, AcceptLoss: true})
	w, _, err = w.Compact(ctx, nil, storage.CompactOptions{})
	must(t, err)
	w, err = w.Rotate(ctx, nil)
	must(t, err)
	must(t, w.Close())
	check("repaired")

	must(t, mem.Remove(generation(3)))
	check("what a compaction replaced is removed")
	must(t, mem.Remove(generation(2)))
	check("and what the one before it replaced")
	must(t, mem.Remove(generation(1)))
	check("the oldest is archived")
	must(t, mem.Remove(generation(4)))
	must(t, mem.Remove(generation(5)))
	check("all but the newest two are")
	must(t, mem.Remove(generation(6)))
	check("all but the newest are")

	// A copy under a name of its own is in no chain.
	mem.WriteFile("/d/orders-old.fpl", mem.ReadFile(generation(7)))
	check("a copy")
	c, err := storage.ReadChain(mem, "/d", "orders-old")
	must(t, err)
	if wrong := c.Check(); len(c) != 1 || len(wrong) > 0 {
		t.Errorf("a copy alone: %v", wrong)
	}
	if replaced := c.Replaced(); len(replaced) > 0 {
		t.Errorf("a copy alone counts as replaced: %v", replaced)
	}
	must(t, c.CheckEnd(ctx, mem))

	// An unreadable file is a separate problem; it is not missing.
	mem = chainMem(t, 3)
	data = mem.ReadFile(generation(2))
	data[100] ^= 1
	mem.WriteFile(generation(2), data)
	check("a damaged header")
}

// TestReplacedFileIsNotProved: only a file that a compaction provably replaced may be missing between others.
func TestReplacedFileIsNotProved(t *testing.T) {
	ctx := context.Background()
	mem := storagetest.NewMem(512)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	mustAppend(t, w, messages(0, 10))
	w, err := w.Rotate(ctx, nil)
	must(t, err)
	mustAppend(t, w, messages(10, 10))
	w, _, err = w.Compact(ctx, nil, storage.CompactOptions{})
	must(t, err)
	must(t, w.Close())
	must(t, mem.Remove(generation(2)))
	c, err := storage.ReadChain(mem, "/d", "orders")
	must(t, err)
	if wrong := c.Check(); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	c[1].PrevFileID = storage.FileID{1}
	if wrong := c.Check(); len(wrong) != 1 || !strings.Contains(wrong[0].Error(), "does not continue the file that the seal of orders.fpl names") {
		t.Error(wrong)
	}
}

// TestNewestIsMissing: a sealed file without its successor is reported, but not while its writer is between the seal and the name.
func TestNewestIsMissing(t *testing.T) {
	ctx := context.Background()
	synctest.Test(t, func(t *testing.T) {
		mem := chainMem(t, 5)
		must(t, mem.Remove(generation(5)))
		c, err := storage.ReadChain(mem, "/d", "orders")
		must(t, err)
		if wrong := c.Check(); len(wrong) > 0 {
			t.Errorf("what is here: %v", wrong)
		}
		err = c.CheckEnd(ctx, mem)
		checkError(t, err, new(*storage.ChainError), storage.ErrIntegrity, "/d/orders@0004.fpl is sealed", "generation 5 (/d/orders@0005.fpl), is not here",
			"messages from 40 on", "mount or restore", "a worker for this type creates it with the next message")

		canceled, cancel := context.WithCancel(ctx)
		cancel()
		if err := c.CheckEnd(canceled, mem); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}

		// Another file under that name is not the successor.
		mem.WriteFile(generation(5), chainMem(t, 5).ReadFile(generation(5)))
		checkError(t, c.CheckEnd(ctx, mem), new(*storage.ChainError), storage.ErrIntegrity, "another file than its predecessor names")
	})

	// A writer is paused for a second between the seal and the name.
	synctest.Test(t, func(t *testing.T) {
		mem := storagetest.NewMem(512)
		sealed := make(chan bool)
		tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpLink && strings.HasSuffix(c.Name, "@0002.fpl") {
				close(sealed)
				time.Sleep(time.Second)
			}
			return nil
		}}
		w := mustOpen(t, "/d", 1, storage.Options{FS: tap})
		mustAppend(t, w, messages(0, 10))
		done := make(chan error)
		go func() {
			n, err := w.Rotate(ctx, nil)
			done <- errors.Join(err, n.Close())
		}()
		<-sealed
		c, err := storage.ReadChain(mem, "/d", "orders")
		must(t, err)
		if len(c) != 1 || c[0].Sealed == nil {
			t.Fatalf("scenario: %+v", c)
		}
		must(t, c.CheckEnd(ctx, mem))
		must(t, <-done)
	})
}

// TestChainReadsEnds: reading a chain reads only the header and the end of an old file.
func TestChainReadsEnds(t *testing.T) {
	race.Skip(t)
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	for n := range 40 {
		recs := messages(n, 1)
		recs[0].Payload = make([]byte, 1<<20)
		mustAppend(t, w, recs)
	}
	w, err := w.Rotate(context.Background(), nil)
	must(t, err)
	must(t, w.Close())
	read := int64(0)
	tap := &storagetest.Tap{FS: mem, After: func(c storagetest.Call) {
		if c.Op == storagetest.OpRead {
			read += c.Len
		}
	}}
	c, err := storage.ReadChain(tap, "/d", "orders")
	must(t, err)
	if len(c) != 2 || c[0].Next != 40 || c[0].Sealed == nil || read > 2<<20 {
		t.Errorf("%d bytes were read of %+v", read, c)
	}
}

// TestChainAt: the newest file that has an index is found, and a file whose header cannot be read is none.
func TestChainAt(t *testing.T) {
	c := storage.Chain{{Type: "orders", First: 5}, {Type: "orders", First: 10}, {Type: "orders", First: 10}, {}, {Type: "orders", First: 20}}
	for index, want := range map[uint64]int{0: -1, 4: -1, 5: 0, 9: 0, 10: 2, 19: 2, 20: 4, math.MaxUint64: 4} {
		if at := c.At(index); at != want {
			t.Errorf("index %d is in file %d, want %d", index, at, want)
		}
	}
}
