package storage

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Options of Open. The zero value works.
type Options struct {
	FS           FS       // defaults to OS()
	Registry     Registry // defaults to none: no check for a wrong volume or an old copy (tools, tests)
	Holder       Holder   // for the fence record; Host, PID and Wall default to this process's
	Schema       string   // of the payloads, free text for tools; kept when the file is created
	AllowOverlay bool     // accept overlayfs, whose data may be lost with its container

	// Restore is called with the state of the last checkpoint, if there is one; then Replay is called for every record
	// accepted behind it, in order. Their arguments are valid during the call only. Together they rebuild what the caller
	// keeps about the file's contents, for exactly the records that every reader sees. A state replaces everything told
	// before: Restore is called more than once with Salvage, and when a sealed file has got a successor meanwhile. They have
	// been called partially when Open fails: begin again with fresh state. Their errors fail Open.
	Restore func(state []byte) error
	Replay  func(Record) error

	// Salvage opens a damaged file, for Compact and nothing else: Open reads all of the file instead of its end, and goes on
	// behind damage. AcceptLoss also gives up records that the registry knows to have been durable and that are gone from
	// the end of the file, and opens an old copy. If the registered generation is not here at all, and the newest that is here is sealed or
	// there is none, Open makes the file that takes its place, and returns the writer of that: see Writer.GivenUp. Empty is
	// the caller's state of a file without records, for the case that no file is left.
	Salvage    bool
	AcceptLoss bool
	Empty      []byte

	// Adopt makes the newest file of the type in the directory the registered one, also if the files do not lead back to the one that
	// the registry names. It is for a registry that was lost or set back. A file of an earlier generation than the registered one,
	// and one that lacks messages which the registry knows to be durable, are refused all the same.
	Adopt bool

	// Compress stores batches with zstd where that saves a tenth or more. It is decided batch by batch; readers need not be
	// told.
	Compress bool

	// A checkpoint is due after this many bytes or batches: what an Open has to read at most.
	CheckpointBytes   int64 // defaults to 64 MiB
	CheckpointBatches int   // defaults to 4096
}

const (
	defaultCheckpointBytes   = 64 << 20
	defaultCheckpointBatches = 4096

	openAttempts  = 3 // when others make the successor of a sealed file at the same time
	fenceAttempts = 16
	fenceBackoff  = 2 * time.Millisecond // times the attempt, times a random factor below 1
)

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = OS()
	}
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

// Open makes the caller the writer of the file of type typ in dir, creating both when they are missing. epoch is the
// fencing token of the lock that the caller holds; it must be above every epoch the file has seen (*EpochError
// otherwise). From the moment Open has appended its fence, whoever wrote before can add nothing that counts.
//
// It reads one checkpoint interval, not the file. It fails with an error of category ErrRefused, ErrIntegrity,
// ErrFenced or ErrNoSpace, of the operating system, of ctx, the registry or the callbacks.
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
		if err == nil && next == w {
			return w, nil
		}
		if w.file != nil {
			w.file.Close()
		}
		// The file was sealed, and while this writer made the successor another one did: look again.
		if other := (*SupersededError)(nil); !errors.As(err, &other) || attempt == openAttempts {
			return next, err
		}
	}
}

// open runs the steps of taking over, in the only order that is safe. It returns the writer to go on with: w, or that of
// the successor if the file is sealed.
func (w *Writer) open(ctx context.Context) (*Writer, error) {
	temps, registered, err := w.openFile(ctx)
	if err != nil {
		return nil, err
	}
	if registered.Epoch >= w.epoch {
		// Courtesy, not safety: a fence that cannot win would only disturb the rightful writer.
		return nil, &EpochError{Path: w.path, Offered: w.epoch, InFile: registered.Epoch}
	}
	if w.file == nil { // openFile leaves that to AcceptLoss alone
		return w.giveUpAll(ctx, temps)
	}
	if err := fillRandom(&w.session); err != nil {
		return nil, err
	}
	if err := w.fence(ctx); err != nil {
		return nil, err
	}
	if err := w.settle(); err != nil {
		return nil, err
	}
	// rule: scan after the fence. What was appended between a scan and the fence would be in the file, perhaps
	// acknowledged, and unknown to this writer.
	scan := w.scan
	if w.opts.Salvage {
		scan = w.salvage
	}
	v, err := scan(ctx, w.fenceOff)
	w.bodies = bodyDecoder{} // it may have become large, and is of no use any more
	if err == nil {
		err = w.checkFence()
	}
	if err != nil {
		return nil, err
	}
	next, damaged := v.next, len(w.damage) > 0
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
	// rule: nothing is appended before the registry knows of the new epoch: a copy that was made before could be taken for the file.
	return w, w.UpdateRegistry(ctx)
}

