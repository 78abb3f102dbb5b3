package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// world is the environment of the service: its database, and the payment provider.
type world struct {
	answerTime time.Duration

	mu       sync.Mutex
	database map[string]int // what the service believes
	truth    map[string]int // what the provider knows
	told     map[string]int // what the provider has reported so far
}

func (w *world) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /database/{id}", func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = json.NewEncoder(rw).Encode(w.database[r.PathValue("id")])
	})
	mux.HandleFunc("PUT /database/{id}", func(rw http.ResponseWriter, r *http.Request) {
		amount, err := strconv.Atoi(r.FormValue("amount"))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.database[r.PathValue("id")] = amount
	})
	mux.HandleFunc("POST /provider/{id}", func(rw http.ResponseWriter, r *http.Request) {
		delta := w.delta(r.PathValue("id"))
		time.Sleep(w.answerTime)
		_ = json.NewEncoder(rw).Encode(delta)
	})
	return mux
}

// delta returns the change since the provider was last asked.
func (w *world) delta(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.truth[id] - w.told[id]
	w.told[id] = w.truth[id]
	return d
}

func (w *world) change(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.truth[id]++
}

// wrong returns the payments about which the service is wrong.
func (w *world) wrong() (ids []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, amount := range w.truth {
		if w.database[id] != amount {
			n, _ := strconv.Atoi(id)
			ids = append(ids, n)
		}
	}
	slices.Sort(ids)
	return ids
}

// run runs the scenario.
func (s scenario) run(ctx context.Context, scale float64, url string) (*result, error) {
	w := &world{
		answerTime: time.Duration(float64(service) / scale),
		database:   make(map[string]int), truth: make(map[string]int), told: make(map[string]int),
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var (
		server    = &http.Server{Handler: w.handler(), ReadHeaderTimeout: 10 * time.Second}
		addresses []string
		g         sync.WaitGroup // the server and the instances
	)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel() // kills the instances
		_ = server.Close()
		g.Wait()
	}()
	g.Go(func() { _ = server.Serve(l) })
	for range s.instances {
		cmd := exec.CommandContext(ctx, self, "--world", "http://"+l.Addr().String(), "--lock", s.lock, "--url", url)
		cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		line, err := bufio.NewReader(stdout).ReadString('\n')
		g.Go(func() { _ = cmd.Wait() })
		if err != nil {
			return nil, fmt.Errorf("an instance does not start: %w", err)
		}
		addresses = append(addresses, strings.TrimSpace(line))
	}
	return s.send(ctx, scale, w, addresses)
}

// send sends the notifications to the instances in turn.
func (s scenario) send(ctx context.Context, scale float64, w *world, addresses []string) (*result, error) {
	r := &result{scenario: s, calls: make([]call, len(payments))}
	errs := make([]error, len(payments))
	var g sync.WaitGroup
	began := time.Now()
	for i, payment := range payments {
		time.Sleep(time.Until(began.Add(time.Duration(float64(interval) * float64(i) / scale))))
		id := strconv.Itoa(payment)
		w.change(id)
		g.Go(func() {
			c := &r.calls[i]
			c.payment, c.start = payment, time.Since(began)
			var waited time.Duration
			errs[i] = request(ctx, http.MethodPost, addresses[i%len(addresses)]+"/notify/"+id, &waited)
			c.locked, c.end = c.start+waited, time.Since(began)
		})
	}
	g.Wait()
	r.wrong = w.wrong()
	return r, errors.Join(errs...)
}
