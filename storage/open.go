package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Options are the options of Open. The zero value is valid.
type Options struct {
	FS           FS       // defaults to OS()
	Registry     Registry // defaults to none: no check for a wrong volume or an old copy (tools, tests)
	Holder       Holder   // for the fence record; Host, PID and Wall default to those of this process
	Schema       string   // of the payloads, free text for tools; stored when the file is created
	AllowOverlay bool     // accept overlayfs, whose data may be lost with its container

	// Open calls Restore with the state of the last checkpoint, if there is one; then it calls
	// Replay for every record accepted after it, in order. Their arguments are valid during the
	// call only. Together they rebuild the caller's state for exactly the records that every reader
	// sees. A state replaces everything passed before: Open calls Restore more than once with
	// Salvage, and if a sealed file gets a successor meanwhile. If Open fails, it may have called
	// them: begin again with fresh state. If one of them returns an error, Open fails.
	Restore func(state []byte) error
	Replay  func(Record) error

	// Rehearse returns callbacks like Restore and Replay for a separate, throwaway state. If the end of
	// the file shows that this writer may be refused, usually because an earlier Open failed after its
	// fence, Open calls them before its own fence, so that a state that cannot be rebuilt is refused
	// without another fence at each start. After the fence Open calls Restore and Replay as usual.
	// Defaults to none.
	Rehearse func() (restore func(state []byte) error, replay func(Record) error)

	// Salvage opens a damaged file for Compact only: Open reads the whole file instead of its end,
	// and continues after damage. AcceptLoss, which requires Salvage, also opens an old copy, and gives
	// up records that are durable according to the registry but missing from the end of the file. If
	// the registered generation is missing, and the newest present one is sealed or there is none, Open
	// creates a replacement file and returns its writer: see Writer.GivenUp. Empty is the caller's
	// state for a file without records, in case no file is left.
	Salvage    bool
	AcceptLoss bool
	Empty      []byte

	// Adopt registers the newest file of the type in the directory, even if the files do not lead back
	// to the registered one. It is for a registry that was lost or rolled back. Open still refuses a
	// file of an earlier generation than the registered one, and one that lacks messages that are
	// durable according to the registry.
	Adopt bool

	// Compress compresses each batch with zstd if that saves a tenth or more of it. Readers need no
	// setting.
	Compress bool

	// A checkpoint is due after this many bytes or batches, which bounds what Open must read.
	CheckpointBytes   int64 // defaults to 64 MiB
	CheckpointBatches int   // defaults to 4096
}

const (
	defaultCheckpointBytes   = 64 << 20
	defaultCheckpointBatches = 4096

	openAttempts  = 3 // if other writers create the successor of a sealed file concurrently
	fenceAttempts = 16
	fenceBackoff  = 2 * time.Millisecond // times the attempt, times a random factor below 1
)

func (o Options) withDefaults() Options {
	o.FS = orOS(o.FS)
	if o.Registry == nil {
		o.Registry = noRegistry{}
	}
	if o.Holder.Host == "" {
		o.Holder.Host, _ = os.Hostname()
	}
	if o.Holder.PID == 0 {
		o.Holder.PID = os.Getpid()
	}
	if o.Holder.Wall.IsZero() {
		o.Holder.Wall = time.Now()
	}
	if o.CheckpointBytes <= 0 {
		o.CheckpointBytes = defaultCheckpointBytes
	}
	if o.CheckpointBatches <= 0 {
		o.CheckpointBatches = defaultCheckpointBatches
	}
	return o
}

