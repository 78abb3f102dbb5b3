package locktest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fencepost/fencepost/lock"
)

// A history is the list of operations of some processes on the locks of a store, recorded by a Recorder in each process. Check decides
// whether it is linearizable: whether there is an order of all operations, each between its call and its return, in which every answer is
// correct for a lock. Durations play no part: a takeover names the hold that it replaced, and is correct only if that hold held the lock.
// So pauses and clocks cannot make a correct history look wrong.

// Step is one line of a history: the call or the return of an operation on a lock.
type Step struct {
	Process string `json:"p"`
	N       int64  `json:"n"`            // of this process
	Done    bool   `json:"d,omitempty"`  // the operation returned; OK, Token and Unclear are its answer
	At      int64  `json:"at"`           // nanoseconds on a clock that all processes share
	Op      Op     `json:"op,omitempty"` // at the call
	Name    string `json:"name,omitempty"`
	ID      string `json:"id,omitempty"`   // of the acting hold
	Prev    string `json:"prev,omitempty"` // the hold that it replaces, "" = none
	Permits int    `json:"permits,omitempty"`
	OK      bool   `json:"ok,omitempty"`
	Token   int64  `json:"token,omitempty"`
	Unclear bool   `json:"unclear,omitempty"` // the answer was an error
}

// call identifies an operation: its two steps have it in common.
type call struct {
	process string
	n       int64
}

func (s Step) call() call { return call{s.Process, s.N} }

// granting reports whether the operation grants a lock if it succeeds.
func (s Step) granting() bool {
	return slices.Contains([]Op{Create, Acquire, TakeOver, HandOver}, s.Op)
}

// Delete is the deletion of a record by an administrator, a TTL index or a restored backup.
const Delete Op = "delete"

// Recorder is a store that records the operations on another one. It is safe for concurrent use.
type Recorder struct {
	lock.Store
	process string
	clock   func() int64

	mu   sync.Mutex
	out  *json.Encoder
	n    int64
	seen map[lock.Version]string // the hold in each version that was read, to name the hold that a takeover replaces
}

// Record returns store with a Recorder around it, which writes a line to out for each Step. clock returns nanoseconds on a clock that all
// processes of the history share, such as CLOCK_MONOTONIC on one machine.
func Record(store lock.Store, process string, clock func() int64, out io.Writer) *Recorder {
	return &Recorder{Store: store, process: process, clock: clock, out: json.NewEncoder(out), seen: map[lock.Version]string{}}
}

// call runs an operation and records its call and its return. The call is recorded first, so that the history includes operations in
// flight when a process was killed.
func (r *Recorder) call(s Step, do func() (token int64, ok bool, err error)) {
	r.mu.Lock()
	r.n++
	s.Process, s.N, s.At = r.process, r.n, r.clock()
	r.write(s)
	r.mu.Unlock()
	token, ok, err := do()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(Step{Process: r.process, N: s.N, Done: true, At: r.clock(), OK: ok, Token: token, Unclear: err != nil})
}

// write appends a line to the history. mu is held, so lines are in the order of their times.
func (r *Recorder) write(s Step) {
	if err := r.out.Encode(s); err != nil {
		panic(fmt.Sprintf("locktest: the history cannot be written: %v", err))
	}
}

// id shortens an ID, because it is in every line of a history; half of the ID is unique enough.
func id(h lock.HoldID) string { return h.String()[:12] }

// Read implements lock.Store. It is a hint, and not part of the history.
func (r *Recorder) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	rec, found, err := r.Store.Read(ctx, name)
	r.note(rec, found && err == nil)
	return rec, found, err
}

// Enqueue implements lock.Store. The record that it returns is a hint, too.
func (r *Recorder) Enqueue(ctx context.Context, name string, e lock.Entry) (lock.Record, bool, error) {
	rec, ok, err := r.Store.Enqueue(ctx, name, e)
	r.note(rec, ok && err == nil)
	return rec, ok, err
}

