//go:build !linux

package storage

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOutsideLinux: files can be found and read.
func TestOutsideLinux(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "orders.fpl")
	if err := os.WriteFile(path, NewHeaderBytes("orders", FileID{1}, [16]byte{2}), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := ReadChain(OS(), dir, "orders")
	if err != nil || len(c) != 1 || c[0].Path != path || c[0].Err != nil {
		t.Errorf("%+v, %v", c, err)
	}
}
