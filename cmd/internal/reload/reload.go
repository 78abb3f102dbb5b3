// Package reload keeps values that are parsed from files up to date: tokens and users are added and revoked, certificates are renewed.
package reload

import (
	"bytes"
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
	lookEvery = time.Second // interval between checks for changed files
	maxFile   = 1 << 20     // bytes

	replaceTime = 100 * time.Millisecond // how long a file may be empty or missing while it is being replaced
)

// Files are files and the value parsed from them, which is parsed again after one has changed. Safe for concurrent use.
type Files[T any] struct {
	paths []string
	parse func(texts [][]byte) (T, error)
	none  func(T) string

	mu     sync.Mutex
	log    zerolog.Logger
	value  T
	stamp  string // stampOf the files at the last check
	looked time.Time
}

// Load reads the files for the first time. none returns the consequence of an empty value, "" if it is not empty; nil: empty or missing files
// are invalid.
func Load[T any](parse func(texts [][]byte) (T, error), none func(T) string, paths ...string) (*Files[T], error) {
	r := &Files[T]{paths: paths, parse: parse, none: none, log: zerolog.Nop(), stamp: stampOf(paths), looked: time.Now()}
	var err error
	r.value, err = r.read()
	return r, err
}

func (r *Files[T]) read() (value T, err error) {
	var texts [][]byte
	for _, path := range r.paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return value, err
		}
		if len(text) > maxFile {
			return value, fmt.Errorf("%s is larger than %d bytes; is it the right file?", path, maxFile)
		}
		texts = append(texts, bytes.TrimPrefix(text, []byte("\ufeff"))) // some editors write a byte order mark
	}
	if value, err = r.parse(texts); err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(r.paths, ", "), err)
	}
	return value, err
}

// Get returns the value of the files as they are now, or were up to lookEvery ago.
func (r *Files[T]) Get() T {
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

// again reads changed files.
func (r *Files[T]) again() {
	value, err := r.readWhole()
	// rule: an invalid file changes nothing: the value read last stays in effect, and the log says why.
	if err != nil {
		r.log.Error().Err(err).Msg("a file has changed and is invalid; its previous content stays in effect")
		return
	}
	r.value = value
	if left := r.nothing(value); left != "" {
		r.log.Warn().Strs("files", r.paths).Msg(left)
		return
	}
	r.log.Info().Strs("files", r.paths).Msg("a file has changed and was read again")
}

// readWhole reads files that may be being replaced: some programs empty or remove a file an instant before they fill it.
func (r *Files[T]) readWhole() (value T, err error) {
	if value, err = r.read(); r.none == nil {
		return value, err
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.nothing(value) != "" {
		time.Sleep(replaceTime)
		value, err = r.read()
	}
	// rule: a removed file counts as an empty one: an operator who removes the file of tokens or users wants nobody admitted.
	if errors.Is(err, fs.ErrNotExist) {
		return r.parse(make([][]byte, len(r.paths)))
	}
	return value, err
}

func (r *Files[T]) nothing(value T) string {
	if r.none == nil {
		return ""
	}
	return r.none(value)
}

// LogTo sets the log to which Get reports changes.
func (r *Files[T]) LogTo(log zerolog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = log
}

// stampOf returns a text that changes with most changes to the files.
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
