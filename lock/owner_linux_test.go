package lock_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// Only a holder of this machine whose process has ended is taken over at once.
func TestAHolderWhoseProcessIsGone(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	t.Cleanup(func() {
		if !killed {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	self, holder := lock.ThisProcess(), lock.OwnerOf(cmd.Process.Pid)
	if holder.Started == "" {
		t.Skip("/proc does not tell about processes here")
	}
	mem := locktest.NewMemory()
	store := mem.Open()
	if _, err := store.Create(t.Context(), "n", lock.Hold{ID: lock.NewHoldID(), Lease: time.Hour, Owner: holder},
		lock.NewVersion()); err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(store, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())

	if le, err := l.TryAcquire(t.Context(), "n"); err == nil {
		t.Fatalf("got token %d from a holder that is alive", le.Token())
	}
	changed := func(f func(*lock.Process)) lock.Process {
		o := holder
		f(&o)
		return o
	}
	check := func(when string, want map[string]bool) {
		t.Helper()
		for what, o := range map[string]lock.Process{
			"itself":                  holder,
			"reused PID":              changed(func(o *lock.Process) { o.Started = "1" }),
			"another boot":            changed(func(o *lock.Process) { o.Boot = "x" }),
			"another host":            changed(func(o *lock.Process) { o.Host += "-clone" }),
			"another PID namespace":   changed(func(o *lock.Process) { o.PIDNamespace = "pid:[1]" }),
			"no proof":                changed(func(o *lock.Process) { o.Started = "" }),
			"this process":            self,
			"a process without a PID": changed(func(o *lock.Process) { o.PID = 0 }),
		} {
			if got := lock.ProvablyDead(self, o); got != want[what] {
				t.Errorf("%s: %s is provably dead: %v, want %v", when, what, got, want[what])
			}
		}
	}
	check("alive", map[string]bool{"reused PID": true})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// A zombie, a killed process that its parent has not yet waited for, is as dead as one that no longer exists.
	for deadline := time.Now().Add(10 * time.Second); !lock.ProvablyDead(self, holder); {
		if time.Now().After(deadline) {
			stat, _ := os.ReadFile("/proc/self/stat")
			t.Fatalf("a killed process does not count as dead (own stat: %s)", stat)
		}
	}
	_ = cmd.Wait()
	killed = true
	check("gone", map[string]bool{"itself": true, "reused PID": true})
	le, err := l.TryAcquire(t.Context(), "n")
	if err != nil {
		t.Fatalf("a dead holder of this machine: %v", err)
	}
	if l.Stats().TakenOver != 1 || le.Token() == 0 {
		t.Errorf("stats: %+v, token %d", l.Stats(), le.Token())
	}
}

// If /proc belongs to another PID namespace, the PID of this process belongs to another process there: processIdentity returns nothing.
func TestProcOfAnotherNamespace(t *testing.T) {
	const inside = "FENCEPOST_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		if o := lock.ThisProcess(); o.PID != 1 || o.Boot != "" || o.PIDNamespace != "" || o.Started != "" {
			t.Errorf("%+v", o)
		}
		return
	}
	if err := exec.Command("unshare", "--pid", "--fork", "true").Run(); err != nil {
		t.Skip("no PID namespace can be made here: ", err)
	}
	cmd := exec.Command("unshare", "--pid", "--fork", os.Args[0], "-test.run=^TestProcOfAnotherNamespace$")
	cmd.Env = append(os.Environ(), inside+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
