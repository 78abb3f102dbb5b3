//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// A producer records in a journal what it is about to send, before it sends it, and then the answer. A line is one write(2),
// which outlives the process: messages without an outcome in the journal were in flight when the producer was killed.
//
//	sent orders 17 40         it was about to send its messages 17 to 40 of the type
//	confirmed orders 17 30    these are stored, according to the answer
//	unknown orders 31 40      these may be
//	refused orders 41 41      these are not, and never will be
//
// A journal is named after its producer. Its messages are numbered from 1 for each type, and their payloads follow from
// producer, type and number alone, so that a reader of one can tell its producer and whether each byte is right.

// outcome is what a producer knows about one of its messages.
type outcome byte

const (
	unsent    outcome = iota
	unknown           // or in flight when the producer ended
	confirmed         // must be there
	refused           // must not be there
)

var outcomes = map[string]outcome{"sent": unknown, "unknown": unknown, "confirmed": confirmed, "refused": refused}

// stream is what one producer sent of one type.
type stream struct{ producer, typ string }

// ledger holds the outcomes of all messages: message n of a stream at n-1.
type ledger map[stream][]outcome

// count returns how many messages have an outcome.
func (l ledger) count(what outcome) (n int) {
	for _, s := range l {
		for _, o := range s {
			if o == what {
				n++
			}
		}
	}
	return n
}

// payload is what message n of a stream must be: "producer type n padding".
func (s stream) payload(n int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	var seed uint64 = 14695981039346656037 // FNV-1a
	for _, c := range []byte(s.producer + " " + s.typ) {
		seed = (seed ^ uint64(c)) * 1099511628211
	}
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	b := fmt.Appendf(nil, "%s %s %d ", s.producer, s.typ, n)
	for range rng.IntN(300) {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return b
}

// parsePayload returns the message that a payload claims to be.
func parsePayload(b []byte) (s stream, n int, ok bool) {
	_, err := fmt.Sscanf(string(b[:min(len(b), 200)]), "%s %s %d ", &s.producer, &s.typ, &n)
	return s, n, err == nil && n > 0
}

// journalSuffix ends the names of journals.
const journalSuffix = ".journal"

// readJournals reads all journals in a directory.
func readJournals(dir string) (ledger, error) {
	l := ledger{}
	return l, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		producer, is := strings.CutSuffix(filepath.Base(path), journalSuffix)
		if err != nil || !is {
			return err
		}
		return l.read(path, producer)
	})
}

func (l ledger) read(path, producer string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var word, typ string
		var from, to int
		if _, err := fmt.Sscanf(lines.Text(), "%s %s %d %d", &word, &typ, &from, &to); err != nil {
			return fmt.Errorf("%s: %q: %w", path, lines.Text(), err)
		}
		o, known := outcomes[word]
		s := stream{producer, typ}
		if next := len(l[s]) + 1; !known || from > to || word == "sent" && from != next || word != "sent" && to >= next {
			return fmt.Errorf("%s: %q does not fit after message %d", path, lines.Text(), next-1)
		}
		if word == "sent" {
			for range to - from + 1 {
				l[s] = append(l[s], o)
			}
			continue
		}
		for n := from; n <= to; n++ {
			l[s][n-1] = o
		}
	}
	return lines.Err()
}

// journal is a journal being written.
type journal struct{ f *os.File }

func newJournal(dir, producer string) (*journal, error) {
	// rule: never an existing one. Its numbers were used.
	f, err := os.OpenFile(filepath.Join(dir, producer+journalSuffix), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("producer %s has run before: %w", producer, err)
	}
	return &journal{f}, err
}

func (j *journal) note(word, typ string, from, to int) error {
	_, err := fmt.Fprintf(j.f, "%s %s %d %d\n", word, typ, from, to)
	return err
}