// openFile opens the newest file of the type, creates the first one if it may be created, and checks that it is the right
// one. It also returns the names of temporary files that were there.
func (w *Writer) openFile(ctx context.Context) (temps []string, registered Entry, err error) {
	// rule: ask the registry before creating anything: a registered file that is not here means a wrong volume.
	registered, known, err := w.opts.Registry.Lookup(ctx, w.typ)
	if err != nil {
		return nil, Entry{}, fmt.Errorf("storage: look up the registered file of type %s: %w", w.typ, err)
	}
	if err := w.checkPlace(); err != nil {
		return nil, Entry{}, err
	}
	generation, temps, err := w.newest()
	if err != nil {
		return nil, Entry{}, err
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

// checkRegistered finds out whether the file is the one that the registry knows, and registers it if it knows none yet.
//
// rule: register what is durable only: a registered file that a crash made disappear would look like a wrong volume.
func (w *Writer) checkRegistered(ctx context.Context, registered Entry, known bool) (Entry, error) {
	e := Entry{FileID: w.header.fileID, Generation: w.header.generation}
	if !known {
		var err error
		if registered, err = w.opts.Registry.Register(ctx, w.typ, e); err != nil {
			return Entry{}, fmt.Errorf("storage: register %s: %w", w.path, err)
		}
	}
	if w.givesUp() && registered.Generation > w.header.generation {
		w.instead = &registered
		return registered, nil
	}
	if err := w.checkIdentity(registered); err != nil {
		if err = w.adopts(registered, err); err != nil {
			return Entry{}, err
		}
	}
	if registered.FileID != w.header.fileID { // who made this successor came no further, or the registry was set back
		return w.register(ctx, registered.FileID, e)
	}
	return registered, nil
}

// checkIdentity refuses a file that is neither the registered one nor one that continues it.
func (w *Writer) checkIdentity(registered Entry) error {
	switch {
	case registered.FileID == w.header.fileID:
		return nil
	case registered.Generation > w.header.generation:
		return &RegistryMismatch{Path: w.path, Registered: registered, Older: w.header.generation}
	}
	// rule: a file of a later generation is the file only if its predecessors lead back to the registered one.
	switch ok, err := w.continues(registered); {
	case err != nil:
		return err
	case ok:
		return nil
	case registered.Generation < w.header.generation:
		return &RegistryMismatch{Path: w.path, Registered: registered, FileID: w.header.fileID, Newer: w.header.generation}
	default:
		return &RegistryMismatch{Path: w.path, Registered: registered, FileID: w.header.fileID}
	}
}

// continues tells whether the files that are here lead from this one back to the registered one, which need not be here itself.
func (w *Writer) continues(registered Entry) (bool, error) {
	if w.header.prevFileID == registered.FileID {
		return true, nil
	}
	names, err := w.fs.List(w.dir)
	if err != nil {
		return false, ioError("list directory", w.dir, err)
	}
	before := map[FileID]FileID{}
	for _, name := range names {
		if typ, g, ok := ParseName(name); !ok || typ != w.typ || g <= registered.Generation || g >= w.header.generation {
			continue
		}
		// One that cannot be read leads nowhere.
		if h, err := readHeaderAt(w.fs, filepath.Join(w.dir, name)); err == nil && h.typ == w.typ {
			before[h.fileID] = h.prevFileID
		}
	}
	id := w.header.prevFileID
	for range before {
		prev, ok := before[id]
		switch {
		case !ok:
			return false, nil
		case prev == registered.FileID:
			return true, nil
		}
		id = prev
	}
	return false, nil
}

// adopts returns nil if Options.Adopt makes this file, which checkIdentity refused with mismatch, the registered one.
//
// rule: a file is adopted only if it has all that the registry knows to be durable, and no later one is registered.
func (w *Writer) adopts(registered Entry, mismatch error) error {
	var m *RegistryMismatch
	if !w.opts.Adopt || !errors.As(mismatch, &m) || m.Older != 0 {
		return mismatch
	}
	switch l := readLink(w.fs, w.path); {
	case l.Err != nil:
		return l.Err
	case l.Next < registered.DurableIndex:
		return &RegistryMismatch{Path: w.path, Registered: registered, Next: l.Next}
	}
	return nil
}

// syncNames makes the file's name durable.
//
// rule: names come before content. Whoever created the file, or a directory above it, may have died before it synced
// the directory, or be about to: so every opener syncs the file's directory, and who finds no fence in the file yet syncs
// all directories above. A fence therefore proves that they are durable.
func (w *Writer) syncNames() error {
	if err := w.fs.SyncDir(w.dir); err != nil {
		return ioError("sync directory", w.dir, err)
	}
	info, err := w.file.Stat()
	if err != nil {
		return ioError("stat", w.path, err)
	}
	if info.Size > headerSize {
		return nil
	}
	return w.syncParents()
}

// syncParents makes the names of the directory and of those above it durable.
func (w *Writer) syncParents() error {
	for dir := w.dir; filepath.Dir(dir) != dir; {
		dir = filepath.Dir(dir)
		err := w.fs.SyncDir(dir)
		// A parent that this user cannot read, or of a kind that has nothing to sync, was not made by one of us.
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EROFS) {
			return ioError("sync directory", dir, err)
		}
	}
	return nil
}

// checkPlace refuses unsuitable file systems before anything is created on them. A directory that does not exist yet
// will be on the file system of the nearest parent that does.
func (w *Writer) checkPlace() error {
	for dir := w.dir; ; dir = filepath.Dir(dir) {
		t, err := w.fs.Type(dir)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
			continue
		}
		if err != nil {
			return ioError("examine the file system of", dir, err)
		}
		return checkFileSystem(dir, t, w.opts.AllowOverlay)
	}
}

