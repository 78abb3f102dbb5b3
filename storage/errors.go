package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Categories. Every error of this package about the file, its place or its writer matches exactly
// one of them with errors.Is. All other errors come from the operating system or from the caller's
// context, registry or callbacks.
var (
	// ErrIntegrity: damage below the durable end, missing records, a file other than the registered
	// one, files of a type that do not follow one another. An operator must act; nothing was changed.
	ErrIntegrity = errors.New("storage: integrity violation")

	// ErrFenced: another writer took over, or holds a newer epoch. Release the lock and start again
	// with a new epoch.
	ErrFenced = errors.New("storage: fenced by another writer")

	// ErrNoSpace: no space for the bytes: the disk is full, or a quota or file size limit is reached.
	ErrNoSpace = errors.New("storage: no space")

	// ErrRefused: the file or its place is unsuitable for the request: a foreign file, another type, a
	// newer format, an unsuitable file system. Nothing was changed.
	ErrRefused = errors.New("storage: refused")

	// ErrLimit: an argument exceeds a limit of the format. Nothing was written.
	ErrLimit = errors.New("storage: limit exceeded")

	// ErrClosed: the writer or reader was closed.
	ErrClosed = errors.New("storage: closed")
)

// FencedError says that the file's end is not where this writer left it: another writer appended to
// the file or, if Found is below Expected, something cut off an end that was not durable. Records
// appended since this writer's last successful Sync may or may not be in the file; the next writer
// decides.
type FencedError struct {
	Path     string
	Op       string // what detected it: "append", "sync", "open record", ...
	Expected int64  // where the end should be, a byte offset
	Found    int64  // where it is
}

func (e *FencedError) Error() string {
	if e.Found < e.Expected { // no writer ever shortens a file
		return fmt.Sprintf("%s: %s: the file ends at byte %d where this writer expected %d: something other than a writer cut off its end, but nothing "+
			"durable; open it again with a new epoch, and find out what cut it", e.Path, e.Op, e.Found, e.Expected)
	}
	return fmt.Sprintf("%s: %s: the file ends at byte %d where this writer expected %d: another writer took over; "+
		"release the lock, acquire it again and open with the new epoch; if this happens repeatedly although no other worker holds the lock, "+
		"workers of another database use this directory, too", e.Path, e.Op, e.Found, e.Expected)
}

// Is makes the error ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// CutError says that something other than a writer truncated the file below its durable end. The
// messages with indexes in [LostFirst, LostNext) were acknowledged, and are no longer in the file.
type CutError struct {
	Path                string
	Op                  string // what detected it
	Durable             int64  // everything below this byte was durable
	Found               int64  // where the file ends, or ended at an append
	LostFirst, LostNext uint64
	Unknown             bool // the rest cannot be read, so which messages are lost is unknown
}

func (e *CutError) Error() string {
	lost := "no message is lost"
	switch {
	case e.Unknown:
		lost = "it is not known which messages are lost"
	case e.LostNext == e.LostFirst+1:
		lost = fmt.Sprintf("message %d is lost", e.LostFirst)
	case e.LostNext > e.LostFirst:
		lost = fmt.Sprintf("messages %d to %d are lost", e.LostFirst, e.LostNext-1)
	}
	return fmt.Sprintf("%s: %s: the file was cut to %d bytes, below byte %d, to which it was durable: %s; stop its workers and restore the newest copy, "+
		"or give up what is missing; and find out what cut it", e.Path, e.Op, e.Found, e.Durable, lost)
}

// Is makes the error ErrIntegrity.
func (e *CutError) Is(target error) bool { return target == ErrIntegrity }

// EpochError says that the epoch given to Open is not above every earlier epoch of the file. If
// Overtaken is set, acquire the lock again; otherwise raise the lock's token above InFile and open again.
type EpochError struct {
	Path      string
	Offered   uint64 // the epoch given to Open
	InFile    uint64 // the highest epoch in the file or its registry entry
	Overtaken bool   // a writer with the epoch InFile took over while this one worked
}

func (e *EpochError) Error() string {
	if e.Overtaken {
		return fmt.Sprintf("%s: a writer with epoch %d took over from this one, of epoch %d; release the lock, acquire it again and open with the new epoch",
			e.Path, e.InFile, e.Offered)
	}
	return fmt.Sprintf("%s: epoch %d is not above epoch %d, which the file has seen already: the lock's token was rolled back "+
		"or is held elsewhere; raise the token above %d and open again", e.Path, e.Offered, e.InFile, e.InFile)
}

