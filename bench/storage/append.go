package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/suite"
)

var batchSizes = []int{1, 16, 256, 1000}

// appended is the measurement of one batch size.
type appended struct {
	times    measure.Times // of blocks
	perBlock int           // batches
}

func (a *appended) perBatch(name string) time.Duration {
	return a.times.Median(name) / time.Duration(a.perBlock)
}

// appendPlan says how often a batch size is measured. A block is several batches in a row, so that each log works as it
// does alone, and, without durability, long enough for the clock.
func appendPlan(o suite.Options, batch int, durable bool) (p measure.Plan, perBlock int) {
	p, perBlock = measure.Plan{Rounds: o.Rounds, Blocks: 8}, 4
	if !durable {
		perBlock = max(4, 256/batch)
	} else if batch < 1000 {
		p.Blocks = 20 // waiting varies more than working
	}
	if o.Quick {
		p.Blocks, perBlock = 2, 2
	}
	return p, perBlock
}

// appendBytes returns approximately how many bytes all contenders together write for one batch size.
func appendBytes(o suite.Options, batch int, durable bool) int64 {
	p, perBlock := appendPlan(o, batch, durable)
	blocks := 1 + p.Rounds*p.Blocks
	return int64(blocks*perBlock*batch) * (entrySize + 64) * int64(len(openers))
}

// warmMemory writes a file of this many bytes and removes it, so that the page cache finds pages that were in use a moment
// ago. A virtual machine gets memory from its host when it first touches it, and returns it when it was free for a while; a
// page cache that grows into such memory is up to ten times slower for every writer.
func warmMemory(dir string, bytes int64) error {
	f, err := os.Create(filepath.Join(dir, "warm"))
	if err != nil {
		return err
	}
	b := make([]byte, 1<<20)
	for ; bytes > 0 && err == nil; bytes -= int64(len(b)) {
		_, err = f.Write(b)
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// measureAppend lets all logs append batches of one size in dir, and checks afterwards that the files of each contain what
// it was given.
func measureAppend(ctx context.Context, o suite.Options, dir string, batch int, durable bool) (a appended, err error) {
	dir, err = os.MkdirTemp(dir, "append")
	if err != nil {
		return a, err
	}
	defer os.RemoveAll(dir)
	plan, perBlock := appendPlan(o, batch, durable)
	s := setup{durable: durable, batch: batch, source: newSource(perBlock * batch)}
	var open []contender
	var runs []measure.Contender
	for i, opener := range openers {
		s.dir = filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(s.dir, 0o700); err != nil {
			return a, err
		}
		c, err := opener.open(s)
		if err != nil {
			return a, fmt.Errorf("%s: %w", opener.name, err)
		}
		open = append(open, c)
		runs = append(runs, blocksOf(c, opener.name, s, perBlock))
	}
	if err := warmMemory(dir, appendBytes(o, batch, durable)); err != nil {
		return a, err
	}
	plan.EndBlock = func() error { return endBlock(open, dir, durable) }
	times, err := measure.Run(ctx, plan, runs)
	for _, c := range open {
		err = errors.Join(err, c.close())
	}
	if err != nil {
		return a, err
	}
	for i, c := range open {
		if err := checkLog(c, s.source, (1+plan.Rounds*plan.Blocks)*len(s.source.entries)); err != nil {
			return a, fmt.Errorf("%s does not hold what it was given: %w", openers[i].name, err)
		}
	}
	return appended{times, perBlock}, nil
}

// blocksOf makes a contender of a log: each run appends the next perBlock batches.
func blocksOf(c contender, name string, s setup, perBlock int) measure.Contender {
	next := uint64(0)
	return measure.Contender{
		Name: name,
		Prepare: func() error {
			s.source.set(next)
			c.prepare(s.source)
			next += uint64(len(s.source.entries))
			return nil
		},
		Run: func() error {
			for i := range perBlock {
				if err := c.append(i*s.batch, (i+1)*s.batch); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// endBlock writes back everything that was not synced, so that the kernel does not do so during a measurement.
func endBlock(open []contender, dir string, durable bool) error {
	if durable {
		return nil
	}
	for _, c := range open {
		if f, ok := c.(*fencepost); ok {
			if err := f.endBlock(); err != nil {
				return err
			}
		}
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil // a log may have renamed one of its files
		}
		if err != nil {
			return err
		}
		return flush(path)
	})
}

func flush(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fdatasync(int(f.Fd()))
}

// checkLog reads everything back: each record, its bytes, its place, and the number of records.
func checkLog(c contender, s *source, want int) error {
	got := uint64(0)
	err := c.readBack(func(entry []byte) error {
		err := s.check(got, entry)
		got++
		return err
	})
	if err != nil {
		return err
	}
	if _, raw := c.(*rawFile); !raw && got != uint64(want) {
		return fmt.Errorf("%d records instead of %d", got, want)
	}
	return nil
}
