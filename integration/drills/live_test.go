package drills

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// worker starts a worker that stays, and waits until it has drained what there is.
func (e *estate) worker(flags ...string) *began {
	e.t.Helper()
	w := e.start(nil, "worker", append([]string{"--type", typ, "--dir", e.dir, "--lease", "3s", "--log-format", "json"}, flags...)...)
	e.eventually("the worker drains the type", func() bool { return len(e.look().pending) == 0 && len(e.paths()) > 0 })
	return w
}

// TestFileUnderWorker does to the file that is written to what must not be done. Nothing may be acknowledged that is not in the file at
// its path, and when the operator has undone it everything goes on.
func TestFileUnderWorker(t *testing.T) {
	aside := func(e *estate) string { return filepath.Join(e.root, "aside.fpl") }
	for _, c := range []struct {
		name     string
		do, undo func(e *estate, path string) error
	}{
		{"moved",
			func(e *estate, path string) error { return os.Rename(path, aside(e)) },
			func(e *estate, path string) error { return os.Rename(aside(e), path) }},
		{"linked and removed",
			func(e *estate, path string) error {
				if err := os.Link(path, aside(e)); err != nil {
					return err
				}
				return os.Remove(path)
			},
			func(e *estate, path string) error { return os.Rename(aside(e), path) }},
		{"replaced by a copy",
			func(e *estate, path string) error {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if err := os.Link(path, aside(e)); err != nil {
					return err
				}
				if err := os.WriteFile(path+".copy", data, 0o600); err != nil {
					return err
				}
				return os.Rename(path+".copy", path)
			},
			func(e *estate, path string) error { return os.Rename(aside(e), path) }},
		{"directory renamed",
			func(e *estate, path string) error { return os.Rename(e.dir, e.dir+"-aside") },
			func(e *estate, path string) error {
				if err := os.RemoveAll(e.dir); err != nil {
					return err
				}
				return os.Rename(e.dir+"-aside", e.dir)
			}},
		{"cut",
			func(e *estate, path string) error {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if err := os.WriteFile(aside(e), data, 0o600); err != nil {
					return err
				}
				return os.Truncate(path, int64(len(data))-8)
			},
			func(e *estate, path string) error { return os.Rename(aside(e), path) }},
	} {
		for _, flags := range [][]string{nil, {"--max-file-size", "1MiB"}} {
			t.Run(fmt.Sprint(c.name, flags), func(t *testing.T) {
				onEachBackend(t, 1, func(t *testing.T, e *estate) {
					e.publish(20)
					w := e.worker(flags...)
					paths := e.paths()
					path := paths[len(paths)-1]
					e.logf("# the file %s under the worker", c.name)
					e.must(c.do(e, path))
					e.publish(20)
					e.eventually("the worker refuses the type or ends", func() bool {
						select {
						case <-w.done:
							return true
						default:
							return refused(w.stderr.String())
						}
					})
					w.end(syscall.SIGKILL)
					e.logf("# it is undone")
					e.must(c.undo(e, path))
					e.keep("it is undone")
					e.finish()
				})
			})
		}
	}
}
