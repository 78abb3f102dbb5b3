package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/fencepost/fencepost/storage"
)

// tempDir returns a new directory, and a function that removes it at the end of the example.
func tempDir() (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		log.Fatal(err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }
}

// options are for examples: they accept a container's own file system. In production use the zero value.
var options = storage.Options{AllowOverlay: true}

// write opens the file of a type, appends some records, and returns the writer.
func write(dir, typ string, epoch uint64, payloads ...string) *storage.Writer {
	w, err := storage.Open(context.Background(), dir, typ, epoch, options)
	if err != nil {
		log.Fatal(err)
	}
	var records []storage.Record
	for i, payload := range payloads {
		records = append(records, storage.Record{ID: fmt.Appendf(nil, "id-%d", w.NextIndex()+uint64(i)), Payload: []byte(payload)})
	}
	if err := w.Append(records); err != nil {
		log.Fatal(err)
	}
	if _, err := w.Sync(); err != nil {
		log.Fatal(err)
	}
	return w
}

// Append records, and acknowledge them after Sync has returned. The epoch is the fencing token of the type's lock.
func ExampleOpen() {
	dir, remove := tempDir()
	defer remove()

	const epoch = 1
	w, err := storage.Open(context.Background(), dir, "orders", epoch, options)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	err = w.Append([]storage.Record{{ID: []byte("a"), Payload: []byte("chair")}, {ID: []byte("b"), Payload: []byte("table")}})
	if err != nil {
		log.Fatal(err)
	}
	next, err := w.Sync() // now every record below next survives a power loss
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(next, "records are durable in", filepath.Base(w.Path()))
	// Output: 2 records are durable in orders.fpl
}

// Opening the file with a greater epoch fences the previous writer: readers ignore the records that it appends afterwards.
func ExampleWriter_Sync() {
	dir, remove := tempDir()
	defer remove()
	before := write(dir, "orders", 1, "chair")
	defer before.Close()
	successor := write(dir, "orders", 2, "table")
	defer successor.Close()

	err := before.Append([]storage.Record{{ID: []byte("late"), Payload: []byte("lamp")}})
	if err == nil {
		_, err = before.Sync()
	}
	fmt.Println("fenced:", errors.Is(err, storage.ErrFenced))
	report, err := storage.Verify(context.Background(), successor.Path(), storage.VerifyOptions{})
	fmt.Println(report.Messages, "messages", err)
	// Output:
	// fenced: true
	// 2 messages <nil>
}

// Read a file from its beginning, or from any index. It may be written to meanwhile.
func ExampleOpenReader() {
	dir, remove := tempDir()
	defer remove()
	defer write(dir, "orders", 1, "chair", "table", "lamp").Close()

	r, err := storage.OpenReader(filepath.Join(dir, storage.FileName("orders")), storage.ReaderOptions{From: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", rec.Index, rec.Payload)
	}
	// Output:
	// 1: table
	// 2: lamp
}

// Follow a type: Next waits for more records. It returns durable records, and continues in the files that follow.
func ExampleFollow() {
	ctx := context.Background()
	dir, remove := tempDir()
	defer remove()
	w := write(dir, "orders", 1, "chair")

	f, err := storage.Follow(w.Path(), storage.FollowOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() { // another writer takes over
		_ = w.Close()
		_ = write(dir, "orders", 2, "table").Close()
	})
	for range 2 {
		records, err := f.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		for _, rec := range records {
			fmt.Printf("%d: %s\n", rec.Index, rec.Payload)
		}
	}
	// Output:
	// 0: chair
	// 1: table
}

// Check every byte of a file.
func ExampleVerify() {
	ctx := context.Background()
	dir, remove := tempDir()
	defer remove()
	_ = write(dir, "orders", 1, "chair").Close()
	_ = write(dir, "orders", 2, "table").Close()
	path := filepath.Join(dir, storage.FileName("orders"))

	report, err := storage.Verify(ctx, path, storage.VerifyOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Messages, "messages, damage:", report.Err())

	content, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(content, []byte("chair"), []byte("chain"), 1), 0o600); err != nil {
		log.Fatal(err)
	}
	report, err = storage.Verify(ctx, path, storage.VerifyOptions{})
	fmt.Println(errors.Is(report.Err(), storage.ErrIntegrity), err)
	// Output:
	// 2 messages, damage: <nil>
	// true <nil>
}

// A type continues in another file when its file is large enough. The files prove that none of them is missing.
func ExampleReadChain() {
	ctx := context.Background()
	dir, remove := tempDir()
	defer remove()
	w := write(dir, "orders", 1, "chair", "table")
	next, err := w.Rotate(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer next.Close()
	if err := next.Append([]storage.Record{{ID: []byte("c"), Payload: []byte("lamp")}}); err != nil {
		log.Fatal(err)
	}
	if _, err := next.Sync(); err != nil {
		log.Fatal(err)
	}

	chain, err := storage.ReadChain(nil, dir, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for _, link := range chain {
		fmt.Println(filepath.Base(link.Path), link.First, "to", link.Next-1, "sealed:", link.Sealed != nil)
	}
	fmt.Println("problems:", len(chain.Check()))
	// Output:
	// orders.fpl 0 to 1 sealed: true
	// orders@0002.fpl 2 to 2 sealed: false
	// problems: 0
}

// Compact rewrites the records, in large batches, into a file that replaces the old one.
func ExampleWriter_Compact() {
	ctx := context.Background()
	dir, remove := tempDir()
	defer remove()
	for epoch, order := range []string{"chair", "table", "lamp"} { // three writers, three small batches
		_ = write(dir, "orders", uint64(epoch+1), order).Close()
	}
	w := write(dir, "orders", 4, "desk")

	next, report, err := w.Compact(ctx, nil, storage.CompactOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer next.Close()
	fmt.Println(report.Records, "records,", report.Batches, "batches become", report.NewBatches, "in", filepath.Base(report.Path))
	// Output: 4 records, 4 batches become 1 in orders@0002.fpl
}
