package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Retention. Only readers need sealed files: the state that a writer needs of their messages is in the first checkpoint of the
// newest file. So the oldest files may be removed, and those that a compaction or repair has replaced.
//
//	orders.fpl ─▶ orders@0002.fpl ─▶ orders@0003.fpl ─▶ orders@0004.fpl
//	sealed        sealed             sealed             the newest: never removed, nor one that is not sealed, nor one that the
//	removed       removed            kept               registry still names, nor any file while the files do not follow one another
//
// A writer that was paused while its file was removed detects that: on a file system the path no longer names its file, and in a
// store of slots the slots that overtook it remain, see package slots.

// KeepOptions say which files Keep removes.
type KeepOptions struct {
	FS         FS    // defaults to OS()
	Registered Entry // the registry's entry of the type; it may be stale

	Age      time.Duration // removes files that were sealed longer ago than this; 0 = none by age
	Now      time.Time     // the time that Age counts back from; defaults to this machine's
	Size     int64         // removes the oldest files until the rest have at most this many bytes in total; 0 = none by size
	Replaced bool          // removes files that a compaction or repair replaced, after reading the whole file with their messages

	DryRun   bool
	Progress func(path string, done, total int64) // of reading the replacing files; may be nil
}

// KeepReport says what Keep did, or would do.
type KeepReport struct {
	Old   []OldFile // removed files, oldest first; with DryRun those that would be removed
	Ended []string  // names of files whose removal an earlier call began and this call finished
	Kept  Chain     // the other files
}

// OldFile is a file that Keep removes.
type OldFile struct {
	Link
	SealedAt time.Time // approximately: when its successor was created, by the clock of its creator
	Why      string
}

