package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// Faults of a store for all its users, as names of servers in world.outage.
const (
	storeAway    = "store"
	storeFull    = "store that is full"
	storeSlow    = "store that is slow"
	storeRefuses = "store that refuses credentials"
)

// depot is the store of a schedule whose files are in slots. All workers share it, each on its own host.
type depot struct {
	*slotstest.Mem
	born       map[string]time.Duration // when each value was created; guarded by world.mu
	stragglers []func()                 // creates that are made at the very end; guarded by world.mu
}

func newDepot(d *dice, large bool) *depot {
	most := pick(d, 1000, 20_000, 1<<20)
	if large {
		most = 1 << 20
	}
	return &depot{Mem: slotstest.NewMem(most), born: map[string]time.Duration{}}
}

// files returns the file system of a worker: the disk of the common host, or a store.
func (p *process) files() storage.FS {
	if p.w.depot == nil {
		return p.tap()
	}
	return slots.New(p.ctx, remote{p.w.depot.Mem, p})
}

// files is process.files without faults.
func (w *world) files() storage.FS {
	if w.depot == nil {
		return w.disk
	}
	return slots.New(context.Background(), w.depot.Mem)
}

// dir returns the directory of the files.
func (w *world) dir() string {
	if w.depot == nil {
		return dir
	}
	return w.depot.String()
}

// host returns the host of a process: one for all workers, or one for each.
func (p *process) host() string {
	if p.w.depot == nil {
		return "host"
	}
	slot, _, _ := strings.Cut(p.name, ".")
	return slot
}

// remote is the store as a process sees it.
type remote struct {
	*slotstest.Mem
	p *process
}

// fate is the outcome of a request.
type fate struct {
	err     error         // the answer instead of the store's
	applied bool          // with err: the request is made nevertheless
	late    time.Duration // with err: it is made after this time
	over    bool          // … or at the very end
	hangs   bool          // no answer, as long as its caller waits
	slow    time.Duration // how long it takes
	stale   time.Duration // age of a listing
}

var errNoStore = errors.New("simulation: the store cannot be reached, or its answer was lost")

// fate decides the outcome of the process's latest request.
func (p *process) fate(op slotstest.Op) fate {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	n := p.counts["store "+string(op)]
	d := newDice(w.seed, p.id, number("fault"), number("store "+string(op)), n)
	create := op == slotstest.OpCreate
	now := time.Now()
	is := func(what string) bool { return now.Before(w.outage[what]) }
	f := fate{err: errNoStore, hangs: d.chance(2000)}
	switch {
	case p.dead:
		f := fate{err: errKilled}
		if create && p.counts["store after death"] == 0 && !w.calm && d.chance(5000) { // it was in flight
			f.late = d.upTo(3 * w.lease)
		}
		p.counts["store after death"]++
		return f
	case w.calm:
		return fate{}
	case p.downLocked(storeAway):
	case now.Before(p.deaf):
		f.applied = true
	case is(storeRefuses):
		w.seen.Refused++
		return fate{err: &slots.RefusedError{Store: w.depot.String(), Reason: "the credentials are not accepted", Remedy: "renew them"}}
	case create && is(storeFull):
		w.seen.Full++
		return fate{err: slots.ErrFull}
	case is(storeSlow) && d.chance(3000):
		w.seen.Slow++
		return fate{slow: d.upTo(15 * time.Second)}
	case d.chance(w.lost):
		w.seen.Lost++
		f.applied = d.chance(6000)
		w.tellLocked(fmt.Sprintf("%s store %s: lost, applied %t", p.name, op, f.applied))
	case create && d.chance(2*w.late):
		w.seen.Late++
		f.late, f.over = d.span(1, 3*w.lease), d.chance(2000)
		w.tellLocked(fmt.Sprintf("%s store %s: late by %v, or when all is over: %t", p.name, op, f.late, f.over))
	case (op == slotstest.OpList || op == slotstest.OpFolders) && d.chance(w.stale):
		w.seen.Stale++
		return fate{stale: d.upTo(pick(d, time.Second, time.Minute))}
	default:
		return fate{}
	}
	return f
}