// note remembers the exclusive hold of a record that was read.
func (r *Recorder) note(rec lock.Record, known bool) {
	if !known {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[rec.Version] = ""
	if rec.Hold != nil {
		r.seen[rec.Version] = id(rec.Hold.ID)
	}
}

// Create implements lock.Store.
func (r *Recorder) Create(ctx context.Context, name string, h lock.Hold, v lock.Version) (ok bool, err error) {
	r.call(Step{Op: Create, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		ok, err = r.Store.Create(ctx, name, h, v)
		return 0, ok, err
	})
	return ok, err
}

// Acquire implements lock.Store.
func (r *Recorder) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (token int64, ok bool, err error) {
	r.call(Step{Op: Acquire, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		token, ok, err = r.Store.Acquire(ctx, name, h, v)
		return token, ok, err
	})
	return token, ok, err
}

// TakeOver implements lock.Store.
func (r *Recorder) TakeOver(ctx context.Context, name string, seen lock.Version, h lock.Hold, v lock.Version) (token int64, ok bool, err error) {
	r.mu.Lock()
	prev, known := r.seen[seen]
	r.mu.Unlock()
	if !known {
		panic("locktest: a takeover of a version that was never read")
	}
	r.call(Step{Op: TakeOver, Name: name, ID: id(h.ID), Prev: prev, Permits: h.Permits}, func() (int64, bool, error) {
		token, ok, err = r.Store.TakeOver(ctx, name, seen, h, v)
		return token, ok, err
	})
	return token, ok, err
}

// HandOff implements lock.Store.
func (r *Recorder) HandOff(ctx context.Context, name string, from lock.HoldID, h lock.Hold, v lock.Version) (token int64, ok bool, err error) {
	r.call(Step{Op: HandOver, Name: name, ID: id(h.ID), Prev: id(from)}, func() (int64, bool, error) {
		token, ok, err = r.Store.HandOff(ctx, name, from, h, v)
		return token, ok, err
	})
	return token, ok, err
}

// Renew implements lock.Store.
func (r *Recorder) Renew(ctx context.Context, name string, h lock.Hold, v lock.Version) (asked string, ok bool, err error) {
	r.call(Step{Op: Renew, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		asked, ok, err = r.Store.Renew(ctx, name, h, v)
		return 0, ok, err
	})
	return asked, ok, err
}

// Confirm implements lock.Store.
func (r *Recorder) Confirm(ctx context.Context, name string, h lock.Hold, floor int64, v lock.Version) (token int64, ok bool, err error) {
	r.call(Step{Op: Confirm, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		token, ok, err = r.Store.Confirm(ctx, name, h, floor, v)
		return token, ok, err
	})
	return token, ok, err
}

// Release implements lock.Store.
func (r *Recorder) Release(ctx context.Context, name string, h lock.Hold, v lock.Version) (ok bool, err error) {
	r.call(Step{Op: Release, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		ok, err = r.Store.Release(ctx, name, h, v)
		return 0, ok, err
	})
	return ok, err
}

// Expire implements lock.Store.
func (r *Recorder) Expire(ctx context.Context, name string, e lock.Entry, v lock.Version) (ok bool, err error) {
	r.call(Step{Op: Expire, Name: name, ID: id(e.ID), Permits: e.Permits}, func() (int64, bool, error) {
		ok, err = r.Store.Expire(ctx, name, e, v)
		return 0, ok, err
	})
	return ok, err
}

// Force implements lock.Store.
func (r *Recorder) Force(ctx context.Context, name string, h lock.Hold, why string, v lock.Version) (ok bool, err error) {
	r.call(Step{Op: Force, Name: name, ID: id(h.ID), Permits: h.Permits}, func() (int64, bool, error) {
		ok, err = r.Store.Force(ctx, name, h, why, v)
		return 0, ok, err
	})
	return ok, err
}

// Deleted records that do deletes the record of name; did reports whether it deleted one. A record that is written concurrently may not be
// deleted: FerretDB on PostgreSQL deletes the version of a record that it has read, or nothing.
func (r *Recorder) Deleted(name string, do func() (did bool, err error)) (err error) {
	r.call(Step{Op: Delete, Name: name}, func() (_ int64, did bool, _ error) {
		did, err = do()
		return 0, did, err
	})
	return err
}

// ReadHistory reads the output of a Recorder. It ignores an incomplete last line, which a killed process can leave.
func ReadHistory(in io.Reader) ([]Step, error) {
	var steps []Step
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			if lines.Scan() {
				return nil, fmt.Errorf("locktest: history: %w", err)
			}
			break
		}
		steps = append(steps, s)
	}
	return steps, lines.Err()
}

// Verdict counts what Check has checked: a history with few grants or takeovers proves little.
type Verdict struct {
	Operations, Grants, Unclear, TakenOver int
	Undecided                              []string // names whose histories took too long to decide
}

