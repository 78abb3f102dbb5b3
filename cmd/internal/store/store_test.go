package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/worker"
)

// An invalid address of a store is a usage error, in one line and without secrets.
func TestAddressesAreChecked(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const server, embedded = "mongodb://bob:secret@db1/shop", "sqlite://data/fencepost.db"
	for _, test := range []struct {
		address, url string
		says         []string // texts of the error; nil: the address is valid
	}{
		{"mongodb:", server, nil},
		{"mongodb:", "mongodb+srv://db1/shop", nil},
		{"mongodb://bob:secret@db2/files", embedded, nil},
		{"mongodb+srv://db2/files", embedded, nil},
		{"shared:" + dir, embedded, nil},
		{"mongodb:", embedded, []string{"--url", embedded, "embedded", "store shared:/directory"}},
		{"mongodb:", "file.db", []string{"--url", "embedded"}},
		{"mongodb:files", server, []string{"mongodb:files", "mongodb://host/database"}},
		{"shared:data", server, []string{"shared:data", "absolute"}},
		{"shared:", server, []string{"shared:", "absolute"}},
		{"shared:" + dir + "/missing", server, []string{"shared:" + dir + "/missing", "does not exist", "mount"}},
		{"shared:" + file, server, []string{"shared:" + file, "not a directory"}},
		{dir, server, []string{dir, "mongodb:", "shared:/directory"}},
		{"data", server, []string{"data", "by its path"}},
		{"s3://bob:secret@bucket/x?key=secret", server, []string{"credentials", "AWS_ACCESS_KEY_ID"}},
		{"s3://bucket/x?zone=1", server, []string{"endpoint, region, path-style, sse"}},
		{"s3://bucket/x?sse-c=AES256&sse-c-key=secret", server, []string{"SSE-C"}},
		{"s3://bucket/prefix?region=eu-central-1", embedded, nil},
		{"s3://bucket/prefix?region=eu-central-1&sse=aws:kms&sse-kms-key-id=alias/files", embedded, nil},
		{"sqlite://data/x", server, []string{"sqlite://data/x"}},
	} {
		err := Check(test.address, test.url)
		if test.says == nil {
			if err != nil {
				t.Errorf("%s: %v", test.address, err)
			}
			continue
		}
		if cli.Code(err) != cli.ExitUsage {
			t.Errorf("%s: exit code %d: %v", test.address, cli.Code(err), err)
			continue
		}
		for _, s := range test.says {
			if !strings.Contains(err.Error(), s) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: without %q, or with a secret: %v", test.address, s, err)
			}
		}
		if _, again := Open(t.Context(), test.address, test.url); again == nil || again.Error() != err.Error() {
			t.Errorf("%s: open says %v", test.address, again)
		}
	}
	if _, err := os.Stat(dir + "/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the missing directory was made: %v", err)
	}
}

// place returns a place with files of these names.
func place(t *testing.T, name string, files ...string) *Place {
	t.Helper()
	p := newPlace(t.Context(), slotstest.NewMem(1<<20), name)
	for _, f := range files {
		typ, g, ok := storage.ParseName(f)
		if !ok {
			t.Fatal(f)
		}
		temp := filepath.Join(p.Dir, storage.TempName(typ, g, 7))
		if err := p.FS.Link(temp, p.path(f)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestFilesAndArguments(t *testing.T) {
	p := place(t, "mongodb:", "b.fpl", "orders.fpl", "orders@0002.fpl", "orders@0003.fpl", "orders.eu.fpl")
	for typ, want := range map[string][]string{
		"":       {"mongodb:/b.fpl", "mongodb:/orders.fpl", "mongodb:/orders@0002.fpl", "mongodb:/orders@0003.fpl", "mongodb:/orders.eu.fpl"},
		"orders": {"mongodb:/orders.fpl", "mongodb:/orders@0002.fpl", "mongodb:/orders@0003.fpl"},
		"none":   {},
	} {
		if got, err := p.Files(typ); err != nil || !slices.Equal(got, want) {
			t.Errorf("files of type %q: %q, %v; want %q", typ, got, err, want)
		}
	}
	elsewhere := place(t, "mongodb://db2/files")
	for _, test := range []struct {
		p              *Place
		arg, typ, path string
	}{
		{p, "orders", "orders", ""},
		{p, "orders.eu", "orders.eu", ""},
		{p, "orders.fpl", "", "mongodb:/orders.fpl"},
		{p, "orders@0002.fpl", "", "mongodb:/orders@0002.fpl"},
		{p, "mongodb:/orders@0002.fpl", "", "mongodb:/orders@0002.fpl"}, // as in errors
		{elsewhere, "mongodb:/db2/files/orders.fpl", "", "mongodb:/db2/files/orders.fpl"},
		{p, "data/orders.fpl", "", ""},
		{p, "/data", "", ""},
		{p, "orders@0001.fpl", "", ""},
		{p, "Orders", "", ""},
		{p, "", "", ""},
	} {
		typ, path, err := test.p.Argument(test.arg)
		if typ != test.typ || path != test.path || (err != nil) != (test.typ+test.path == "") {
			t.Errorf("%q: type %q, path %q, %v", test.arg, typ, path, err)
		}
		if err != nil && (cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), "orders@0002.fpl") || !strings.Contains(err.Error(), p.Name)) {
			t.Errorf("%q: %v", test.arg, err)
		}
	}
}

// Requests end with their own context, not with that of Open.
func TestUntil(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	opened := newPlace(ctx, slotstest.NewMem(1<<20), "mongodb:")
	var told []string
	until := opened.Until(t.Context())
	watched := opened.Observed(t.Context(), func(r slots.Request) { told = append(told, r.Kind+" "+r.Answer) })
	cancel()
	if _, err := opened.Files(""); !errors.Is(err, context.Canceled) {
		t.Errorf("a request after the end: %v", err)
	}
	for _, fsys := range []storage.FS{until, watched} {
		if _, err := fsys.List(opened.Dir, ""); err != nil {
			t.Error(err)
		}
	}
	if fmt.Sprint(told) != "[folders ok]" {
		t.Errorf("told %q", told)
	}
}

// However many file systems one place has, such as one for each request, their total memory is bounded.
func TestFileSystemsShareTheirBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		p := newPlace(t.Context(), &slotstest.Tap{Store: slotstest.NewMem(64 << 20), Before: func(c slotstest.Call) *slotstest.Fault {
			if c.Op == slotstest.OpCreate {
				n := now.Add(int64(len(c.Data)))
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(time.Second)
				now.Add(-int64(len(c.Data)))
			}
			return nil
		}}, "mongodb:")
		var all sync.WaitGroup
		for i := range 8 {
			fsys := p.Until(t.Context())
			if i%2 == 0 {
				fsys = p.Observed(t.Context(), func(slots.Request) {})
			}
			f, err := fsys.Open(storage.TempName(fmt.Sprint("type-", i), 1, 7), storage.ModeCreate)
			if err == nil {
				_, _, err = f.Append(make([]byte, 8<<20))
			}
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := f.Datasync(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := most.Load(); n > 16<<20 {
			t.Errorf("%d bytes are being created at a time", n)
		}
	})
}

