package types

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// processEnv is set in a process that is a replica.
const processEnv = "FENCEPOST_BENCH_TYPES_REPLICA"

// Worker reports whether this process was started as a replica of this suite. If so, it has run as one, and must exit with code.
func Worker() (code int, ok bool) {
	if os.Getenv(processEnv) == "" {
		return 0, false
	}
	if err := obey(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "replica:", err)
		return 1, true
	}
	return 0, true
}

// order is a command for a replica: one line of JSON. So is the answer.
type order struct {
	Do    string // one of the verbs below
	URL   string `json:",omitempty"` // open
	Dir   string `json:",omitempty"` // open: of the files
	Types int    `json:",omitempty"` // start, drain: serve the first this many types
}

// Verbs of orders.
const (
	doOpen   = "open"   // connect to the backend
	doStart  = "start"  // serve types until it is told to stop
	doSample = "sample" // report what the replica has done so far
	doCount  = "count"  // report how many messages it has appended
	doMemory = "memory" // report the memory in use
	doStop   = "stop"   // end what start began
	doDrain  = "drain"  // serve types until all are empty
	doClose  = "close"  // disconnect
)

// answer is the answer to an order.
type answer struct {
	Err      string           `json:",omitempty"`
	Appended int              // drain, count: by the pool
	Kinds    map[string]int64 `json:",omitempty"` // drain: commands by name and collection
	Held     int              // sample: types
	Queue    int64            // sample: commands of the queue's client so far …
	Lock     int64            // … and of the lock's
	CPU      float64
	Memory   uint64 // memory: bytes of heap and stacks, after a garbage collection
}

// obey executes orders until there are no more.
func obey(ctx context.Context, in io.Reader, out io.Writer) error {
	r := new(replica)
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		a, err := r.obey(ctx, o)
		if err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// process is a replica in its own process.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	orders *json.Encoder
	said   *json.Decoder
}

// startProcess starts this program again as a replica. It ends with ctx, and with this program.
func startProcess(ctx context.Context) (p *process, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p = &process{cmd: exec.CommandContext(ctx, exe)}
	p.cmd.Env = append(os.Environ(), processEnv+"=1")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.orders, p.said = json.NewEncoder(p.in), json.NewDecoder(out)
	return p, p.cmd.Start()
}

func (p *process) tell(o order) (a answer, err error) {
	if err = p.orders.Encode(o); err == nil {
		err = p.said.Decode(&a)
	}
	if err == nil && a.Err != "" {
		err = errors.New(a.Err)
	}
	if err != nil {
		return a, fmt.Errorf("replica: %s: %w", o.Do, err)
	}
	return a, nil
}

// end ends the process.
func (p *process) end() error {
	_ = p.in.Close() // the process ends, or has ended
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	return nil
}

// group are replicas that execute the same orders concurrently.
type group []*process

func startGroup(ctx context.Context, n int) (g group, err error) {
	for range n {
		p, err := startProcess(ctx)
		if err != nil {
			return nil, errors.Join(err, g.end())
		}
		g = append(g, p)
	}
	return g, nil
}

func (g group) end() (err error) {
	for _, p := range g {
		err = errors.Join(err, p.end())
	}
	return err
}

// tell sends all the same order and waits for all answers.
func (g group) tell(o order) ([]answer, error) {
	answers, failed := make([]answer, len(g)), make(chan error, len(g))
	for i, p := range g {
		go func() {
			a, err := p.tell(o)
			answers[i] = a
			failed <- err
		}()
	}
	var err error
	for range g {
		err = errors.Join(err, <-failed)
	}
	return answers, err
}

// drain lets the replicas drain the first n types together, of which messages are pending. It returns the commands that they have
// sent.
func (g group) drain(types, messages int) (kinds map[string]int64, err error) {
	answers, err := g.tell(order{Do: doDrain, Types: types})
	if err != nil {
		return nil, err
	}
	appended, kinds := 0, map[string]int64{}
	for _, a := range answers {
		appended += a.Appended
		for kind, n := range a.Kinds {
			kinds[kind] += n
		}
	}
	if appended != messages {
		return nil, fmt.Errorf("the replicas appended %d messages, want %d", appended, messages)
	}
	return kinds, nil
}
