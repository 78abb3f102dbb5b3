// Package dirslots is a store of slots in a directory that several machines share: NFSv4, EFS,
// CephFS. It also works on a local file system, among the processes of one machine.
//
// A value is a file that gets its name when it is complete:
//
//	.slots/RANDOM: write, fsync ──▶ link(2) to orders/00000001/…/00000000000000004096 ──▶ fsync of the folder
//
// link(2) fails with EEXIST if the name is taken, on every machine that mounts the directory: it is
// the one operation that an NFS server decides for all clients. Appends, O_EXCL of old clients,
// locks and rename cannot replace it.
package dirslots

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

const (
	tempFolder = ".slots" // below the directory; holds values that are being written
	maxValue   = 64 << 20
	leftover   = 24 * time.Hour // age from which a file in tempFolder counts as abandoned
	staleTries = 5              // attempts to open a file that another machine removed and made again
)

// Linger is what [Store.Linger] returns. A Create takes a file, some fsyncs and a link, each a round
// trip to the file server.
const Linger = 20 * time.Millisecond

// Store is a directory. It is safe for concurrent use.
type Store struct {
	dir   string
	clean sync.Once // before the first Create: remove leftovers
}

var (
	_ slots.Store  = (*Store)(nil)
	_ slots.Costly = (*Store)(nil)
)

// Open returns the store in a directory, which must exist: a missing directory is more often an
// unmounted volume than a new store. It changes nothing in it, so that readers can use a read-only mount.
// The first Create removes half-written files of writers that died more than a day ago.
//
// A *slots.RefusedError means that the directory is unusable.
func Open(dir string) (*Store, error) {
	if dir == "" { // usually a setting that is missing: it must not become the working directory
		return nil, &slots.RefusedError{Store: "shared:", Reason: "the name of the directory is empty", Remedy: "name the directory of the store"}
	}
	s := &Store{dir: filepath.Clean(dir)}
	info, err := os.Stat(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, s.refused("the directory does not exist", "mount the volume, or create the directory", err)
	case err != nil:
		return nil, s.explain(err)
	case !info.IsDir():
		return nil, s.refused("it is not a directory", "name the directory of the store", nil)
	}
	return s, nil
}

// String returns "shared:" followed by the directory.
func (s *Store) String() string { return "shared:" + s.dir }

// Linger implements slots.Costly.
func (s *Store) Linger() time.Duration { return Linger }

// MaxValue implements slots.Store.
func (s *Store) MaxValue() int { return maxValue }

func (s *Store) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

func (s *Store) refused(reason, remedy string, err error) error {
	return &slots.RefusedError{Store: s.String(), Reason: reason, Remedy: remedy, Err: err}
}

// explain translates errors of the operating system into errors of package slots.
func (s *Store) explain(err error) error {
	switch {
	case err == nil, errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return slots.Full(s.String(), err)
	case errors.As(err, new(*os.LinkError)) && errors.Is(err, syscall.EPERM): // not a lack of rights, which is EACCES
		return s.refused("the file system has no hard links, or the server maps this user to another one",
			"use another file system, because a value gets its name by link(2), or mount this one so that files belong to the user that creates them", err)
	case errors.Is(err, fs.ErrPermission):
		return s.refused("the directory is not accessible", "run as the user that owns it, or give that user access", err)
	case errors.Is(err, syscall.EROFS):
		return s.refused("the directory is read-only", "mount it for writing", err)
	case errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.EMLINK):
		return s.refused("the file system has no hard links", "use another one: a value gets its name by link(2)", err)
	}
	return fmt.Errorf("%s: %w", s, err)
}

// Create implements slots.Store.
func (s *Store) Create(ctx context.Context, name string, data []byte) error {
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	if len(data) > maxValue {
		return fmt.Errorf("%s: a value of %d bytes; the maximum is %d", s, len(data), maxValue)
	}
	s.clean.Do(s.removeLeftovers)
	temp := s.path(tempFolder + "/" + strings.ToLower(rand.Text()))
	defer os.Remove(temp) // it may not be there
	if err := s.write(ctx, temp, data); err != nil {
		return s.explain(err)
	}
	if err := s.mkdirs(filepath.Dir(s.path(name))); err != nil {
		return s.explain(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// rule: link(2), never rename: it fails if the name is taken, and never replaces a value.
	err := os.Link(temp, s.path(name))
	if err != nil {
		// rule: the file's link count decides, not the error of link(2). An NFS client retries a request whose answer was
		// lost, and then gets EEXIST because of its own success.
		linked, lerr := hasTwoNames(temp)
		switch {
		case lerr != nil:
			return s.unclear(name, errors.Join(err, lerr))
		case linked:
			err = nil
		}
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		// rule: the name is durable before any caller learns that it is taken.
		if err := s.syncDir(filepath.Dir(s.path(name))); err != nil {
			return s.unclear(name, err)
		}
		return err
	}
	return s.explain(hideNames(err))
}

// unclear returns the error of a Create after which the value may exist.
//
// rule: an error after link(2) is not ErrFull or a refusal, which mean that nothing was changed.
func (s *Store) unclear(name string, err error) error {
	return fmt.Errorf("%s: it is not known whether %s was created: %v", s, name, err)
}

// hasTwoNames reports whether a file has a name besides this one. It opens the file by name, which
// makes an NFS client query the server; fstat may return cached attributes.
func hasTwoNames(name string) (bool, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && names(info) > 1, err
}

// write makes a durable file under a temporary name.
func (s *Store) write(ctx context.Context, temp string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if errors.Is(err, fs.ErrNotExist) { // the folder of a new store, or it was removed by hand
		if err := s.mkdirs(filepath.Dir(temp)); err != nil {
			return err
		}
		f, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	}
	if err != nil {
		return hideNames(err)
	}
	// rule: a value gets its name only after it is durable.
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// hideNames makes errors about temporary names and folders of the store unclear, so that they are not taken
// for an answer about a value.
func hideNames(err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return errors.New(err.Error())
	}
	return err
}

// mkdirs makes a folder and its parents below the directory of the store, durably.
func (s *Store) mkdirs(dir string) error {
	if dir == s.dir || len(dir) < len(s.dir) {
		return nil
	}
	err := os.Mkdir(dir, 0o750)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.mkdirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o750)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil // the process that made it syncs its name, and so does every Create of a value in it
	case err != nil:
		return hideNames(err)
	}
	return s.syncDir(filepath.Dir(dir))
}

