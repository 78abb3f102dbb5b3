package storage_test

import (
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
	"github.com/fencepost/fencepost/storage/storagetest"
)

type (
	world  = oracle.World
	holder = oracle.Holder
)

// Names that the tests of this package use from package oracle.
var (
	newWorld = oracle.New
	messages = oracle.Messages
	message  = oracle.Message
	number   = oracle.Number
	steps    = oracle.Steps
	appends  = oracle.Appends
	violated = oracle.Violated
)

// newMemWorld returns a world on a new memory file system, with a file that one session has written to.
func newMemWorld(t testing.TB, block int64, prepare ...func(*storagetest.Mem)) (*world, *storagetest.Mem) {
	t.Helper()
	mem := storagetest.NewMem(block)
	for _, f := range prepare {
		f(mem)
	}
	x := newWorld("/data/files")
	firstSession(t, x, mem)
	must(t, x.Check(mem))
	x.Published = 40
	return x, mem
}

// firstSession lets a session write six messages, all that are published, to a new file.
func firstSession(t testing.TB, x *world, fsys storage.FS) {
	t.Helper()
	x.Published = 6
	h, err := x.Open(fsys)
	must(t, err)
	must(t, steps(h.Begin, h.Writer.Close))
}
