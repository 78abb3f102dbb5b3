package store

import (
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/worker"
)

// FilesOfPages returns where pages find files: in a store or, if p is nil, in a directory of this machine.
func FilesOfPages(p *Place, dir string) ui.Files {
	if p == nil {
		return ui.Files{Dir: dir, Place: worker.Place(nil, dir)}
	}
	return ui.Files{Until: p.Until, Dir: p.Dir, Place: worker.Place(p.FS, p.Dir), Name: p.Name}
}