func readHeaderAt(fsys FS, path string) (*fileHeader, error) {
	f, err := fsys.Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	defer f.Close()
	return readFileHeader(path, f)
}

func readFileHeader(path string, f File) (*fileHeader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, ioError("stat", path, err)
	}
	b := make([]byte, min(info.Size, headerSize))
	if len(b) > 0 {
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, ioError("read the header of", path, err)
		}
	}
	return decodeFileHeader(path, b)
}

func (w *Writer) checkHeader(generation uint64) error {
	if w.header.typ != w.typ || w.header.generation != generation {
		return &WrongTypeError{Path: w.path, Want: w.typ, Found: w.header.typ, Generation: w.header.generation}
	}
	if unknown := w.header.roCompat &^ knownROCompat; unknown != 0 {
		return &VersionError{Path: w.path, Major: w.header.major, Minor: w.header.minor, Incompat: unknown}
	}
	return nil
}

// create makes the file appear whole or not at all. When several processes create it at once one of them wins, and all
// of them go on with its file.
func (w *Writer) create() error {
	if err := w.mkdirs(w.dir); err != nil {
		return err
	}
	h, err := w.newHeader()
	if err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, tempName(w.typ, h.generation, le64(h.fileID[:])))
	if err := w.writeTemp(tmp, h.encode()); err != nil {
		_ = w.fs.Remove(tmp) // it may not be there, and why it was not written is what counts
		return err
	}
	// rule: link(2), never rename: it fails when somebody else was first, and never replaces a file.
	err = w.fs.Link(tmp, w.path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // or who was first has removed the temporary file
		err = nil
	}
	if err != nil {
		return errors.Join(ioError("create", w.path, err), ignoreNotExist(w.fs.Remove(tmp)))
	}
	return ioError("remove", tmp, ignoreNotExist(w.fs.Remove(tmp)))
}

