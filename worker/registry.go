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

// The registry of files is the queue's memory of which file a type has and how much of it is
// durable. A session checks its file against that when it opens it, so that an old copy or an empty
// directory does not pass for the file, and raises it with each acknowledgement.

// knownFiles is what a pool remembers of the files of its types between its sessions. Safe for
// concurrent use.
type knownFiles struct {
	mu      sync.Mutex
	durable map[string]storage.Entry // per type: its file, and how far that was durable at the end of a session
	lives   map[string]ledger.Lives  // per type: since when each producer has been silent
}

func newKnownFiles() *knownFiles {
	return &knownFiles{durable: make(map[string]storage.Entry), lives: make(map[string]ledger.Lives)}
}

// sawDurable remembers how far a type's file was durable when a session of this pool ended.
func (f *knownFiles) sawDurable(typ string, e storage.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable[typ] = e
}

// atLeast raises what the registry says of a type's file to what this pool has seen itself.
func (f *knownFiles) atLeast(typ string, e storage.Entry) storage.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	// rule: a pool does not go on with a file that ends below what it has seen durable, also if the registry was set back with the file. A later
	// generation is somebody's who had the lock, a repair perhaps that has given something up: it
	// stands as it is.
	if seen := f.durable[typ]; e.Generation <= seen.Generation {
		e.DurableIndex = max(e.DurableIndex, seen.DurableIndex)
	}
	return e
}

// recalled returns what is remembered of a type's file between its sessions, and remember sets it.
func (f *knownFiles) recalled(typ string) ledger.Lives {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lives[typ]
}

// remember keeps since when the producers of a type have been silent: a pool whose sessions are
// short would otherwise never see any of them silent for long.
func (f *knownFiles) remember(typ string, l *ledger.Ledger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives[typ] = l.Lives()
}

// registry lets the file check itself against the queue's registry of files.
type registry struct {
	q    queue.FileRegistry
	pool *replica
}

// Lookup and Register raise what the registry says to what this pool has seen durable itself: the
// database may have been set back since.
func (r registry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	f, ok, err := r.q.RegistryEntry(ctx, typ)
	return r.pool.files.atLeast(typ, storageEntry(f)), ok, err
}

func (r registry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	f, err := r.q.RegisterFile(ctx, typ, r.here(e))
	return r.pool.files.atLeast(typ, storageEntry(f)), err
}

func (r registry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	f, ok, err := r.q.SucceedFile(ctx, typ, old, r.here(e))
	return storageEntry(f), ok, err
}

// Update is for the end of a session. No message depends on it, so a pool that stops does not wait
// for a server that is silent.
func (r registry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	ctx, done := r.pool.parting(ctx, registryTimeout)
	defer done()
	return r.q.UpdateFile(ctx, typ, r.here(e))
}

// here is the entry of a file in the place of this pool.
func (r registry) here(e storage.Entry) queue.RegistryEntry {
	f := queueFile(e)
	f.Place = Place(r.pool.dest.Storage.FS, r.pool.dest.Dir)
	return f
}

// Place returns what the registry is told about where files are: for the operating system's file
// system, which nil stands for, this host's name and the whole path of the directory; for any other
// the directory as it is, which is the address of a store.
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

// fileHolder is what fences say about who wrote them. It is for people: nothing is decided by it.
func fileHolder(instance string) storage.Holder {
	host, _ := os.Hostname()
	return storage.Holder{ID: instance, Host: host, PID: os.Getpid(), Version: Version()}
}
