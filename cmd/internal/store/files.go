package store

import (
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/worker"
)

// FilesOf describes files in a store or, if p is nil, in a directory of this machine.
func FilesOf(p *Place, dir string) chain.Files {
	if p == nil {
		return chain.Files{Dir: dir, Place: worker.Place(nil, dir)}
	}
	return chain.Files{Until: p.Until, Dir: p.Dir, Place: worker.Place(p.FS, p.Dir), Name: p.Name}
}
