package slots

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// library is a store in which each type has one file of slots with the same size and the same bytes.
type library struct {
	Store
	slots, size int
	takes       time.Duration

	line  chan struct{} // if not nil: the connection, which carries one value at a time
	value []byte
	reads atomic.Int64 // total number of reads
	now   atomic.Int64 // reads in progress
	most  atomic.Int64 // maximum of concurrent reads
}

func (l *library) MaxValue() int  { return 64 << 20 }
func (l *library) String() string { return "library:" }

func (l *library) List(_ context.Context, folder string) (all []Entry, err error) {
	for i := range l.slots {
		all = append(all, Entry{fmt.Sprintf("%s/%020d", folder, i*l.size), int64(l.size)})
	}
	return all, nil
}

func (l *library) Size(context.Context, string) (int64, error) { return 0, fs.ErrNotExist }

func (l *library) Read(ctx context.Context, name string) ([]byte, error) {
	if len(name) < 40 { // the name of the file's folder
		return []byte("0123456789abcdef"), nil
	}
	l.reads.Add(1)
	now := l.now.Add(1)
	defer l.now.Add(-1)
	for most := l.most.Load(); now > most && !l.most.CompareAndSwap(most, now); most = l.most.Load() {
	}
	if l.line != nil {
		l.line <- struct{}{}
		defer func() { <-l.line }()
	}
	time.Sleep(l.takes)
	return l.value, ctx.Err()
}

// openAll opens files of a library of the given shape, each as a request of its own would.
func openAll(t *testing.T, l *library, files int) []*file {
	t.Helper()
	l.value = make([]byte, l.size)
	f := New(t.Context(), l)
	all := make([]*file, files)
	for i := range all {
		opened, err := f.Until(t.Context()).Open(storage.FileName(fmt.Sprintf("type-%d", i)), storage.ModeRead)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = opened.(*file)
	}
	return all
}

// kept returns how many bytes are cached by the files that are not being read at the moment.
func kept(files []*file) (bytes int) {
	for _, f := range files {
		if !f.reading.TryLock() {
			continue
		}
		for _, b := range f.cache {
			bytes += len(b)
		}
		f.reading.Unlock()
	}
	return bytes
}

// However many types read their files concurrently, their caches are bounded, all reads complete, and each slot is
// read once, or twice if other files wait.
func TestBytesThatAreKeptAreBounded(t *testing.T) {
	for _, tc := range []struct{ files, slots, size, step int }{
		{60, 3, 8 << 20, 1 << 20},
		{60, 3, 3 << 20, 4 << 20},
		{5, 1, 40 << 20, 16 << 20}, // a slot larger than the whole memory
		{300, 40, 2000, 3000},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &library{slots: tc.slots, size: tc.size, takes: 50 * time.Millisecond}
			files := openAll(t, l, tc.files)
			most := 0
			done := make(chan struct{})
			var watch, all sync.WaitGroup
			watch.Go(func() {
				for tick := time.NewTicker(10*time.Millisecond + 1); ; {
					select {
					case <-tick.C:
						most = max(most, kept(files)+int(l.now.Load())*l.size)
					case <-done:
						return
					}
				}
			})
			for _, f := range files {
				all.Go(func() {
					p := make([]byte, tc.step)
					for off := int64(0); ; {
						n, err := f.ReadAt(p, off)
						if off += int64(n); err == io.EOF {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			all.Wait()
			close(done)
			watch.Wait()
			if most > max(mostReading, tc.size) {
				t.Errorf("%+v: up to %d bytes are cached, want at most %d", tc, most, mostReading)
			}
			if n := int(l.reads.Load()); n > 2*tc.files*tc.slots {
				t.Errorf("%+v: %d reads of %d slots", tc, n, tc.files*tc.slots)
			}
			time.Sleep(2 * keepFor)
			if n := kept(files); n > 0 {
				t.Errorf("%+v: %d bytes are cached without a read", tc, n)
			}
			if f := files[0].fs; !f.reading.TryAcquire(mostReading) {
				t.Errorf("%+v: not all memory was released", tc)
			}
		})
	}
}

// A reader that stops reading, such as one whose output is blocked, does not make others wait for long.
func TestAReaderThatStandsStillKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := openAll(t, &library{slots: 1, size: 8 << 20, takes: 50 * time.Millisecond}, 2*mostReading/(8<<20))
		began := time.Now()
		var all sync.WaitGroup
		for _, f := range files {
			all.Go(func() {
				if _, err := f.ReadAt(make([]byte, 10), 0); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > 3*keepFor {
			t.Errorf("the last one was served after %v", took)
		}
	})
}

// Appending to a file, or closing it, drops its cache, too.
func TestWritersKeepNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, do := range map[string]func(*file) error{
			"append": func(f *file) error { _, _, err := f.Append([]byte("x")); return err },
			"close":  func(f *file) error { return f.Close() },
		} {
			f := openAll(t, &library{slots: 4, size: 1000}, 1)[0]
			f.writable = true
			if _, err := f.ReadAt(make([]byte, 10), 0); err != nil || kept([]*file{f}) != 4000 {
				t.Errorf("%s: read: %v, %d bytes are kept", what, err, kept([]*file{f}))
			}
			if err := do(f); err != nil || kept([]*file{f}) != 0 || f.held != 0 {
				t.Errorf("%s: %v, %d bytes are kept", what, err, kept([]*file{f}))
			}
		}
	})
}

