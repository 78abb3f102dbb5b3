package workercmd

import (
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
)

// pagesRefresh is the shortest interval between two updates of a worker's pages.
const pagesRefresh = 2 * time.Second

// pagesFlags are the flags of --ui.
type pagesFlags struct {
	on bool
	ui.Flags
}

func (f *pagesFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.on, "ui", false, "with --listen: read-only pages about types, files, messages and locks, like those of fencepost ui. They require a password (--auth-file, --user-header) unless --listen is this machine only")
	f.Add(cmd, "with --ui: ")
}

func (f *pagesFlags) check(cmd *cobra.Command, listen string) error {
	if !f.on {
		for _, name := range f.Names() {
			if cmd.Flags().Changed(name) {
				return cli.Usagef("--%s needs --ui", name)
			}
		}
		return nil
	}
	if listen == "" {
		return cli.Usagef("--ui needs --listen, as in --listen 127.0.0.1:9090")
	}
	return f.Check(cmd, listen)
}

// open makes the server serve pages until closes is called. place is the store; nil: the files are in a directory.
func (f *pagesFlags) open(answers *ops.Server, b *fencepost.Backend, dir string, place *store.Place, log zerolog.Logger) (closes func()) {
	pages := ui.New(ui.Options{Backend: b, Files: store.FilesOf(place, dir), BasePath: f.BasePath, HidePayloads: f.HidePayloads, Refresh: pagesRefresh, CountUpTo: backlog.DefaultMax,
		Access: f.Access, Log: log, Frugal: true, ReadOnly: "The pages of a worker are read-only. To act, use those of fencepost ui --write."})
	answers.Show(pages.Handler())
	return pages.Close
}