// Is makes the error ErrFenced.
func (e *EpochError) Is(target error) bool { return target == ErrFenced }

// PoisonedError is returned by every call on a dead Writer, starting with the call that failed. The
// writer retries nothing: after a failed write or fdatasync the page cache and the device may
// disagree, and only a new writer, which drops the cache and rereads the file, can determine the
// content. The error matches the category of its cause.
type PoisonedError struct {
	Path  string
	Op    string // the operation that failed
	Cause error
}

func (e *PoisonedError) Error() string {
	remedy := "; close it, release the lock and open again with a new epoch"
	for _, category := range []error{ErrFenced, ErrIntegrity, ErrNoSpace, ErrRefused} { // these causes name their own
		if errors.Is(e.Cause, category) {
			remedy = ""
		}
	}
	return fmt.Sprintf("%s: writer is dead since %s failed: %v%s", e.Path, e.Op, e.Cause, remedy)
}

// Unwrap returns the cause.
func (e *PoisonedError) Unwrap() error { return e.Cause }

// ShortWriteError says that write(2) wrote only a part of a record. Every reader treats that part as
// a torn tail.
type ShortWriteError struct {
	Offset      int64 // where the record starts
	Want, Wrote int   // bytes
}

func (e *ShortWriteError) Error() string {
	return fmt.Sprintf("only %d of %d bytes were written at byte %d (disk full, file size limit, or the process is being killed)",
		e.Wrote, e.Want, e.Offset)
}

// ReplacedError says that the path no longer names the open file: the file was removed or moved,
// its directory was renamed, or another file is in its place. Readers of the path would not find
// new records.
type ReplacedError struct {
	Path  string
	Moved bool // the file now has another name
	Other bool // another file is at the path
}

func (e *ReplacedError) Error() string {
	switch {
	case e.Other:
		return e.Path + ": the file was replaced by another one while it was open; stop whatever does that, and put the original back at this path"
	case e.Moved:
		return e.Path + ": the file was moved, or its directory was renamed, while it was open; stop whatever does that, and move it back to this path"
	default:
		return e.Path + ": the file was removed while it was open; find out what cleans that directory, and restore the file from the newest copy"
	}
}

// Is makes the error ErrIntegrity.
func (e *ReplacedError) Is(target error) bool { return target == ErrIntegrity }

// ForeignFileError says that the file is not a Fencepost file.
type ForeignFileError struct {
	Path  string
	Found []byte // its first bytes, at most 8
}

func (e *ForeignFileError) Error() string {
	if len(e.Found) == 0 { // every Fencepost file has had its header before it got its name
		return e.Path + ": not a Fencepost file: it is empty; if it was one, something cut it: restore it from a copy; else move it away or choose another directory"
	}
	return fmt.Sprintf("%s: not a Fencepost file: it starts with %x instead of %x; move it away or choose another directory",
		e.Path, e.Found, fileMagic)
}

// Is makes the error ErrRefused.
func (e *ForeignFileError) Is(target error) bool { return target == ErrRefused }

// VersionError says that the file needs a newer reader or writer.
type VersionError struct {
	Path         string
	Major, Minor uint16
	Incompat     uint32 // unknown required features, as bits
	Feature      string // the unsupported feature, if a single record needs it
}

func (e *VersionError) Error() string {
	what := fmt.Sprintf("format %d.%d", e.Major, e.Minor)
	if e.Incompat != 0 {
		what += fmt.Sprintf(" with unknown required features %#x", e.Incompat)
	}
	if e.Feature != "" {
		what += " with " + e.Feature
	}
	return fmt.Sprintf("%s: %s is newer than this program, which knows %d.%d; use a newer fencepost", e.Path, what, majorVersion, minorVersion)
}

// Is makes the error ErrRefused.
func (e *VersionError) Is(target error) bool { return target == ErrRefused }

// HeaderError says that the file's header, its first 4096 bytes, is damaged.
type HeaderError struct {
	Path   string
	Reason string
	Cut    bool   // the file ends within its header, so it has no records
	Pieces string // names of the pieces with the header, if the file is InPieces
}

func (e *HeaderError) Error() string {
	remedy := fmt.Sprintf("the records after it may be good: restore the first %d bytes from a copy of this file", headerSize)
	switch {
	case e.Cut:
		remedy = "no record is left: restore the file from a copy"
	case e.Pieces != "":
		remedy += ", which are in " + e.Pieces
	}
	return fmt.Sprintf("%s: the file header is damaged: %s; %s", e.Path, e.Reason, remedy)
}

