package chain

import (
	"context"

	"github.com/fencepost/fencepost/storage"
)

// Files says where the files of types are.
type Files struct {
	Until func(context.Context) storage.FS // of a store; nil: the operating system's
	Dir   string
	Place string // as workers tell it to the registry
	Name  string // of a store, for people; "" is a directory
}

// FS returns the file system of the files, for requests that end with ctx.
func (f Files) FS(ctx context.Context) storage.FS {
	if f.Until == nil {
		return storage.OS()
	}
	return f.Until(ctx)
}