// ErrHistory is wrapped by Check's error if no working lock can have such a history.
var ErrHistory = errors.New("the history is not linearizable")

// Check decides whether the histories of some processes, taken together, are linearizable. It spends at most within on each name; names that
// take longer are in Verdict.Undecided. The error wraps ErrHistory and shows the operations that fit no order.
func Check(steps []Step, within time.Duration) (*Verdict, error) {
	v := &Verdict{}
	byName := v.operations(steps)
	model := porcupine.NondeterministicModel{
		Init:              func() []any { return []any{lockState{}} },
		Step:              func(state, in, out any) []any { return state.(lockState).step(in.(Step), out.(Step)) },
		DescribeOperation: describe,
	}
	m := model.ToModel()
	for name, ops := range byName {
		switch porcupine.CheckOperationsTimeout(m, ops, within) {
		case porcupine.Illegal:
			slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			_, info := porcupine.CheckOperationsVerbose(m, ops, within)
			return v, fmt.Errorf("%w: lock %q, %d operations:\n%s\n%s", ErrHistory, name, len(ops), list(ops), impasse(info.PartialLinearizationsOperations(), ops))
		case porcupine.Unknown:
			v.Undecided = append(v.Undecided, name)
		}
	}
	return v, nil
}

// operations returns the operations on each name that restrict the order of the others, and counts all of them.
func (v *Verdict) operations(steps []Step) map[string][]porcupine.Operation {
	answers := answersOf(steps)
	met, lives := shown(steps, answers)
	byName := map[string][]porcupine.Operation{}
	for _, s := range steps {
		if s.Done {
			continue
		}
		answer, returned := answers[s.call()]
		v.Operations++
		if !returned || answer.Unclear {
			v.Unclear++
			// rule: an operation whose answer was lost may take effect at any later time, or never.
			answer = Step{At: math.MaxInt64, Unclear: true}
			// Omit operations that only make the search longer: those without an effect in the model; a grant that no other operation shows
			// (without it the lock is only free for longer); the end of a hold that another operation has ended.
			switch s.Op {
			case Renew, Confirm:
				continue
			case Acquire, TakeOver:
				if !met[s.ID] && (s.Prev == "" || lives[s.Prev] <= 0) {
					continue
				}
			case Release, Force, Expire:
				if lives[s.ID] <= 0 {
					continue
				}
				lives[s.ID]--
			}
		}
		if answer.OK && s.granting() {
			v.Grants++
			if s.Op == TakeOver {
				v.TakenOver++
			}
		}
		byName[s.Name] = append(byName[s.Name], porcupine.Operation{Input: s, Call: s.At, Output: answer, Return: answer.At})
	}
	return byName
}

// answersOf returns the second steps of operations.
func answersOf(steps []Step) map[call]Step {
	answers := map[call]Step{}
	for _, s := range steps {
		if s.Done {
			answers[s.call()] = s
		}
	}
	return answers
}

// shown returns what operations show of each hold, by ID. met: another operation shows that it existed. lives: how often it may have been
// granted (more than once if a request arrived late) minus how often it is known to have ended.
func shown(steps []Step, answers map[call]Step) (met map[string]bool, lives map[string]int) {
	met, lives = map[string]bool{}, map[string]int{}
	for _, s := range steps {
		answer := answers[s.call()]
		if !s.Done && s.granting() && (answer.OK || answer.Unclear || !answer.Done) {
			lives[s.ID]++
			met[s.Prev] = true // also of a takeover whose answer was lost: it may have been applied
		}
		if s.Done || !answer.OK {
			continue
		}
		met[s.ID], met[s.Prev] = true, true
		switch s.Op {
		case Release, Force, Expire:
			lives[s.ID]--
		case TakeOver, HandOver:
			lives[s.Prev]--
		}
	}
	return met, lives
}

// list prints operations, a line each.
func list(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range ops {
		until := "…"
		if op.Return != math.MaxInt64 {
			until = fmt.Sprint(op.Return)
		}
		fmt.Fprintf(&b, "%d to %s: %s\n", op.Call, until, describe(op.Input, op.Output))
	}
	return b.String()
}

