package integration

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// Tail can be stopped while nobody reads its output.
func TestTailStopsWhileItsOutputIsStuck(t *testing.T) {
	w, err := storage.Open(t.Context(), t.TempDir(), "orders", 1, storage.Options{AllowOverlay: true})
	must(t, err)
	for range 3 {
		must(t, w.Append([]storage.Record{{ID: []byte{1}, Payload: bytes.Repeat([]byte("x"), 1<<20)}}))
	}
	must(t, w.Close())
	for _, args := range [][]string{{"tail", w.Path()}, {"tail", "--follow", w.Path()}} {
		out, in, err := os.Pipe()
		must(t, err)
		defer out.Close()
		p := startWith(t, func(c *exec.Cmd) error {
			defer in.Close()
			c.Stdout = in
			return c.Start()
		}, "tail", bin+"/fencepost", args...)
		_, err = out.Read(make([]byte, 1)) // it is printing, more than the pipe takes
		must(t, err)
		p.signal(t, syscall.SIGINT)
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t, time.Minute); code != stopped {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}
