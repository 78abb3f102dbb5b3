package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a server started by this program.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	said bytes.Buffer // to be read after done
}

// StartProcess starts a server, as the given user if there is one. It ends with this program, however that ends.
func StartProcess(as *syscall.Credential, dir, path string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // only its end matters: it was stopped, or said has the reason
	}()
	return p, nil
}

// Stop sends the server the signal for a fast end, and makes sure that it ends.
func (p *Process) Stop(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // it may have ended
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Await waits until the server answers.
func (p *Process) Await(ctx context.Context, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			lines := strings.Split(strings.TrimSpace(p.said.String()), "\n")
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), lines[len(lines)-1])
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", filepath.Base(p.cmd.Path), err)
		}
	}
}

// Get requests url, and returns the status of the answer, whatever it is.
func Get(ctx context.Context, url string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// ProductDir returns the directory of the product's module, which contains the working directory's module.
func ProductDir(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return filepath.Dir(filepath.Dir(strings.TrimSpace(string(mod)))), nil
}

// FreePort returns a port of the loopback interface that was free a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