// impasse explains a history without an order: the end of the longest order found, the states that the lock may then be in, and the
// operations of which one would have to come next. orders has the longest orders of each partition; there is one partition.
func impasse(orders [][][]porcupine.Operation, ops []porcupine.Operation) string {
	var longest []porcupine.Operation
	for _, order := range slices.Concat(orders...) {
		if len(order) > len(longest) {
			longest = order
		}
	}
	states := map[lockState]bool{{}: true}
	placed := map[porcupine.Operation]bool{}
	for _, op := range longest {
		placed[op] = true
		next := map[lockState]bool{}
		for s := range states {
			for _, after := range s.step(op.Input.(Step), op.Output.(Step)) {
				next[after.(lockState)] = true
			}
		}
		states = next
	}
	left := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool { return placed[op] })
	until := int64(math.MaxInt64) // a call after this cannot come next
	for _, op := range left {
		until = min(until, op.Return)
	}
	left = slices.DeleteFunc(left, func(op porcupine.Operation) bool { return op.Call > until })
	return fmt.Sprintf("An order of %d of them ends with\n%swhich leaves the lock as one of\n%+v\nThen none of these is possible:\n%s",
		len(longest), list(longest[max(0, len(longest)-20):]), slices.Collect(maps.Keys(states)), list(left))
}

// describe prints an operation with its answer.
func describe(in, out any) string {
	s, a := in.(Step), out.(Step)
	return fmt.Sprintf("%s %s(%s, was %s) = %v %d unclear %v", s.Process, s.Op, s.ID, s.Prev, a.OK, a.Token, a.Unclear)
}

// firstToken is the smallest token that is granted: minToken of package lock.
const firstToken = 1 << 40

// lockState is the state of one lock in the model.
type lockState struct {
	exists bool
	hold   string // the exclusive holder
	shares string // the shared holders, each followed by a space
	token  int64  // the highest ever returned; survives the deletion of the record
}

// step returns the states that the lock may be in after an operation with the given answer: none if the answer is wrong.
func (s lockState) step(in, out Step) []any {
	after, can := s.apply(in)
	if out.Unclear {
		if can {
			return []any{s, after}
		}
		return []any{s}
	}
	switch in.Op {
	case Delete:
		if out.OK && !can {
			return nil
		}
	case Create, Renew, Release, Force, Confirm:
		if out.OK != can {
			return nil
		}
	default:
		// It may fail for reasons that are not in the model: a renewal since, or another waiter first in the queue.
		if out.OK && !can {
			return nil
		}
	}
	if !out.OK {
		return []any{s}
	}
	// rule: each grant has a greater token than all before. A newly created record has no token yet: the hold that acquires
	// it then draws one with Confirm, as does a hold whose Confirm shows that its acquisition succeeded.
	switch in.Op {
	case Acquire, TakeOver, HandOver, Confirm:
		again := in.Op == Confirm && in.Permits == 0 // it may get the token that it already has
		switch {
		case out.Token < firstToken:
		case out.Token < s.token, out.Token == s.token && !again:
			return nil
		default:
			after.token = out.Token
		}
	}
	return []any{after}
}

// apply returns the state after an operation that succeeds. can is false if the operation cannot succeed in this state.
func (s lockState) apply(in Step) (after lockState, can bool) {
	after = s
	mine := s.hold == in.ID
	if in.Permits > 0 {
		mine = strings.Contains(s.shares, in.ID+" ")
	}
	free := s.exists && s.hold == "" && strings.Count(s.shares, " ") < max(in.Permits, 1)
	if in.Permits == 0 {
		free = s.exists && s.hold == "" && s.shares == ""
	}
	switch in.Op {
	case Delete:
		return lockState{token: s.token}, s.exists
	case Create:
		after.exists = true
		return after.taken(in), !s.exists
	case Acquire:
		return after.taken(in), free && !mine
	case TakeOver:
		after.hold = ""
		return after.taken(in), s.exists && s.hold == in.Prev && s.shares == ""
	case HandOver:
		return after.taken(in), s.exists && s.hold == in.Prev && in.Prev != ""
	case Renew, Confirm:
		return after, mine
	default: // Release, Force, Expire
		if in.Permits > 0 {
			after.shares = strings.Replace(s.shares, in.ID+" ", "", 1)
		} else {
			after.hold = ""
		}
		return after, mine
	}
}

// taken is the state after a grant to the acting hold.
func (s lockState) taken(in Step) lockState {
	if in.Permits > 0 {
		s.shares += in.ID + " "
	} else {
		s.hold = in.ID
	}
	return s
}
