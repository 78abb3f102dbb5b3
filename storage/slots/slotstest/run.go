package slotstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/storage/slots"
)

// Run tests that a store meets the contract of [slots.Store]. open opens the store at the same place each time. The place
// contains nothing else, and each test uses folders of its own.
func Run(t *testing.T, open func(t *testing.T) slots.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, slots.Store, func(*testing.T) slots.Store)
	}{
		{"values", values}, {"the first value stays", firstStays}, {"missing values", absent}, {"large values", large}, {"racers", race},
		{"listings", listings}, {"parts of listings", parts}, {"many values", many}, {"folders", folders}, {"delete", deletes}, {"names", names}, {"a context that ended", ended}, {"probe", probe},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t), open) })
	}
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// values: a value of any bytes is returned unchanged, also through another handle, and the store keeps no reference to the caller's buffer.
func values(t *testing.T, s slots.Store, open func(*testing.T) slots.Store) {
	ctx := t.Context()
	other := open(t)
	for i, want := range []string{"x", "\x00\xff\n\r\x1a", strings.Repeat("0123456789abcdef", 10_000)} {
		name := fmt.Sprintf("values/%020d", i)
		data := []byte(want)
		must(t, s.Create(ctx, name, data))
		clear(data) // the store kept no reference to it
		for _, store := range []slots.Store{s, other} {
			got, err := store.Read(ctx, name)
			if err != nil || string(got) != want {
				t.Errorf("%d bytes: read %d bytes, %v", len(want), len(got), err)
			}
			n, err := store.Size(ctx, name)
			if err != nil || n != int64(len(want)) {
				t.Errorf("%d bytes: size %d, %v", len(want), n, err)
			}
		}
	}
	if s.String() == "" || s.MaxValue() < 1<<20 {
		t.Errorf("its name is %q, values have up to %d bytes", s, s.MaxValue())
	}
}

// firstStays: a second create of the same name fails and changes nothing, even with the same value. The whole protocol rests on this.
func firstStays(t *testing.T, s slots.Store, open func(*testing.T) slots.Store) {
	ctx := t.Context()
	must(t, s.Create(ctx, "first/a", []byte("one")))
	for _, store := range []slots.Store{s, open(t)} {
		for _, data := range []string{"two", "one", "another that is longer"} {
			if err := store.Create(ctx, "first/a", []byte(data)); !errors.Is(err, fs.ErrExist) {
				t.Errorf("creating %q again: %v", data, err)
			}
		}
		if got, err := store.Read(ctx, "first/a"); err != nil || string(got) != "one" {
			t.Errorf("it is %q, %v", got, err)
		}
	}
}

// absent: a missing value is reported as fs.ErrNotExist, even if its name is a folder or is below a value; a missing folder is empty.
func absent(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx := t.Context()
	must(t, s.Create(ctx, "absent/folder/a", []byte("x")))
	for _, name := range []string{"absent", "absent/folder", "absent/folder/b", "absent/none/a", "absent/folder/a/b"} {
		if _, err := s.Read(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read %s: %v", name, err)
		}
		if _, err := s.Size(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("size of %s: %v", name, err)
		}
	}
	if all, err := s.List(ctx, "absent/none"); err != nil || len(all) != 0 {
		t.Errorf("a missing folder: %v, %v", all, err)
	}
	if all, err := s.Folders(ctx, "absent/none"); err != nil || len(all) != 0 {
		t.Errorf("the folders in a missing folder: %v, %v", all, err)
	}
}

// large: a value of the largest size is stored and read.
func large(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	data := bytes.Repeat([]byte("fencepost"), min(s.MaxValue(), 16<<20)/9+1)[:min(s.MaxValue(), 16<<20)]
	must(t, s.Create(t.Context(), "large/a", data))
	if got, err := s.Read(t.Context(), "large/a"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(data), err)
	}
}

