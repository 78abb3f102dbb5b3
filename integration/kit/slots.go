package kit

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/storage/slots"
)

// CopySlots copies the slots of a generation of a type's file into the directory to.slots, and concatenates them, in the order of their
// names, into the file to. FORMAT.md requires nothing more of a reader. The error is fs.ErrNotExist if there is no such generation.
func CopySlots(ctx context.Context, s slots.Store, typ string, generation uint64, to string) error {
	nonce, err := s.Read(ctx, fmt.Sprintf("%s/generations/%08d", typ, generation))
	if err != nil {
		return err
	}
	entries, err := s.List(ctx, fmt.Sprintf("%s/%08d/%s", typ, generation, nonce))
	if err != nil {
		return err
	}
	dir := to + ".slots"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, e := range entries {
		g.Go(func() error {
			b, err := s.Read(ctx, e.Name)
			if err != nil {
				return fmt.Errorf("%s is listed, and cannot be read: %v", e.Name, err)
			}
			return os.WriteFile(filepath.Join(dir, path.Base(e.Name)), b, 0o600)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, strings.Repeat("[0-9]", 20)))
	if err != nil {
		return err
	}
	var whole []byte
	for _, name := range names { // sorted
		if want := fmt.Sprintf("%020d", len(whole)); filepath.Base(name) != want {
			return fmt.Errorf("slot %s follows where %s belongs", filepath.Base(name), want)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		whole = append(whole, b...)
	}
	return os.WriteFile(to, whole, 0o600)
}
