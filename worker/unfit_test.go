package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

const badHeader = `the header "attempts" is a number, want string`

// spoil makes messages of producer 1 undecodable, or with why "" repairs them.
func (r *rig) spoil(why string, ns ...uint64) {
	for _, n := range ns {
		r.memory().Spoil(typ, message(1, n).ID, why)
	}
}

func (r *rig) memory() *queuetest.Memory { return r.queue.Queue.(*queuetest.Memory) }

func (r *rig) left() int {
	d, err := r.queue.Queue.Depth(context.Background(), typ, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	return d.Pending
}

// An operator's script spoils messages, and is undone: before the gap timeout it has no effect, and after it no message is lost.
func TestSpoiledMessagesAreHeldUntilTheyAreRepaired(t *testing.T) {
	for name, undone := range map[string]time.Duration{"within the gap timeout": 20 * time.Second, "after it": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				var ns []uint64
				for n := range uint64(100) {
					ns = append(ns, n+1)
				}
				r.put(1, ns...)
				r.spoil(badHeader, ns[10:40]...)
				p := r.start(nil)
				time.Sleep(undone)
				if late := undone > DefaultGapTimeout; late != (p.Status().Types[0].State == Blocked) {
					t.Errorf("after %v the type is %s", undone, p.Status().Types[0].State)
				}
				if want := map[bool]int{false: 90, true: 30}[undone > DefaultGapTimeout]; r.left() != want {
					t.Fatalf("%d messages are pending, want %d", r.left(), want)
				}
				r.spoil("", ns[10:40]...)
				time.Sleep(2 * fullSweepEvery)
				state := p.Status().Types[0].State
				p.stop()
				want := slices.Clone(ns)
				if undone > DefaultGapTimeout {
					want = slices.Concat(ns[:10], ns[40:], ns[10:40])
				}
				var lines []string
				for _, n := range want {
					lines = append(lines, fmt.Sprintf("1/%d", n))
				}
				if got := contents(t, r.disk, testFile); !slices.Equal(got, lines) {
					t.Errorf("the file holds %q, want %q", got, lines)
				}
				if s := p.Stats(); s.Duplicates != 0 || r.left() != 0 || state == Blocked {
					t.Errorf("%d duplicates, %d are pending, the type is %s", s.Duplicates, r.left(), state)
				}
			})
		})
	}
}

// There is one warning for each message, up to a bound, and the warning about the gap is correct.
func TestSpoiledMessagesAreNamedInTheLog(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1, 2, 3, 4)
		r.spoil(badHeader, 2, 3)
		p := r.start(nil)
		time.Sleep(10 * time.Minute)
		p.stop()
		log := r.log.String()
		for _, n := range []uint64{2, 3} {
			line := fmt.Sprintf(`"id":"%v","why":"%s"`, message(1, n).ID, strings.ReplaceAll(badHeader, `"`, `\"`))
			if strings.Count(log, line) != 1 {
				t.Errorf("message %d is named %d times, want 1: %s", n, strings.Count(log, line), line)
			}
		}
		if strings.Contains(log, "gone from the queue") || !strings.Contains(log, `"gone":0,"not_appendable":2`) {
			t.Error("the log says that messages are gone which are in the queue")
		}
	})
}

func TestManySpoiledMessagesAreCounted(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		var ns []uint64
		for n := range uint64(200) {
			ns = append(ns, n+1)
		}
		r.put(1, ns...)
		r.spoil(badHeader, ns...)
		p := r.start(nil)
		time.Sleep(10 * time.Minute)
		last := p.Status().Types[0].LastError
		p.stop()
		log := r.log.String()
		if n := strings.Count(log, `"why":`); n != unfitTold {
			t.Errorf("%d warnings name a message, want %d", n, unfitTold)
		}
		if n := strings.Count(log, `"messages":200`); n != 1 || !strings.Contains(last, "200 of its pending messages") {
			t.Errorf("%d warnings count them, want 1; the last error is %s", n, last)
		}
	})
}

