package conform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// line is one message that the program is told to publish.
type line struct {
	n       int
	run     int // the run of the program that got it
	typ     string
	payload []byte
	headers map[string]string
	key     string
	refuse  string // why it must be rejected; "" if it need not be

	said status
	id   queue.ID // if said is ok, or unknown with an ID
}

// status is the outcome that the program reported for a line.
type status int

const (
	nothing status = iota
	ok
	unknown
	rejected
)

func (l *line) String() string { return fmt.Sprintf("line %d (type %.20s, run %d)", l.n, l.typ, l.run) }

// lineHeader is the header that identifies a message in a file.
const lineHeader = "line"

// input returns the line as the program reads it.
func (l *line) input() []byte {
	text, err := json.Marshal(struct {
		Line    int               `json:"line"`
		Type    string            `json:"type"`
		Payload []byte            `json:"payload"` // base64
		Headers map[string]string `json:"headers"`
		Key     string            `json:"key,omitempty"`
	}{l.n, l.typ, l.payload, l.headers, l.key})
	if err != nil {
		panic(err) // all fields can be encoded
	}
	return append(text, '\n')
}

// program is one run of the program under test.
type program struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	input chan []byte   // lines to write; buffered, so that a program that does not read does not block the test
	done  chan struct{} // closed after it has ended
	ended error         // the error of Wait; valid after done is closed
	log   *lastBytes
	once  sync.Once
}

// startProgram starts a command. It calls said with each line that the program prints.
func startProgram(command []string, url string, said func(text string)) (*program, error) {
	p := &program{cmd: exec.Command(command[0], command[1:]...), input: make(chan []byte, 1<<16), done: make(chan struct{}), log: &lastBytes{}}
	p.cmd.Env = append(os.Environ(), "FENCEPOST_URL="+url)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals from the terminal reach only conform, and kill reaches the program's children
	p.cmd.WaitDelay = 5 * time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for text := range p.input {
			if _, err := p.in.Write(text); err != nil {
				break // it has ended
			}
		}
		p.in.Close()
		for range p.input { // until closeInput
		}
	}()
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			said(s.Text())
		}
		_, _ = io.Copy(io.Discard, out) // a line that is too long; its outcome will be missing
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// closeInput tells the program that there are no more lines.
func (p *program) closeInput() { p.once.Do(func() { close(p.input) }) }

// kill kills the program and its children.
func (p *program) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// answer is one line that the program printed.
type answer struct {
	status status
	line   int
	id     queue.ID
}

// parseAnswer reads "ok LINE ID", "unknown LINE [ID]" or "rejected LINE [reason]".
func parseAnswer(text string) (a answer, err error) {
	fields := strings.Fields(text)
	form := fmt.Errorf("it printed %.80q, want \"ok LINE ID\", \"unknown LINE ID\" or \"rejected LINE reason\" and nothing else on stdout", text)
	if len(fields) < 2 {
		return a, form
	}
	if a.line, err = strconv.Atoi(fields[1]); err != nil {
		return a, form
	}
	switch fields[0] {
	case "ok":
		a.status = ok
	case "unknown":
		a.status = unknown
	case "rejected":
		a.status = rejected
		return a, nil
	default:
		return a, form
	}
	if len(fields) != 3 && !(a.status == unknown && len(fields) == 2) {
		return a, form
	}
	if len(fields) == 3 {
		if a.id, err = queue.ParseID(fields[2]); err != nil {
			return a, form
		}
	}
	return a, nil
}

// lastBytes keeps the last lastBytesMost bytes written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

const lastBytesMost = 4 << 10

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - lastBytesMost; n > 0 {
		l.buf = l.buf[n:]
	}
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf))
}