// ask makes a request, or not, or at another time.
func (r remote) ask(ctx context.Context, op slotstest.Op, name string, request func(context.Context) error) (f fate, err error) {
	p := r.p
	d := p.step("store "+string(op), name, false)
	if naming := op == slotstest.OpCreate && strings.Contains(name, "/generations/"); naming && d.chance(10*p.w.stall) {
		p.stop(d.upTo(p.w.longest()), "it is about to name a file") // such requests are rare, and the most can go wrong there
	}
	p.travel(d)
	f = p.fate(op)
	if f.slow > 0 {
		select {
		case <-time.After(f.slow):
		case <-ctx.Done():
			f.err, f.late = ctx.Err(), time.Millisecond // it arrives after its caller has given up
		}
	}
	if f.late > 0 && op == slotstest.OpCreate {
		r.later(f, func() { _ = request(context.Background()) })
	}
	switch {
	case f.err == nil:
		err = request(ctx)
	case f.applied:
		_ = request(ctx)
		err = f.err
	default:
		err = f.err
	}
	if f.hangs {
		<-ctx.Done()
		err = ctx.Err()
	}
	p.travel(p.step("store "+string(op)+" done", name, false))
	if p.isDead() {
		err = errKilled
	}
	return f, err
}

// later makes a request after its caller has given up.
func (r remote) later(f fate, request func()) {
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.over {
		w.depot.stragglers = append(w.depot.stragglers, request)
		return
	}
	if at := time.Now().Add(f.late); at.After(w.lateUntil) {
		w.lateUntil = at
	}
	time.AfterFunc(f.late, request)
}

// Create implements slots.Store.
func (r remote) Create(ctx context.Context, name string, data []byte) error {
	data = slices.Clone(data) // it may be late
	w := r.p.w
	_, err := r.ask(ctx, slotstest.OpCreate, name, func(ctx context.Context) error {
		err := r.Mem.Create(ctx, name, data)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.depot.born[name] = w.now()
		}
		return err
	})
	return err
}

// Read implements slots.Store.
func (r remote) Read(ctx context.Context, name string) (b []byte, err error) {
	_, err = r.ask(ctx, slotstest.OpRead, name, func(ctx context.Context) (err error) {
		b, err = r.Mem.Read(ctx, name)
		return err
	})
	return b, err
}

// Size implements slots.Store.
func (r remote) Size(ctx context.Context, name string) (n int64, err error) {
	_, err = r.ask(ctx, slotstest.OpSize, name, func(ctx context.Context) (err error) {
		n, err = r.Mem.Size(ctx, name)
		return err
	})
	return n, err
}

// List implements slots.Store.
func (r remote) List(ctx context.Context, folder string) (all []slots.Entry, err error) {
	f, err := r.ask(ctx, slotstest.OpList, folder, func(ctx context.Context) (err error) {
		all, err = r.Mem.List(ctx, folder)
		return err
	})
	return slices.DeleteFunc(all, func(e slots.Entry) bool { return r.hides(f, e.Name) }), err
}

// Count implements slots.Ordered.
func (r remote) Count(ctx context.Context, folder string) (int, error) {
	all, err := r.part(ctx, folder, "", "")
	return len(all), err
}

// Last implements slots.Ordered.
func (r remote) Last(ctx context.Context, folder string) (e slots.Entry, err error) {
	all, err := r.part(ctx, folder, "", "")
	if len(all) > 0 {
		e = all[len(all)-1]
	}
	return e, err
}

// Between implements slots.Ordered.
func (r remote) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	all, err := r.part(ctx, folder, from, to)
	return all[:min(len(all), cmp.Or(n, len(all)))], err
}

// part lists a part of a folder. In half of all worlds the store cannot list a part.
func (r remote) part(ctx context.Context, folder, from, to string) (some []slots.Entry, err error) {
	if r.p.w.seed%2 == 0 {
		return nil, slots.ErrUnordered
	}
	f, err := r.ask(ctx, slotstest.OpList, folder, func(ctx context.Context) (err error) {
		some, err = r.Mem.Between(ctx, folder, from, to, 0)
		return err
	})
	return slices.DeleteFunc(some, func(e slots.Entry) bool { return r.hides(f, e.Name) }), err
}

