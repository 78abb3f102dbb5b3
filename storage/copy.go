package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
)

// A type moves to another directory or store in these steps. A process may die or pause between any two
// of them:
//
//	1. Seal the newest file, naming a successor that does not exist yet (Seal). From here on no writer can append
//	   to the files at the old place.
//	2. Copy all files, byte for byte, each under a temporary name until it is whole and durable (CopyFile).
//	3. The first writer to open the type at the new place finds a sealed file without a successor. It creates the
//	   successor, and the registry's entry moves to that.
//
// Until step 3 a writer may also open the type at the old place, and create the same successor there.
// Then the epoch and durable index in the registry decide which of the two continues; the other is
// refused.

const (
	copyStep = 1 << 20  // bytes read at once
	copySync = 64 << 20 // bytes between two syncs, as for compactions
)

// Seal ends the file permanently. The next writer of the type continues in a successor. state is as
// for Checkpoint. The writer is closed if Seal succeeds. An *EpochError means that another writer has
// taken over; the file may be sealed nevertheless.
func (w *Writer) Seal(ctx context.Context, state []byte) error {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	if err := w.writeCheckpoint(state); err != nil {
		return err
	}
	seal := sealBody{generation: w.header.generation + 1, reason: "copy"}
	if _, err := rand.Read(seal.successor[:]); err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	if err := w.seal(seal); err != nil {
		return err
	}
	// rule: the registry has the file's final durable index before the type can continue elsewhere: that exposes an old copy.
	err := w.overtaken(ctx, w.UpdateRegistry(ctx))
	w.retire(err)
	return err
}

// CopyFile copies the file of a type at path, byte for byte, into the directory toDir of another
// file system, under the same name. The file must be sealed. A nil file system stands for OS().
// progress, which may be nil, is called with the numbers of copied bytes and of all bytes.
//
// If the copy already exists, CopyFile changes nothing and copied is false. If a different file is
// there, CopyFile changes nothing and returns a *CopyConflict. An interrupted copy leaves a file with a
// temporary name, which the next Open removes; in a store the next copy of the file removes it, too.
func CopyFile(ctx context.Context, from FS, path string, to FS, toDir string, progress func(done, total int64)) (copied bool, err error) {
	from, to = orOS(from), orOS(to)
	src, err := from.Open(path, ModeRead)
	if err != nil {
		return false, ioError("open", path, err)
	}
	defer src.Close()
	h, err := readFileHeader(path, src)
	if err != nil {
		return false, err
	}
	name := GenerationName(h.typ, h.generation)
	if filepath.Base(path) != name {
		return false, &WrongTypeError{Path: path, Want: filepath.Base(path), Found: h.typ, Generation: h.generation}
	}
	info, err := src.Stat()
	if err != nil {
		return false, ioError("stat", path, err)
	}
	// rule: a file that may still grow is not copied: the copy could be mistaken for the whole file.
	link := ReadLink(from, path)
	if link.Err != nil {
		return false, link.Err
	}
	if link.Sealed == nil {
		return false, fmt.Errorf("%w: %s is not sealed: it is the file that is written to", ErrRefused, path)
	}
	c := &copying{ctx: ctx, src: src, path: path, id: h.fileID, sealEnd: link.end, sealed: link.Sealed, size: info.Size, progress: progress}
	target := filepath.Join(toDir, name)
	there, err := to.Open(target, ModeRead)
	if err == nil {
		defer there.Close()
		return false, c.compare(there, to, target)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, ioError("open", target, err)
	}
	w := &Writer{fs: to, dir: toDir, typ: h.typ}
	if err := w.mkdirs(toDir); err != nil {
		return false, err
	}
	var nonce uint64
	if err := fillRandom(&nonce); err != nil {
		return false, err
	}
	if err := c.create(to, filepath.Join(toDir, TempName(h.typ, h.generation, nonce)), target); err != nil {
		return false, err
	}
	if err := to.SyncDir(toDir); err != nil {
		return false, ioError("sync directory", toDir, err)
	}
	return true, errors.Join(w.removeUnfinished(h.generation), w.syncParents())
}

// removeUnfinished removes from a store the temporary files of interrupted copies of a generation, whose final name now exists. A store
// cannot remove them earlier, and it lists temporary files of the newest generations only: after copies of later generations these would
// no longer be found.
func (w *Writer) removeUnfinished(generation uint64) error {
	if t, err := w.fs.Type(w.dir); err != nil || !t.Slots {
		return ioError("examine the file system of", w.dir, err)
	}
	_, temps, err := w.newest()
	if err != nil {
		return err
	}
	return w.removeTemps(slices.DeleteFunc(temps, func(name string) bool {
		_, g, _, _ := ParseTempName(name)
		return g != generation
	}))
}

