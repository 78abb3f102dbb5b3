package conform

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// values lets the program publish messages at the limits and beyond them, without faults.
func (r *runner) values(ctx context.Context, _ string) error {
	if err := r.start(); err != nil {
		return err
	}
	many := map[string]string{}
	for i := range queue.MaxHeaderCount - 1 { // plus lineHeader
		many[fmt.Sprintf("k%03d", i)] = "v"
	}
	var lines []*line
	for _, l := range []line{
		{typ: typeA, payload: []byte("plain")},
		{typ: typeA, payload: []byte{}},
		{typ: typeA, payload: []byte{0, 0xff, '\n', 0xc3, 0x28}},
		{typ: typeA, payload: make([]byte, 1<<20)},
		{typ: typeA, payload: []byte("dotted"), headers: map[string]string{"a.b": "1", "$c": "2", "": ""}, refuse: "one of its headers has no key"},
		{typ: typeA, payload: []byte("dotted"), headers: map[string]string{"a.b": "1", "$c": "2", "d": ""}},
		{typ: typeA, payload: []byte("text"), headers: map[string]string{"ä€😀": "\x00\u0001\"\\", "Z": "z", "a": "a"}},
		{typ: typeA, payload: []byte("many"), headers: many},
		{typ: typeA, payload: []byte("too many"), headers: with(many, "one more", ""), refuse: "it has 257 headers"},
		{typ: typeA, payload: []byte("large"), headers: map[string]string{"k": strings.Repeat("v", queue.MaxHeaders)}, refuse: "its headers have more than 64 KiB"},
		{typ: typeA, payload: []byte("key"), key: "k1"},
		{typ: typeA, payload: []byte("key again"), key: "k1"},
		{typ: typeA, payload: []byte("another key"), key: strings.Repeat("k", queue.MaxKeyLen)},
		{typ: typeA, payload: []byte("long key"), key: strings.Repeat("k", queue.MaxKeyLen+1), refuse: "its idempotency key has 256 bytes"},
		{typ: "t" + strings.Repeat(".-_0", 15) + "end", payload: []byte("the longest type")},
		{typ: strings.Repeat("t", queue.MaxTypeLen+1), payload: []byte("x"), refuse: "its type has 65 characters"},
		{typ: "Conform", payload: []byte("x"), refuse: "its type has an upper-case letter"},
		{typ: "a/b", payload: []byte("x"), refuse: "its type has a slash"},
	} {
		lines = append(lines, r.newLine(l))
	}
	r.feed(lines...)
	if err := r.answered(ctx, lines); err != nil {
		return err
	}
	r.mu.Lock()
	for _, l := range lines {
		if l.refuse == "" && l.said != ok {
			r.add("%v was not confirmed, although it is valid and the server works", l)
		}
	}
	r.mu.Unlock()
	r.Log("values    %d messages, at the limits and beyond them", len(lines))
	return r.end(ctx)
}

func with(headers map[string]string, k, v string) map[string]string {
	all := map[string]string{k: v}
	for k, v := range headers {
		all[k] = v
	}
	return all
}

// kind is a fault with its name, and the most inserts in a row that it affects.
type kind struct {
	what fate
	name string
	most int
}

var kinds = []kind{
	{loseAnswer, "lost answers", 3},
	{loseRequest, "lost requests", 3},
	{late, "late requests", 2},
	{stall, "a stalled server", 1},
	{cut, "an unreachable server", 1},
	{killAfter, "a kill after a request", 1},
	{killBefore, "a kill before a request", 1},
}

const most = 40 // messages of a round

// faults runs rounds, each with a fault.
func (r *runner) faults(ctx context.Context, _ string) error {
	running := false
	var order []int
	for round := 1; round <= r.Rounds; round++ {
		if len(order) == 0 {
			order = r.rng.Perm(len(kinds)) // every kind occurs before one is repeated
		}
		k := kinds[order[0]]
		order = order[1:]
		if !running {
			if err := r.start(); err != nil {
				return err
			}
		}
		alive, err := r.round(ctx, round, k)
		if err != nil {
			return err
		}
		if running = alive; running && r.rng.IntN(3) == 0 {
			if err := r.end(ctx); err != nil {
				return err
			}
			running = false
		}
	}
	if running {
		return r.end(ctx)
	}
	return nil
}

// round feeds lines while a fault is armed for their inserts. It returns whether the program is alive afterwards.
func (r *runner) round(ctx context.Context, round int, k kind) (alive bool, err error) {
	lines := make([]*line, 1+r.rng.IntN(most))
	for i := range lines {
		lines[i] = r.newLine(line{typ: []string{typeA, typeB}[r.rng.IntN(2)], payload: randomBytes(r.rng, r.rng.IntN(2000))})
	}
	times := 1 + r.rng.IntN(k.most)
	last := time.Duration(100+r.rng.IntN(300)) * time.Millisecond
	hit := r.proxy.arm(fault{what: k.what, last: last, then: r.program.kill}, times)
	half := r.rng.IntN(len(lines))
	r.feed(lines[:half]...)
	r.feed(lines[half:]...)
	defer r.proxy.disarm()
	if k.what == killBefore || k.what == killAfter {
		met := time.NewTimer(r.Timeout)
		defer met.Stop()
		select {
		case <-hit:
		case <-r.program.done:
		case <-met.C:
			return false, r.silent(lines)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		r.program.kill()
		<-r.program.done
		r.proxy.reset()
		r.program.closeInput()
	} else if err := r.answered(ctx, lines); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Log("round %-3d %s: %s", round, k.name, totals(lines))
	return k.what != killBefore && k.what != killAfter, nil
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