// Folders implements slots.Store.
func (r remote) Folders(ctx context.Context, folder string) (names []string, err error) {
	f, err := r.ask(ctx, slotstest.OpFolders, folder, func(ctx context.Context) (err error) {
		names, err = r.Mem.Folders(ctx, folder)
		return err
	})
	return slices.DeleteFunc(names, func(name string) bool {
		return f.stale > 0 && !slices.ContainsFunc(r.Mem.Names(), func(value string) bool {
			return strings.HasPrefix(value, strings.TrimPrefix(folder+"/"+name+"/", "/")) && !r.hides(f, value)
		})
	}), err
}

// hides reports whether a listing omits a value, because it is too old or incomplete.
func (r remote) hides(f fate, name string) bool {
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.stale > 0 && (w.now()-w.depot.born[name] < f.stale || newDice(w.seed, number(name), uint64(f.stale)).chance(1000))
}

// Delete implements slots.Store.
func (r remote) Delete(ctx context.Context, name string) error {
	_, err := r.ask(ctx, slotstest.OpDelete, name, func(ctx context.Context) error { return r.Mem.Delete(ctx, name) })
	return err
}

// refused reports whether a worker ended because the store refused its credentials. An operator renews them and restarts the worker.
func refused(err error) bool {
	var r *slots.RefusedError
	return errors.As(err, &r)
}

// deliver makes the creates that were in flight until the end.
func (w *world) deliver() {
	w.mu.Lock()
	late := w.depot.stragglers
	w.depot.stragglers = nil
	w.mu.Unlock()
	for _, request := range late {
		request()
		w.seen.Stragglers++
	}
}

// generationName returns the name of the value that names the folder of a generation.
func generationName(typ string, generation uint64) string {
	return fmt.Sprintf("%s/generations/%08d", typ, generation)
}

// folder returns the names of the slots of a generation in their order, as docs/decisions/0119 has it; nil if it has no name.
func (m *depot) folder(typ string, generation uint64) (names []string) {
	nonce, err := m.Read(context.Background(), generationName(typ, generation))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	prefix := fmt.Sprintf("%s/%08d/%s/", typ, generation, nonce)
	for _, name := range m.Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

// file returns the concatenated slots of a generation.
func (m *depot) file(w *world, typ string, generation uint64) (data []byte, err error) {
	for _, name := range m.folder(typ, generation) {
		b, err := m.Read(context.Background(), name)
		if err != nil {
			return nil, err
		}
		off, err := strconv.Atoi(name[strings.LastIndexByte(name, '/')+1:])
		if w.disasters && off > len(data) {
			data = append(data, make([]byte, off-len(data))...) // the removed slots were zeros
		}
		if err != nil || off != len(data) {
			return nil, fmt.Errorf("slot %s comes after %d bytes", name, len(data))
		}
		data = append(data, b...)
	}
	return data, nil
}

// checkSlots checks that the concatenated slots of a generation are a file like any other, and the same one.
func (w *world) checkSlots(typ string, generation uint64, r *storage.Report) {
	data, err := w.depot.file(w, typ, generation)
	if err != nil {
		w.failf("%s: %v", typ, err)
		return
	}
	path := dir + "/" + storage.GenerationName(typ, generation)
	w.disk.WriteFile(path, data)
	same, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: w.disk, Type: typ, Deep: true})
	if err == nil {
		err = same.Err()
	}
	switch {
	case err != nil:
		w.failf("the concatenated slots of %s: %v", path, err)
	case same.NextIndex != r.NextIndex || same.Size != r.Size || same.FileID != r.FileID || len(same.Regions) != len(r.Regions) || len(same.Void) != len(r.Void):
		w.failf("the slots of %s are one file, but concatenated they are another: %+v, %+v", path, r, same)
	}
}