// copying is the state of one call of CopyFile.
type copying struct {
	ctx      context.Context
	src      File
	path     string
	id       FileID
	sealed   *SealedError
	sealEnd  int64
	size     int64 // bytes to copy or compare
	progress func(done, total int64)
}

// each calls f with the bytes of the file, in order.
func (c *copying) each(f func(b []byte, off int64) error) error {
	b := make([]byte, copyStep)
	for off := int64(0); off < c.size; {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n, err := c.src.ReadAt(b[:min(int64(len(b)), c.size-off)], off)
		if n == 0 {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return ioError("read", c.path, err)
		}
		if err := f(b[:n], off); err != nil {
			return err
		}
		if off += int64(n); c.progress != nil {
			c.progress(off, c.size)
		}
	}
	return nil
}

// create makes a durable copy under the name tmp, and then gives it the name target instead.
func (c *copying) create(to FS, tmp, target string) error {
	err := c.write(to, tmp)
	if err == nil {
		// A file that another process has created there meanwhile is not replaced.
		if err = to.Link(tmp, target); errors.Is(err, fs.ErrExist) {
			err = &CopyConflict{Path: c.path, Target: target, Removed: errors.Is(ReadLink(to, target).Err, fs.ErrNotExist)}
		} else if err != nil {
			err = ioError("create", target, err)
		}
	}
	if rerr := ignoreNotExist(to.Remove(tmp)); err == nil && rerr != nil {
		err = ioError("remove", tmp, rerr)
	}
	return err
}

// write makes a durable copy under a temporary name.
func (c *copying) write(to FS, tmp string) error {
	dst, err := to.Open(tmp, ModeCreate)
	if err != nil {
		return ioError("create", tmp, err)
	}
	often := int64(copySync)
	if _, ok := dst.(InPieces); ok {
		often = compactSyncPieces
	}
	synced := int64(0)
	err = c.each(func(b []byte, off int64) error {
		if err := appendWhole(dst, b); err != nil {
			return ioError("write", tmp, err)
		}
		if done := off + int64(len(b)); done-synced >= often {
			synced = done
			return ioError("sync", tmp, dst.Datasync())
		}
		return nil
	})
	if err == nil {
		err = ioError("sync", tmp, dst.Datasync())
	}
	if cerr := dst.Close(); err == nil {
		err = ioError("close", tmp, cerr)
	}
	return err
}

// compare returns nil if the file at target is a copy, and a *CopyConflict if it is another file. It compares the files up to their seals,
// where readers end. After the seal each may have fences of its own, of writers that opened it since it was copied.
func (c *copying) compare(there File, to FS, target string) error {
	conflict := &CopyConflict{Path: c.path, Target: target}
	link := ReadLink(to, target)
	switch {
	case link.Err != nil:
		return link.Err
	case link.Sealed == nil || link.Sealed.Successor != c.sealed.Successor || link.end != c.sealEnd:
		conflict.Unused = link.Sealed == nil && link.FileID == c.id && link.Next == link.First
		return conflict
	}
	c.size = c.sealEnd
	b := make([]byte, copyStep)
	return c.each(func(want []byte, off int64) error {
		n, err := there.ReadAt(b[:len(want)], off)
		if err != nil && err != io.EOF {
			return ioError("read", target, err)
		}
		if !bytes.Equal(b[:n], want) {
			return conflict
		}
		return nil
	})
}

// CopyConflict says that the destination has a different file.
type CopyConflict struct {
	Path, Target string
	Removed      bool // the copy existed, and was removed as an old file
	Unused       bool // an earlier, interrupted copy created it, and it has no messages
}

func (e *CopyConflict) Error() string {
	if e.Removed {
		return fmt.Sprintf("%s cannot be copied: %s was removed there as an old file, and its name is not used again; remove it here, too, or "+
			"copy to another directory or store", e.Path, e.Target)
	}
	if e.Unused {
		return fmt.Sprintf("%s cannot be copied: %s is there. An earlier copy created it and was interrupted, and then the old place was used again. It has no messages: "+
			"move it away, or in a store remove the value that names it, and copy again; or copy to another directory or store", e.Path, e.Target)
	}
	return fmt.Sprintf("%s cannot be copied: %s is there, and is another file: an earlier copy was interrupted and then the old place was "+
		"used again, or the files there belong to another database; copy to another directory or store", e.Path, e.Target)
}

// Is makes the error ErrRefused.
func (e *CopyConflict) Is(target error) bool { return target == ErrRefused }
