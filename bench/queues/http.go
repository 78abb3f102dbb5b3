package queues

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/queue"
)

// overHTTP compares publishing through `fencepost serve` with its publisher called in Go. Every message is a line of JSON.
type overHTTP struct{ embedded, server timed }

const nameHTTP = "fencepost serve, NDJSON"

func (b *bench) measureHTTP(ctx context.Context) (h overHTTP, err error) {
	program, err := buildFencepost(ctx, b.o.Dir)
	if err != nil {
		return h, err
	}
	if h.embedded, err = b.publishOverHTTP(ctx, program, "http_embedded", b.newEmbedded); err != nil {
		return h, fmt.Errorf("embedded: %w", err)
	}
	if h.server, err = b.publishOverHTTP(ctx, program, "http_server", b.newBackend); err != nil {
		return h, fmt.Errorf("server: %w", err)
	}
	return h, nil
}

// buildFencepost builds the product's program.
func buildFencepost(ctx context.Context, dir string) (string, error) {
	product, err := server.ProductDir(ctx)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "fencepost")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/fencepost")
	build.Dir = product
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return program, nil
}

// publishOverHTTP measures one caller of each kind, in turns. Each has its own place; Go's publisher has two.
func (b *bench) publishOverHTTP(ctx context.Context, program, name string, open func(ctx context.Context, name string) (*place, error)) (t timed, err error) {
	t.n = b.sized(40_000, 2000)
	lines := jsonLines(messages.BatchSize)
	var list []measure.Contender
	for i, contender := range []string{nameBare, nameAgain, nameHTTP} {
		p, err := open(ctx, fmt.Sprint(name, i))
		if err != nil {
			return t, err
		}
		call := callInGo
		if contender == nameHTTP {
			call = func(ctx context.Context, p *place, lines [][]byte) (publish, stop func() error, err error) {
				return callHTTP(ctx, program, p, lines)
			}
		}
		publish, stop, err := call(ctx, p, lines)
		if err != nil {
			return t, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		stored := 0
		list = append(list, measure.Contender{
			Name: contender,
			Run: func() error {
				for range t.n / len(lines) {
					if err := publish(); err != nil {
						return err
					}
				}
				return nil
			},
			Check: func() error {
				stored += t.n
				depth, err := p.Backend.Queue.Depth(ctx, oneType, stored+1)
				if err != nil {
					return err
				}
				return messages.Complete(contender, depth.Pending, stored)
			},
		})
	}
	t.times, err = measure.Run(ctx, measure.Plan{Rounds: b.o.Rounds, Blocks: 1}, list)
	return t, err
}

// jsonLines returns objects of about as many bytes as other messages here.
func jsonLines(n int) (lines [][]byte) {
	for i := range n {
		line := fmt.Appendf(nil, `{"order":%d,"items":[{"sku":"A-1","n":3,"price":12.50},{"sku":"B-22","n":1,"price":3.25}],"paid":true,"coupon":null,"note":"`, i)
		lines = append(lines, append(bytes.Join([][]byte{line, bytes.Repeat([]byte("as agreed "), 20)}, nil)[:messages.MessageSize-2], `"}`...))
	}
	return lines
}

// callInGo calls a publisher in this process with all lines.
func callInGo(ctx context.Context, p *place, lines [][]byte) (publish, stop func() error, err error) {
	publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		return nil, nil, err
	}
	publish = func() error {
		msgs := make([]queue.Message, len(lines))
		for i := range msgs {
			msgs[i] = queue.Message{Type: oneType, Payload: lines[i]}
		}
		for _, r := range publisher.PublishAll(ctx, msgs) {
			if r.Err != nil {
				return r.Err
			}
		}
		return nil
	}
	return publish, func() error { return publisher.Close(context.WithoutCancel(ctx)) }, nil
}

// callHTTP starts `fencepost serve` and sends it all lines in one request.
func callHTTP(ctx context.Context, program string, p *place, lines [][]byte) (publish, stop func() error, err error) {
	port, err := server.FreePort()
	if err != nil {
		return nil, nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	process, err := server.StartProcess(nil, p.Dir, program, "serve", "--url", p.URI, "--dir", p.Dir, "--listen", address, "--log-level", "warn")
	if err != nil {
		return nil, nil, err
	}
	stop = func() error { process.Stop(syscall.SIGTERM); return nil }
	client := &http.Client{Transport: &http.Transport{}}
	if err := process.Await(ctx, func(ctx context.Context) error { return ready(ctx, address) }); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	body := append(bytes.Join(lines, []byte("\n")), '\n')
	publish = func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/types/"+oneType+"/messages", bytes.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/x-ndjson")
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		return allStored(answer.StatusCode, text, len(lines))
	}
	return publish, stop, nil
}

// allStored checks an answer to lines: its last line has the totals.
func allStored(status int, text []byte, want int) error {
	text = bytes.TrimSpace(text)
	last := text[bytes.LastIndexByte(text, '\n')+1:]
	var sum struct{ Stored int }
	if err := json.Unmarshal(last, &sum); err != nil || status != http.StatusCreated {
		return fmt.Errorf("status %d: %.300s", status, last)
	}
	return messages.Complete("what a request has stored", sum.Stored, want)
}

func ready(ctx context.Context, address string) error {
	status, err := server.Get(ctx, "http://"+address+"/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// httpTable shows Go's publisher as 1.
func (b *bench) httpTable() string {
	var rows [][]string
	for _, at := range []struct {
		backend string
		t       *timed
	}{{"SQLite", &b.http.embedded}, {"server", &b.http.server}} {
		rows = append(rows, []string{at.backend, perSec(at.t.rate(nameBare)), perSec(at.t.rate(nameHTTP)), report.Spread(at.t.speed(nameHTTP)), report.Spread(at.t.speed(nameAgain))})
	}
	return report.Table([]string{"", "in Go, messages/s", "over HTTP, messages/s", "speed, in Go = 1", "control: in Go again"}, rows)
}