func wantUnfit(t *testing.T, err error, messages, foreign int, first string) {
	t.Helper()
	var unfit *UnfitError
	if !errors.As(err, &unfit) || unfit.Type != typ || unfit.Messages != messages || unfit.Foreign != foreign || unfit.First != first || unfit.Why == "" {
		t.Errorf("the pool returned %v; want %d messages and %d foreign keys, the first %s", err, messages, foreign, first)
	}
}

// UntilEmpty drains the messages that can be appended, and reports the others.
func TestUntilEmptySaysWhatIsLeft(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1, 2, 3)
		r.put(2, 1)
		r.spoil(badHeader, 2)
		began := time.Now()
		wantUnfit(t, r.drain(nil), 1, 0, message(1, 2).ID.String())
		if took := time.Since(began); took < DefaultGapTimeout || took > 2*DefaultGapTimeout {
			t.Errorf("it took %v, want the gap timeout once", took)
		}
		r.memory().Plant(typ, queue.Message{ID: message(3, 0).ID, Payload: []byte("no number")})
		wantUnfit(t, r.drain(nil), 2, 0, message(3, 0).ID.String())
		r.memory().PlantForeign(typ, "note-1", "note-2")
		wantUnfit(t, r.drain(nil), 2, 2, message(3, 0).ID.String())
		r.spoil("", 2)
		if err := r.queue.Ack(t.Context(), typ, []queue.ID{message(3, 0).ID}); err != nil {
			t.Fatal(err)
		}
		wantUnfit(t, r.drain(nil), 0, 2, `"note-1"`)
		if got := contents(t, r.disk, testFile); len(got) != 4 || got[3] != "1/2" {
			t.Errorf("the file holds %q", got)
		}
		began = time.Now()
		wantUnfit(t, r.drain(nil), 0, 2, `"note-1"`) // this needs no session
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v to see foreign keys", took)
		}
		if keys, err := r.queue.ForeignKeys(t.Context(), typ, "", 10); len(keys) != 2 || err != nil {
			t.Errorf("the foreign keys %q are left, %v: nothing may remove them", keys, err)
		}
		if n, err := r.queue.RemoveForeignKeys(t.Context(), typ, []string{"note-1", "note-2"}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		if err := r.drain(nil); err != nil {
			t.Errorf("with everything repaired: %v", err)
		}
	})
}

// A worker that keeps running reports them, too, in its state and once in the log, whether the type has messages or not.
func TestForeignKeysBlockNothingAndAreNamed(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.memory().PlantForeign(typ, "note-1")
		p := r.start(nil)
		state := func(want State) {
			t.Helper()
			if s := p.Status().Types[0]; s.State != want {
				t.Errorf("the type is %s (%s), want %s", s.State, s.LastError, want)
			}
		}
		time.Sleep(5 * time.Second)
		state(Blocked)
		for range 10 { // busy, and never idle for long
			r.publish(typ, 10)
			time.Sleep(10 * time.Second)
		}
		r.memory().PlantForeign(typ, "note-2")
		for range 10 {
			r.publish(typ, 10)
			time.Sleep(10 * time.Second)
		}
		state(Blocked)
		time.Sleep(5 * time.Minute)
		state(Blocked)
		r.complete(typ)
		for _, key := range []string{"note-1", "note-2"} {
			if n := strings.Count(r.log.String(), `"key":"`+key+`"`); n != 1 {
				t.Errorf("%d warnings name %s, want 1", n, key)
			}
		}
		if _, err := r.queue.RemoveForeignKeys(t.Context(), typ, []string{"note-1", "note-2"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		state(Waiting)
		p.stop()
	})
}

// A handler gets the other messages, and the repaired ones late.
func TestHandlerPassesSpoiledMessages(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var handled []string
		handler := func(c *Config) {
			c.To = Handling{Handler: Each(func(_ context.Context, _ Lease, m queue.Message) error {
				handled = append(handled, string(m.Payload))
				return nil
			})}
		}
		r.put(1, 1, 2, 3)
		r.spoil(badHeader, 2)
		wantUnfit(t, r.drain(handler), 1, 0, message(1, 2).ID.String())
		r.spoil("", 2)
		if err := r.drain(handler); err != nil {
			t.Error(err)
		}
		if !slices.Equal(handled, []string{"1/1", "1/3", "1/2"}) {
			t.Errorf("handled are %q", handled)
		}
	})
}

