package storage

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// Taking over. Safety depends on the order of the steps:
//
//	FENCE appended ──▶ fdatasync, page cache dropped ──▶ scan up to the fence ──▶ OPEN: "I accepted up to here"
//
// After the fence no reader accepts further records of an earlier writer, so the scan finds every record
// before the fence that will ever count. It reads from the device, because the cache may show a record
// whose writeback failed. The open record tells later readers where this writer saw the end, so that they
// can distinguish a torn tail from damage.

// fence appends this writer's fence, whole and exactly at the end it saw, or tries again: several writers
// may fence concurrently, and an old writer may still append. Then it makes the content before the fence final.
func (w *Writer) fence(ctx context.Context) error {
	body := encodeHolder(w.opts.Holder)
	var want, got int64
	for attempt := range fenceAttempts {
		if attempt > 0 {
			if err := wait.For(ctx, time.Duration(float64(attempt)*mathrand.Float64()*float64(fenceBackoff))); err != nil {
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
		if n != len(b) || end != want {
			continue
		}
		err = w.settle()
		if moved := (*MovedError)(nil); errors.As(err, &moved) {
			got = moved.End
			continue
		}
		w.fenceOff, w.end = h.offset, end
		return err
	}
	return &FencedError{Path: w.path, Op: "fence", Expected: want, Found: got}
}

// settle makes the bytes up to the fence durable, and checks that the path still names the file.
func (w *Writer) settle() error {
	// rule: fdatasync before the scan. It makes the fence durable, and everything that the previous writer left in the
	// cache. So this writer may acknowledge the records that the scan accepts without another sync.
	if err := w.file.Datasync(); err != nil {
		return ioError("sync the fence of", w.path, err)
	}
	info, err := w.file.Stat()
	if err != nil {
		return ioError("stat", w.path, err)
	}
	// rule: the path must still name this file when it is opened, or the next writers would open another one.
	return checkNamed(w.fs, w.path, info)
}

// checkNamed returns a *ReplacedError unless path names the open file that info describes.
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

// scan reads the valid prefix below limit from the last checkpoint on, and passes it to the caller's
// Restore and Replay.
func (w *Writer) scan(ctx context.Context, limit int64) (view, error) {
	s := newScanner(w.path, w.file, w.header, limit)
	defer s.borrow()()
	if err := s.startAtLastCheckpoint(w.reread); err != nil {
		return view{}, err
	}
	start := s.pos
	w.sinceCheckpoint, w.latest = start, noTime
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
			w.noteBatch(it.head)
			if err := w.replay(it); err != nil {
				return view{}, err
			}
		case it.head.kind == kindCheckpoint:
			w.noteCheckpoint(it.head.end())
			if it.head.offset == start {
				w.latest = it.head.baseTime
			}
			if err := w.restore(it); err != nil {
				return view{}, err
			}
		case it.head.kind == kindSeal:
			if w.sealed, err = decodeSeal(it.body); err != nil {
				return view{}, undecodable(w.path, it.head)
			}
		}
	}
}

// checkFence reads this writer's fence back, after the scan has dropped the page cache.
//
// rule: a region counts only with its fence. If writing it failed, the error may have been reported to another descriptor
// and not to this one; and on ext4 a fence that shares a block with bytes whose writeback failed
// reads as zeros once the cache is dropped, although its own fdatasync succeeded.
func (w *Writer) checkFence() error {
	s := newScanner(w.path, w.file, w.header, w.end)
	defer s.borrow()()
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
// rule: after another process's fdatasync failed, the page cache shows data that the device does not have, and a new
// descriptor gets no error. Such records must not be accepted.
func (w *Writer) reread(off, n int64) error {
	return ioError("drop the page cache of", w.path, w.file.DropCache(off, n))
}

// restore passes the state of the first checkpoint of the scan to the caller. If the scan meets a later
// checkpoint, the caller has already rebuilt its state by replaying the records before it.
func (w *Writer) restore(it *item) error {
	if w.restored || w.opts.Restore == nil {
		return nil
	}
	w.restored = true
	c, err := decodeCheckpoint(it.body)
	if err != nil {
		return undecodable(w.path, it.head)
	}
	return w.opts.Restore(c.state)
}

// replay passes the records of an accepted batch to Options.Replay.
func (w *Writer) replay(it *item) error {
	if w.opts.Replay == nil {
		w.latest = timeUnknown
		return nil
	}
	if w.bodies == nil {
		w.bodies = &bodyDecoder{}
	}
	if err := w.bodies.begin(w.path, it); err != nil {
		return err
	}
	for recs := w.bodies.next(); len(recs) > 0; recs = w.bodies.next() {
		w.noteTimes(recs)
		for i := range recs {
			if err := w.opts.Replay(recs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkView decides whether this writer may continue with the view that the scan found.
func (w *Writer) checkView(v *view, registered Entry) error {
	if w.givesUp() && (v.next < registered.DurableIndex || v.epoch < registered.Epoch) {
		w.damage, w.damaged = append(w.damage, &RegistryMismatch{Path: w.path, Registered: registered, Epoch: v.epoch, Next: v.next}), w.damaged+1
		v.next = max(v.next, registered.DurableIndex) // rule: no index is used twice, not even a lost one's
		registered.Epoch = 0
	}
	switch {
	case w.header.generation > 1 && (v.checkpoint == 0 || w.stateless) && !w.givesUp():
		// rule: a successor had its first checkpoint before it had a name. Without that, duplicates of messages in earlier
		// files would not be recognized.
		return (&CorruptError{Path: w.path, Offset: headerSize, End: w.fenceOff, LostFirst: v.next, LostNext: v.next,
			Reason: "the checkpoint at the start of every successor is missing"}).in(w.file)
	case v.epoch >= w.epoch:
		// rule: a fence counts only if its epoch is above all before it; readers ignore this one, so nothing may follow it.
		return &EpochError{Path: w.path, Offered: w.epoch, InFile: v.epoch}
	case v.next < registered.DurableIndex:
		return &RegistryMismatch{Path: w.path, Registered: registered, Next: v.next}
	case v.epoch < registered.Epoch && !w.opts.Adopt:
		return &RegistryMismatch{Path: w.path, Registered: registered, Epoch: v.epoch, Next: v.next}
	}
	return nil
}

// writeOpen appends the open record, which says which records before the fence count, and begins the
// region's records.
func (w *Writer) writeOpen(v *view) error {
	w.next, w.chain, w.anchor, w.checkpoint = v.next, v.chain, v.anchor, v.checkpoint
	w.durableEnd, w.durableIndex = w.end, v.next // the fence was synced after everything the scan accepted
	body := openBody{acceptedEnd: v.end, fenceOff: w.fenceOff, prevCheckpoint: v.checkpoint, skipped: w.fenceOff - v.end}
	h := w.head(kindOpen)
	err := w.land("open record", encodeAnchor(w.header, &h, body.encode()), &h)
	if w.dead != nil {
		return w.dead.Cause // not a *PoisonedError: the caller has no writer yet
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