func (w *Writer) newHeader() (*fileHeader, error) {
	h := &fileHeader{major: majorVersion, minor: minorVersion, generation: 1, createdNs: time.Now().UnixNano(), typ: w.typ, schema: w.opts.Schema}
	if _, err := rand.Read(h.fileID[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	if _, err := rand.Read(h.marker[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	return h, nil
}

func (w *Writer) writeTemp(tmp string, header []byte) error {
	f, err := w.fs.Open(tmp, ModeCreate)
	if err != nil {
		return ioError("create", tmp, err)
	}
	err = appendWhole(f, header)
	if err == nil {
		err = f.Datasync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return ioError("write", tmp, err)
}

// appendWhole appends to a file that nobody else knows yet.
func appendWhole(f File, b []byte) error {
	n, _, err := f.Append(b)
	if err == nil && n < len(b) {
		err = &ShortWriteError{Want: len(b), Wrote: n}
	}
	return err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mkdirs creates dir and its missing parents.
func (w *Writer) mkdirs(dir string) error {
	err := w.fs.Mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := w.mkdirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = w.fs.Mkdir(dir)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return ioError("create directory", dir, err)
}

// fence appends this writer's fence, whole and exactly at the end it saw, or tries again: several may fence at once,
// and an old writer may still append.
func (w *Writer) fence(ctx context.Context) error {
	body := encodeHolder(w.opts.Holder)
	var want, got int64
	for attempt := range fenceAttempts {
		if attempt > 0 {
			if err := sleep(ctx, time.Duration(float64(attempt)*mathrand.Float64()*float64(fenceBackoff))); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := w.file.Stat()
		if err != nil {
			return ioError("stat", w.path, err)
		}
		h := recHeader{kind: kindFence, offset: align8(info.Size), epoch: w.epoch, session: w.session, durableEnd: headerSize}
		b := make([]byte, h.offset-info.Size) // zeros up to the alignment, written with the fence
		b = append(b, encodeAnchor(w.header, &h, body)...)
		if err := w.reserve(info.Size, len(b)); err != nil {
			return err
		}
		n, end, err := w.file.Append(b)
		if err != nil {
			return ioError("append the fence to", w.path, err)
		}
		want, got = info.Size+int64(len(b)), end
		if n == len(b) && end == want {
			w.fenceOff, w.end = h.offset, end
			return nil
		}
	}
	return &FencedError{Path: w.path, Op: "fence", Expected: want, Found: got}
}

// settle makes what is in the file up to the fence the truth: on the device, and read from there.
func (w *Writer) settle() error {
	// rule: fdatasync before the scan. It makes the fence durable, and whatever the writer before left in the cache;
	// records of its that the scan accepts may be acknowledged by this writer without another sync.
	if err := w.file.Datasync(); err != nil {
		return ioError("sync the fence of", w.path, err)
	}
	info, err := w.file.Stat()
	if err != nil {
		return ioError("stat", w.path, err)
	}
	// rule: the path must still name this file when it is opened, or its successors would open another one.
	return checkNamed(w.fs, w.path, info)
}

// checkNamed finds out whether path names the open file that info describes.
func checkNamed(fsys FS, path string, info Info) error {
	named, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &ReplacedError{Path: path, Moved: info.Nlink > 0}
	case err != nil:
		return ioError("stat", path, err)
	case !named.same(info):
		return &ReplacedError{Path: path, Other: true}
	}
	return nil
}

// scan reads the valid prefix below limit from the last checkpoint on and hands it to the caller.
func (w *Writer) scan(ctx context.Context, limit int64) (view, error) {
	s := newScanner(w.path, w.file, w.header, limit)
	if err := s.startAtLastCheckpoint(w.reread); err != nil {
		return view{}, err
	}
	w.sinceCheckpoint = s.pos
	for {
		if err := ctx.Err(); err != nil {
			return view{}, err
		}
		it, err := s.step()
		switch {
		case err != nil:
			return view{}, err
		case it.kind == itemEnd:
			return s.view, nil
		case it.kind == itemDamage:
			return view{}, it.err
		case it.kind != itemRecord:
		case it.head.kind == kindBatch:
			w.noteBatch(&it.head)
			if err := w.replay(&it); err != nil {
				return view{}, err
			}
		case it.head.kind == kindCheckpoint:
			w.noteCheckpoint(it.head.end())
			if err := w.restore(&it); err != nil {
				return view{}, err
			}
		case it.head.kind == kindSeal:
			if w.sealed, err = decodeSeal(it.body); err != nil {
				return view{}, undecodable(w.path, &it.head)
			}
		}
	}
}

// checkFence reads the own fence back, after the scan has dropped the page cache.
//
// rule: a region counts only with its fence. The error of a failed write of it may have been told to another descriptor
// and not to this one; and on ext4 a fence that shares a block with bytes whose writeback failed reads as zeros once the
// cache is dropped, although its own fdatasync succeeded.
func (w *Writer) checkFence() error {
	s := newScanner(w.path, w.file, w.header, w.end)
	h, _, v, err := s.recordAt(w.fenceOff)
	if err != nil {
		return err
	}
	if v != whole || h.kind != kindFence || h.session != w.session {
		return ioError("read back the fence in", w.path, syscall.EIO)
	}
	return nil
}

// reread makes the next reads of [off, off+n) come from the device.
//
// rule: after a failed fdatasync of somebody else the page cache shows data that the device does not have, and a new
// descriptor is not told. Records of that kind must not be taken for accepted.
func (w *Writer) reread(off, n int64) error {
	return ioError("drop the page cache of", w.path, w.file.DropCache(off, n))
}

// restore hands the state of the checkpoint the scan started with to the caller. The state of a later one, which only a
// scan that found it on its way can meet, is what the caller has built itself by then.
func (w *Writer) restore(it *item) error {
	if w.restored || w.opts.Restore == nil {
		return nil
	}
	w.restored = true
	c, err := decodeCheckpoint(it.body)
	if err != nil {
		return undecodable(w.path, &it.head)
	}
	return w.opts.Restore(c.state)
}

func (w *Writer) replay(it *item) error {
	if w.opts.Replay == nil {
		return nil
	}
	if err := w.bodies.begin(w.path, it); err != nil {
		return err
	}
	for recs := w.bodies.next(); len(recs) > 0; recs = w.bodies.next() {
		for i := range recs {
			if err := w.opts.Replay(recs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkView decides whether this writer may go on behind what the scan found.
func (w *Writer) checkView(v *view, registered Entry) error {
	if w.givesUp() && (v.next < registered.DurableIndex || v.epoch < registered.Epoch) {
		w.damage = append(w.damage, &RegistryMismatch{Path: w.path, Registered: registered, Epoch: v.epoch, Next: v.next})
		v.next = max(v.next, registered.DurableIndex) // rule: no index is used twice, not even a lost one's
		registered.Epoch = 0
	}
	switch {
	case w.header.generation > 1 && v.checkpoint == 0 && !w.givesUp():
		// rule: a successor had its first checkpoint before it had a name. Without it the copies of messages that are in the
		// files before would not be known.
		return &CorruptError{Path: w.path, Offset: headerSize, End: w.fenceOff, LostFirst: v.next, LostNext: v.next,
			Reason: "the checkpoint that a successor begins with is not here"}
	case v.epoch >= w.epoch:
		// rule: a fence counts only if its epoch is above all before it; readers ignore mine, so nothing may follow it.
		return &EpochError{Path: w.path, Offered: w.epoch, InFile: v.epoch}
	case v.next < registered.DurableIndex:
		return &RegistryMismatch{Path: w.path, Registered: registered, Next: v.next}
	case v.epoch < registered.Epoch && !w.opts.Adopt:
		return &RegistryMismatch{Path: w.path, Registered: registered, Epoch: v.epoch, Next: v.next}
	}
	return nil
}

// writeOpen appends the open record, which says what counts before the fence and starts the region's records.
func (w *Writer) writeOpen(v *view) error {
	w.next, w.chain, w.anchor, w.checkpoint = v.next, v.chain, v.anchor, v.checkpoint
	w.durableEnd, w.durableIndex = w.end, v.next // the fence was synced after everything the scan accepted
	body := openBody{acceptedEnd: v.end, fenceOff: w.fenceOff, prevCheckpoint: v.checkpoint, skipped: w.fenceOff - v.end}
	h := w.head(kindOpen)
	err := w.land("open record", encodeAnchor(w.header, &h, body.encode()), &h)
	if w.dead != nil {
		return w.dead.Cause // there is no writer yet that could be called dead
	}
	return err
}

func fillRandom(v *uint64) error {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	*v = binary.LittleEndian.Uint64(b[:])
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func undecodable(path string, h *recHeader) error {
	return &CorruptError{Path: path, Offset: h.offset, End: h.end(), LostFirst: h.base, LostNext: h.base + uint64(h.count),
		Reason: "the body of a " + h.kind.String() + " record has a good checksum but does not decode"}
}
