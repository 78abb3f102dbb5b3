package slots_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// FuzzForeignValues puts a value under any name beside a type's file, or in place of a part of it: FOLDER stands for the folder of its slots.
// Listings have only names of files; reading ends, with an error if something is wrong; and a value elsewhere changes nothing.
func FuzzForeignValues(f *testing.F) {
	const messages = 20
	mem := slotstest.NewMem(700)
	store := slots.New(f.Context(), mem)
	w, err := storage.Open(f.Context(), store.Dir(), "orders", 1, storage.Options{FS: store})
	for i := 0; err == nil && i < messages; i++ {
		if err = w.Append([]storage.Record{{ID: []byte{1, byte(i)}, Payload: make([]byte, 200)}}); err == nil {
			_, err = w.Sync()
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		f.Fatal(err)
	}
	folder, first, last := "", "", ""
	for _, name := range mem.Names() {
		if !strings.Contains(name, "/generations/") {
			folder, last = filepath.Dir(name), filepath.Base(name)
			if first == "" {
				first = last
			}
		}
	}
	whole, err := mem.Read(f.Context(), folder+"/"+last)
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"FOLDER/" + first, "FOLDER/" + last, "FOLDER/00000000000000004097", "FOLDER/00001000000000000000", "FOLDER/09223372036854775800", "FOLDER/x", "FOLDER/-0000000000000000007",
		"FOLDER/" + last + "/x", "orders/generations/00000001", "orders/generations/00000001-removed", "orders/generations/00000001-swept", "orders/generations/00000002", "orders/generations/2",
		"orders/generations/18446744073709551615", "orders/00000001/00000000000000ff/" + first, "orders/x", "orders/00000002/x/y", "../orders/x", "audit/generations/00000001", "audit", "Audit/generations/00000001", ""} {
		f.Add(name, []byte("foreign"))
		f.Add(name, whole)
		f.Add(name, []byte("0123456789abcdef"))
	}
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		if at, err := strconv.ParseUint(filepath.Base(name), 10, 64); err == nil && 64<<20 < at && at < 2<<30 {
			t.Skip("the missing bytes before it are read as zeros: up to a second, which the fuzzer takes for a hang on a busy machine")
		}
		mem := mem.Clone()
		mem.Set(strings.ReplaceAll(name, "FOLDER", folder), value)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		store := slots.New(ctx, mem)
		for _, typ := range []string{"", "orders"} {
			names, err := store.List(store.Dir(), typ)
			if err != nil && !errors.Is(err, storage.ErrIntegrity) {
				t.Fatal(err)
			}
			for _, n := range names {
				_, _, isFile := storage.ParseName(n)
				if _, _, _, isTemp := storage.ParseTempName(n); !isFile && !(isTemp && typ != "") {
					t.Fatalf("listed %q", n)
				}
			}
		}
		path := filepath.Join(store.Dir(), "orders.fpl")
		rep, err := storage.Verify(ctx, path, storage.VerifyOptions{FS: store})
		if err != nil && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("verify: %v", err)
		}
		if !strings.HasPrefix(name, "FOLDER/") && !strings.HasPrefix(name, "orders/") && !strings.HasPrefix(name, folder) && (err != nil || rep.Err() != nil || rep.Messages != messages) {
			t.Fatalf("a foreign value has changed the file: %+v, %v", rep, err)
		}
		read, r := uint64(0), (*storage.Reader)(nil)
		if r, err = storage.OpenReader(path, storage.ReaderOptions{FS: store}); err == nil {
			defer r.Close()
			for err == nil {
				if _, err = r.Next(); err == nil {
					read++
				}
			}
		}
		if err != io.EOF && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("read: %v", err)
		}
		if rep != nil && rep.Err() == nil && (err != io.EOF || read != rep.Messages) {
			t.Fatalf("verify counts %d, and %d are read: %v", rep.Messages, read, err)
		}
	})
}
