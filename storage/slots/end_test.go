package slots_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

const (
	endFolder = "orders/00000001/0123456789abcdef"
	endName   = "orders.fpl"
)

func endSlot(off int64) string { return fmt.Sprintf("%s/%020d", endFolder, off) }

// newEndFile returns a store with a file, and the content of the file: the header, and then the given number of slots of 1 to most bytes.
func newEndFile(rnd *rand.Rand, slots, most int) (mem *slotstest.Mem, content []byte) {
	mem = slotstest.NewMem(most)
	mem.Set("orders/generations/00000001", []byte("0123456789abcdef"))
	add := func(n int) {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(1 + rnd.IntN(255))
		}
		mem.Set(endSlot(int64(len(content))), b)
		content = append(content, b...)
	}
	for len(content) < 4096 {
		add(1 + rnd.IntN(most))
	}
	for range slots {
		add(1 + rnd.IntN(most))
	}
	return mem, content
}

// narrow fails the test if a folder of slots is listed as a whole, and counts the listed slots.
type narrow struct {
	slots.Store
	t      *testing.T
	listed int
}

func (s *narrow) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	if strings.HasPrefix(endFolder, folder) {
		s.t.Errorf("%s is listed", folder)
	}
	return s.Store.List(ctx, folder)
}

func (s *narrow) Count(ctx context.Context, folder string) (int, error) {
	return slots.OrderedOf(s.Store).Count(ctx, folder)
}

func (s *narrow) Last(ctx context.Context, folder string) (slots.Entry, error) {
	return slots.OrderedOf(s.Store).Last(ctx, folder)
}

func (s *narrow) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	all, err := slots.OrderedOf(s.Store).Between(ctx, folder, from, to, n)
	s.listed += len(all)
	return all, err
}

func openIn(t *testing.T, s slots.Store, mode storage.Mode) storage.InPieces {
	t.Helper()
	f, err := slots.New(context.Background(), s).Open(endName, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f.(storage.InPieces)
}

// TestAWriterListsTheEnd: the number of slots that a writer lists does not depend on the length of the file. It knows how many slots the file
// has, and lists the others when it reads them, each once.
func TestAWriterListsTheEnd(t *testing.T) {
	mem, content := newEndFile(rand.New(rand.NewPCG(1, 2)), 3000, 500)
	s := &narrow{Store: mem, t: t}
	f := openIn(t, s, storage.ModeAppend)
	all := len(mem.Names()) - 1
	if s.listed > 60 || f.Pieces() != all {
		t.Errorf("%d slots were listed; it has %d slots, want %d", s.listed, f.Pieces(), all)
	}
	read := func(off, n int) {
		t.Helper()
		p := make([]byte, n)
		if _, err := f.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, content[off:off+n]) {
			t.Errorf("%d bytes at %d are wrong, %v", n, off, err)
		}
	}
	read(0, 4096)
	read(len(content)-4096, 4096)
	if s.listed > 100 {
		t.Errorf("%d slots were listed", s.listed)
	}
	if _, _, err := f.Append([]byte("next")); err != nil {
		t.Fatal(err)
	}
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	content = append(content, "next"...)
	for off := len(content) - 4096; off > 0; off -= 4096 {
		read(off, 4096)
	}
	read(0, len(content))
	if s.listed > all+60 || f.Pieces() != all+1 {
		t.Errorf("%d slots were listed; it has %d slots, want %d", s.listed, f.Pieces(), all+1)
	}
}