func TestUnfitIsBounded(t *testing.T) {
	u := &unfit{}
	u.begin()
	for n := range uint64(unfitMost + 1) {
		u.note(unfitKey{id: message(1, n).ID}, badHeader, 0)
	}
	if err, _ := u.error(typ); err == nil || err.Messages != unfitMost || !err.Capped || !strings.Contains(err.Error(), "at least 10000 of") {
		t.Errorf("%+v", err)
	}
	u.begin()
	u.note(unfitKey{key: "note"}, whyForeign, 0)
	u.note(unfitKey{id: message(1, 1).ID}, badHeader, 0)
	if u.end(false); len(u.entries) != 1 || u.told != 1 || u.capped {
		t.Errorf("%d are remembered, %d have had a warning, capped %v; want the one that the last sweep saw", len(u.entries), u.told, u.capped)
	}
}

// strayQueue has skipped a foreign document.
type strayQueue struct {
	queue.Queue
	strays []queue.Strays
}

func (q strayQueue) Strays() []queue.Strays { return q.strays }

// TestStraysAreNamedOnce: the log says which documents the queue skips, how many and what to do, once for each kind.
func TestStraysAreNamedOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		strays := []queue.Strays{{In: "the shelf", What: "shoes", Count: 60_000, Example: "left", Remedy: "a broom removes them"},
			{In: "the shelf", What: "hats", Count: 1, Example: "bowler", Remedy: "wear it"}}
		p := r.start(func(c *Config) { c.Queue = strayQueue{c.Queue, strays} })
		q := r.start(func(c *Config) { // without a scheduler, which checks too
			c.Queue, c.Types, c.AllTypes, c.NoScheduler = strayQueue{c.Queue, strays[1:]}, nil, true, true
		})
		time.Sleep(time.Minute)
		p.stop()
		q.stop()
		for _, s := range strays {
			fields := fmt.Sprintf(`"in":%q,"what":%q,"at_least":%d,"one":%q,"remedy":%q`, s.In, s.What, s.Count, s.Example, s.Remedy)
			want := 1
			if s.What == "hats" {
				want = 2
			}
			if n := strings.Count(r.log.String(), fields); n != want {
				t.Errorf("the log has %d lines with %s, want %d", n, fields, want)
			}
		}
	})
}

// A waiting message that is purged is no longer waited for: the session of a quiet type rests.
func TestNobodyWaitsForWhatWasPurged(t *testing.T) {
	race.Skip(t)
	for name, waits := range map[string]uint64{"unfit": 2, "behind a gap": 3} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				p := r.start(func(c *Config) { c.IdleTimeout, c.GapTimeout = 24*time.Hour, time.Hour })
				r.put(1, 1, waits)
				if waits == 2 {
					r.spoil(badHeader, 2)
				}
				time.Sleep(10 * time.Second)
				if n := r.left(); n != 1 {
					t.Fatalf("%d messages wait, want 1", n)
				}
				if err := r.queue.Ack(t.Context(), typ, []queue.ID{message(1, waits).ID}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				before := r.queue.Calls(queuetest.OpFetch)
				time.Sleep(10 * time.Minute)
				if n := r.queue.Calls(queuetest.OpFetch) - before; n > 10 {
					t.Errorf("%d fetches in ten minutes: the session waits for a message", n)
				}
				r.put(1, 4)
				r.put(2, 1)
				time.Sleep(time.Minute)
				if n := r.left(); n != 1 {
					t.Errorf("%d messages wait, want the one after the gap", n)
				}
				time.Sleep(time.Hour)
				p.stop()
				if got, want := contents(t, r.disk, testFile), []string{"1/1", "2/1", "1/4"}; !slices.Equal(got, want) {
					t.Errorf("the file holds %q, want %q", got, want)
				}
			})
		})
	}
}
