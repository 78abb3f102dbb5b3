// Command sim plays schedules of the simulation: as many concurrently as there are processors, each in its own process, with a
// standard library whose random choices come from the seed.
//
//	go run ./tools/sim -schedules 100000
//	go run ./tools/sim -seed 47           # one schedule, with everything that happens in it
//	go run ./tools/sim -schedules 1 -mutants all
//
// Afterwards it lets tools/mutants remove safety rules, one by one; the schedules must detect each.
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

	"github.com/fencepost/fencepost/tools/internal/seeded"
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
		processes = flag.Int("processes", runtime.NumCPU(), "how many to play concurrently")
		dir       = flag.String("dir", "bin/sim", "where to build")
		mutants   = flag.String("mutants", "few", "which mutants to play afterwards, each of which takes a build: few (one of each package), all, none")
	)
	flag.Parse()
	choice, ok := map[string][]string{"few": {"-fast"}, "all": {}, "none": nil}[*mutants]
	if flag.NArg() > 0 || *processes < 1 || *schedules < 1 || !ok {
		return errors.New("usage: sim [-schedules N] [-first SEED] [-seed SEED] [-processes N] [-mutants few|all|none]")
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
			tests = "." // also checks that the same seed gives the same history
		}
		all.Go(func() { failed[i] = play(i, tests, "-schedules", fmt.Sprint(n), "-first", fmt.Sprint(from)) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	fmt.Printf("%d schedules in %v\n", *schedules, time.Since(began).Round(time.Second))
	if choice == nil {
		return nil
	}
	cmd := exec.Command("go", append([]string{"run", "github.com/fencepost/fencepost/tools/mutants", "-run", "in the simulation", "-p", fmt.Sprint(*processes)}, choice...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("tools/mutants: %w", err)
	}
	return nil
}

// build compiles the simulation with the patched library into dir and returns the program.
func build(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	library, err := seeded.Library()
	if err != nil {
		return "", err
	}
	overlay, err := library.Write(dir)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "sim.test")
	cmd := exec.Command("go", "test", "-c", "-tags", seeded.Tag, "-overlay", overlay, "-o", program, "github.com/fencepost/fencepost/integration/simulation")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the simulation with a patched standard library: %w", err)
	}
	return program, nil
}
