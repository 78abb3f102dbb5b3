package mongotest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startChroot starts a server in a chroot; see integration/mongo-image/run-chroot.sh.
func startChroot(ctx context.Context, o Options, treePath string) (*Server, error) {
	script, err := imageFile("run-chroot.sh")
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		data, err := os.MkdirTemp("", "fencepost-mongo-")
		if err != nil {
			return nil, err
		}
		s := &Server{addr: net.JoinHostPort("127.0.0.1", port)}
		s.engine = &chrootEngine{script: script, tree: treePath, data: data, addr: s.addr}
		if err = launch(ctx, s); err == nil {
			o.logf("a server in a chroot runs at %s", s.addr)
			return s, nil
		}
		if attempt == 3 || !portTaken(err) {
			return nil, fmt.Errorf("start a server in a chroot: %w", err)
		}
	}
}

// chrootEngine runs a server as a child of this process, in its own PID namespace.
type chrootEngine struct {
	script, tree, data, addr string
	cmd                      *exec.Cmd // unshare, the parent of the namespace's first process; nil before start and after kill
}

func (e *chrootEngine) start(context.Context) error {
	log, err := os.OpenFile(filepath.Join(e.data, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("bash", e.script, e.tree, e.data, e.addr)
	cmd.Stdout, cmd.Stderr = log, log // a file needs no copying goroutine, which leak detectors would find
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	e.cmd = cmd
	return nil
}

func (e *chrootEngine) pause(ctx context.Context) error {
	return e.signalAll(ctx, syscall.SIGSTOP, "T")
}
func (e *chrootEngine) unpause(ctx context.Context) error {
	return e.signalAll(ctx, syscall.SIGCONT, "")
}

// signalAll signals every process of the server. Stopping is repeated until all are in state want, because one that was
// not stopped yet may have forked in between.
func (e *chrootEngine) signalAll(ctx context.Context, sig syscall.Signal, want string) error {
	for {
		pids := e.processes()
		if len(pids) == 0 {
			return fmt.Errorf("it does not run")
		}
		reached := true
		for _, pid := range pids {
			stat, ok := processStat(pid)
			if !ok || stat[0] == "Z" || (want != "" && stat[0] == want) {
				continue
			}
			reached = false
			_ = syscall.Kill(pid, sig) // gone meanwhile is fine
		}
		if reached || want == "" {
			return nil
		}
		if err := pollPause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// processes returns the processes of the server's PID namespace, beginning with its first one.
func (e *chrootEngine) processes() []int {
	if e.cmd == nil {
		return nil
	}
	ours, _ := os.Readlink("/proc/self/ns/pid")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	members := map[string][]int{} // by namespace
	first := ""                   // the namespace of unshare's child
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		ns, err := os.Readlink(filepath.Join("/proc", entry.Name(), "ns", "pid"))
		if err != nil || ns == ours {
			continue
		}
		if stat, ok := processStat(pid); ok && len(stat) > 1 && stat[1] == strconv.Itoa(e.cmd.Process.Pid) {
			first = ns
			members[ns] = append([]int{pid}, members[ns]...)
			continue
		}
		members[ns] = append(members[ns], pid)
	}
	return members[first]
}

func (e *chrootEngine) kill(ctx context.Context) error {
	if e.cmd == nil {
		return nil
	}
	// Kill the namespace's first process, not unshare: its exit is reported only after the kernel has ended all others,
	// and unshare waits for it. Two servers on the same data would destroy it.
	if pids := e.processes(); len(pids) > 0 {
		_ = syscall.Kill(pids[0], syscall.SIGKILL)
	} else {
		_ = e.cmd.Process.Kill() // still copying data
	}
	done := make(chan struct{})
	go func() {
		_ = e.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
		e.cmd = nil
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *chrootEngine) remove(ctx context.Context) error {
	if err := e.kill(ctx); err != nil {
		return err
	}
	return os.RemoveAll(e.data)
}

// removeCommand kills unshare, which takes its child with it, and waits until the processes that hold the data are gone.
func (e *chrootEngine) removeCommand() string {
	quoted := "'" + strings.ReplaceAll(e.data, "'", `'\''`) + "'"
	return "cd " + quoted + " && kill -KILL $(cat pid); i=0; while ! rm -rf " + quoted + " && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.1; done"
}

func (e *chrootEngine) alive(context.Context) bool {
	if e.cmd == nil {
		return false
	}
	stat, ok := processStat(e.cmd.Process.Pid)
	return ok && stat[0] != "Z"
}

func (e *chrootEngine) logs(context.Context) string {
	b, err := os.ReadFile(filepath.Join(e.data, "log"))
	if err != nil {
		return "(no logs: " + err.Error() + ")"
	}
	return string(b[max(0, len(b)-4096):])
}
