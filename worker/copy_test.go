package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// copyTo copies the type from the rig's disk to a store.
func (r *rig) copyTo(s slots.Store) (*CopyReport, error) {
	r.t.Helper()
	fsys := slots.New(context.Background(), s)
	return r.copy(func(*Config) {}, CopyOptions{FS: fsys, Dir: fsys.Dir(), Wait: time.Minute})
}

func (r *rig) copy(from func(*Config), o CopyOptions) (*CopyReport, error) {
	r.t.Helper()
	began := time.Now()
	locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
	if err != nil {
		r.t.Fatal(err)
	}
	defer locker.Close(context.Background())
	cfg := Config{Queue: r.queue, Locker: locker, To: Files{Dir: dir, Storage: storage.Options{FS: r.disk}}, Lease: 5 * time.Second}
	from(&cfg)
	return Copy(context.Background(), cfg, typ, o)
}

// small makes a file of every few messages of publishLarge.
func small(c *Config) { c.Batch = 10; inFiles(func(f *Files) { f.MaxBytes = 1 << 20 })(c) }

// publishLarge publishes n messages of 20 KiB.
func (r *rig) publishLarge(n int) {
	before, large := len(r.sent[typ]), strings.Repeat("x", 20<<10)
	r.publishWith(typ, n, func(i int) string { return fmt.Sprint(before+i, large) })
}

func inThe(s slots.Store) func(*Config) {
	return func(c *Config) {
		fsys := slots.New(context.Background(), s)
		c.To = Files{Dir: fsys.Dir(), Storage: storage.Options{FS: fsys}}
		small(c)
	}
}

// TestCopy: a type continues where its files were copied to, and nowhere else, and can be copied back.
func TestCopy(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		mem := slotstest.NewMem(300 << 10)
		if _, err := r.copyTo(mem); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a type without a file: %v", err)
		}
		work := func(n int, change func(*Config)) {
			t.Helper()
			r.publishLarge(n)
			if err := r.drain(change); err != nil {
				t.Fatal(err)
			}
		}
		work(180, small)
		rep, err := r.copyTo(mem)
		if err != nil || rep.Files < 2 || rep.Copied != rep.Files || rep.Already || rep.NextIndex != 180 {
			t.Fatalf("%+v, %v", rep, err)
		}
		if rep, err = r.copyTo(mem); err != nil || !rep.Already {
			t.Errorf("again: %+v, %v", rep, err)
		}
		r.publishLarge(10)
		var mismatch *storage.RegistryMismatch
		if err := r.drain(small); !errors.As(err, &mismatch) || mismatch.Registered.Place != mem.String() {
			t.Errorf("a worker in the old place: %v", err)
		}
		work(60, inThe(mem))
		if got := inStore(t, mem, typ); !slices.Equal(got, r.sent[typ]) {
			t.Fatalf("the store holds %d messages, %d were published", len(got), len(r.sent[typ]))
		}
		// Copy back, to where the older files still are.
		rep, err = r.copy(inThe(mem), CopyOptions{FS: r.disk, Dir: dir})
		if err != nil || rep.Copied == 0 || rep.Copied == rep.Files {
			t.Fatalf("back: %+v, %v", rep, err)
		}
		work(20, small)
		if got := inPlace(t, r.disk, dir, typ); !slices.Equal(got, r.sent[typ]) {
			t.Fatalf("the disk holds %d messages, %d were published", len(got), len(r.sent[typ]))
		}
	})
}

// TestCopyOfDamage: a type with unreadable messages stays where it is.
func TestCopyOfDamage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publishLarge(120)
		if err := r.drain(small); err != nil {
			t.Fatal(err)
		}
		first := dir + "/" + storage.FileName(typ)
		content := r.disk.ReadFile(first)
		content[len(content)/2] ^= 1
		r.disk.WriteFile(first, content)
		if _, err := r.copyTo(slotstest.NewMem(300 << 10)); !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("copied: %v", err)
		}
		if entry, _, err := r.queue.RegistryEntry(context.Background(), typ); err != nil || entry.Place != dir {
			t.Errorf("the registry names %q, %v", entry.Place, err)
		}
		r.publishLarge(10)
		if err := r.drain(small); err != nil {
			t.Errorf("workers do not continue: %v", err)
		}
	})
}

