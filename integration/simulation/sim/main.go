// Command sim plays schedules of the simulation: as many at a time as there are processors, in a process each, on a standard library
// whose dice are the seed's.
//
//	go run ./integration/simulation/sim -schedules 100000
//	go run ./integration/simulation/sim -seed 47           # one, with everything that happens in it
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

const simulation = "^TestSimulation$"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		schedules = flag.Uint64("schedules", 100_000, "number of schedules")
		first     = flag.Uint64("first", 1, "seed of the first one; the others follow")
		seed      = flag.Uint64("seed", 0, "play this schedule only, and print everything that happens")
		processes = flag.Int("processes", runtime.NumCPU(), "how many to play at a time")
		dir       = flag.String("dir", "bin/sim", "where to build")
	)
	flag.Parse()
	if flag.NArg() > 0 || *processes < 1 || *schedules < 1 {
		return errors.New("usage: sim [-schedules N] [-first SEED] [-seed SEED] [-processes N]")
	}
	program, err := build(*dir)
	if err != nil {
		return err
	}
	play := func(number uint64, tests string, args ...string) error {
		progress := filepath.Join(*dir, fmt.Sprint("progress.", number))
		cmd := exec.Command(program, append([]string{"-test.run", tests, "-test.v", "-test.timeout", "12h", "-progress", progress}, args...)...)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		err := cmd.Run()
		if err != nil {
			at, _ := os.ReadFile(progress)
			err = fmt.Errorf("process %d: %w; its last schedule was that of seed %s: make sim ARGS=-seed=%s", number, err, at, at)
		}
		return err
	}
	if *seed != 0 {
		return play(0, simulation, "-seed", fmt.Sprint(*seed))
	}
	began := time.Now()
	var all sync.WaitGroup
	failed := make([]error, *processes)
	share := (*schedules + uint64(*processes) - 1) / uint64(*processes)
	for i := range uint64(*processes) {
		from := *first + i*share
		n := min(share, *first+*schedules-min(from, *first+*schedules))
		if n == 0 {
			continue
		}
		tests := simulation
		if i == 0 {
			tests = "." // also that the same seed is the same history, and that mutants are noticed
		}
		all.Go(func() { failed[i] = play(i, tests, "-schedules", fmt.Sprint(n), "-first", fmt.Sprint(from)) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	fmt.Printf("%d schedules in %v\n", *schedules, time.Since(began).Round(time.Second))
	return nil
}
