//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/lock"
)

// body is a running program: a process, or a container.
type body interface {
	kill() error      // SIGKILL
	freeze() error    // stops it
	thaw() error      // resumes it
	terminate() error // requests its end: SIGTERM for a worker, end of input for a producer
	ended() <-chan struct{}
	code() int // after it has ended; negative if a signal ended it
	is(lock.Process) bool
	remove() // after it has ended
}

// member is one of the programs of a run. It is restarted if it ends without being told to, as by a supervisor.
//
//	down ──up──▶ running ──freeze──▶ frozen ──thaw──▶ running ──stop──▶ down
//	               │ ▲ ends, is killed
//	               ▼ │ some 100 ms later
//	             restarting
type member struct {
	name   string
	link   *link     // to the server; nil: none
	store  *link     // nil: none; may be the same as link
	node   *kit.Node // nil: it runs on this machine, or in a container
	launch func(start int) (body, error)
	failed func(error) // called for what must not happen

	mu     sync.Mutex
	body   body          // nil: not running
	gone   chan struct{} // closed after body has ended and was removed
	wanted bool          // it should be running
	frozen int           // number of faults that want it frozen
	starts int
}

// restartAfter is how long a supervisor waits before it restarts a program.
const restartAfter = 200 * time.Millisecond

// up starts the member unless it runs.
func (m *member) up() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	return m.start()
}

// start is up with mu held.
func (m *member) start() error {
	if m.body != nil || !m.wanted {
		return nil
	}
	m.starts++
	b, err := m.launch(m.starts)
	if err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	m.body, m.gone = b, make(chan struct{})
	if m.frozen > 0 {
		_ = b.freeze()
	}
	go m.watch(b, m.gone)
	return nil
}

func (m *member) watch(b body, gone chan struct{}) {
	<-b.ended()
	code := b.code()
	b.remove()
	m.mu.Lock()
	m.body = nil
	wanted := m.wanted
	m.mu.Unlock()
	close(gone)
	// rule: no fault of a run makes a file differ from the registered one, or damages it. A worker that reports this is wrong, or
	// worse.
	if code == exitIntegrity {
		m.failed(fmt.Errorf("%s ended with exit code %d: integrity violation; see its log", m.name, code))
	}
	if !wanted {
		return
	}
	time.Sleep(restartAfter)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.start(); err != nil {
		m.failed(err)
	}
}

const exitIntegrity = 3

// with calls f with the running body, if there is one.
func (m *member) with(f func(body) error) (did bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.body == nil {
		return false, nil
	}
	err = f(m.body)
	return err == nil, err
}

// unplug takes the member's host off the network until the returned function is called; nil: it has no host, or it is already off.
func (m *member) unplug() (plug func() error, err error) {
	if m.node != nil {
		return m.node.Plug, m.node.Unplug()
	}
	_, err = m.with(func(b body) (err error) {
		if box, is := b.(*box); is {
			plug, err = box.unplug()
		}
		return err
	})
	return plug, err
}

func (m *member) kill() (bool, error) { return m.with(body.kill) }

// freeze stops the member, and its replacement, until thaw.
func (m *member) freeze() (did bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen++
	if m.body == nil {
		return false, nil
	}
	err = m.body.freeze()
	return err == nil, err
}

func (m *member) thaw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen--; m.frozen > 0 || m.body == nil {
		return nil
	}
	return m.body.thaw()
}

// stop ends the member cleanly and returns its exit code; ok is false if it did not run, or had to be killed. A concurrent call of up
// starts it again.
func (m *member) stop(within time.Duration) (code int, ok bool) {
	m.mu.Lock()
	m.wanted = false
	b, gone := m.body, m.gone
	m.mu.Unlock()
	if b == nil {
		return 0, false
	}
	_ = b.terminate()
	select {
	case <-b.ended():
		ok = true
	case <-time.After(within):
		_ = b.thaw()
		_ = b.kill()
		<-b.ended()
	}
	<-gone
	return b.code(), ok
}

// process is a body that is a process of this machine.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // nil: SIGTERM ends it
	done  chan struct{}
}

// startProcess starts a program whose output goes to a file.
func startProcess(cmd *exec.Cmd, start func(*exec.Cmd) error, logs, name string, input bool) (*process, error) {
	log, err := os.OpenFile(filepath.Join(logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program alone
	if input {
		if p.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if err := start(cmd); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait(); close(p.done) }()
	return p, nil
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *process) kill() error   { return p.signal(syscall.SIGKILL) }
func (p *process) freeze() error { return p.signal(syscall.SIGSTOP) }
func (p *process) thaw() error   { return p.signal(syscall.SIGCONT) }
func (p *process) terminate() error {
	if p.stdin != nil {
		return p.stdin.Close()
	}
	return p.signal(syscall.SIGTERM)
}
func (p *process) ended() <-chan struct{}     { return p.done }
func (p *process) code() int                  { return p.cmd.ProcessState.ExitCode() }
func (p *process) is(owner lock.Process) bool { return owner.PID == p.cmd.Process.Pid }
func (p *process) remove()                    {}

// guest is a body that is a process on its own host.
type guest struct {
	*process
	name     string // the host's
	node     *kit.Node
	switched sync.Once
	off      bool
}

// kill switches the host off: its peers do not learn that its connections are gone.
func (g *guest) kill() (err error) {
	g.switched.Do(func() {
		if err = g.node.Unplug(); err == nil {
			g.off = true
		}
	})
	return errors.Join(err, g.process.kill())
}

func (g *guest) is(owner lock.Process) bool { return owner.Host == g.name }

// remove switches the host on again.
func (g *guest) remove() {
	g.switched.Do(func() {})
	if g.off {
		_ = g.node.Plug() // without a network it cannot work, which the run will notice
	}
}