// TestCopyStopsAtEveryRequest: whichever request to the new place is the last to take effect, before or after it was answered, workers continue
// in the place that the registry names, and a second attempt completes the first.
func TestCopyStopsAtEveryRequest(t *testing.T) {
	race.Skip(t)
	step, conflicts := 2, 0
	if testing.Short() {
		step = 9
	}
	for n := 0; ; n += step {
		over := true
		for _, applied := range []bool{false, true} {
			for _, resume := range []bool{false, true} { // workers continue before the second attempt
				onRig(t, func(t *testing.T, r *rig) {
					mem := slotstest.NewMem(300 << 10)
					tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
						if c.N < n {
							return nil
						}
						return &slotstest.Fault{Applied: applied && c.N == n}
					}}
					r.publishLarge(70)
					if err := r.drain(small); err != nil {
						t.Fatal(err)
					}
					_, err := r.copyTo(tap)
					over = over && err == nil
					entry, _, _ := r.queue.RegistryEntry(context.Background(), typ)
					moved := entry.Place == mem.String()
					r.publishLarge(5)
					if resume && !moved {
						if err := r.drain(small); err != nil {
							t.Fatalf("request %d, applied %v: workers do not continue: %v", n, applied, err)
						}
					}
					_, err = r.copyTo(mem)
					if conflict := (*storage.CopyConflict)(nil); resume && errors.As(err, &conflict) {
						// The first attempt ended between creating the successor and registering it. Workers have created it in the
						// first place since.
						conflicts++
						if got := inPlace(t, r.disk, dir, typ); !slices.Equal(got, r.sent[typ]) {
							t.Fatalf("request %d: the first place holds %d messages, %d were published", n, len(got), len(r.sent[typ]))
						}
						return
					}
					if err != nil {
						t.Fatalf("request %d, applied %v: the second attempt: %v", n, applied, err)
					}
					if err := r.drain(inThe(mem)); err != nil {
						t.Fatalf("request %d, applied %v: in the new place: %v", n, applied, err)
					}
					if got := inStore(t, mem, typ); !slices.Equal(got, r.sent[typ]) {
						t.Fatalf("request %d, applied %v: the new place holds %d messages, %d were published; they differ from %d on", n, applied, len(got),
							len(r.sent[typ]), differ(got, r.sent[typ]))
					}
				})
			}
		}
		if over {
			if n < 20 || conflicts*step > n/3 {
				t.Errorf("%d requests, %d conflicts", n, conflicts*step)
			}
			return
		}
	}
}

// TestCopyThatFailsLeavesNoEnd: after a copy that cannot write to the new place, no file of the old one is
// sealed without a successor, which verify would report until the next message.
func TestCopyThatFailsLeavesNoEnd(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	down := &slotstest.Tap{Store: slotstest.NewMem(300 << 10), Before: func(slotstest.Call) *slotstest.Fault { return &slotstest.Fault{} }}
	for name, test := range map[string]struct {
		to    func() CopyOptions
		files int
	}{
		"a directory that is a file": {func() CopyOptions { return CopyOptions{Dir: file} }, 1},
		"a directory below a file":   {func() CopyOptions { return CopyOptions{Dir: file + "/data"} }, 1},
		"a store that fails": {func() CopyOptions {
			fsys := slots.New(context.Background(), down)
			return CopyOptions{FS: fsys, Dir: fsys.Dir()}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publishLarge(3)
				if err := r.drain(small); err != nil {
					t.Fatal(err)
				}
				if rep, err := r.copy(func(*Config) {}, test.to()); err == nil {
					t.Fatalf("copied: %+v", rep)
				}
				chain, err := storage.ReadChain(r.disk, dir, typ)
				if err != nil || len(chain) != test.files || chain[len(chain)-1].Sealed != nil {
					t.Errorf("%d files, want %d: %+v, %v", len(chain), test.files, chain, err)
				}
				r.publishLarge(3)
				if err := r.drain(small); err != nil {
					t.Errorf("workers do not continue: %v", err)
				}
			})
		})
	}
}

// elsewhere is a store with another address.
type elsewhere struct{ slots.Store }

func (elsewhere) String() string { return "elsewhere:" }

// TestCopyWhileWorkersStandStill: the type moves while replicas in the old place are paused at any point; they resume after the move.
func TestCopyWhileWorkersStandStill(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
	}
	moved := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				there := elsewhere{slotstest.NewMem(300 << 10)}
				c := &cluster{r: r, mem: slotstest.NewMem(300 << 10), rng: rand.New(rand.NewPCG(seed, 2)), quiet: true}
				for range 2 {
					c.join(small)
				}
				r.publishLarge(1 + c.draw(100))
				time.Sleep(time.Duration(c.draw(3000)) * time.Millisecond)
				r.publishLarge(1 + c.draw(100))
				for _, h := range c.hosts {
					time.Sleep(time.Duration(c.draw(100)) * time.Millisecond)
					h.stand(time.Duration(c.draw(60)) * time.Second)
				}
				fsys := slots.New(context.Background(), there)
				_, err := r.copy(func(cfg *Config) { c.uses(cfg, c.mem); small(cfg) }, CopyOptions{FS: fsys, Dir: fsys.Dir(), Wait: time.Minute})
				to := slots.Store(c.mem)
				if err == nil {
					to = there
					moved++
				}
				time.Sleep(2 * time.Minute)
				r.publishLarge(10)
				if derr := r.drain(inThe(to)); derr != nil {
					t.Fatalf("after the copy (%v): %v", err, derr)
				}
				if got := inStore(t, to, typ); !slices.Equal(got, r.sent[typ]) {
					t.Fatalf("after the copy (%v) the place holds %d messages, %d were published; they differ from %d on", err, len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
				}
			})
		})
	}
	if moved == 0 {
		t.Error("no copy succeeded")
	}
}
