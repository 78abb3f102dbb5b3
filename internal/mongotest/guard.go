package mongotest

import (
	"os"
	"os/exec"
	"sync"
)

// guard is a process that removes a server after this process has ended, even by SIGKILL.
//
// It reads from a pipe whose other end only this process holds. When this process ends, the kernel closes that end, the
// read returns, and the guard acts. No polling, no network, no image to pull.
type guard struct {
	cmd  *exec.Cmd
	held *os.File // open while this process lives
}

// guards keeps active guards reachable. The garbage collector closes an unreferenced *os.File, and a test that has a
// server's URI need not hold the server: its guard would act although this process is alive.
var guards sync.Map // of *guard to nothing

// newGuard returns nil, which is a guard that does nothing, if there is no command or no shell.
func newGuard(command string) *guard {
	if command == "" {
		return nil
	}
	r, w, err := os.Pipe() // close-on-exec: no other child of this process gets the writing end
	if err != nil {
		return nil
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", "cat >/dev/null; "+command)
	cmd.Stdin = r // its output is discarded: `go test` would wait for it
	cmd.Dir = os.TempDir()
	detach(cmd) // Ctrl-C in a terminal must not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil
	}
	g := &guard{cmd: cmd, held: w}
	guards.Store(g, nil)
	return g
}

// dismiss ends the guard without triggering it.
func (g *guard) dismiss() {
	if g == nil {
		return
	}
	killGroup(g.cmd) // first: closing the pipe is the signal to act
	g.held.Close()
	_ = g.cmd.Wait()
	guards.Delete(g)
}
