package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
)

// CopyOptions of Copy.
type CopyOptions struct {
	FS       storage.FS                           // where to; nil is the operating system's
	Dir      string                               // a directory there; of a store its address
	Wait     time.Duration                        // for the type's lock, as for Rewrite
	Progress func(path string, done, total int64) // bytes of the file at path, now and then; may be nil
}

// CopyReport says what Copy did.
type CopyReport struct {
	Already   bool   // the type's files were there already, and nothing was done
	Path      string // of the file that workers go on with
	Files     int    // that were there in the end, without that one
	Copied    int    // of these
	NextIndex uint64
}

// Copy moves a type to another directory or store: it copies all files that are here, checks the
// copies, and has the registry name the new place, where workers go on. Until then workers of the
// type stand by, except while older files are copied, and go on here if Copy fails. What was copied
// by then is not copied again. The files that are here stay as they are, but workers refuse them
// afterwards. Of cfg, Queue, Locker, To (Files, of which
// Dir and Storage), Lease and Logger are used.
func Copy(ctx context.Context, cfg Config, typ string, o CopyOptions) (*CopyReport, error) {
	from, err := newRewriter(cfg, typ, func(*Files) {})
	if err != nil {
		return nil, err
	}
	to, err := newRewriter(cfg, typ, func(f *Files) { f.Dir, f.Storage.FS = o.Dir, o.FS })
	if err != nil {
		return nil, err
	}
	if err := storage.CheckDirectory(o.Dir, to.dest.Storage); err != nil {
		return nil, err
	}
	m := &move{from: from, to: to, typ: typ, o: o, r: &CopyReport{}, done: map[string]bool{}}
	entry, known, err := cfg.Queue.RegistryEntry(ctx, typ)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, fmt.Errorf("type %q has no registered file: %w", typ, fs.ErrNotExist)
	case entry.Place == Place(o.FS, o.Dir):
		m.r.Already, m.r.NextIndex = true, entry.DurableIndex
		return m.r, nil
	}
	// A type whose files are elsewhere is told before anything is copied.
	if err := storage.CheckRegistered(from.dest.Storage.FS, from.dest.Dir, typ, storageEntry(entry)); err != nil {
		return nil, err
	}
	// Most of it without the lock. Files that are sealed do not change.
	if err := m.copySealed(ctx); err != nil {
		return nil, err
	}
	err = m.from.underLock(ctx, typ, "copy", o.Wait, m.run)
	if err != nil {
		return nil, err
	}
	return m.r, nil
}

// move is one Copy.
type move struct {
	from, to *replica
	typ      string
	o        CopyOptions
	r        *CopyReport
	done     map[string]bool // paths of files of which there is a good copy
}

// run does what needs the lock.
func (m *move) run(ctx context.Context, lease *lock.Lease) error {
	// rule: nothing is appended here from now on.
	if err := m.seal(ctx, lease); err != nil {
		return err
	}
	if err := m.copySealed(ctx); err != nil {
		return err
	}
	if _, err := m.chain(m.to); err != nil {
		return err
	}
	s := &session{pool: m.to, typ: m.typ, lease: lease, log: m.to.log}
	if err := s.open(ctx); err != nil { // it makes the successor, and the registry names it
		return err
	}
	m.r.Path, m.r.NextIndex = s.writer().Path(), s.writer().NextIndex()
	return s.writer().Close()
}

// seal ends the newest file, unless somebody who came no further has.
func (m *move) seal(ctx context.Context, lease *lock.Lease) error {
	chain, err := m.chain(m.from)
	if err != nil {
		return err
	}
	if chain[len(chain)-1].Sealed != nil {
		entry, _, err := registry{m.from.cfg.Queue, m.from}.Lookup(ctx, m.typ)
		if err != nil {
			return err
		}
		return storage.CheckRegistered(m.from.dest.Storage.FS, m.from.dest.Dir, m.typ, entry)
	}
	s := &session{pool: m.from, typ: m.typ, lease: lease, log: m.from.log}
	if err := s.open(ctx); err != nil {
		return err
	}
	err = s.writer().Seal(ctx, s.ledger.State())
	if err != nil {
		_ = s.writer().Close() // why it was not sealed is what counts
	}
	return err
}

// chain returns the files of the type at a place, which are checked.
func (m *move) chain(at *replica) (storage.Chain, error) {
	chain, err := storage.ReadChain(at.dest.Storage.FS, at.dest.Dir, m.typ)
	if err != nil {
		return nil, err
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("there is no file of type %q in %s: %w", m.typ, at.dest.Dir, fs.ErrNotExist)
	}
	if wrong := chain.Check(); len(wrong) > 0 {
		return nil, wrong[0]
	}
	needless := replaced(chain)
	for _, l := range chain {
		if l.Err != nil && !needless[l.Path] {
			return nil, l.Err
		}
	}
	return chain, nil
}

// replaced returns the paths of files that a compaction or a repair has replaced: damage in them does
// not count, and one whose end cannot be read stays behind.
func replaced(chain storage.Chain) map[string]bool {
	paths := map[string]bool{}
	for _, l := range chain.Replaced() {
		paths[l.Path] = true
	}
	return paths
}

// copySealed copies the files that are sealed, and reads the copies.
func (m *move) copySealed(ctx context.Context) error {
	chain, err := m.chain(m.from)
	if err != nil {
		return err
	}
	needless := replaced(chain)
	for _, l := range chain {
		if l.Sealed == nil || m.done[l.Path] {
			continue
		}
		var progress func(done, total int64)
		if m.o.Progress != nil {
			progress = func(done, total int64) { m.o.Progress(l.Path, done, total) }
		}
		copied, err := storage.CopyFile(ctx, m.from.dest.Storage.FS, l.Path, m.o.FS, m.o.Dir, progress)
		if err != nil {
			return err
		}
		// rule: the registry names a place only when every message can be read there.
		path := filepath.Join(m.o.Dir, filepath.Base(l.Path))
		rep, err := storage.Verify(ctx, path, storage.VerifyOptions{FS: m.o.FS})
		if err == nil {
			err = rep.Err()
		}
		if err != nil && !(needless[l.Path] && errors.Is(err, storage.ErrIntegrity)) {
			return fmt.Errorf("the copy: %w", err)
		}
		m.done[l.Path] = true
		m.r.Files++
		if copied {
			m.r.Copied++
		}
	}
	return nil
}