// A reader that goes through a file makes as many concurrent requests as memory allows, up to 16. Each slot is read once.
func TestSlotsAreReadInParallel(t *testing.T) {
	const slots = 100
	for _, tc := range []struct {
		size, step int
		most       int64
		within     int // round trips
	}{
		{8 << 20, 512 << 10, 4, 28},
		{8 << 20, 256 << 10, 4, 28},
		{8 << 20, 20 << 20, 3, 40}, // one is cached from the step before
		{3 << 20, 512 << 10, 10, 14},
		{1 << 20, 1 << 20, requests, 10},
		{4096, 4096, requests, 8},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &library{slots: slots, size: tc.size, takes: 20 * time.Millisecond}
			f := openAll(t, l, 1)[0]
			began := time.Now()
			readAll(t, f, tc.step)
			took := time.Since(began)
			if l.most.Load() != tc.most || l.reads.Load() != slots || took > time.Duration(tc.within)*l.takes {
				t.Errorf("%+v: %d slots in %v, up to %d concurrently", tc, l.reads.Load(), took, l.most.Load())
			}
		})
	}
}

// readAll reads a file in steps.
func readAll(t *testing.T, f *file, step int) {
	t.Helper()
	p := make([]byte, step)
	for off := int64(0); ; {
		n, err := f.ReadAt(p, off)
		if off += int64(n); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A writer that takes over reads the header and the end of a file, and some checkpoints in between, and no other slots.
func TestWhoJumpsReadsNothingAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &library{slots: 100, size: 8 << 20}
		f := openAll(t, l, 1)[0]
		p := make([]byte, 4096)
		for _, slot := range []int64{0, 99, 97, 50, 70, 96, 98} {
			if _, err := f.ReadAt(p, slot*8<<20); err != nil {
				t.Fatal(err)
			}
		}
		if n := l.reads.Load(); n != 7 {
			t.Errorf("%d slots were read, want 7", n)
		}
	})
}

// On a slow connection many concurrent requests exceed their deadlines, although a single one does not.
func TestSlowLinesAreNotCrowded(t *testing.T) {
	for _, takes := range []time.Duration{1100 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := &library{slots: 20, size: 8 << 20, takes: takes, line: make(chan struct{}, 1)}
			readAll(t, openAll(t, l, 1)[0], 512<<10)
			if n := l.reads.Load(); n != 20 {
				t.Errorf("%v: %d requests for 20 slots", takes, n)
			}
		})
	}
}