// syncDir makes the names in a folder durable, and those of the folder and its parents, up to the directory of the store.
//
// rule: parent names are synced, too: the process that made a folder may have died before it synced the folder's parent.
func (s *Store) syncDir(dir string) error {
	for {
		d, err := os.Open(dir)
		if err != nil {
			return hideNames(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
		if dir == s.dir || len(dir) <= len(s.dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// open opens the file of a value.
//
// rule: a missing name is looked up again after its folders were opened: an NFS client may cache
// for a minute that a name does not exist, and a missing slot marks the end of a file.
// Opening a folder makes the client check with the server whether the folder has changed (close-to-open
// consistency), and if so, drop its cache of the names in it.
func (s *Store) open(ctx context.Context, name string) (*os.File, error) {
	if err := slotname.Check(s, name); err != nil {
		return nil, err
	}
	again := true
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(s.path(name), os.O_RDONLY|openFlags, 0)
		switch {
		case errors.Is(err, syscall.ESTALE) && try < staleTries:
			continue
		case errors.Is(err, syscall.ENOTDIR):
			err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		case errors.Is(err, fs.ErrNotExist) && again:
			if err := s.openFolders(filepath.Dir(s.path(name))); err != nil {
				return nil, err
			}
			again = false
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fs.ErrNotExist // a folder
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// openFolders opens the directory of the store and the folders below it, down to dir. A
// missing folder is not an error: the next lookup of the value decides.
func (s *Store) openFolders(dir string) error {
	if len(dir) > len(s.dir) {
		if err := s.openFolders(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	d, err := os.Open(dir)
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrNotExist) && dir != s.dir {
		return nil
	}
	if err != nil {
		return hideNames(err) // without its directory, nothing is known about the store
	}
	return d.Close()
}

// Read implements slots.Store.
func (s *Store) Read(ctx context.Context, name string) ([]byte, error) {
	f, err := s.open(ctx, name)
	if err != nil {
		return nil, s.explain(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxValue+1))
	return b, s.explain(err)
}

// Size implements slots.Store.
func (s *Store) Size(ctx context.Context, name string) (int64, error) {
	f, err := s.open(ctx, name)
	if err != nil {
		return 0, s.explain(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, s.explain(err)
	}
	return info.Size(), nil
}

// entries returns the entries of a folder, sorted by name; none if the folder does not exist.
func (s *Store) entries(ctx context.Context, folder string) ([]fs.DirEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if folder != "" {
		if err := slotname.Check(s, folder); err != nil {
			return nil, err
		}
	}
	all, err := os.ReadDir(s.path(folder))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	return all, s.explain(err)
}

// List implements slots.Store.
func (s *Store) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	found, err := s.entries(ctx, folder)
	if err != nil {
		return nil, err
	}
	var all []slots.Entry
	for _, e := range found {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just removed
		}
		if err != nil {
			return nil, s.explain(err)
		}
		all = append(all, slots.Entry{Name: folder + "/" + e.Name(), Size: info.Size()})
	}
	return all, nil
}

// Folders implements slots.Store.
func (s *Store) Folders(ctx context.Context, folder string) ([]string, error) {
	found, err := s.entries(ctx, folder)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range found {
		if e.IsDir() && slotname.Valid(e.Name()) && (folder != "" || e.Name() != tempFolder) {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// Delete implements slots.Store. Folders stay.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	err := os.Remove(s.path(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return s.explain(err)
}

// removeLeftovers removes temporary files that no process is still writing. It measures their age by the
// clock that sets file times, which may be another machine's. After an error they stay: they only take space.
func (s *Store) removeLeftovers() {
	found, err := os.ReadDir(s.path(tempFolder))
	if err != nil || len(found) == 0 {
		return
	}
	mark := s.path(tempFolder + "/" + strings.ToLower(rand.Text()))
	defer os.Remove(mark)
	if err := os.WriteFile(mark, nil, 0o640); err != nil {
		return
	}
	now, err := os.Stat(mark)
	if err != nil {
		return
	}
	for _, e := range found {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && now.ModTime().Sub(info.ModTime()) > leftover {
			os.Remove(s.path(tempFolder + "/" + e.Name()))
		}
	}
}
