package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Generations. A file is never truncated, rewritten or renamed. When it has to end (size limit,
// compaction, repair), it is sealed, and the type continues in a successor, the next generation:
//
//	orders.fpl      … batch │ checkpoint S │ SEAL → id 7f3a…, generation 2
//	orders@0002.fpl header (id 7f3a…, continues orders.fpl) │ FENCE │ OPEN │ checkpoint S │ batch …
//
// The order of the steps makes it safe to die or pause between any two of them:
//
//	1. Write checkpoint S to the old file, and sync.
//	2. Write the whole successor under a temporary name, and sync.
//	3. Write SEAL to the old file, naming the successor's identity; sync, and check that this writer was not fenced off.
//	   From here on no writer can append to the old file.
//	4. Give the successor its name with link(2). This fails if a file has that name: a later writer was faster.
//	5. Move the registry's entry from the old identity to the new one. This fails if the entry names neither.
//	6. Only after that, append records to the successor that may be acknowledged.
//
// A writer that opens the type after step 3 and finds no successor creates it, with the identity in the
// seal and the state S. A writer that finds a successor unknown to the registry performs step 5.

const fileSuffix = ".fpl"

// FileName returns the name of the first file of a type within its directory.
func FileName(typ string) string { return GenerationName(typ, 1) }

// GenerationName returns the name of a generation of a type's file within its directory. No type name
// contains an @, and names sort by generation up to the 9999th.
func GenerationName(typ string, generation uint64) string {
	if generation <= 1 {
		return typ + fileSuffix
	}
	return fmt.Sprintf("%s@%04d%s", typ, generation, fileSuffix)
}

// ParseName is the inverse of GenerationName; ok is false if name is not the name of a type's file.
func ParseName(name string) (typ string, generation uint64, ok bool) {
	typ, ok = strings.CutSuffix(name, fileSuffix)
	if !ok {
		return "", 0, false
	}
	generation = 1
	if base, digits, found := strings.Cut(typ, "@"); found {
		typ = base
		if generation, _ = strconv.ParseUint(digits, 10, 64); generation < 2 {
			return "", 0, false
		}
	}
	return typ, generation, validType(typ) && name == GenerationName(typ, generation)
}

// TempName returns the name of a type's file while it is being written. nonce is random: if a name
// were used twice, a writer paused before its link(2) would publish a file that another writer has
// only begun to write.
func TempName(typ string, generation, nonce uint64) string {
	return fmt.Sprintf(".%s.%016x.tmp", GenerationName(typ, generation), nonce)
}

// ParseTempName is the inverse of TempName; ok is false if name is not a temporary name.
func ParseTempName(name string) (typ string, generation, nonce uint64, ok bool) {
	base, dotted := strings.CutPrefix(name, ".")
	base, temp := strings.CutSuffix(base, ".tmp")
	dot := strings.LastIndexByte(base, '.')
	if !dotted || !temp || dot < 0 {
		return "", 0, 0, false
	}
	nonce, err := strconv.ParseUint(base[dot+1:], 16, 64)
	typ, generation, ok = ParseName(base[:dot])
	return typ, generation, nonce, ok && err == nil && name == TempName(typ, generation, nonce)
}

// isTempName reports whether name is a TempName of the type.
func isTempName(name, typ string) bool {
	t, _, _, ok := ParseTempName(name)
	return ok && t == typ
}

// newest returns the highest generation of the type in the directory, or 0 if there is none, and the
// temporary files that earlier writers left behind.
func (w *Writer) newest() (generation uint64, temps []string, err error) {
	names, err := w.fs.List(w.dir, w.typ)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, ioError("list directory", w.dir, err)
	}
	generation, temps = w.newestOf(names)
	return generation, temps, nil
}

func (w *Writer) newestOf(names []string) (generation uint64, temps []string) {
	for _, name := range names {
		if typ, g, ok := ParseName(name); ok && typ == w.typ {
			generation = max(generation, g)
		} else if isTempName(name, w.typ) {
			temps = append(temps, name)
		}
	}
	return generation, temps
}

// recentLister is an FS that caches listings for a short time: see Shared.
type recentLister interface {
	listRecent(dir, typ string) ([]string, error)
}

// newestLately is newest with a recent, cached listing; ok is false if that is insufficient. If other
// processes add files after a gap in the generations, it finds them slightly later than newest does.
func (w *Writer) newestLately(registered Entry) (generation uint64, temps []string, ok bool) {
	l, ok := w.fs.(recentLister)
	if !ok || w.givesUp() {
		return 0, nil, false
	}
	names, err := l.listRecent(w.dir, w.typ)
	if err != nil {
		return 0, nil, false
	}
	generation, temps = w.newestOf(names)
	// rule: the file that an old listing shows must still be there, and its successor must not: another holder may have created the
	// successor, or the first file, since then.
	ok = generation >= registered.Generation && (generation == 0 || w.has(generation, nil)) && w.has(generation+1, fs.ErrNotExist)
	return generation, temps, ok
}