// Is makes the error ErrIntegrity.
func (e *HeaderError) Is(target error) bool { return target == ErrIntegrity }

// WrongTypeError says that the type or generation in the file's header is not the one in its name.
type WrongTypeError struct {
	Path        string
	Want, Found string
	Generation  uint64 // in the file's header
}

func (e *WrongTypeError) Error() string {
	name := GenerationName(e.Found, e.Generation)
	if e.Found == e.Want {
		return fmt.Sprintf("%s: the file is generation %d of its type: it was renamed or copied; move it back to %s", e.Path, e.Generation, name)
	}
	return fmt.Sprintf("%s: the file holds type %q, not %q: it was renamed or copied; move it back to %s", e.Path, e.Found, e.Want, name)
}

// Is makes the error ErrRefused.
func (e *WrongTypeError) Is(target error) bool { return target == ErrRefused }

// SupersededError says that another writer took over while this one was replacing its file with a
// successor.
type SupersededError struct {
	Path string // of the successor
}

func (e *SupersededError) Error() string {
	return e.Path + ": another writer took over before this one had made the file; release the lock, acquire it again and open with the new epoch"
}

// Is makes the error ErrFenced.
func (e *SupersededError) Is(target error) bool { return target == ErrFenced }

// SealedError says that the file is sealed and names its successor.
type SealedError struct {
	Path       string
	Successor  FileID
	Generation uint64
}

func (e *SealedError) Error() string {
	return fmt.Sprintf("%s: the file is sealed; its successor is generation %d, file %s", e.Path, e.Generation, e.Successor)
}

// Is makes the error ErrRefused.
func (e *SealedError) Is(target error) bool { return target == ErrRefused }

// RegistryMismatch says that the file at the path is not the registered file, or not in the
// registered state.
type RegistryMismatch struct {
	Path       string
	Registered Entry

	Missing      bool   // no file is at the path
	Unregistered bool   // the registry no longer has an entry
	FileID       FileID // another file is at the path (zero otherwise)
	Older        uint64 // the newest generation found, if a later one is registered
	Newer        uint64 // the generation found, if an earlier one is registered and the files do not lead back to it
	Epoch        uint64 // the file's highest epoch, if it is below the registered one: an old copy
	Next         uint64 // the file's next index, if it is below the registered DurableIndex: an old copy
}

func (e *RegistryMismatch) Error() string {
	switch {
	case e.Unregistered:
		return fmt.Sprintf("%s: the database no longer has an entry for the file of this type: the collection of files was dropped, or the database was "+
			"restored to a time before the file; if it is the right database, start the workers again: they register the file that is here", e.Path)
	case e.Missing:
		return fmt.Sprintf("%s does not exist, but file %s is registered for this type%s: this is another volume or directory than "+
			"the one in use; mount the right one at this path, or restore the file there; if it is lost for good, give up what was in it",
			e.Path, e.Registered.FileID, e.kept())
	case e.Older != 0:
		return fmt.Sprintf("%s is generation %d, but generation %d, file %s, is registered for this type and not here%s: restore or mount "+
			"the file %s; if it is lost for good, give up what was in it",
			e.Path, e.Older, e.Registered.Generation, e.Registered.FileID, e.kept(), e.registeredName())
	case e.Newer != 0:
		return fmt.Sprintf("%s is generation %d, file %s, but the database names generation %d, file %s, and the files here do not lead back to that one: "+
			"the database is older than the files, or this is another directory than the one in use; move and remove nothing; if the database was "+
			"restored to an earlier state, restore the files between the two, or register this one",
			e.Path, e.Newer, e.FileID, e.Registered.Generation, e.Registered.FileID)
	case e.FileID != FileID{}:
		return fmt.Sprintf("%s is file %s, but file %s is registered for this type%s: two replicas use different volumes at the same "+
			"path, or two databases use the same directory, or the registered file was lost while a worker was about to create the first one; "+
			"mount the volume that holds the registered file, or use the database of this one; if the registered file is lost for good, move this one away, "+
			"and then give up what was in that one", e.Path, e.FileID, e.Registered.FileID, e.kept())
	case e.Next < e.Registered.DurableIndex:
		return fmt.Sprintf("%s ends at index %d, but records below index %d were durable: an old copy was restored or the disk "+
			"lost data; restore the newest copy before anything is appended, or give up what is missing",
			e.Path, e.Next, e.Registered.DurableIndex)
	default:
		return fmt.Sprintf("%s has seen epoch %d, but epoch %d wrote to it: an old copy was restored; restore the newest copy before "+
			"anything is appended, or give up what is missing", e.Path, e.Epoch, e.Registered.Epoch)
	}
}

