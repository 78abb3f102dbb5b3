// Package messages provides the messages that suites drain: messages that can be checked for completeness, in a database
// on a server, and the minimal work that any program must do to fetch them.
package messages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sizes.
const (
	MessageSize = 256  // bytes of a payload
	BatchSize   = 1000 // messages per batch, everywhere
)

// filler is the source of payloads: data that a server cannot compress.
var filler = func() []byte {
	b := make([]byte, 8<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}()

// Payload returns the i-th message of a type. Drained messages can be compared with it.
func Payload(i int) []byte {
	p := make([]byte, 0, MessageSize)
	p = binary.LittleEndian.AppendUint64(p, uint64(i))
	from := i % (len(filler) - MessageSize)
	return append(p, filler[from:from+MessageSize-8]...)
}

// Number returns the i of Payload(i).
func Number(p []byte) (int, error) {
	if len(p) != MessageSize {
		return 0, fmt.Errorf("a message of %d bytes, want %d", len(p), MessageSize)
	}
	i := int(binary.LittleEndian.Uint64(p))
	if i < 0 || !bytes.Equal(p, Payload(i)) {
		return 0, errors.New("a message is damaged")
	}
	return i, nil
}

// Journal is the durable file of contenders that have none of their own: a sequence of payloads.
type Journal struct{ F *os.File }

// OpenJournal opens or creates a journal.
func OpenJournal(dir, name string) (*Journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".raw"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	return &Journal{f}, err
}

// Append makes p durable.
func (j *Journal) Append(p []byte) error {
	if _, err := j.F.Write(p); err != nil {
		return err
	}
	return unix.Fdatasync(int(j.F.Fd()))
}

// Each calls f with the number of each message.
func (j *Journal) Each(f func(i int) error) error {
	b, err := io.ReadAll(io.NewSectionReader(j.F, 0, 1<<62))
	if err == nil {
		err = Each(b, f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(j.F.Name()), err)
	}
	return nil
}

// Each calls f with the number of each message in b.
func Each(b []byte, f func(i int) error) error {
	if len(b)%MessageSize != 0 {
		return errors.New("it ends within a message")
	}
	for ; len(b) > 0; b = b[MessageSize:] {
		i, err := Number(b[:MessageSize])
		if err == nil {
			err = f(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Check checks that the file has the messages 0, 1, 2 … n-1 in this order.
func (j *Journal) Check(n int) error {
	next := 0
	if err := j.Each(InOrder(&next)); err != nil {
		return err
	}
	return Complete(filepath.Base(j.F.Name()), next, n)
}

// InOrder returns a function that accepts the messages from *next on, one after another.
func InOrder(next *int) func(int) error {
	return func(i int) error {
		if i != *next {
			return fmt.Errorf("message %d where %d belongs", i, *next)
		}
		*next++
		return nil
	}
}

// Complete returns an error if something does not have the wanted number of messages.
func Complete(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s has %d messages, want %d", what, got, want)
	}
	return nil
}

// AsSet returns a function that collects messages in any order, each at most once.
func AsSet(seen map[int]bool) func(int) error {
	return func(i int) error {
		if seen[i] {
			return fmt.Errorf("message %d is there twice", i)
		}
		seen[i] = true
		return nil
	}
}
