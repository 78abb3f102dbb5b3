package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// journalState is the content of a state file: the input and the progress of a run. Fields may be added; none may change its meaning.
type journalState struct {
	Version int               `json:"version"`
	Queue   string            `json:"queue"`
	Type    string            `json:"type"`
	Format  string            `json:"format"`
	Headers map[string]string `json:"headers,omitempty"`
	KeyFrom string            `json:"key_from,omitempty"`
	Input   fingerprint       `json:"input"`

	Position
	Messages int64     `json:"messages"`  // known to be stored: all before Position
	Producer string    `json:"producer"`  // 16 hex digits
	N        uint64    `json:"n"`         // the producer's number of the last of them
	InFlight int       `json:"in_flight"` // how many messages after them may be stored
	Time     int64     `json:"time"`      // in the IDs of the messages in flight, milliseconds since 1970
	Flight   *flight   `json:"flight,omitempty"`
	Sent     int64     `json:"sent,omitempty"` // when the messages in flight were first sent, by this machine's clock, milliseconds since 1970
	Done     bool      `json:"done"`
	Updated  time.Time `json:"updated"` // for people
}

// Position is a place between two messages of an input.
type Position struct {
	Offset int64 `json:"offset"` // bytes
	Line   int   `json:"line"`   // lines, or messages of len32, before it
}

// flight identifies the messages in flight: they are sent again with the same numbers, so they must be the same. State files of earlier
// versions lack it.
type flight struct {
	End  int64  `json:"end"`  // the offset after their last byte; the first byte is at the Position
	Hash string `json:"hash"` // SHA-256 of these bytes
}

func flightOf(path string, from, end int64) (*flight, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, from, end-from)); err != nil {
		return nil, err
	}
	return &flight{end, hex.EncodeToString(h.Sum(nil))}, nil
}

// fingerprint identifies an input.
type fingerprint struct {
	Path string `json:"path"` // for people
	Size int64  `json:"size"`
	Hash string `json:"hash"` // SHA-256 of its first and its last MiB
}