// has reports whether Stat of a generation's file returns the error answer; nil means that the file exists.
func (w *Writer) has(generation uint64, answer error) bool {
	_, err := w.fs.Stat(filepath.Join(w.dir, GenerationName(w.typ, generation)))
	return errors.Is(err, answer)
}

// removeTemps removes unfinished files. A writer that is still writing one has been fenced off by now,
// and will find that the name is gone.
func (w *Writer) removeTemps(names []string) error {
	for _, name := range names {
		path := filepath.Join(w.dir, name)
		if err := ignoreNotExist(w.fs.Remove(path)); err != nil {
			return ioError("remove", path, err)
		}
	}
	return nil
}

// Rotate seals the file and returns the writer of its successor, which begins where this file ends.
// state is as for Checkpoint, and is copied to the successor, so that duplicate messages are refused
// across files. After success this writer is closed. If Rotate fails, this writer is dead, but nothing
// is lost: call Close, then Open with a new epoch, which completes the rotation.
//
// As exceptions, a *NoSpaceError that is not wrapped, a *LimitError, and any error before the file was
// sealed change nothing: this writer remains usable.
func (w *Writer) Rotate(ctx context.Context, state []byte) (*Writer, error) {
	return w.succeed(ctx, state, "size limit", w.NextIndex, nil)
}

