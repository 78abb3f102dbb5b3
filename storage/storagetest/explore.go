package storagetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// life is the life of files: a session writes, continues in a next file, compacts that one and seals it, and another session continues
// after the seal and removes the old files.
type life struct {
	x      *oracle.World
	clean  storage.FS // of a process that is not disturbed
	h      *oracle.Holder
	opened bool
	short  bool   // ends before the seal
	keeps  func() // called before the old files are removed
}

func (l *life) run(fsys storage.FS) (err error) {
	if l.h, err = l.x.Open(fsys); err != nil {
		return err
	}
	l.opened = true
	h := l.h
	seal := func() error { return h.Writer.Seal(context.Background(), h.State()) }
	err = oracle.Steps(h.Begin, h.Rotate, oracle.Appends(h, 1), h.Ack, h.Compact, oracle.Appends(h, 1), h.Ack)
	if err == nil && l.short {
		return h.Writer.Close()
	}
	if err == nil {
		err = seal()
	}
	if err != nil {
		return err
	}
	if l.h, err = l.x.Open(fsys); err != nil {
		return err
	}
	h = l.h
	keep := func() error {
		if l.keeps != nil {
			l.keeps()
		}
		return l.x.Keep(fsys, l.clean)
	}
	return oracle.Steps(oracle.Appends(h, 1), h.Ack, keep, h.Writer.Close)
}

// explorer disturbs the operations of a life, one per run.
type explorer struct {
	*Backend
	lv       level
	requests bool // requests are disturbed, not calls
	stores   bool // the backend makes requests
	n, short int  // number of operations of a life, and of a short one
	keeps    int  // number of the first operation that removes old files
}

func (b *Backend) explore(t *testing.T, lv level, requests bool) {
	e := &explorer{Backend: b, lv: lv, requests: requests, stores: b.New(t).Requests != nil}
	if b.bubble(t, e.undisturbed); t.Failed() {
		return
	}
	if e.stores && !requests && b.Most > 0 && !isLong() {
		return // operations take too long to be disturbed on both levels
	}
	t.Run("disturbed", func(t *testing.T) {
		e.pauses(t)
		e.ends(t)
		e.faults(t)
		e.each(t, "a holder works on", 1, e.worksOn)
		if !e.requests && b.New(t).Crash != nil {
			e.each(t, "power failures", 1, e.crashes)
		}
		b.run(t, "random schedules", e.schedules)
	})
}

// undisturbed counts the operations, for the other tests.
func (e *explorer) undisturbed(t *testing.T) { e.n, e.short = e.count(t, false), e.count(t, true) }

func (e *explorer) count(t *testing.T, short bool) int {
	t.Helper()
	x, p := e.world(t)
	l := &life{x: x, clean: p.fs(), short: short}
	d := e.lv(p, t.Context(), Hooks{}.orNothing())
	l.keeps = func() { e.keeps = d.Calls() }
	if err := l.run(d.FS); err != nil {
		t.Fatal(err)
	}
	e.finish(t, x, p, "undisturbed")
	return d.Calls()
}

// each runs a test that disturbs operation k, for every step-th k; the first k depends on the test. It disturbs only a quarter of the
// operations in the removal of old files, which reads all files first; and only a quarter of the calls of a file system with requests,
// because each request is disturbed, too.
func (e *explorer) each(t *testing.T, name string, step int, test func(t *testing.T, k int)) {
	e.upTo(t, e.n, name, step, test)
}

// upTo is each for the first n operations.
func (e *explorer) upTo(t *testing.T, n int, name string, step int, test func(t *testing.T, k int)) {
	if e.stores && !e.requests {
		step *= 4
	}
	if e.Most > 0 {
		step = max(step, (n+e.Most-1)/e.Most)
	}
	removal := 4 * step
	if isLong() {
		step, removal = 1, 1
	}
	h := fnv.New32a()
	h.Write([]byte(t.Name() + name))
	first := int(h.Sum32() % uint32(step))
	e.run(t, name, func(t *testing.T) {
		for k := first; k < n && !t.Failed(); {
			test(t, k)
			if k < e.keeps {
				k += step
			} else {
				k += removal
			}
		}
	})
}