func fingerprintOf(path string) (fingerprint, error) {
	f, err := os.Open(path)
	if err != nil {
		return fingerprint{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fingerprint{}, err
	}
	const part = 1 << 20
	h := sha256.New()
	for _, from := range []int64{0, max(info.Size()-part, 0)} {
		if _, err := io.Copy(h, io.NewSectionReader(f, from, part)); err != nil {
			return fingerprint{}, err
		}
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return fingerprint{path, info.Size(), hex.EncodeToString(h.Sum(nil))}, nil
}

// journal keeps the state file of one run.
type journal struct {
	path   string
	input  string
	unlock func()

	mu      sync.Mutex
	state   journalState
	sent    []Position // the Position after each message that was handed over and is not known to be stored
	stored  int        // how many of the messages in flight are stored
	unclear bool       // the outcome of a message is unknown
	end     Position   // of the input, after it was read to its end
	ended   bool
}

// openJournal locks and reads the state file, and refuses the state file of another input. Without a state file it begins a new one.
func (f *publishFlags) openJournal(ins []input, headers map[string]string) (*journal, error) {
	// Opening a pipe could block forever, and a device holds no state.
	if info, err := os.Stat(f.resume); err == nil && !info.Mode().IsRegular() {
		return nil, cli.Usagef("--resume: %s is not a regular file; name one, or a new file", f.resume)
	}
	input, err := fingerprintOf(ins[0].name)
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(f.resume + ".lock")
	if err != nil {
		return nil, err
	}
	j := &journal{path: f.resume, input: ins[0].name, unlock: unlock}
	fresh := journalState{Version: 1, Type: f.typ, Format: f.format.Value, Headers: headers, KeyFrom: f.keyFrom, Input: input}
	b, err := os.ReadFile(f.resume)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		j.state = fresh
		return j, nil
	case err == nil:
		err = j.load(b, fresh)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return j, nil
}

func (j *journal) load(b []byte, fresh journalState) error {
	s := &j.state
	if err := json.Unmarshal(b, s); err != nil || s.Version == 0 {
		return cli.Usagef("--resume: %s is not a state file of producer publish; name another one", j.path)
	}
	if s.Version > 1 {
		return cli.Usagef("--resume: %s was written by a newer version; use that one", j.path)
	}
	differs := func(what string, was, is any) error {
		return cli.Usagef("--resume: %s is the progress of another publish: its %s is %v, now it is %v; repeat the same command, or name another state file", j.path, what, was, is)
	}
	switch {
	case s.Type != fresh.Type:
		return differs("--type", s.Type, fresh.Type)
	case s.Format != fresh.Format:
		return differs("--format", s.Format, fresh.Format)
	case s.KeyFrom != fresh.KeyFrom:
		return differs("--key-from", strconv.Quote(s.KeyFrom), strconv.Quote(fresh.KeyFrom))
	case !maps.Equal(s.Headers, fresh.Headers):
		return differs("--header", s.Headers, fresh.Headers)
	case s.Input.Size != fresh.Input.Size || s.Input.Hash != fresh.Input.Hash:
		return cli.Usagef("--resume: %s is not the file whose progress %s is: that one was %s, of %d bytes; restore it, or publish the new part (after line %d) as a separate file",
			fresh.Input.Path, j.path, s.Input.Path, s.Input.Size, s.Line)
	case s.Offset < 0 || s.Offset > s.Input.Size || s.Line < 0 || s.InFlight < 0:
		return cli.Usagef("--resume: %s is damaged; name another one", j.path)
	}
	if s.InFlight == 0 || s.Flight == nil {
		return nil
	}
	// rule: messages that may be stored are sent again unchanged: a different message with the same number would count as a duplicate, and be lost.
	is, err := flightOf(j.input, s.Offset, s.Flight.End)
	if err == nil && *is != *s.Flight {
		err = cli.Usagef("--resume: %s was changed after line %d, where %d messages may already be stored; restore it", fresh.Input.Path, s.Line, s.InFlight)
	}
	return err
}

// attach ties the journal to a queue, and returns what the publisher needs.
func (j *journal) attach(name string) (*queue.Resume, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.state
	if s.Queue != "" && s.Queue != name {
		return nil, cli.Usagef("--resume: %s is the progress in %s, not in %s; use the same --url, or name another state file", j.path, s.Queue, name)
	}
	s.Queue = name
	r := &queue.Resume{Type: s.Type, Save: j.save}
	if s.Producer != "" {
		producer, err := strconv.ParseUint(s.Producer, 16, 64)
		if err != nil {
			return nil, cli.Usagef("--resume: %s is damaged: producer %q", j.path, s.Producer)
		}
		r.From = queue.Checkpoint{Producer: producer, N: s.N, InFlight: s.InFlight, Time: time.UnixMilli(s.Time)}
		if s.Sent != 0 {
			r.From.Sent = time.UnixMilli(s.Sent)
		}
	}
	return r, nil
}

// tooOld adds to an error what to do about messages that can no longer be repeated.
func (j *journal) tooOld(err error) error {
	return fmt.Errorf("%w; check with fencepost types peek and fencepost cat which of the %d messages after line %d of %s are stored, publish the missing ones, "+
		"and then the rest of the file with a new --resume file", err, j.state.InFlight, j.state.Line, j.state.Input.Path)
}

// save implements queue.Resume.Save. All messages before the batch are stored.
func (j *journal) save(c queue.Checkpoint) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Producer = fmt.Sprintf("%016x", c.Producer)
	j.state.N, j.state.InFlight, j.state.Time, j.state.Sent = c.N, c.InFlight, c.Time.UnixMilli(), c.Sent.UnixMilli()
	var err error
	if j.state.Flight, err = flightOf(j.input, j.state.Offset, j.sent[c.InFlight-1].Offset); err != nil {
		return err
	}
	j.stored = 0
	return j.write()
}

// handOver is called before a message is sent, with the Position after it.
func (j *journal) handOver(p Position) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sent = append(j.sent, p)
}

// settled is called with the outcome of each message, in order.
func (j *journal) settled(r queue.Result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch r.Status {
	case queue.Stored:
		j.state.Position, j.sent = j.sent[0], j.sent[1:]
		j.state.Messages++
		j.stored++
	case queue.Unknown:
		j.unclear = true
	}
}

// readAll is called after the input was read to its end.
func (j *journal) readAll(p Position) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.end, j.ended = p, true
}

// finish writes the final progress. It is called when no message is in flight any more.
func (j *journal) finish() error {
	defer j.unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.state
	if j.unclear || s.Queue == "" || s.Done {
		return nil // rule: the state file still describes the messages in flight
	}
	s.N += uint64(j.stored)
	s.InFlight, s.Flight = 0, nil
	if j.ended && len(j.sent) == 0 {
		if j.end.Offset != s.Input.Size {
			return fmt.Errorf("%s was changed while it was published: it had %d bytes, and %d were read", s.Input.Path, s.Input.Size, j.end.Offset)
		}
		s.Position, s.Done = j.end, true
	}
	return j.write()
}

// write replaces the state file durably and atomically: a reader finds the old state or the new one.
func (j *journal) write() error {
	j.state.Updated = time.Now().UTC()
	b, err := json.MarshalIndent(j.state, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(j.path, append(b, '\n')); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return nil
}

func replaceFile(path string, content []byte) error {
	temp := path + ".tmp"
	// Remove what a killed process left, and never write through a link that another user has put there.
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(content))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// openAt opens the input at the Position of the state.
func (j *journal) openAt(name, format string) (source, io.Closer, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	if _, err := file.Seek(j.state.Offset, io.SeekStart); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return newSourceAt(format, file, j.state.Position), file, nil
}

// positioned is a source that can be read again from a Position.
type positioned interface{ position() Position }
