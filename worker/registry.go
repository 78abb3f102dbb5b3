package worker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// The registry of files, in the queue, says which file a type has and how much of it is durable. A
// session compares the file that it opens with its registry entry, so that an old copy or an empty
// directory is not taken for the file. Each acknowledgement raises the entry's durable index.

// knownFiles is what a pool remembers about the files of its types from one session to the next. Safe
// for concurrent use.
type knownFiles struct {
	mu      sync.Mutex
	durable map[string]storage.Entry // by type: its file, and the durable index at the end of the last session
	lives   map[string]ledger.Lives  // by type: since when each producer has been silent
}

func newKnownFiles() *knownFiles {
	return &knownFiles{durable: make(map[string]storage.Entry), lives: make(map[string]ledger.Lives)}
}

// sawDurable remembers the durable index of a type's file at the end of a session of this pool.
func (f *knownFiles) sawDurable(typ string, e storage.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable[typ] = e
}

// atLeast raises a registry entry to the durable index that this pool has itself seen.
func (f *knownFiles) atLeast(typ string, e storage.Entry) storage.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	// rule: a pool does not continue with a file that ends below the durable index it has seen, even if the registry was rolled back with the
	// file. A later generation comes from another holder of the lock, perhaps a repair that gave up
	// records: its entry stands as it is.
	if seen := f.durable[typ]; e.Generation <= seen.Generation {
		e.DurableIndex = max(e.DurableIndex, seen.DurableIndex)
	}
	return e
}

// recalled returns what remember has stored for a type, and forgets it: it may be as large as the ledger.
func (f *knownFiles) recalled(typ string) ledger.Lives {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer delete(f.lives, typ)
	return f.lives[typ]
}

// remember stores since when the producers of a type have been silent. Without it a pool with short
// sessions would never see a producer silent for long enough to be forgotten.
func (f *knownFiles) remember(typ string, l *ledger.Ledger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives[typ] = l.Lives()
}

// registry implements storage.Registry with the queue's registry of files.
type registry struct {
	q    queue.FileRegistry
	pool *replica
}

// Lookup returns the entry of a type, raised to the durable index that this pool has itself seen: the
// database may have been restored to an earlier state since.
func (r registry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	f, ok, err := r.q.RegistryEntry(ctx, typ)
	return r.pool.files.atLeast(typ, storageEntry(f)), ok, err
}

// Register registers a file of a type; the result is raised as by Lookup.
func (r registry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	f, err := r.q.RegisterFile(ctx, typ, r.here(e))
	return r.pool.files.atLeast(typ, storageEntry(f)), err
}

// Succeed replaces the file old by its successor.
func (r registry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	f, ok, err := r.q.SucceedFile(ctx, typ, old, r.here(e))
	return storageEntry(f), ok, err
}

// Update raises the durable index at the end of a session. No message depends on it, so a stopping pool
// does not wait long for an unresponsive server.
func (r registry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	ctx, done := r.pool.parting(ctx, registryTimeout)
	defer done()
	return r.q.UpdateFile(ctx, typ, r.here(e))
}

// sessionRegistry is the registry for the file of one session.
type sessionRegistry struct {
	registry
	*session
}

// Update does nothing if e is what the session registered last: usually the last acknowledgement has
// done that, and the end of the session need not repeat it.
func (r sessionRegistry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	if last := r.registered.Load(); last != nil && *last == e {
		return true, nil
	}
	ok, err := r.registry.Update(ctx, typ, e)
	if ok && err == nil {
		r.registered.Store(&e)
	}
	return ok, err
}

// here is the registry entry of a file that is in the pool's directory.
func (r registry) here(e storage.Entry) queue.RegistryEntry {
	f := queueFile(e)
	f.Place = Place(r.pool.dest.Storage.FS, r.pool.dest.Dir)
	return f
}

// Place returns where files are, as the registry stores it. For the operating system's file system
// (also nil) that is this host's name and the absolute path of the directory; for a store it is dir,
// which is its address.
func Place(fs storage.FS, dir string) string {
	p := dir
	if fs == nil || fs == storage.OS() {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		host, _ := os.Hostname()
		p = host + ":" + p
	}
	p = strings.ToValidUTF8(p, "\uFFFD")
	return strings.ToValidUTF8(p[:min(len(p), queue.MaxPlace)], "")
}

func storageEntry(f queue.RegistryEntry) storage.Entry {
	return storage.Entry{FileID: f.FileID, Generation: f.Generation, Epoch: f.Epoch, DurableIndex: f.DurableIndex, Place: f.Place}
}

func queueFile(e storage.Entry) queue.RegistryEntry {
	return queue.RegistryEntry{FileID: e.FileID, Generation: e.Generation, Epoch: e.Epoch, DurableIndex: e.DurableIndex}
}

// fileHolder describes the writer of a fence. It is informational: no decision depends on it.
func fileHolder(instance string) storage.Holder {
	host, _ := os.Hostname()
	return storage.Holder{ID: instance, Host: host, PID: os.Getpid(), Version: Version()}
}
