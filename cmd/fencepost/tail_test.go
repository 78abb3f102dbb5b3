package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/storage"
)

// Tail prints as many messages as it is asked for, also where dead letters are among them.
func TestTailAmongDeadLetters(t *testing.T) {
	data := t.TempDir()
	w, err := storage.Open(t.Context(), data, "orders", 1, storage.Options{AllowOverlay: true})
	put := func(kind storage.Kind, first, n int) {
		for i := range n {
			if err == nil {
				err = w.Append([]storage.Record{{Kind: kind, ID: []byte{1}, Payload: fmt.Append(nil, first+i)}})
			}
		}
	}
	put(storage.KindMessage, 0, 10)
	put(storage.KindSkipped, 10, 20)
	if err == nil {
		w, err = w.Rotate(t.Context(), nil)
	}
	put(storage.KindSkipped, 30, 3)
	put(storage.KindMessage, 33, 2)
	put(storage.KindSkipped, 35, 7)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(data, "orders.fpl"), filepath.Join(data, "orders@0002.fpl")
	for _, c := range []struct{ n, path, want string }{
		{"0", first, ""}, {"1", first, "34\n"}, {"2", first, "33\n34\n"}, {"3", first, "9\n33\n34\n"}, {"5", first, "7\n8\n9\n33\n34\n"},
		{"12", first, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n33\n34\n"}, {"13", first, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n33\n34\n"}, {"1e15", first, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n33\n34\n"},
		{"1", second, "34\n"}, {"3", second, "33\n34\n"},
	} {
		if code, out, errs := runRoot(t, "tail", "-n", c.n, c.path); code != 0 || out != c.want || errs != "" {
			t.Errorf("-n %s %s: %d %q %q", c.n, filepath.Base(c.path), code, out, errs)
		}
	}
	// Damage before the last messages is reported only if they were not enough.
	content, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	content[5000] ^= 1
	if err := os.WriteFile(first, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[string]int{"2": 0, "20": cli.ExitIntegrity} {
		if code, out, errs := runRoot(t, "tail", "-n", n, first); code != want || code == 0 && out != "33\n34\n" {
			t.Errorf("damaged, -n %s: %d %q %q", n, code, out, errs)
		}
	}
}

// A file whose damage was repaired into a later file is not read, whether it is between the others or the named one.
func TestTailOfRepairedFiles(t *testing.T) {
	data := t.TempDir()
	open := func(epoch uint64, salvage bool) *storage.Writer {
		t.Helper()
		w, err := storage.Open(t.Context(), data, "orders", epoch, storage.Options{AllowOverlay: true, Salvage: salvage})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	put := func(w *storage.Writer, payload string) {
		t.Helper()
		if err := w.Append([]storage.Record{{ID: []byte{1}, Payload: []byte(payload)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	w := open(1, false)
	put(w, "one")
	w, err := w.Rotate(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	put(w, "two")
	put(w, "to be damaged")
	put(w, "four")
	second := w.Path()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(second, bytes.Replace(content, []byte("to be"), []byte("is so"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	w, _, err = open(2, true).Compact(t.Context(), nil, storage.CompactOptions{})
	if err != nil {
		t.Fatal(err)
	}
	put(w, "five")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const lost = "1 missing between index 1 and 3: a repair could not read them, or gave them up\n"
	third := filepath.Join(data, "orders@0003.fpl")
	for _, args := range []string{"tail --from 0 " + second, "cat --salvage --from 0 " + second + " " + third} {
		_, out, errs := runRoot(t, strings.Fields(args)...)
		if strings.Count(errs, "begins with index 1: messages from index 0 on are in an older file, or were removed\n") != 1 || !strings.HasPrefix(out, "two\n") {
			t.Errorf("%s: %q %q", args, out, errs)
		}
	}
	for args, want := range map[string]string{
		"tail --from 0 " + filepath.Join(data, "orders.fpl"): "one\ntwo\nfour\nfive\n",
		"tail --from 1 " + second:                            "two\nfour\nfive\n",
		"tail --from 3 " + second:                            "four\nfive\n",
		"tail -n 4 " + filepath.Join(data, "orders.fpl"):     "one\ntwo\nfour\nfive\n",
	} {
		if code, out, errs := runRoot(t, strings.Fields(args)...); code != 0 || out != want || errs != "" && errs != lost || strings.Contains(out, "two") && errs == "" {
			t.Errorf("%s: %d %q %q", args, code, out, errs)
		}
	}
}