// race: of many clients that create the same name concurrently, exactly one succeeds, and its value is stored. A store that checks
// first and then writes would let two succeed.
func race(t *testing.T, s slots.Store, open func(*testing.T) slots.Store) {
	stores := []slots.Store{s, open(t), open(t)}
	for round := range 5 {
		name := fmt.Sprintf("race/%d", round)
		var mu sync.Mutex
		var won []string
		var all sync.WaitGroup
		for i := range 32 {
			all.Go(func() {
				value := fmt.Sprintf("racer %d", i)
				err := stores[i%len(stores)].Create(t.Context(), name, []byte(value))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, value)
				case !errors.Is(err, fs.ErrExist):
					t.Errorf("racer %d: %v", i, err)
				}
			})
		}
		all.Wait()
		got, err := s.Read(t.Context(), name)
		if len(won) != 1 || err != nil || string(got) != won[0] {
			t.Errorf("%q succeeded, %q is there, %v", won, got, err)
		}
	}
}

// listings: a listing has exactly the values directly in the folder, sorted by name, with their sizes, even if similar names exist.
func listings(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx := t.Context()
	for i, name := range []string{"list/1/b", "list/1/a", "list/1/a.b", "list/10/a", "list/1/deeper/a", "list/1-/a", "list/1.a/b", "list/1/c"} {
		must(t, s.Create(ctx, name, make([]byte, i+1)))
	}
	got, err := s.List(ctx, "list/1")
	want := []slots.Entry{{Name: "list/1/a", Size: 2}, {Name: "list/1/a.b", Size: 3}, {Name: "list/1/b", Size: 1}, {Name: "list/1/c", Size: 8}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %v, %v; want %v", got, err, want)
	}
}

// parts: an Ordered store lists any part of a folder consistently with a listing of the whole folder.
func parts(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ordered, ok := s.(slots.Ordered)
	if !ok {
		t.Skip("the store does not look up names by their order")
	}
	ctx := t.Context()
	for i, name := range []string{"parts/1/b", "parts/1/a", "parts/1/d", "parts/1/a.b", "parts/10/a", "parts/1-/a", "parts/1.a/b", "parts/1/c", "parts/1/d-e", "parts/2"} {
		must(t, s.Create(ctx, name, make([]byte, i+1)))
	}
	for _, folder := range []string{"parts/1", "parts/10", "parts/none"} {
		all, err := s.List(ctx, folder)
		must(t, err)
		if n, err := ordered.Count(ctx, folder); err != nil || n != len(all) {
			t.Errorf("%s: counted %d of %d, %v", folder, n, len(all), err)
		}
		var want slots.Entry
		if len(all) > 0 {
			want = all[len(all)-1]
		}
		if got, err := ordered.Last(ctx, folder); err != nil || got != want {
			t.Errorf("%s: the last one: %v, %v; want %v", folder, got, err, want)
		}
		names := []string{"", "parts/1/", folder + "/a-", folder + "/zz"}
		for _, e := range all {
			names = append(names, e.Name)
		}
		for _, from := range names {
			for _, to := range names {
				between(t, ordered, folder, from, to, all)
			}
		}
	}
}

// between lists the first entries of a part of a folder, in all numbers. all are the entries of the folder.
func between(t *testing.T, s slots.Ordered, folder, from, to string, all []slots.Entry) {
	t.Helper()
	part := slices.DeleteFunc(slices.Clone(all), func(e slots.Entry) bool { return e.Name < from || to != "" && e.Name >= to })
	for n := range len(all) + 2 {
		want := part
		if n > 0 {
			want = part[:min(n, len(part))]
		}
		if got, err := s.Between(t.Context(), folder, from, to, n); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the first %d from %q to %q: %v, %v; want %v", folder, n, from, to, got, err, want)
		}
	}
}

