package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// demonstrate starts two instances and plays their clients.
func demonstrate(ctx context.Context, out io.Writer, clients int, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var instances []*instance
	defer func() {
		cancel()
		for _, i := range instances {
			_ = i.process.Wait()
		}
	}()
	for range 2 {
		i, err := start(ctx, args...)
		if err != nil {
			return err
		}
		instances = append(instances, i)
	}
	if err := increments(ctx, out, instances, clients); err != nil {
		return err
	}
	if err := busy(ctx, out, instances); err != nil {
		return err
	}
	return crash(ctx, out, instances)
}

// increments lets many clients increment a resource through all instances at once.
func increments(ctx context.Context, out io.Writer, instances []*instance, clients int) error {
	var (
		mu     sync.Mutex
		waited []float64
		failed []error
		g      sync.WaitGroup
	)
	for c := range clients {
		g.Go(func() {
			status, a, err := instances[c%len(instances)].post(ctx, "counter")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", status, a.Error)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			waited = append(waited, a.Lock.WaitedMS)
		})
	}
	g.Wait()
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	value, err := instances[0].value(ctx, "counter")
	if err != nil {
		return err
	}
	slices.Sort(waited)
	fmt.Fprintf(out, "%d increments through 2 instances: the value is %d\n", clients, value)
	fmt.Fprintf(out, "the lock took %.1f ms at least, %.1f ms in the middle, %.1f ms at most\n", waited[0],
		waited[len(waited)/2], waited[len(waited)-1])
	if value != int64(clients) {
		return fmt.Errorf("%d increments were lost", int64(clients)-value)
	}
	return nil
}

// busy shows the answer to a client that does not want to wait long for a slow change.
func busy(ctx context.Context, out io.Writer, instances []*instance) error {
	slow := make(chan error, 1)
	go func() {
		_, _, err := instances[0].post(ctx, "slow", "work=3s")
		slow <- err
	}()
	for { // until the slow change has the lock
		status, a, err := instances[1].postWithin(ctx, "1", "slow", "add=0")
		if err != nil {
			return err
		}
		if status == http.StatusLocked {
			fmt.Fprintf(out, "during a slow change: status %d after %.1f s, %s\n", status, a.Lock.WaitedMS/1000, a.Error)
			return <-slow
		}
	}
}

// crash kills an instance in the middle of a change.
func crash(ctx context.Context, out io.Writer, instances []*instance) error {
	before, err := instances[1].value(ctx, "counter")
	if err != nil {
		return err
	}
	interrupted := make(chan error, 1)
	go func() {
		_, _, err := instances[0].post(ctx, "counter", "work=30s")
		interrupted <- err
	}()
	for { // until the change has the lock
		status, _, err := instances[1].postWithin(ctx, "1", "counter", "add=0")
		if err != nil {
			return err
		}
		if status == http.StatusLocked {
			break
		}
	}
	if err := instances[0].process.Process.Kill(); err != nil {
		return err
	}
	if err := <-interrupted; err == nil {
		return errors.New("the interrupted change got an answer")
	}
	status, a, err := instances[1].post(ctx, "counter")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("after the crash: status %d: %s (%w)", status, a.Error, err)
	}
	fmt.Fprintf(out, "instance 1 was killed in the middle of a change; the next one got the lock after %.0f ms\n", a.Lock.WaitedMS)
	fmt.Fprintf(out, "the value is %d: the interrupted change has not happened\n", a.Value)
	if a.Value != before+1 {
		return fmt.Errorf("the value is %d, want %d", a.Value, before+1)
	}
	return nil
}

// instance is a process of the service.
type instance struct {
	process *exec.Cmd
	url     string
}

func start(ctx context.Context, args ...string) (*instance, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append(args, "--listen", "127.0.0.1:0")...)
	cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the instance does not start: %w", errors.Join(err, cmd.Wait()))
	}
	return &instance{cmd, strings.TrimSpace(line)}, nil
}

func (i *instance) value(ctx context.Context, id string) (int64, error) {
	_, a, err := i.do(ctx, http.MethodGet, "", id)
	if err != nil {
		return 0, err
	}
	return a.Value, nil
}

func (i *instance) post(ctx context.Context, id string, query ...string) (int, *Answer, error) {
	return i.do(ctx, http.MethodPost, "", id, query...)
}

func (i *instance) postWithin(ctx context.Context, seconds, id string, query ...string) (int, *Answer, error) {
	return i.do(ctx, http.MethodPost, "wait="+seconds, id, query...)
}

// client uses each connection once: a test must not find idle connections at its end.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (i *instance) do(ctx context.Context, method, prefer, id string, query ...string) (int, *Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, i.url+"/resources/"+id+"?"+strings.Join(query, "&"), nil)
	if err != nil {
		return 0, nil, err
	}
	if prefer != "" {
		r.Header.Set("Prefer", prefer)
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	a := &Answer{Resource: &Resource{}, Lock: &Acquisition{}}
	return response.StatusCode, a, json.NewDecoder(response.Body).Decode(a)
}