// Open returns the new writer of the file of type typ in dir, creating both if they are missing. epoch
// is the fencing token of the lock that the caller holds; it must be above every epoch the file has
// seen (*EpochError otherwise). Once Open has appended its fence, records that earlier writers append
// no longer count.
//
// Open reads one checkpoint interval, not the whole file. It fails with an error of category
// ErrRefused, ErrIntegrity, ErrFenced or ErrNoSpace, or with an error of the operating system, of ctx,
// the registry or the callbacks.
func Open(ctx context.Context, dir, typ string, epoch uint64, o Options) (*Writer, error) {
	if !validType(typ) {
		return nil, fmt.Errorf("%w: %q is not a type name: use 1 to %d of a-z 0-9 . _ - and begin with a letter or digit", ErrRefused, typ, MaxType)
	}
	if len(o.Schema) > MaxSchema {
		return nil, &LimitError{What: "schema length in bytes", Got: int64(len(o.Schema)), Max: MaxSchema, Record: -1}
	}
	if epoch == 0 {
		return nil, &EpochError{Path: filepath.Join(dir, FileName(typ))}
	}
	for attempt := 1; ; attempt++ {
		w := &Writer{typ: typ, dir: filepath.Clean(dir), epoch: epoch, opts: o.withDefaults()}
		w.path = filepath.Join(w.dir, FileName(typ))
		w.fs = w.opts.FS
		next, err := w.open(ctx)
		if err == nil {
			// Only Open uses them, and they may refer to large data.
			next.opts.Empty, next.opts.Restore, next.opts.Replay, next.opts.Rehearse = nil, nil, nil, nil
		}
		if err == nil && next == w {
			return w, nil
		}
		if w.file != nil {
			w.file.Close()
		}
		err = w.overtaken(ctx, err)
		// The file was sealed, and another writer created the successor while this one did: try
		// again.
		if other := (*SupersededError)(nil); !errors.As(err, &other) || attempt == openAttempts {
			return next, err
		}
	}
}

