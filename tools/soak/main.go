package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run() error {
	var o settings
	flag.DurationVar(&o.duration, "duration", 30*time.Minute, "how long messages are published")
	flag.IntVar(&o.types, "types", 200, "number of types")
	flag.IntVar(&o.rate, "rate", 200, "messages per second and backend")
	flag.IntVar(&o.size, "size", 256, "bytes of a payload")
	flag.StringVar(&o.dir, "dir", "", "directory of the files, kept; a temporary one if empty")
	flag.StringVar(&o.server, "url", os.Getenv("FENCEPOST_TEST_MONGODB_URI"), "MongoDB server, on which a new database is created; without one, only the embedded backend is used")
	flag.Parse()
	if flag.NArg() > 0 || o.duration < 5*time.Second || o.types < 4 || o.rate < 1 || o.size < 1 {
		return errors.New("usage: soak [--duration at least 5s] [--types at least 4] [--rate N] [--size N] [--dir DIR] [--url MONGODB]")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	return o.run(ctx)
}

// settings of the program.
type settings struct {
	duration          time.Duration
	types, rate, size int
	dir, server       string
}

// run soaks both backends side by side.
func (o *settings) run(ctx context.Context) error {
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "fencepost-soak-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	bin, err := os.MkdirTemp("", "fencepost-soak-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	worker, err := buildWorker(bin)
	if err != nil {
		return err
	}
	urls := map[string]string{"embedded": "sqlite://" + filepath.Join(o.dir, "embedded", "fencepost.db")}
	if o.server == "" {
		fmt.Println("!!! no MongoDB server (--url): the embedded backend only")
	} else {
		uri, drop, err := database(o.server)
		if err != nil {
			return err
		}
		defer drop()
		urls["mongodb"] = uri
	}
	fmt.Printf("%d types, %d messages/s of %d B per backend, %v, %s, begun %s\n", o.types, o.rate, o.size, o.duration, machine(), time.Now().UTC().Format(time.RFC3339))
	var mu sync.Mutex
	var failed []error
	var wg sync.WaitGroup
	for name, u := range urls {
		wg.Go(func() {
			out, err := soak(ctx, optionsFor(o, worker, u, filepath.Join(o.dir, name)))
			mu.Lock()
			defer mu.Unlock()
			if err := report(name, out, err); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

func optionsFor(o *settings, worker, url, dir string) soakOptions {
	return soakOptions{worker: worker, url: url, dir: dir, types: o.types, rate: o.rate, size: o.size, duration: o.duration,
		every: max(o.duration/360, 250*time.Millisecond), rest: min(time.Minute, o.duration/8), out: os.Stdout}
}

// report prints the outcome of a run, even of a failed one, and returns an error if the run failed.
func report(name string, out *outcome, err error) error {
	if out == nil {
		return err
	}
	changes, gerr := growth(out.samples)
	if err := errors.Join(err, gerr); gerr != nil {
		return err
	}
	fmt.Printf("%s: %d messages published and drained, %d in the files, %s sessions, %d samples\n", name, out.published, out.verified, out.sessions, len(out.samples))
	var grown []string
	for _, c := range changes {
		fmt.Println("  " + c.String())
		if c.grew() {
			grown = append(grown, names[c.figure])
		}
	}
	switch {
	case err != nil:
		return err
	case len(grown) > 0:
		return fmt.Errorf("this grew: %s", strings.Join(grown, ", "))
	case uint64(out.published) != out.verified:
		return fmt.Errorf("%d messages were published, %d are in the files", out.published, out.verified)
	}
	return nil
}

// database returns the URL of a new database on the server, and a function that drops it.
func database(server string) (uri string, drop func(), err error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return "", nil, fmt.Errorf("--url: want mongodb://host:port/?options")
	}
	name := fmt.Sprintf("soak_%d", time.Now().UnixNano())
	u.Path = "/" + name
	client, err := mongo.Connect(options.Client().ApplyURI(u.String()))
	if err != nil {
		return "", nil, err
	}
	return u.String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(client.Database(name).Drop(ctx), client.Disconnect(ctx)); err != nil {
			fmt.Fprintln(os.Stderr, "soak: drop the database:", err)
		}
	}, nil
}
