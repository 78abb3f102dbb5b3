package lock_test

import (
	"context"
	"testing"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// The cost of the engine itself, on a store without latency.
func BenchmarkAcquireRelease(b *testing.B) {
	l, err := lock.New(locktest.NewMemory().Open(), lock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	b.ReportAllocs()
	for b.Loop() {
		le, err := l.Acquire(b.Context(), "n")
		if err != nil {
			b.Fatal(err)
		}
		if err := le.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	l, err := lock.New(locktest.NewMemory().Open(), lock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(context.Background())
	le, err := l.Acquire(b.Context(), "n")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if le.Check(0) != nil {
			b.Fatal("lost")
		}
	}
}