// open runs the steps of taking over, in the only order that is safe. It returns the writer to continue
// with: w, or another one if the file is sealed or gives way to a replacement.
func (w *Writer) open(ctx context.Context) (*Writer, error) {
	temps, registered, err := w.openFile(ctx)
	if err != nil {
		return nil, err
	}
	if registered.Epoch >= w.epoch {
		// A courtesy, not a safety check: a fence that cannot win would only disturb the rightful writer.
		return nil, &EpochError{Path: w.path, Offered: w.epoch, InFile: registered.Epoch}
	}
	if w.file == nil { // only with AcceptLoss, see openFile
		return w.giveUpAll(ctx, temps)
	}
	w.registered = registered.DurableIndex
	if err := fillRandom(&w.session); err != nil {
		return nil, err
	}
	// rule: a writer that will be refused leaves no fence each time it is started.
	if err := w.look(registered); err != nil {
		return nil, err
	}
	if err := w.fence(ctx); err != nil {
		return nil, err
	}
	// rule: scan after the fence. What was appended between a scan and the fence would be in the file, perhaps
	// acknowledged, and unknown to this writer.
	scan := w.scan
	if w.opts.Salvage {
		scan = w.salvage
	}
	v, err := scan(ctx, w.fenceOff)
	w.bodies = nil // no longer needed, and it may be large
	if err == nil {
		err = w.checkFence()
	}
	if err != nil {
		return nil, err
	}
	next, damaged := v.next, len(w.damage) > 0
	// rule: check again after the fence, whatever was found before it: other writers may have appended in between.
	if err := w.checkView(&v, registered); err != nil {
		return nil, err
	}
	if err := w.removeTemps(temps); err != nil {
		return nil, err
	}
	switch {
	case v.sealed && w.instead != nil && w.sealed.generation <= w.instead.Generation:
		return w.giveUp(ctx, &v, next, damaged)
	case v.sealed:
		return w.continueSealed(ctx, &v)
	}
	if err := w.writeOpen(&v); err != nil {
		return nil, err
	}
	if w.instead != nil {
		return w, nil // Compact moves the registry's entry
	}
	// rule: nothing is appended before the registry has the new epoch: otherwise an earlier copy could be mistaken for the file.
	if err := w.UpdateRegistry(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// openFile opens the newest file of the type, or creates the first one if there is none and none is
// registered, and checks that it is the right one. It also returns the names of temporary files it found. w.file stays
// nil if the directory has no file of the type and AcceptLoss gives up the registered one.
func (w *Writer) openFile(ctx context.Context) (temps []string, registered Entry, err error) {
	// rule: look up the registry entry before creating anything: a registered file that is missing means a wrong volume.
	registered, known, err := w.opts.Registry.Lookup(ctx, w.typ)
	if err != nil {
		return nil, Entry{}, fmt.Errorf("storage: look up the registered file of type %s: %w", w.typ, err)
	}
	if err := w.checkPlace(); err != nil {
		return nil, Entry{}, err
	}
	generation, temps, ok := w.newestLately(registered)
	if !ok {
		if generation, temps, err = w.newest(); err != nil {
			return nil, Entry{}, err
		}
	}
	switch {
	case generation > 0:
	case known && w.givesUp():
		w.instead = &registered
		return temps, registered, nil
	case known:
		w.path = filepath.Join(w.dir, GenerationName(w.typ, registered.Generation))
		return nil, Entry{}, &RegistryMismatch{Path: w.path, Registered: registered, Missing: true}
	default:
		generation = 1
		if err := w.create(); err != nil {
			return nil, Entry{}, err
		}
	}
	w.path = filepath.Join(w.dir, GenerationName(w.typ, generation))
	if w.file, err = w.fs.Open(w.path, ModeAppend); err != nil {
		return nil, Entry{}, ioError("open", w.path, err)
	}
	if w.header, err = readFileHeader(w.path, w.file); err != nil {
		return nil, Entry{}, err
	}
	if err := w.checkHeader(generation); err != nil {
		return nil, Entry{}, err
	}
	if err := w.syncNames(); err != nil {
		return nil, Entry{}, err
	}
	registered, err = w.checkRegistered(ctx, registered, known)
	return temps, registered, err
}

// overtaken returns err, or its real cause. While a writer opens a file or creates a successor, another
// writer with a higher epoch may do the same and continue in another file. Then the first one sees an
// apparent loss. In a store of slots that is never a loss, because all writers there share the same
// files. Elsewhere, too, files that existed or were registered moments ago and have disappeared were old
// ones, removed by Keep.
func (w *Writer) overtaken(ctx context.Context, err error) error {
	var behind *RegistryMismatch
	gone := errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*ReplacedError)) || errors.As(err, &behind) && (behind.Newer != 0 || w.hasSince(behind))
	if !gone && !(w.slots && errors.Is(err, ErrIntegrity)) {
		return err
	}
	now, ok, lookErr := w.opts.Registry.Lookup(ctx, w.typ)
	if lookErr != nil || !ok || now.Epoch <= w.epoch {
		return err
	}
	return &EpochError{Path: w.path, Offered: w.epoch, InFile: now.Epoch, Overtaken: true}
}

// hasSince reports whether the registered file now exists, although it did not when the error was created.
func (w *Writer) hasSince(behind *RegistryMismatch) bool {
	generation, _, err := w.newest()
	return behind.Older != 0 && err == nil && generation >= behind.Registered.Generation
}

// checkPlace refuses unsuitable file systems before anything is created on them. A directory that does
// not exist yet will be on the file system of its nearest existing parent.
func (w *Writer) checkPlace() error {
	for dir := w.dir; ; dir = filepath.Dir(dir) {
		t, err := w.fs.Type(dir)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
			continue
		}
		if err != nil {
			return ioError("examine the file system of", dir, err)
		}
		w.slots = t.Slots
		return checkFileSystem(dir, t, w.opts.AllowOverlay)
	}
}

// undecodable returns the error for a record with a good checksum but a malformed body: a bug in the writer, or a forgery.
func undecodable(path string, h *recHeader) error {
	return &CorruptError{Path: path, Offset: h.offset, End: h.end(), LostFirst: h.base, LostNext: h.base + uint64(h.count),
		Reason: "the body of a " + h.kind.String() + " record has a good checksum but does not decode", asWritten: true}
}