// TestAWriterReadsWhatReadersRead: whatever slots are missing, too long or foreign, and however stale a listing is, a writer finds the same bytes
// and the same end as readers that list the whole file.
func TestAWriterReadsWhatReadersRead(t *testing.T) {
	race.Skip(t)
	rounds := 1000
	if testing.Short() {
		rounds = 300
	}
	for seed := range uint64(rounds) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		most := 1 + rnd.IntN(300)
		mem, content := newEndFile(rnd, rnd.IntN(150), most)
		names := mem.Names()
		var tap slotstest.Tap
		tap.Store = mem
		what := seed % 3
		switch what {
		case 0: // slots are missing, or were replaced by others; the first one stays
			for range 1 + rnd.IntN(5) {
				from := 1 + rnd.IntN(len(names)-2)
				for _, name := range names[from:min(from+rnd.IntN(40), len(names)-1)] {
					if err := mem.Delete(t.Context(), name); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range rnd.IntN(3) {
				mem.Set(endSlot(rnd.Int64N(int64(len(content)))), make([]byte, 1+rnd.IntN(most)))
			}
			if rnd.IntN(3) == 0 { // one that may end after the last one
				mem.Set(endSlot(int64(len(content)-rnd.IntN(most))), make([]byte, most))
			}
			for i := range rnd.IntN(20) {
				mem.Set(fmt.Sprintf("%s/%s%d", endFolder, []string{"0", "z"}[rnd.IntN(2)], i), []byte("foreign"))
			}
		case 1: // listings are stale
			tap.Before = func(c slotstest.Call) *slotstest.Fault {
				if c.Op != slotstest.OpList || rnd.IntN(3) == 0 { // reads are concurrent
					return nil
				}
				until, some := names[rnd.IntN(len(names))], rnd.IntN(3)
				return &slotstest.Fault{Leave: func(e slots.Entry) bool {
					return strings.HasPrefix(e.Name, endFolder) && (some == 0 && e.Name > until || some == 1 && rnd.IntN(2) == 0 || some == 2 && e.Name < until)
				}}
			}
		case 2: // slots were put far after the end
			for range 1 + rnd.IntN(50) {
				mem.Set(endSlot(int64(len(content))+rnd.Int64N(1<<(20+rnd.IntN(20)))), []byte("far"))
			}
		}
		r := openIn(t, mem, storage.ModeRead)
		w := openIn(t, &tap, storage.ModeAppend)
		want, err := r.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := w.Stat(); err != nil || got.Size != want.Size {
			t.Fatalf("seed %d: it ends at %d, %v; want %d", seed, got.Size, err, want.Size)
		}
		if want.Size > 1<<20 {
			continue // it is nearly empty
		}
		for range 10 {
			off, n := rnd.Int64N(want.Size), 1+rnd.IntN(3000)
			a, b := make([]byte, n), make([]byte, n)
			_, aErr := r.ReadAt(a, off)
			_, bErr := w.ReadAt(b, off)
			if !bytes.Equal(a, b) || aErr != bErr {
				t.Fatalf("seed %d: %d bytes at %d differ: %v, %v", seed, n, off, aErr, bErr)
			}
		}
		if _, err := w.ReadAt(make([]byte, want.Size), 0); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if got := w.Pieces(); got != r.Pieces() {
			t.Errorf("seed %d: it has %d slots, want %d", seed, got, r.Pieces())
		}
	}
}

// sparse is a store in which the value of a slot is only its length, as a number.
type sparse struct{ *slotstest.Mem }

func (s sparse) MaxValue() int { return 15 << 20 }

func (s sparse) Size(ctx context.Context, name string) (int64, error) {
	b, err := s.Read(ctx, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(b), 10, 64)
}

func (s sparse) sizes(ctx context.Context, all []slots.Entry, err error) ([]slots.Entry, error) {
	for i := range all {
		if all[i].Size, err = s.Size(ctx, all[i].Name); err != nil {
			return nil, err
		}
	}
	return all, err
}

func (s sparse) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	all, err := s.Mem.List(ctx, folder)
	return s.sizes(ctx, all, err)
}

func (s sparse) Last(ctx context.Context, folder string) (slots.Entry, error) {
	e, err := s.Mem.Last(ctx, folder)
	if err == nil && e.Name != "" {
		e.Size, err = s.Size(ctx, e.Name)
	}
	return e, err
}

func (s sparse) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	all, err := s.Mem.Between(ctx, folder, from, to, n)
	return s.sizes(ctx, all, err)
}

