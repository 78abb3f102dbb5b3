//go:build unix

package main

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
)

// Where the files of a run are if they are not in a directory.

// openStore prepares a place for the files.
func (r *run) openStore(ctx context.Context) (err error) {
	switch r.store {
	case "mongodb":
		// The seed determines whether the files share the messages' connections or have their own.
		if r.address = r.url; rand.New(rand.NewPCG(r.seed, 4)).IntN(2) == 0 {
			r.address = "mongodb:"
		}
	case "shared":
		r.address = "shared:" + r.data
	case "s3":
		if r.objects, err = kit.StartObjects(ctx, r.dir); err != nil {
			return err
		}
		r.cleanup = append(r.cleanup, r.objects.Close)
		r.address = r.objects.Address(r.objects.Targets[0])
		r.logf("objects: %s", r.objects.What)
	}
	return nil
}

// place returns the arguments that tell a tool where the files are.
func (r *run) place() []string {
	if r.address == "" {
		return []string{"--dir", r.data}
	}
	return []string{"--store", r.address}
}

// connectStore gives a worker its link to the store.
func (r *run) connectStore(m *member, address string) (err error) {
	switch {
	case r.objects != nil:
		// Workers use the gateways in turn.
		m.store, err = r.link(address, r.objects.Targets[len(r.workers)%len(r.objects.Targets)], objectProtocol{})
	case r.address == "mongodb:":
		m.store = m.link
	case r.store == "mongodb":
		m.store, err = r.link(address, r.target, wireProtocol{})
	}
	return err
}

// files returns the arguments that tell a worker where its files are.
func (r *run) files(m *member) []string {
	switch {
	case r.objects != nil:
		return []string{"--store", r.objects.Address(m.store.addr())}
	case r.store == "mongodb" && m.store != m.link:
		return []string{"--store", through(r.url, m.store.addr())}
	}
	return r.place()
}

// queueDir is the directory of an embedded database.
func (r *run) queueDir() string { return filepath.Join(r.dir, "queue") }

// node creates a worker's host.
func (r *run) node(m *member) (err error) {
	if m.node, err = kit.NewNode(m.name, r.programs.dir); err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, func() {
		if err := m.node.Remove(); err != nil {
			r.failed(err)
		}
	})
	if r.backend == "sqlite" {
		// The queue has no server: all hosts share this one directory in its place.
		if err := m.node.Mount(r.queueDir()); err != nil {
			return err
		}
	}
	if r.store == "shared" {
		return m.node.Mount(r.data)
	}
	return nil
}

// generation returns a generation of a type's file as an ordinary file. One in a store is copied, slot by slot.
func (r *run) generation(ctx context.Context, typ string, generation uint64) (file string, there bool) {
	name := storage.GenerationName(typ, generation)
	if r.address == "" {
		file = filepath.Join(r.data, name)
		_, err := os.Stat(file)
		return file, err == nil
	}
	file = filepath.Join(r.dir, "copied", name)
	switch err := r.copySlots(ctx, typ, generation, file); {
	case errors.Is(err, fs.ErrNotExist):
		return "", false
	case err != nil:
		r.violate("slots", "%s: %v", name, err)
		return file, false
	}
	return file, true
}

// slots opens the store as the product does, without a link.
func (r *run) slots(ctx context.Context) (s slots.Store, closing func(), err error) {
	closing = func() {}
	switch r.store {
	case "shared":
		s, err = dirslots.Open(r.data)
	case "s3":
		s, err = s3slots.Open(ctx, r.address)
	default:
		var m *mongoslots.Store
		if m, err = mongoslots.Open(ctx, r.url, mongoslots.Options{}); err == nil {
			s, closing = m, func() { m.Close() }
		}
	}
	return s, closing, err
}

// copySlots copies the slots of a file into one file. fs.ErrNotExist: there is no such generation.
func (r *run) copySlots(ctx context.Context, typ string, generation uint64, to string) error {
	s, closing, err := r.slots(ctx)
	if err != nil {
		return err
	}
	defer closing()
	return kit.CopySlots(ctx, s, typ, generation, to)
}