// finish lets another session complete all messages, and checks all files.
func (e *explorer) finish(t *testing.T, x *oracle.World, p Place, what string) {
	t.Helper()
	if err := x.Finish(p.fs()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func deliverAll(d Disturbed) {
	for d.Late() > 0 {
		d.Deliver(0)
	}
}

// pauses pauses a life before or after an operation of any fate while other sessions take over, and then lets it continue.
func (e *explorer) pauses(t *testing.T) {
	variants := []pause{
		{fate: Made}, {fate: Made, after: true}, {fate: Lost}, {fate: Unanswered}, {fate: Unanswered, after: true}, {fate: Late},
	}
	for i, v := range variants {
		step := 1
		if i > 0 {
			step = 3
		}
		e.each(t, "paused "+v.String(), step, func(t *testing.T, k int) { e.pausedAt(t, k, v, false) })
		e.upTo(t, e.short, "paused "+v.String()+", while old files are removed", step, func(t *testing.T, k int) { e.pausedAt(t, k, v, true) })
	}
}

// pause says when a life pauses, and the fate of the operation.
type pause struct {
	fate  Fate
	after bool
}

func (v pause) String() string {
	when := "before"
	if v.after {
		when = "after"
	}
	return when + " an operation that is " + v.fate.String()
}

// pausedAt pauses a life at operation k while other sessions take over. If they also remove the old files, the life is a short one. On a
// disk the name of a removed file is free: a session that pauses between reading a sealed file and naming its successor gives that name
// to a useless file, learns that from the registry, and leaves the file to an operator.
func (e *explorer) pausedAt(t *testing.T, k int, v pause, remove bool) {
	t.Helper()
	others := (*oracle.World).TakeOver
	if remove {
		others = (*oracle.World).Overtake
	}
	x, p := e.world(t)
	var at Operation
	var successor *oracle.Holder
	var took error
	var naming atomic.Bool // the last change was the name of a file
	named := false         // the same when it was paused
	pause := func(o Operation) {
		at, named = o, naming.Load()
		successor, took = others(x, p.fs())
	}
	l := &life{x: x, clean: p.fs(), short: remove}
	d := e.lv(p, context.Background(), Hooks{Before: func(o Operation) Fate {
		if o.N != k {
			return Made
		}
		if !v.after {
			pause(o)
		}
		return v.fate
	}, After: func(o Operation) {
		if !o.Reads {
			naming.Store(o.Name == string(OpLink) || naming.Load() && (o.Name == string(OpRemove) || o.Name == string(OpSyncDir)))
		}
		if o.N == k && v.after {
			pause(o)
		}
	}})
	err := l.run(d.FS)
	ok := err == nil || errors.Is(err, storage.ErrFenced) || !e.requests && v.fate != Made && errors.Is(err, syscall.EIO)
	// A session that has just named a successor, which it takes for the newest file, finds a later file in the registry.
	if !ok && !(named && errors.As(err, new(*storage.RegistryMismatch))) {
		t.Errorf("operation %d, %s: the paused session: %v", k, at.Name, err)
	}
	if took != nil {
		t.Errorf("operation %d, %s: the successor, undisturbed so far: %v", k, at.Name, took)
		return
	}
	// The paused session may in turn have fenced off the successor. It cannot do that a second time.
	if successor != nil {
		if err := successor.Work(); err != nil && !errors.Is(err, storage.ErrFenced) {
			t.Errorf("operation %d, %s: the successor: %v", k, at.Name, err)
		}
	}
	l.h.Close()
	successor.Close()
	deliverAll(d)
	e.finish(t, x, p, fmt.Sprintf("operation %d, %s", k, at.Name))
}

// ends ends a life at an operation that is lost, made, or made after the next session has begun or ended.
func (e *explorer) ends(t *testing.T) {
	for _, fate := range []Fate{Lost, Unanswered, Late} {
		step := 2
		if fate == Late {
			step = 3
		}
		e.each(t, "ends at an operation that is "+fate.String(), step, func(t *testing.T, k int) {
			whens := 1
			for when := 0; when < whens; when++ {
				if late := e.endsAt(t, k, fate, when); late {
					whens = 3
				}
			}
		})
	}
}

// endsAt ends a life at operation k, and reports whether the operation was late. when says when a late operation is made: 0 before
// the next session, 1 in its middle, 2 after it.
func (e *explorer) endsAt(t *testing.T, k int, fate Fate, when int) (late bool) {
	t.Helper()
	x, p := e.world(t)
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var over atomic.Bool
	l := &life{x: x, clean: p.fs()}
	d := e.lv(p, ctx, Hooks{Before: func(o Operation) Fate {
		switch {
		case over.Load():
			return Lost
		case o.N < k:
			return Made
		}
		over.Store(true)
		if fate != Unanswered {
			end()
		}
		return fate
	}, After: func(o Operation) {
		if o.N == k {
			end()
		}
	}})
	_ = l.run(d.FS)
	l.h.Close()

	late = d.Late() > 0
	what := fmt.Sprintf("ended at operation %d, made at %d", k, when)
	if when == 0 {
		deliverAll(d)
	}
	if late && when == 1 {
		next := e.lv(p, context.Background(), Hooks{Before: func(o Operation) Fate {
			if o.Changes {
				deliverAll(d)
			}
			return Made
		}}.orNothing())
		if err := x.Finish(next.FS); err != nil && !errors.Is(err, storage.ErrFenced) {
			t.Errorf("%s: the next session: %v", what, err)
		}
	}
	e.finish(t, x, p, what)
	if late && when == 2 {
		deliverAll(d)
		e.finish(t, x, p, what)
	}
	return late
}

// faults disturbs one operation of a life that continues.
func (e *explorer) faults(t *testing.T) {
	fates := []Fate{Lost, Unanswered, Late, Full}
	if e.requests {
		fates = append(fates, Old)
	}
	for _, fate := range fates {
		step := 3
		if fate == Lost {
			step = 1
		}
		e.each(t, "an operation is "+fate.String(), step, func(t *testing.T, k int) { e.faultAt(t, k, fate) })
	}
}

func (e *explorer) faultAt(t *testing.T, k int, fate Fate) {
	t.Helper()
	x, p := e.world(t)
	var at atomic.Value
	at.Store("")
	l := &life{x: x, clean: p.fs()}
	d := e.lv(p, context.Background(), Hooks{Before: func(o Operation) Fate {
		if o.N != k || fate == Old && !o.Lists {
			return Made
		}
		at.Store(o.Name)
		return fate
	}}.orNothing())
	err := l.run(d.FS)
	what := fmt.Sprintf("operation %d, %s, is %s", k, at.Load(), fate)
	switch {
	case fate == Full && errors.Is(err, storage.ErrNoSpace):
	case e.requests && err != nil: // requests are retried
		t.Errorf("%s: %v", what, err)
	case !e.requests && !l.opened && fate == Lost && !errors.Is(err, syscall.EIO):
		t.Errorf("%s, and Open said: %v", what, err)
	case err != nil && !errors.Is(err, syscall.EIO):
		t.Errorf("%s: %v", what, err)
	}
	l.h.Close()
	e.finish(t, x, p, what)
	if d.Late() > 0 {
		deliverAll(d)
		e.finish(t, x, p, what)
	}
}

// worksOn lets the old holder append and acknowledge before an operation of its successor.
func (e *explorer) worksOn(t *testing.T, k int) {
	t.Helper()
	x, p := e.world(t)
	old, err := x.Open(p.fs())
	if err == nil {
		err = old.Append(2)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &life{x: x, clean: p.fs()}
	d := e.lv(p, context.Background(), Hooks{Before: func(o Operation) Fate {
		if o.N == k {
			if err := errors.Join(old.Append(1), old.Ack()); err != nil && !errors.Is(err, storage.ErrFenced) {
				t.Errorf("before operation %d, %s, of its successor: the old holder: %v", k, o.Name, err)
			}
		}
		return Made
	}}.orNothing())
	if err := l.run(d.FS); err != nil && !errors.Is(err, storage.ErrFenced) {
		t.Errorf("operation %d: the successor: %v", k, err)
	}
	old.Close()
	l.h.Close()
	e.finish(t, x, p, fmt.Sprintf("operation %d", k))
}

// crashes cuts the power before a call.
func (e *explorer) crashes(t *testing.T, k int) {
	t.Helper()
	x, p := e.world(t)
	over := false
	l := &life{x: x, clean: p.fs()}
	d := e.lv(p, context.Background(), Hooks{Before: func(o Operation) Fate {
		if o.N == k {
			over = true
			p.Crash()
		}
		if over {
			return Lost
		}
		return Made
	}}.orNothing())
	_ = l.run(d.FS)
	l.h.Close()
	e.finish(t, x, p, fmt.Sprintf("power failure before call %d", k))
}
