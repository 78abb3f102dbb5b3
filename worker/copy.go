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

// CopyOptions configures [Copy].
type CopyOptions struct {
	FS       storage.FS                           // the destination; nil is the operating system's file system
	Dir      string                               // the directory there; for a store its address
	Wait     time.Duration                        // for the type's lock, as for Rewrite
	Progress func(path string, done, total int64) // called periodically with the bytes of the file at path; may be nil
}

// CopyReport is the result of [Copy].
type CopyReport struct {
	Already   bool   // the registry already named the destination, and nothing was done
	Path      string // the new file at the destination, in which workers continue
	Files     int    // sealed files at the destination in the end, without Path
	Copied    int    // how many of them this call copied
	NextIndex uint64 // of the next record in Path
}

// Copy moves a type to another directory or store. It copies all files of the type, verifies the
// copies, and makes the registry name the destination, where workers then continue. Sealed files are
// copied while workers run; for the rest Copy takes the type's lock, and workers wait. If Dir cannot be
// written to, Copy changes nothing. If it fails later, workers continue at the old place, and the next
// call does not copy the same files again. The old files stay unchanged, but workers refuse them
// afterwards. Of cfg, Copy uses Queue, Locker, To (Files: Dir and Storage), Lease and Logger.
func Copy(ctx context.Context, cfg Config, typ string, o CopyOptions) (*CopyReport, error) {
	from, err := newRewriter(cfg, typ)
	if err != nil {
		return nil, err
	}
	files := from.dest
	files.Dir, files.Storage.FS = o.Dir, o.FS
	cfg.To = files
	to, err := newRewriter(cfg, typ)
	if err != nil {
		return nil, err
	}
	if err := storage.CheckWritable(o.Dir, to.dest.Storage); err != nil {
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
	// Fail before copying anything if the registered files are somewhere else.
	if err := storage.CheckRegistered(from.dest.Storage.FS, from.dest.Dir, typ, storageEntry(entry)); err != nil {
		return nil, err
	}
	// Most of the work needs no lock: sealed files do not change.
	if err := m.copySealed(ctx); err != nil {
		return nil, err
	}
	if err := from.underLock(ctx, typ, "copy", o.Wait, m.run); err != nil {
		return nil, err
	}
	return m.r, nil
}

// move is the state of one Copy.
type move struct {
	from, to *replica
	typ      string
	o        CopyOptions
	r        *CopyReport
	done     map[string]bool // paths of files that have a verified copy
	sealed   bool            // this Copy sealed the newest file
}

// run does the part that needs the lock: it seals the newest file, copies the remaining files, and
// registers the destination.
func (m *move) run(ctx context.Context, lease *lock.Lease) error {
	// rule: nothing is appended here from now on.
	if err := m.seal(ctx, lease); err != nil {
		return err
	}
	if err := m.copyRest(ctx); err != nil {
		m.stay(lease)
		return err
	}
	s := &session{pool: m.to, typ: m.typ, lease: lease, log: m.to.log}
	if err := s.open(ctx); err != nil { // this creates the successor there and registers it
		return err
	}
	m.r.Path, m.r.NextIndex = s.writer().Path(), s.writer().NextIndex()
	return s.writer().Close()
}

// copyRest copies the sealed files that have no copy yet, and checks that all copies follow one another.
func (m *move) copyRest(ctx context.Context) error {
	if err := m.copySealed(ctx); err != nil {
		return err
	}
	_, err := m.chain(m.to)
	return err
}

// stay lets the type continue at the old place, after copying failed: without a successor there, verify
// would report the sealed file until a worker opens the type. A file that an earlier Copy sealed is left
// to workers: that Copy may have created the successor at the new place.
func (m *move) stay(lease *lock.Lease) {
	if !m.sealed {
		return
	}
	ctx, cancel := context.WithTimeout(lease.Context(), m.from.cfg.Lease) // also after the caller has cancelled the copy
	defer cancel()
	s := &session{pool: m.from, typ: m.typ, lease: lease, log: m.from.log}
	if s.open(ctx) == nil { // if it fails, the next worker does the same
		_ = s.writer().Close()
	}
}

// seal seals the newest file, unless an earlier Copy that failed afterwards has done so.
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
	if m.sealed = err == nil; !m.sealed {
		_ = s.writer().Close() // the error of Seal says more
	}
	return err
}

// chain returns the files of the type at one of the two places. It is an error if there are none, or
// if one of them is damaged and still needed.
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
	needless := chain.Replaced()
	for _, l := range chain {
		if l.Err != nil && !needless[l.Path] {
			return nil, l.Err
		}
	}
	return chain, nil
}

// copySealed copies the sealed files and verifies the copies.
func (m *move) copySealed(ctx context.Context) error {
	chain, err := m.chain(m.from)
	if err != nil {
		return err
	}
	needless := chain.Replaced()
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
