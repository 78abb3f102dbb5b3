package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/wait"
)

// The worker that the demo kills, and the takeover of its type.

// killOne waits until a worker is in the middle of the largest type, and kills it.
func (d *demo) killOne(ctx context.Context, b *fencepost.Backend) (victim int, typ string, err error) {
	largest := d.largest()
	for {
		held, err := b.Locker.List(ctx)
		if err != nil {
			return 0, "", err
		}
		for _, h := range held {
			i := slices.IndexFunc(d.procs, func(c *exec.Cmd) bool { return h.Hold != nil && h.Hold.Owner.PID == c.Process.Pid })
			if i < 0 || largest[h.Name] == 0 {
				continue
			}
			if killed, err := d.kill(ctx, b, d.procs[i].Process, h.Name, largest[h.Name]); killed || err != nil {
				return i, h.Name, err
			}
		}
		if err := wait.For(ctx, demoPoll); err != nil {
			return 0, "", err
		}
		if d.allExited() {
			for i := range d.procs {
				if err := d.failed(i); err != nil {
					return 0, "", err
				}
			}
			return 0, "", errors.New("the workers finished before one could be killed; try a larger --source")
		}
	}
}

// kill kills a worker if it is in the middle of a type. It stops the worker before it checks, so the result still holds when the signal
// arrives, and a fast worker cannot finish in between.
func (d *demo) kill(ctx context.Context, b *fencepost.Backend, proc *os.Process, typ string, total int) (killed bool, err error) {
	err = proc.Signal(syscall.SIGSTOP)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return false, nil
	case err != nil:
		return false, err
	case d.stillHeldBy(ctx, b, typ, proc.Pid) && inTheMiddle(ctx, b, typ, total):
		return true, proc.Signal(syscall.SIGKILL)
	}
	return false, proc.Signal(syscall.SIGCONT)
}

// largest returns the types with the most messages, and their number.
func (d *demo) largest() map[string]int {
	counts := make(map[string]int)
	for _, o := range d.originals {
		counts[o.typ]++
	}
	most := slices.Max(slices.Collect(maps.Values(counts)))
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n < most })
	return counts
}

// inTheMiddle reports whether some of a type's messages are in its file and others still in the queue.
func inTheMiddle(ctx context.Context, b *fencepost.Backend, typ string, total int) bool {
	depth, err := b.Queue.Depth(ctx, typ, total)
	return err == nil && depth.Pending > 0 && (depth.Pending < total || total < 10)
}

func (d *demo) stillHeldBy(ctx context.Context, b *fencepost.Backend, name string, pid int) bool {
	held, err := b.Locker.List(ctx)
	if err != nil {
		return false
	}
	for _, h := range held {
		if h.Name == name {
			return h.Hold != nil && h.Hold.Owner.PID == pid
		}
	}
	return false
}

func (d *demo) allExited() bool {
	for _, done := range d.exited {
		select {
		case <-done:
		default:
			return false
		}
	}
	return true
}

// failed returns the exit code and the end of the log of a worker that has exited, or nil if its exit code is 0.
func (d *demo) failed(i int) error {
	code := d.procs[i].ProcessState.ExitCode()
	if code == 0 {
		return nil
	}
	return errors.Join(slices.Concat([]error{fmt.Errorf("worker %d ended with exit code %d; the end of its log follows", i+1, code)}, d.logTail(i))...)
}

func (d *demo) killAll() {
	for i, cmd := range d.procs {
		cmd.Process.Kill()
		<-d.exited[i]
	}
}

func (d *demo) logFile(i int) string { return filepath.Join(d.dir, fmt.Sprintf("worker-%d.log", i+1)) }

func (d *demo) logTail(i int) (tail []error) {
	b, _ := os.ReadFile(d.logFile(i))
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	for _, line := range lines[max(0, len(lines)-5):] {
		tail = append(tail, errors.New(string(line)))
	}
	return tail
}

// heir returns which worker took over the type of the dead one, and how long after the kill. It reads the workers' logs.
func (d *demo) heir(victim int, typ string, killed time.Time) (worker int, after time.Duration, ok bool) {
	for i := range d.procs {
		if i == victim {
			continue
		}
		f, err := os.Open(d.logFile(i))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var line struct {
				Type    string    `json:"type"`
				Message string    `json:"message"`
				Time    time.Time `json:"time"`
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Type == typ && line.Message == "holding the type" {
				if t := line.Time.Sub(killed); t > -time.Second && (!ok || t < after) {
					worker, after, ok = i, max(t, 0), true
				}
			}
		}
		f.Close()
	}
	return worker, after, ok
}
