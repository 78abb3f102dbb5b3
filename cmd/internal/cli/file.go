package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/spf13/cobra"
)

// fileWithin bounds the reading of a small file. Reading rarely takes long, but with --url-file <(pass show db) a user may have to type a
// passphrase first.
const fileWithin = time.Minute

// readFile reads a small file or a pipe. mode is the mode of a regular file, otherwise 0.
func readFile(path string, most int64, within time.Duration) (data []byte, mode fs.FileMode, err error) {
	type file struct {
		data []byte
		mode fs.FileMode
		err  error
	}
	read := make(chan file, 1)
	go func() {
		var f file
		f.data, f.mode, f.err = readNow(path, most)
		read <- f
	}()
	var f file
	select {
	case f = <-read:
	case <-time.After(within): // rule: a pipe may have no writer. The goroutine that waits for one ends with the program.
		return nil, 0, fmt.Errorf("cannot be read: it did not end within %v; if it is a pipe, some program must write to it, and close it", within)
	}
	var p *fs.PathError
	if errors.As(f.err, &p) {
		f.err = p.Err
	}
	switch {
	case f.err != nil:
		return nil, 0, fmt.Errorf("cannot be read: %w", f.err)
	case int64(len(f.data)) > most:
		return nil, 0, fmt.Errorf("is larger than %d bytes; is it the right one?", most)
	}
	return bytes.TrimPrefix(f.data, []byte("\ufeff")), f.mode, nil // some editors write a byte order mark
}

func readNow(path string, most int64) (data []byte, mode fs.FileMode, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		mode = info.Mode()
	}
	data, err = io.ReadAll(io.LimitReader(file, most+1))
	return data, mode, err
}

// warnOfReaders warns if every user of the machine can read a file with a password in one of its URLs. That is not an error: Kubernetes mounts
// secrets like that.
func warnOfReaders(cmd *cobra.Command, file string, mode fs.FileMode, urls ...string) {
	if mode&0o004 != 0 && slices.ContainsFunc(urls, redact.HasSecret) && runtime.GOOS != "windows" { // which has no such modes
		printable.Fprintf(cmd.ErrOrStderr(), "warning: %s holds a password, and every user of this machine may read it (mode %04o); give it mode 0600 or 0640\n", file, mode.Perm())
	}
}