// Clear removes everything, at any depth; a failing request is reported.
func TestClear(t *testing.T) {
	p := place(t, "mongodb:", "b.fpl", "orders.fpl", "orders@0002.fpl")
	p.store.(*slotstest.Mem).Set("orders/00000001/3f2a9c0d11e4b7a6/00000000000000000000", []byte("header"))
	if err := p.Ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if errs := []error{p.Ask(over), p.Clear(over)}; !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) {
		t.Errorf("requests after the end: %v", errs)
	}
	if found, err := p.Files(""); err != nil || len(found) != 3 {
		t.Errorf("%q, %v: something was removed", found, err)
	}
	if err := p.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := p.store.Folders(t.Context(), ""); err != nil || len(left) > 0 {
		t.Errorf("%q is left (%v)", left, err)
	}
}

// A store that breaks its guarantees is refused.
func TestProbe(t *testing.T) {
	p := newPlace(t.Context(), forgetful{slotstest.NewMem(1 << 20)}, "mongodb:")
	var refused *slots.RefusedError
	if err := p.Probe(t.Context()); !errors.As(err, &refused) || cli.Code(err) != cli.ExitFailed {
		t.Errorf("a store that lets everyone win: %v", err)
	}
	if err := place(t, "mongodb:").Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

// forgetful lets every create succeed.
type forgetful struct{ *slotstest.Mem }

func (f forgetful) Create(_ context.Context, name string, data []byte) error {
	f.Set(name, data)
	return nil
}

// TestLingerIsThatOfTheStore: the setting that a worker shows is the default of the store.
func TestLingerIsThatOfTheStore(t *testing.T) {
	shared := cli.SharedScheme + t.TempDir()
	place, err := Open(t.Context(), shared, "")
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]time.Duration{
		shared:                    place.FS.Linger(),
		"s3://bucket/prefix":      new(s3slots.Store).Linger(),
		"mongodb:":                new(mongoslots.Store).Linger(),
		"mongodb://host/database": new(mongoslots.Store).Linger(),
	} {
		if got := Linger(address); got != want || got <= worker.DefaultLinger {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

// A URL that is not valid, or has an option that the driver does not know, is a usage error, found before anything is sent.
func TestStoresURLThatIsNotValid(t *testing.T) {
	for rest, says := range map[string]string{"127.0.0.1:1/shop?tsl=true": `unknown option "tsl"`, "127.0.0.1:1/shop?tls=maybe": `"maybe"`, "127.0.0.1:99999/shop": "port", "127.0.0.1:1/a/b": "the path must be"} {
		url := "mongodb://bob:secret@" + rest
		for _, c := range [][2]string{{url, ""}, {"mongodb:", url}} {
			_, err := Open(t.Context(), c[0], c[1])
			if cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: exit code %d: %v", c, cli.Code(err), err)
			}
		}
	}
}