// many: a listing is complete even if it has more values than a store returns at once.
func many(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	n := 2500
	if testing.Short() {
		n = 300
	}
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := part; i < n; i += 8 {
				if err := s.Create(t.Context(), fmt.Sprintf("many/%020d", i), []byte("x")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	must(t, s.Create(t.Context(), "many.other/a", []byte("x")))
	got, err := s.List(t.Context(), "many")
	if err != nil || len(got) != n {
		t.Fatalf("listed %d of %d, %v", len(got), n, err)
	}
	for i, e := range got {
		if e.Name != fmt.Sprintf("many/%020d", i) || e.Size != 1 {
			t.Fatalf("number %d is %v", i, e)
		}
	}
}

// folders: the folders directly in a folder are listed once each, sorted, and values are not folders.
func folders(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx := t.Context()
	for _, name := range []string{"top/orders/1/a", "top/orders/1/b", "top/orders/2/a", "top/audit/1/a", "top/orders.eu/1/a", "top/file", "top/a-/b"} {
		must(t, s.Create(ctx, name, []byte("x")))
	}
	for folder, want := range map[string][]string{"top": {"a-", "audit", "orders", "orders.eu"}, "top/orders": {"1", "2"}, "top/orders/1": nil} {
		if got, err := s.Folders(ctx, folder); err != nil || !slices.Equal(got, want) {
			t.Errorf("folders in %q: %q, %v; want %q", folder, got, err, want)
		}
	}
	if got, err := s.Folders(ctx, ""); err != nil || !slices.Contains(got, "top") || slices.Contains(got, "") {
		t.Errorf("folders: %q, %v", got, err)
	}
}

// deletes: a deleted value is gone, deleting it again is not an error, and its name can be created again.
func deletes(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx := t.Context()
	must(t, s.Create(ctx, "delete/a", []byte("one")))
	must(t, s.Create(ctx, "delete/b", []byte("two")))
	must(t, s.Delete(ctx, "delete/a"))
	must(t, s.Delete(ctx, "delete/a"))
	if _, err := s.Read(ctx, "delete/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read a deleted value: %v", err)
	}
	must(t, s.Create(ctx, "delete/a", []byte("three")))
	for name, want := range map[string]string{"delete/a": "three", "delete/b": "two"} {
		if got, err := s.Read(ctx, name); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}

// names: a name that breaks the rules is refused, and never taken for a value that exists or does not: it may be outside of the store.
func names(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx := t.Context()
	long := "names/" + strings.Repeat("a/", 246) + "aaa"
	for _, name := range []string{"", ".", "..", "/", "../x", "names/../../x", "names/..", "/names", "names/", "names//a", "names/./a", "names/A", "names/a b", "names/\x00", "names/é", "names\\a", long} {
		_, read := s.Read(ctx, name)
		_, size := s.Size(ctx, name)
		for op, err := range map[string]error{"create": s.Create(ctx, name, []byte("x")), "read": read, "size": size, "delete": s.Delete(ctx, name)} {
			if !errors.As(err, new(*slots.RefusedError)) || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s of %q: %v", op, name, err)
			}
		}
	}
	most := long[:len(long)-1] // the longest
	must(t, s.Create(ctx, most, []byte("x")))
	must(t, s.Delete(ctx, most))
}

// ended: every request fails if its context has ended, with an error that is not a clear answer.
func ended(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, read := s.Read(ctx, "ended/a")
	_, size := s.Size(ctx, "ended/a")
	_, list := s.List(ctx, "ended")
	_, folders := s.Folders(ctx, "ended")
	all := []error{s.Create(ctx, "ended/a", []byte("x")), read, size, list, folders, s.Delete(ctx, "ended/a")}
	if o, ok := s.(slots.Ordered); ok {
		_, count := o.Count(ctx, "ended")
		_, last := o.Last(ctx, "ended")
		_, between := o.Between(ctx, "ended", "", "", 0)
		all = append(all, count, last, between)
	}
	for i, err := range all {
		var refused *slots.RefusedError
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.As(err, &refused) {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

// probe: the store passes slots.Probe, which leaves nothing behind.
func probe(t *testing.T, s slots.Store, _ func(*testing.T) slots.Store) {
	must(t, slots.Probe(t.Context(), s))
	if left, err := s.List(t.Context(), ".probe"); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