// TestAValueThatClaimsTooMuch: a value whose size exceeds the store's maximum does not move the end of a file, neither for a writer, which may
// not have listed it, nor for a reader. In place of a slot it is damage.
func TestAValueThatClaimsTooMuch(t *testing.T) {
	const count, size = 100, 1 << 20
	open := func(claim int64, mode storage.Mode) (int64, error) {
		s := sparse{slotstest.NewMem(100)}
		s.Set("orders/generations/00000001", []byte("0123456789abcdef"))
		for i := range int64(count) {
			s.Set(endSlot(i*size), fmt.Append(nil, size))
		}
		s.Set(endSlot(claim), []byte("1000000000000"))
		f, err := slots.New(t.Context(), s).Open(endName, mode)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		info, err := f.Stat()
		return info.Size, err
	}
	for _, mode := range []storage.Mode{storage.ModeRead, storage.ModeAppend} {
		if end, err := open(50*size+1, mode); err != nil || end != count*size {
			t.Errorf("%v: between slots: the file ends at %d, %v; want %d", mode, end, err, count*size)
		}
		if end, err := open((count-1)*size, mode); !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("%v: in place of the last slot: the file ends at %d, %v", mode, end, err)
		}
	}
	if end, err := open(50*size, storage.ModeRead); !errors.Is(err, storage.ErrIntegrity) {
		t.Errorf("in place of a slot: the file ends at %d, %v", end, err)
	}
	if end, err := open(50*size, storage.ModeAppend); err == nil && end != count*size {
		t.Errorf("in place of a slot: a writer ends at %d", end)
	}
}

// TestALargeFileEndsWhereReadersSay: if more than 1 GiB of a file was removed by hand, or a slot is that far after its end, a writer does not
// continue after that.
func TestALargeFileEndsWhereReadersSay(t *testing.T) {
	race.Skip(t)
	cut := 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		s := sparse{slotstest.NewMem(100)}
		s.Set("orders/generations/00000001", []byte("0123456789abcdef"))
		end := int64(4096)
		s.Set(endSlot(0), []byte("4096"))
		var offs []int64
		for until := rnd.Int64N(4 << 30); end < until; {
			n := 1 + rnd.Int64N(8<<20)
			s.Set(endSlot(end), fmt.Append(nil, n))
			offs, end = append(offs, end), end+n
		}
		gone := rnd.Int64N(2 << 30)
		from := rnd.Int64N(end)
		for _, off := range offs {
			if off >= from && off < from+gone && (seed%3 == 0 || rnd.IntN(2) == 0) {
				if err := s.Delete(t.Context(), endSlot(off)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if seed%4 == 0 {
			for i := range 1 + rnd.Int64N(100) {
				s.Set(endSlot(end+1<<29+rnd.Int64N(1<<30)+i), []byte("1"))
			}
		}
		r, err := openIn(t, s, storage.ModeRead).Stat()
		if err != nil {
			t.Fatal(err)
		}
		w, err := openIn(t, s, storage.ModeAppend).Stat()
		if err != nil || w.Size != r.Size {
			t.Fatalf("seed %d: a writer finds the end at %d, %v; a reader at %d", seed, w.Size, err, r.Size)
		}
		if r.Size < end {
			cut++
		}
	}
	if cut < 10 {
		t.Errorf("only %d files end early", cut)
	}
}

// fence replaces a slot of a file by one that begins with a fence.
func fence(t *testing.T, mem *slotstest.Mem, content []byte, name string) {
	t.Helper()
	off, err := strconv.Atoi(strings.TrimPrefix(name, endFolder+"/"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := mem.Read(t.Context(), name)
	fence := append(make([]byte, -off&7), append(content[32:48:48], "FPF1"...)...)
	if err != nil || len(b) < len(fence) {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	clear(b)
	copy(b, fence)
	copy(content[off:], b)
	mem.Set(name, b)
}

// TestAWriterListsARemovedFile: slots that were deleted with their file before a writer listed them are not damage.
func TestAWriterListsARemovedFile(t *testing.T) {
	mem, content := newEndFile(rand.New(rand.NewPCG(5, 6)), 300, 500)
	// The last of the first slots, which the writer lists, stays.
	fence(t, mem, content, mem.Names()[31])
	w := openIn(t, mem, storage.ModeAppend)
	if err := slots.New(t.Context(), mem).Remove(endName); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadAt(make([]byte, 100), int64(len(content)/2)); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "removed as an old one; read the files of its type that are left") {
		t.Errorf("read: %v", err)
	}
}

// TestAWriterNeedsTheFirstSlot: a file without its first slot is refused, however long it is.
func TestAWriterNeedsTheFirstSlot(t *testing.T) {
	mem, _ := newEndFile(rand.New(rand.NewPCG(7, 8)), 300, 500)
	if err := mem.Delete(t.Context(), endSlot(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := slots.New(t.Context(), mem).Open(endName, storage.ModeAppend); !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), endSlot(0)) {
		t.Errorf("open: %v", err)
	}
}
