package api

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	lookEvery = time.Second // at files that may have changed
	maxFile   = 1 << 20     // bytes
)

// reloaded is a value that is made of files, and made again when one has changed: tokens that are given and revoked, certificates that are
// renewed. Safe for concurrent use.
type reloaded[T any] struct {
	paths []string
	parse func(texts [][]byte) (T, error)

	mu     sync.Mutex
	log    zerolog.Logger
	value  T
	stamp  string // what the files looked like
	looked time.Time
}

// load reads the files for the first time.
func load[T any](parse func([][]byte) (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, parse: parse, log: zerolog.Nop(), stamp: stampOf(paths), looked: time.Now()}
	var err error
	r.value, err = r.read()
	return r, err
}

func (r *reloaded[T]) read() (value T, err error) {
	var texts [][]byte
	for _, path := range r.paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return value, err
		}
		if len(text) > maxFile {
			return value, fmt.Errorf("%s is larger than %d bytes; is it the right file?", path, maxFile)
		}
		texts = append(texts, text)
	}
	if value, err = r.parse(texts); err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(r.paths, ", "), err)
	}
	return value, err
}

// get returns the value of what the files are now, or were a second ago.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < lookEvery {
		return r.value
	}
	r.looked = time.Now()
	if stamp := stampOf(r.paths); stamp != r.stamp {
		r.stamp = stamp
		// rule: a file that cannot be used changes nothing: what was read last holds, and the log says why.
		if value, err := r.read(); err != nil {
			r.log.Error().Err(err).Msg("a file has changed and cannot be used; what it said before still holds")
		} else {
			r.value = value
			r.log.Info().Strs("files", r.paths).Msg("a file has changed and was read again")
		}
	}
	return r.value
}

// logTo is where get tells what it has done.
func (r *reloaded[T]) logTo(log zerolog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = log
}

// stampOf returns a text that differs after most changes of files.
func stampOf(paths []string) string {
	var b strings.Builder
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil {
			b.WriteString(err.Error() + "\n")
		} else {
			b.WriteString(fmt.Sprintln(info.ModTime().UnixNano(), info.Size()))
		}
	}
	return b.String()
}
