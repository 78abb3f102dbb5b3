package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// FuzzJournal: state files of --resume. One that is not gone on with is a usage error that names the file. One that is, is within its input, and is read
// in the same way once it has been written.
func FuzzJournal(f *testing.F) {
	dir := f.TempDir()
	input := filepath.Join(dir, "input")
	if err := os.WriteFile(input, []byte("message 1\nmessage 2\nmessage 3\n"), 0o600); err != nil {
		f.Fatal(err)
	}
	print, err := fingerprintOf(input)
	if err != nil {
		f.Fatal(err)
	}
	inFlight, err := flightOf(input, inFlightFrom, 20)
	if err != nil {
		f.Fatal(err)
	}
	fresh := journalState{Version: 1, Type: "orders", Format: "lines", Headers: map[string]string{"k": "v"}, KeyFrom: "json:id", Input: print}
	seed := func(change func(*journalState)) {
		s := fresh
		change(&s)
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	seed(func(*journalState) {})
	for _, change := range []func(*journalState){
		func(s *journalState) {
			s.Queue, s.Position, s.Messages, s.Producer, s.N, s.InFlight, s.Flight = "sqlite://q.db", Position{10, 1}, 1, "00000000000000ff", 1, 1, inFlight
			s.Time, s.Sent = 1_700_000_000_000, 1_700_000_000_001
		},
		func(s *journalState) { s.Position, s.Done = Position{30, 3}, true },
		func(s *journalState) { s.InFlight, s.Flight = 1, &flight{End: 20, Hash: "00"} },
		func(s *journalState) { s.InFlight, s.Flight = 1, &flight{End: -20, Hash: inFlight.Hash} },
		func(s *journalState) { s.Offset = 31 },
		func(s *journalState) { s.Line = -1 },
		func(s *journalState) { s.Version = 2 },
		func(s *journalState) { s.Type = "other" },
		func(s *journalState) { s.Producer, s.N, s.InFlight = "xyz", 1<<63, 1<<30 },
	} {
		seed(change)
	}
	f.Add([]byte("{}"))
	f.Add([]byte(`{"version":1} {}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, "state")
		usage := func(err error) {
			t.Helper()
			if cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), input) {
				t.Fatalf("%s: %v", b, err)
			}
		}
		j := &journal{path: path, input: input}
		if err := j.load(b, fresh); err != nil {
			usage(err)
			return
		}
		s := j.state
		if s.Version != 1 || s.Offset < 0 || s.Offset > s.Input.Size || s.Line < 0 || s.InFlight < 0 || s.Type != fresh.Type || s.Input.Hash != print.Hash {
			t.Fatalf("%s: accepted as %+v", b, s)
		}
		if s.InFlight > 0 && s.Flight != nil && s.Offset == inFlightFrom && s.Flight.End > inFlightFrom && s.Flight.End <= print.Size {
			if is, err := flightOf(input, s.Offset, s.Flight.End); err != nil || *is != *s.Flight {
				t.Fatalf("%s: accepted with other messages in flight", b)
			}
		}
		text, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", s, err)
		}
		again := &journal{path: path, input: input}
		if err := again.load(text, fresh); err != nil || !again.state.Updated.Equal(s.Updated) {
			t.Fatalf("%s: accepted, and then %v", b, err)
		}
		if again.state.Updated = s.Updated; !reflect.DeepEqual(again.state, s) {
			t.Fatalf("%+v became %+v", s, again.state)
		}
		resume, err := j.attach("sqlite://q.db")
		if err != nil {
			usage(err)
			return
		}
		if resume.Type != fresh.Type || resume.From.InFlight != s.InFlight && s.Producer != "" {
			t.Fatalf("%s: resumes %+v", b, resume)
		}
	})
}

const inFlightFrom = 10

// FuzzSource: inputs in all formats. The messages are the input, and nothing is left out.
func FuzzSource(f *testing.F) {
	for _, s := range []string{"a\nb\n", "a\r\n\nb", "{\"id\":1}\n \n[2]\n", "\x00\x00\x00\x01a\x00\x00\x00\x00", "\x00\x00\x00\x05a", "\xff\xff\xff\xff", "\x00\x00", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for format, encode := range map[string]func(b, payload []byte) []byte{
			"lines":  func(b, payload []byte) []byte { return append(append(b, payload...), '\n') },
			"ndjson": nil, // blank lines are left out
			"len32": func(b, payload []byte) []byte {
				return append(binary.BigEndian.AppendUint32(b, uint32(len(payload))), payload...)
			},
			"raw": func(b, payload []byte) []byte { return append(b, payload...) },
		} {
			src := newSource(format, bytes.NewReader(in))
			var out []byte
			var err error
			for n := 0; ; n++ {
				var payload []byte
				if payload, _, err = src.next(); err != nil {
					break
				}
				if len(payload) > queue.MaxPayload || n > len(in) || format == "ndjson" && !json.Valid(payload) {
					t.Fatalf("%s: message %d of %d bytes", format, n, len(payload))
				}
				if p, ok := src.(positioned); ok && (p.position().Offset > int64(len(in)) || p.position().Line < n) {
					t.Fatalf("%s: at %+v of %d bytes", format, p.position(), len(in))
				}
				if encode != nil {
					out = encode(out, payload)
				}
			}
			var wrong *inputError
			switch {
			case !errors.Is(err, io.EOF) && !errors.As(err, &wrong):
				t.Fatalf("%s: %v", format, err)
			case encode == nil:
			case err == io.EOF && !bytes.Equal(bytes.TrimSuffix(out, []byte("\n")), bytes.TrimSuffix(in, []byte("\n"))), !bytes.HasPrefix(append(in[:len(in):len(in)], '\n'), out):
				t.Fatalf("%s: %q became %q, %v", format, in, out, err)
			}
		}
	})
}

// FuzzJSONKey: idempotency keys from messages. A message built with a key yields that key.
func FuzzJSONKey(f *testing.F) {
	for _, s := range []string{`{"order":{"id":"a"}}`, `{"order":{"id":12345678901234567890}}`, `{"order":{"id":null}}`, `{"order":7}`, `{"order":{"id":""}}`, `{"order":{"id":1e400}}`,
		`{"order":{"id":"a"}} x`, `[`, `12345678901234567890`, `{"order":{"id":"\ud800"}}`, `{"order":{"id":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		path := []string{"order", "id"}
		if s := string(payload); len(s) > 0 && strings.Trim(s, "0123456789") == "" && json.Valid(payload) {
			if key, err := jsonKey([]byte(`{"order":{"id":`+s+`}}`), path); err != nil || key != s {
				t.Fatalf("the number %s became %q, %v", s, key, err)
			}
		}
		key, err := jsonKey(payload, path)
		if (key == "") != (err != nil) {
			t.Fatalf("%q: %q, %v", payload, key, err)
		}
		if err != nil {
			return
		}
		b, err := json.Marshal(map[string]any{"order": map[string]any{"id": key}})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := jsonKey(b, path); err != nil || again != key {
			t.Fatalf("%q became %q, %v", key, again, err)
		}
	})
}