// Lost reports whether the mismatch is that registered records are not in this place, whether or not they exist elsewhere.
func (e *RegistryMismatch) Lost() bool {
	return !e.Unregistered && e.Newer == 0 && (e.Missing || e.Older != 0 || e.FileID == FileID{})
}

// kept says where the registered file was last kept, if that is known.
func (e *RegistryMismatch) kept() string {
	if e.Registered.Place == "" {
		return ""
	}
	return " (last kept in " + e.Registered.Place + ")"
}

// registeredName is the registered file's name in the directory of Path.
func (e *RegistryMismatch) registeredName() string {
	typ, _, _ := ParseName(filepath.Base(e.Path))
	return GenerationName(typ, e.Registered.Generation)
}

// Is makes the error ErrIntegrity.
func (e *RegistryMismatch) Is(target error) bool { return target == ErrIntegrity }

// FileSystemError says that a directory is on a file system that a Writer must not use.
type FileSystemError struct {
	Path   string
	Name   string // of the file system
	Reason string
	Remedy string
}

func (e *FileSystemError) Error() string {
	return fmt.Sprintf("%s is on %s: %s; %s", e.Path, e.Name, e.Reason, e.Remedy)
}

// Is makes the error ErrRefused.
func (e *FileSystemError) Is(target error) bool { return target == ErrRefused }

// CorruptError says that bytes below the durable end are damaged, or that durable records are
// missing. The records with indexes in [LostFirst, LostNext) are not readable; LostNext equals
// LostFirst if no index is missing, or if no later record shows which ones are.
type CorruptError struct {
	Path                string
	Offset, End         int64 // the damage lies within these bytes
	LostFirst, LostNext uint64
	Reason              string
	Pieces              string // names of the pieces with these bytes, if the file is InPieces

	asWritten bool // the bytes are those that were written
}

func (e *CorruptError) Error() string {
	lost := ""
	if e.LostNext > e.LostFirst {
		lost = fmt.Sprintf(", records %d to %d are not readable", e.LostFirst, e.LostNext-1)
	}
	remedy := "take a copy, check the disk, restore these bytes from a copy or a replica"
	if e.asWritten {
		remedy = "take a copy, find out which program wrote these bytes, restore the right ones from a copy or a replica"
	} else if e.Pieces != "" {
		remedy = "they are in " + e.Pieces + "; take a copy, find out what changed the store, restore the right bytes from a backup"
	}
	return fmt.Sprintf("%s: corruption in bytes %d to %d: %s%s; %s", e.Path, e.Offset, e.End, e.Reason, lost, remedy)
}

// Is makes the error ErrIntegrity.
func (e *CorruptError) Is(target error) bool { return target == ErrIntegrity }

// HoleError says that a piece of a file InPieces is missing although later pieces exist. Only Verify
// can tell which records were in it.
type HoleError struct {
	Path        string
	Offset, End int64  // the missing bytes of the file
	Missing     string // names of the missing pieces
	Next        string // name of the piece after them
}

func (e *HoleError) Error() string {
	return fmt.Sprintf("%s: bytes %d to %d are missing: %s was removed, or %s was added after the end, which no Fencepost program does; "+
		"restore what is missing from a backup, or remove what does not belong", e.Path, e.Offset, e.End, e.Missing, e.Next)
}

// holeIn returns the error for the first hole in a file; nil if it has none.
func holeIn(path string, f InPieces) *HoleError {
	off, end := f.Hole()
	if off == end {
		return nil
	}
	return &HoleError{Path: path, Offset: off, End: end, Missing: piecesOf(f, off, end), Next: piecesOf(f, end, end+1)}
}

// Is makes the error ErrIntegrity.
func (e *HoleError) Is(target error) bool { return target == ErrIntegrity }

// RetractedError says that the writer that took over did not find some records that a reader has
// accepted: they were never durable, and their indexes were reused. An ordinary reader must reread the
// file from the start. If a verification of a file at rest reports this error, the file is damaged.
type RetractedError struct {
	Path        string
	Offset      int64 // of the open record that retracts
	First, Next uint64
}

