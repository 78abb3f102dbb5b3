package api

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	lookEvery = time.Second // at files that may have changed
	maxFile   = 1 << 20     // bytes

	replaceTime = 100 * time.Millisecond // that a file may be empty or missing while somebody replaces it
)

// reloaded is a value that is made of files, and made again when one has changed: tokens that are given and revoked, certificates that are
// renewed. Safe for concurrent use.
type reloaded[T any] struct {
	paths []string
	parse func(texts [][]byte) (T, error)
	none  func(T) string // what it means that nothing is in the files any more, "" if something is; nil: they cannot be used then

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
		r.again()
	}
	return r.value
}

// again takes the value of files that have changed.
func (r *reloaded[T]) again() {
	value, err := r.readWhole()
	// rule: a file that cannot be used changes nothing: what was read last holds, and the log says why.
	if err != nil {
		r.log.Error().Err(err).Msg("a file has changed and cannot be used; what it said before still holds")
		return
	}
	r.value = value
	if left := r.nothing(value); left != "" {
		r.log.Warn().Strs("files", r.paths).Msg(left)
		return
	}
	r.log.Info().Strs("files", r.paths).Msg("a file has changed and was read again")
}

// readWhole reads files that somebody may be replacing: some programs empty or remove a file an instant before they fill it.
func (r *reloaded[T]) readWhole() (value T, err error) {
	if value, err = r.read(); r.none == nil {
		return value, err
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.nothing(value) != "" {
		time.Sleep(replaceTime)
		value, err = r.read()
	}
	// rule: a file that was removed is like one that was emptied: who removes what lets clients in means that nobody comes in.
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return value, err
}

func (r *reloaded[T]) nothing(value T) string {
	if r.none == nil {
		return ""
	}
	return r.none(value)
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
