package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWordsRoundTripByteForByte(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		var words strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&words, "word %d\twith ünïcode, \"quotes\" and \\ backslashes\r\n", i)
		}
		words.WriteString("\n\nlast line without a newline at its end")
		file := filepath.Join(t.TempDir(), "words")
		if err := os.WriteFile(file, []byte(words.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		r := mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "words", file)
		if !strings.HasPrefix(r.stdout, "published=5003 unknown=0 rejected=0 ") {
			t.Fatalf("summary: %s", r.stdout)
		}
		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "words", "--until-empty")
		fpl := filepath.Join(b.dir, "words.fpl")
		mustRun(t, nil, "fencepost", "verify", fpl)
		if got := mustRun(t, nil, "fencepost", "cat", fpl).stdout; got != words.String()+"\n" {
			t.Fatalf("cat printed %d bytes, %d were published", len(got), words.Len()+1)
		}

		// Standard input, and a second session that appends to the same file.
		mustRun(t, strings.NewReader("one more\n"), "producer", "publish", "--url", b.url, "--type", "words", "-")
		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "words", "--until-empty")
		if got := mustRun(t, nil, "fencepost", "cat", "--from", "5003", fpl).stdout; got != "one more\n" {
			t.Fatalf("cat --from printed %q", got)
		}
	})
}

// Payloads of every size and kind are read back unchanged.
func TestBinaryPayloadsRoundTripByteForByte(t *testing.T) {
	t.Parallel()
	sizes := []int{0, 1, 255, 4096, 1<<20 + 1, 8 << 20, 8<<20 + 1, 15 << 20}
	onEachBackend(t, func(t *testing.T, b backend) {
		rng := rand.NewChaCha8([32]byte{1})
		dir := t.TempDir()
		args := []string{"publish", "--url", b.url, "--type", "blobs", "--format", "raw"}
		var want [][]byte
		for i, size := range sizes {
			payload := make([]byte, size)
			rng.Read(payload)
			if size > 2 {
				payload[0], payload[size-1] = 0, '\n'
			}
			want = append(want, payload)
			name := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(name, payload, 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, name)
		}
		mustRun(t, nil, "producer", args...)
		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "blobs", "--until-empty")
		fpl := filepath.Join(b.dir, "blobs.fpl")
		mustRun(t, nil, "fencepost", "verify", "--deep", fpl)
		out := []byte(mustRun(t, nil, "fencepost", "cat", "--format", "len32", fpl).stdout)
		if got := splitLen32(t, out); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatal("the payloads changed on their way")
		}

		// The output of cat can be published again.
		mustRun(t, bytes.NewReader(out), "producer", "publish", "--url", b.url, "--type", "copy", "--format", "len32")
		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--until-empty")
		if got := payloads(t, b, "copy"); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatal("the payloads changed on their second way")
		}
	})
}

func splitLen32(t *testing.T, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 4 {
			t.Fatal("output ends inside a length")
		}
		n := int(binary.BigEndian.Uint32(b))
		if len(b) < 4+n {
			t.Fatal("output ends inside a message")
		}
		all = append(all, b[4:4+n])
		b = b[4+n:]
	}
	return all
}
