package locks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// answerTimeout bounds every wait for a worker, unless something else is measured.
const answerTimeout = 60 * time.Second

// crew are worker processes, and their messages.
type crew struct {
	members []*member
	said    chan message
	over    chan struct{} // closed by stop
	backlog []message     // received, and not yet asked for
}

type member struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// message is a line from a worker. Gone is the last one of each worker.
type message struct {
	from int
	verb string
	a, b int64
	text string
}

// newCrew starts a worker for each of the terms, and waits until all are ready.
func (b *bench) newCrew(ctx context.Context, contenders []string, all ...terms) (_ *crew, err error) {
	dir, err := os.MkdirTemp(b.o.Dir, "crew")
	if err != nil {
		return nil, err
	}
	c := &crew{said: make(chan message), over: make(chan struct{})}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		text, err := json.Marshal(workerConfig{URI: b.uri, Database: b.database, Referee: filepath.Join(dir, "referee"),
			Contenders: contenders, Terms: t})
		if err != nil {
			return nil, err
		}
		m := &member{cmd: exec.Command(exe)}
		m.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
		m.cmd.Stderr = os.Stderr
		if m.in, err = m.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		out, err := m.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := m.cmd.Start(); err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
		go c.listen(len(c.members)-1, out)
	}
	for i := range c.members {
		if _, err := c.hear(ctx, i, "ready", answerTimeout); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *crew) listen(from int, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		m := message{from: from, text: lines.Text()}
		fmt.Sscanf(m.text, "%s %d %d", &m.verb, &m.a, &m.b)
		c.pass(m)
	}
	c.pass(message{from: from, verb: "gone", text: "gone"})
}

func (c *crew) pass(m message) {
	select {
	case c.said <- m:
	case <-c.over:
	}
}

// stop ends all workers.
func (c *crew) stop() {
	close(c.over)
	for _, m := range c.members {
		_ = m.in.Close()
		_ = m.cmd.Process.Kill() // fails if it has ended
		_ = m.cmd.Wait()         // tells how it ended
	}
}

func (c *crew) tell(i int, format string, args ...any) error {
	_, err := fmt.Fprintf(c.members[i].in, format+"\n", args...)
	return err
}

// anyone means any worker, in hear.
const anyone = -1

// hear returns the next message with this verb, from the given worker or anyone, and keeps others for later. It fails if a
// worker reports an error, or has ended without being told to.
func (c *crew) hear(ctx context.Context, from int, verb string, patience time.Duration) (message, error) {
	fits := func(m message) bool { return m.verb == verb && (from == anyone || m.from == from) }
	for i, m := range c.backlog {
		if fits(m) {
			c.backlog = append(c.backlog[:i:i], c.backlog[i+1:]...)
			return m, nil
		}
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case m := <-c.said:
			switch {
			case fits(m):
				return m, nil
			case m.verb == "error" || m.verb == "gone":
				return m, fmt.Errorf("worker %d: %s", m.from, m.text)
			}
			c.backlog = append(c.backlog, m)
		case <-timeout.C:
			return message{}, fmt.Errorf("%w: %q after %v", errNoAnswer, verb, patience)
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

var errNoAnswer = errors.New("no answer of a worker")

// commands returns how many commands the first n workers have sent to the server so far.
func (c *crew) commands(ctx context.Context, n int) (sum int64, err error) {
	for i := range n {
		if err := c.tell(i, "count"); err != nil {
			return 0, err
		}
	}
	for i := range n {
		m, err := c.hear(ctx, i, "count", answerTimeout)
		if err != nil {
			return 0, err
		}
		sum += m.a
	}
	return sum, nil
}