// Keep removes old files of a type in a directory. Only one call per type may run at a time; writers and readers of the type may
// work meanwhile. If it returns an error, the report names the files removed before the error.
//
// The age of a file is approximately the time since it was sealed. It counts from the creation of the file or of its
// successor, whichever is later, as recorded in the files by their writers' clocks. So all messages in a file are older than
// its age.
func Keep(ctx context.Context, dir, typ string, o KeepOptions) (*KeepReport, error) {
	o.FS = orOS(o.FS)
	if o.Age < 0 || o.Size < 0 {
		return &KeepReport{}, errors.New("storage: keep: Age and Size must not be negative; 0 removes nothing because of it")
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	k := &keeping{KeepOptions: o, ctx: ctx, dir: dir, typ: typ, r: &KeepReport{}}
	if err := k.begun(); err != nil {
		return k.r, err
	}
	old, err := k.choose()
	if err != nil {
		return k.r, err
	}
	if o.DryRun {
		k.r.Old = old
		return k.r, nil
	}
	defer func() { slices.SortFunc(k.r.Old, byGeneration) }()
	for _, f := range k.inOrder(old) {
		if err := ctx.Err(); err != nil {
			return k.r, err
		}
		if err := k.remove(f.Path); err != nil {
			return k.r, err
		}
		k.r.Old = append(k.r.Old, f)
	}
	return k.r, nil
}

func byGeneration(a, b OldFile) int { return cmp.Compare(a.nameSays(), b.nameSays()) }

// inOrder returns the files to be removed in the order of their removal, in which the remaining files have no gap at any time. The
// files before the first kept one are removed oldest first. Those after it are replaced ones, and are removed newest first: a file
// may be missing before the one that replaced it, but not before another replaced one, which does not have its messages.
func (k *keeping) inOrder(old []OldFile) []OldFile {
	old = slices.Clone(old)
	between := slices.IndexFunc(old, func(f OldFile) bool { return f.nameSays() > k.r.Kept[0].nameSays() })
	if between >= 0 {
		slices.Reverse(old[between:])
	}
	return old
}

// keeping is one call of Keep.
type keeping struct {
	KeepOptions
	ctx      context.Context
	dir, typ string
	r        *KeepReport
}

// begun finishes removals that an earlier call began.
func (k *keeping) begun() error {
	h, ok := k.FS.(HalfRemover)
	if !ok || k.DryRun {
		return nil
	}
	names, err := h.HalfRemoved(k.typ)
	if err != nil {
		return ioError("list directory", k.dir, err)
	}
	for _, name := range names {
		if err := k.remove(filepath.Join(k.dir, name)); err != nil {
			return err
		}
		k.r.Ended = append(k.r.Ended, name)
	}
	return nil
}

// remove removes a file.
func (k *keeping) remove(path string) error {
	if err := ignoreNotExist(k.FS.Remove(path)); err != nil {
		return ioError("remove", path, err)
	}
	// rule: in the order of inOrder, also on the disk: otherwise a power failure could leave a gap between files.
	return ioError("sync directory", k.dir, k.FS.SyncDir(k.dir))
}

// choose returns the files to be removed, oldest first.
func (k *keeping) choose() (old []OldFile, err error) {
	chain, err := ReadChain(k.FS, k.dir, k.typ)
	if err != nil {
		return nil, err
	}
	// rule: nothing is removed while a file is missing, cut, renamed or a copy: the others may be needed to restore it.
	if wrong := chain.Check(); len(wrong) > 0 {
		return nil, wrong[0]
	}
	// rule: nor if the newest file is not the one that workers continue with: this may be the wrong directory, or the only copy.
	if err := CheckRegistered(k.FS, k.dir, k.typ, k.Registered); err != nil {
		return nil, err
	}
	replaced, total := chain.Replaced(), int64(0)
	for _, l := range chain {
		total += l.Size
	}
	oldest := true // all earlier files are removed
	for i, l := range chain {
		f := OldFile{Link: l}
		if k.removable(chain, i) {
			f.SealedAt = l.Created
			if made := chain[i+1].Created; made.After(f.SealedAt) {
				f.SealedAt = made
			}
			f.Why = k.why(&f, oldest, total, replaced[l.Path])
		}
		if f.Why == "" {
			oldest = false
			k.r.Kept = append(k.r.Kept, l)
			continue
		}
		total -= l.Size
		old = append(old, f)
	}
	return old, k.checkReplacing(old)
}

// removable reports whether the i-th file of the chain may be removed at all.
func (k *keeping) removable(chain Chain, i int) bool {
	l := &chain[i]
	switch {
	case i == len(chain)-1: // rule: the newest file is never removed: workers append to it, or create its successor.
		return false
	case l.Sealed == nil || l.Err != nil: // rule: nor one that is not known to be sealed: a writer may append to it.
		return false
	}
	// rule: nor one that the registry names, or a later one: a writer that has fallen behind checks the registry, and would continue.
	return l.Generation < k.Registered.Generation
}

// why returns the reason to remove a file, or "" to keep it. oldest says that all files before it are removed; total is the size of
// it, of all later files and of the kept ones before it, in bytes.
func (k *keeping) why(f *OldFile, oldest bool, total int64, replaced bool) string {
	switch age := k.Now.Sub(f.SealedAt); {
	case oldest && k.Age > 0 && age > k.Age: // rule: the oldest first: the remaining files have no gaps.
		return fmt.Sprintf("sealed more than %v ago", k.Age)
	case oldest && k.Size > 0 && total > k.Size:
		return "too many bytes"
	case k.Replaced && replaced:
		return "replaced by a compaction or repair"
	}
	return ""
}

// checkReplacing reads the files that contain the messages of replaced files that are to be removed.
//
// rule: a replaced file is removed only after its messages were read elsewhere: it may be the last good copy.
func (k *keeping) checkReplacing(old []OldFile) error {
	for _, l := range k.r.Kept {
		needed := slices.ContainsFunc(old, func(f OldFile) bool {
			return f.Generation < l.Generation && f.First < l.Next && l.First < f.Next
		})
		if !needed {
			continue
		}
		o := VerifyOptions{FS: k.FS}
		if k.Progress != nil {
			o.Progress = func(done, total int64) { k.Progress(l.Path, done, total) }
		}
		rep, err := Verify(k.ctx, l.Path, o)
		if err == nil {
			err = rep.Err()
		}
		if errors.Is(err, ErrIntegrity) {
			return fmt.Errorf("%w; nothing was removed: what it replaced may be the last good copy", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