// succeed replaces this writer's file with a successor. first returns the index of the successor's first
// record; fill, if not nil, writes its initial records, in addition to the state.
func (w *Writer) succeed(ctx context.Context, state []byte, reason string, first func() uint64, fill func(*Writer) error) (*Writer, error) {
	w.appendMu.Lock()
	defer w.appendMu.Unlock()
	if err := w.writeCheckpoint(state); err != nil {
		return nil, err
	}
	seal, old := sealBody{generation: w.header.generation + 1, reason: reason}, w.header.fileID
	if w.instead != nil {
		// rule: no generation is created twice: a lost file may turn up.
		seal.generation, old = w.instead.Generation+1, w.instead.FileID
	}
	if _, err := rand.Read(seal.successor[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	next, err := w.build(ctx, seal, first(), state, fill)
	if err != nil {
		return nil, err
	}
	if err := w.seal(seal); err != nil {
		next.abandon()
		return nil, err
	}
	err = next.publish(ctx, old)
	w.retire(err)
	if err != nil {
		next.abandon()
		return nil, err
	}
	return next, nil
}

// seal seals the file: nothing can be appended to it afterwards. appendMu is held.
func (w *Writer) seal(seal sealBody) error {
	if err := w.checkBeforeSeal(); err != nil {
		return err
	}
	h := w.head(kindSeal)
	if err := w.land("seal", encodeAnchor(w.header, &h, seal.encode()), &h); err != nil {
		return err
	}
	// rule: the successor gets its name only when the seal is durable: otherwise a crash could leave two files to append to.
	_, err := w.Sync()
	return err
}

// checkBeforeSeal checks the file again after the successor was built, which may take minutes. If the
// file was moved away meanwhile, it must not be sealed, so that it can continue when it is moved back.
// appendMu is held.
//
// rule: a file that the path does not name is not sealed.
func (w *Writer) checkBeforeSeal() error {
	named := w.checkName()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usableLocked(); err != nil {
		return err
	}
	return w.checkFile("seal", named)
}

// retire closes a writer whose file is sealed. appendMu is held.
func (w *Writer) retire(cause error) {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if cause != nil {
		w.poison("rotate", cause)
		return // the descriptor is closed by Close
	}
	w.closed = true
	w.closeErr = ioError("close", w.path, w.file.Close())
}

// build writes the successor that seal names, under a temporary name, up to and including the
// checkpoint that completes it. The returned writer's file is durable, and its region in it is open.
func (w *Writer) build(ctx context.Context, seal sealBody, first uint64, state []byte, fill func(*Writer) error) (_ *Writer, err error) {
	n := &Writer{typ: w.typ, dir: w.dir, fs: w.fs, slots: w.slots, opts: w.opts, epoch: w.epoch, latest: noTime}
	n.opts.Salvage = false
	n.header = &fileHeader{major: majorVersion, minor: minorVersion, fileID: seal.successor, generation: seal.generation, firstIndex: first,
		prevFileID: w.header.fileID, createdNs: time.Now().UnixNano(), typ: w.typ, schema: w.header.schema}
	if _, err := rand.Read(n.header.marker[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	n.header.derive()
	if err := fillRandom(&n.session); err != nil {
		return nil, err
	}
	n.path = filepath.Join(n.dir, TempName(n.typ, seal.generation, n.session))
	if n.file, err = n.fs.Open(n.path, ModeCreate); err != nil {
		return nil, ioError("create", n.path, err)
	}
	defer func() {
		if err == nil {
			return
		}
		n.abandon()
		if replaced := (*ReplacedError)(nil); errors.As(err, &replaced) { // removeTemps, by the writer that took over
			err = &SupersededError{Path: filepath.Join(n.dir, GenerationName(n.typ, seal.generation))}
		}
	}()
	if err := appendWhole(n.file, n.header.encode()); err != nil {
		return nil, ioError("write", n.path, err)
	}
	if err := n.fence(ctx); err != nil {
		return nil, err
	}
	if err := n.writeOpen(&view{next: first, end: headerSize}); err != nil {
		return nil, err
	}
	if fill != nil {
		if err := fill(n); err != nil {
			return nil, err
		}
	}
	if err := n.Checkpoint(state); err != nil {
		return nil, err
	}
	_, err = n.Sync()
	return n, err
}

// publish gives a successor from build its final name, and registers it.
func (n *Writer) publish(ctx context.Context, old FileID) error {
	tmp, path := n.path, filepath.Join(n.dir, GenerationName(n.typ, n.header.generation))
	// rule: link(2), never rename: a writer that took over since then may have created the successor already.
	err := n.fs.Link(tmp, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return &SupersededError{Path: path}
	}
	if err != nil {
		return ioError("create", path, err)
	}
	n.path = path
	if err := ignoreNotExist(n.fs.Remove(tmp)); err != nil {
		return ioError("remove", tmp, err)
	}
	if err := n.fs.SyncDir(n.dir); err != nil {
		return ioError("sync directory", n.dir, err)
	}
	e := n.Entry()
	now, err := n.register(ctx, old, e)
	if err == nil && now.FileID == e.FileID && (now.Epoch > e.Epoch || now.DurableIndex > e.DurableIndex) {
		// rule: a successor that was already in use is not created a second time. The writer that creates a sealed file's successor gives it
		// the identity in the seal. So the registry may already name it: another writer created and filled it, and it was moved away.
		err = &RegistryMismatch{Path: n.path, Registered: now, Epoch: e.Epoch, Next: e.DurableIndex}
		named := n.checkName()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.checkFile("register", named) != nil { // it is this very file, and another writer took over
			err = n.dead.Cause
		}
	}
	return n.overtaken(ctx, err)
}

// register moves the registry's entry of the type from the file old to e, the entry of this file, and
// returns what is now registered.
func (w *Writer) register(ctx context.Context, old FileID, e Entry) (Entry, error) {
	now, ok, err := w.opts.Registry.Succeed(ctx, w.typ, old, e)
	switch {
	case err != nil:
		return Entry{}, fmt.Errorf("storage: register %s: %w", w.path, err)
	case !ok || now.FileID != e.FileID:
		// rule: nothing is appended to a successor that the registry does not name. Otherwise a writer that was paused
		// after its seal could reuse a name that is free again because the file of that name was
		// moved to an archive.
		return Entry{}, &RegistryMismatch{Path: w.path, Registered: now, FileID: e.FileID, Unregistered: !ok}
	}
	return now, nil
}

// abandon closes and removes a file that has only a temporary name.
func (n *Writer) abandon() {
	n.file.Close()
	if n.isTemp() {
		n.fs.Remove(n.path) // if this fails, the next Open removes it
	}
}

func (n *Writer) isTemp() bool { return isTempName(filepath.Base(n.path), n.typ) }

// continueSealed creates the successor of a sealed file whose writer died before it could, and returns
// the successor's writer.
func (w *Writer) continueSealed(ctx context.Context, v *view) (*Writer, error) {
	state, err := w.stateAt(v.checkpoint, v.next)
	if err != nil {
		return nil, err
	}
	next, err := w.build(ctx, w.sealed, v.next, state, nil)
	if err != nil {
		return nil, err
	}
	old := w.header.fileID
	if w.instead != nil { // the repair that gives up the lost file was interrupted after it sealed this one
		old = w.instead.FileID
	}
	if err := next.publish(ctx, old); err != nil {
		next.abandon()
		return nil, err
	}
	return next, nil
}

// stateAt returns the state of the checkpoint at off, which covers all records below index next. A seal
// directly follows its checkpoint, so for a sealed file that is the complete state.
func (w *Writer) stateAt(off int64, next uint64) ([]byte, error) {
	s := newScanner(w.path, w.file, w.header, w.fenceOff)
	h, body, v, err := s.recordAt(off)
	if err != nil {
		return nil, err
	}
	c, derr := decodeCheckpoint(body)
	if off == 0 || v != whole || h.kind != kindCheckpoint || derr != nil || h.base != next {
		return nil, (&CorruptError{Path: w.path, Offset: off, End: w.fenceOff, LostFirst: next, LostNext: next,
			Reason: "the file is sealed, but the checkpoint that precedes every seal is missing"}).in(w.file)
	}
	return c.state, nil
}
