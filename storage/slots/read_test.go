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

// library is a store in which each type has one file of equal slots, whose bytes are all the same.
type library struct {
	Store
	slots, size int
	takes       time.Duration

	value []byte
	reads atomic.Int64 // in all
	now   atomic.Int64 // … and under way
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
	if len(name) < 40 { // which folder is the file
		return []byte("0123456789abcdef"), nil
	}
	l.reads.Add(1)
	l.now.Add(1)
	defer l.now.Add(-1)
	time.Sleep(l.takes)
	return l.value, ctx.Err()
}

// openAll opens files of a library of the given shape.
func openAll(t *testing.T, l *library, files int) []*file {
	t.Helper()
	l.value, l.takes = make([]byte, l.size), 50*time.Millisecond
	f := New(t.Context(), l)
	all := make([]*file, files)
	for i := range all {
		opened, err := f.Open(storage.FileName(fmt.Sprintf("type-%d", i)), storage.ModeRead)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = opened.(*file)
	}
	return all
}

// kept returns how many bytes files keep that nobody is reading at this moment.
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

// However many types open their files at the same moment, what they keep is bounded, all of them come to an end, and each slot is
// read once, or twice where others wait.
func TestBytesThatAreKeptAreBounded(t *testing.T) {
	for _, tc := range []struct{ files, slots, size, step int }{
		{60, 3, 8 << 20, 1 << 20},
		{60, 3, 3 << 20, 4 << 20},
		{5, 1, 40 << 20, 16 << 20}, // one that is larger than all there is
		{300, 40, 2000, 3000},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &library{slots: tc.slots, size: tc.size}
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
				t.Errorf("%+v: %d bytes are kept at a time, want up to %d", tc, most, mostReading)
			}
			if n := int(l.reads.Load()); n > 2*tc.files*tc.slots {
				t.Errorf("%+v: %d reads of %d slots", tc, n, tc.files*tc.slots)
			}
			time.Sleep(2 * keepFor)
			if n := kept(files); n > 0 {
				t.Errorf("%+v: %d bytes are kept when nobody reads", tc, n)
			}
			if f := files[0].fs; !f.reading.TryAcquire(mostReading) {
				t.Errorf("%+v: not all room was given back", tc)
			}
		})
	}
}

// A reader that stands still, such as one whose output nobody reads, keeps nobody waiting for long.
func TestAReaderThatStandsStillKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := openAll(t, &library{slots: 1, size: 8 << 20}, 2*mostReading/(8<<20))
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

// Who writes, and who has closed a file, keeps nothing either.
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