func (e *RetractedError) Error() string {
	if e.First == e.Next {
		return fmt.Sprintf("%s: a record without messages, before index %d, was read before it was durable and was lost in a failed write; read the file again "+
			"(the writer that says so opened at byte %d)", e.Path, e.Next, e.Offset)
	}
	return fmt.Sprintf("%s: records %d to %d were read before they were durable and were lost in a failed write; read the file again "+
		"(the writer that says so opened at byte %d)", e.Path, e.First, e.Next-1, e.Offset)
}

// Is makes the error ErrIntegrity.
func (e *RetractedError) Is(target error) bool { return target == ErrIntegrity }

// NoSpaceError says that there is no space for the bytes to append. Returned on its own, it means
// that nothing was written and the Writer still works: free some space and append the same records
// again. As the cause of a PoisonedError it means that this file system could not reserve the space
// beforehand.
type NoSpaceError struct {
	Path    string
	Need    int64 // bytes; 0 for a directory entry, or if unknown
	InStore bool  // the store of slots is full, not a file system
	Err     error // ENOSPC, EDQUOT or EFBIG; in a store the store's own error
}

func (e *NoSpaceError) Error() string {
	remedy := "free some space on that volume"
	switch {
	case errors.Is(e.Err, syscall.EDQUOT):
		remedy = "raise the disk quota of this user"
	case errors.Is(e.Err, syscall.EFBIG):
		remedy = "raise the file size limit (ulimit -f) or use a file system with larger files"
	case e.InStore:
		remedy = "free some space in the store, or raise its quota"
	}
	need := ""
	if e.Need > 0 {
		need = fmt.Sprintf(" for %d more bytes", e.Need)
	}
	return fmt.Sprintf("%s: no room%s: %v; %s, nothing acknowledged is lost", e.Path, need, e.Err, remedy)
}

// Unwrap returns the cause.
func (e *NoSpaceError) Unwrap() error { return e.Err }

// Is makes the error ErrNoSpace.
func (e *NoSpaceError) Is(target error) bool { return target == ErrNoSpace }

// LimitError says that an argument exceeds a limit of the format.
type LimitError struct {
	What     string
	Got, Max int64
	Record   int // position in the slice given to Append; -1 if the whole batch exceeds the limit
}

func (e *LimitError) Error() string {
	where := ""
	if e.Record >= 0 {
		where = fmt.Sprintf("record %d: ", e.Record)
	}
	allowed := fmt.Sprintf("at most %d", e.Max)
	if e.Got < 1 {
		allowed = "at least 1" // an ID is not empty
	}
	return fmt.Sprintf("storage: %s%s is %d, allowed is %s", where, e.What, e.Got, allowed)
}

// Is makes the error ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// ioError adds the file and the operation to err and, for errors that an operator can fix, the
// remedy. It wraps the cause for errors.Is.
func ioError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	remedy := ""
	switch {
	case isNoSpace(err):
		return noSpace(path, 0, err)
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "; name a directory: this, or one that it would be in, is a file"
	case errors.Is(err, syscall.EISDIR):
		remedy = "; it is a directory where a file should be: move it away"
	case errors.Is(err, syscall.EROFS):
		remedy = "; the file system is read-only (after a disk error ext4 remounts itself so: see the kernel log)"
	case errors.Is(err, syscall.ELOOP):
		remedy = "; it is a symbolic link, which is not followed: name the real file"
	case errors.Is(err, fs.ErrPermission):
		remedy = "; run as the user that owns the file and its directory, or give this user access to both"
	case errors.Is(err, syscall.EIO):
		remedy = "; the disk reports errors: see the kernel log"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		remedy = "; too many open files: raise the limit (ulimit -n)"
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) && inner.Op == op && inner.Path == path {
		return fmt.Errorf("storage: %w%s", err, remedy)
	}
	return fmt.Errorf("storage: %s %s: %w%s", op, path, err, remedy)
}

func isNoSpace(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// noSpace returns the error for a lack of space for need bytes in the file at path. It converts a
// store's NoSpaceError into one for the file.
func noSpace(path string, need int64, err error) *NoSpaceError {
	if store, ok := errors.AsType[*NoSpaceError](err); ok {
		return &NoSpaceError{Path: path, Need: need, InStore: store.InStore, Err: store.Err}
	}
	return &NoSpaceError{Path: path, Need: need, Err: err}
}
