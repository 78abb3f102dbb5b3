package chain

import (
	"context"

	"github.com/fencepost/fencepost/storage"
)

// Files says where the files of types are.
type Files struct {
	Until func(context.Context) storage.FS // the file system of a store; nil: the operating system's
	Dir   string
	Place string // the place as workers register it
	Name  string // name of the store, for people; "": a directory
}

// FS returns the file system of the files. Its requests end with ctx.
func (f Files) FS(ctx context.Context) storage.FS {
	if f.Until == nil {
		return storage.OS()
	}
	return f.Until(ctx)
}
