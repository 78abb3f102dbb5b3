package queues

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

const (
	messageSize = 256  // bytes of a payload
	batchSize   = 1000 // messages of a batch, everywhere
)

// filler is what payloads are cut from: nothing that a server could compress.
var filler = func() []byte {
	b := make([]byte, 8<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}()

// payload is the i-th message of a type. Whoever has drained it can be asked whether it is that one, whole.
func payload(i int) []byte {
	p := make([]byte, 0, messageSize)
	p = binary.LittleEndian.AppendUint64(p, uint64(i))
	from := i % (len(filler) - messageSize)
	return append(p, filler[from:from+messageSize-8]...)
}

// number is the i of payload(i).
func number(p []byte) (int, error) {
	if len(p) != messageSize {
		return 0, fmt.Errorf("a message of %d bytes, want %d", len(p), messageSize)
	}
	i := int(binary.LittleEndian.Uint64(p))
	if i < 0 || !bytes.Equal(p, payload(i)) {
		return 0, errors.New("a message is damaged")
	}
	return i, nil
}

// journal is the durable file of those who bring none of their own: payload after payload.
type journal struct{ f *os.File }

func openJournal(dir, name string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".raw"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	return &journal{f}, err
}

// append makes p durable.
func (j *journal) append(p []byte) error {
	if _, err := j.f.Write(p); err != nil {
		return err
	}
	return unix.Fdatasync(int(j.f.Fd()))
}

// each calls f with the number of each message.
func (j *journal) each(f func(i int) error) error {
	b, err := io.ReadAll(io.NewSectionReader(j.f, 0, 1<<62))
	if err != nil {
		return err
	}
	if len(b)%messageSize != 0 {
		return fmt.Errorf("%s ends within a message", j.f.Name())
	}
	for ; len(b) > 0; b = b[messageSize:] {
		i, err := number(b[:messageSize])
		if err == nil {
			err = f(i)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(j.f.Name()), err)
		}
	}
	return nil
}

// check that the file has the messages 0, 1, 2 … n-1 in this order.
func (j *journal) check(n int) error {
	next := 0
	if err := j.each(inOrder(&next)); err != nil {
		return err
	}
	return complete(filepath.Base(j.f.Name()), next, n)
}

func inOrder(next *int) func(int) error {
	return func(i int) error {
		if i != *next {
			return fmt.Errorf("message %d where %d belongs", i, *next)
		}
		*next++
		return nil
	}
}

func complete(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s has %d messages, want %d", what, got, want)
	}
	return nil
}

// asSet collects messages in any order, each at most once.
func asSet(seen map[int]bool) func(int) error {
	return func(i int) error {
		if seen[i] {
			return fmt.Errorf("message %d is there twice", i)
		}
		seen[i] = true
		return nil
	}
}
