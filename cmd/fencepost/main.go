// Command fencepost inspects files, types and locks, and runs the demo. See fencepost --help.
package main

import (
	"os"
	"runtime/debug"
	_ "time/tzdata" // for TZ on systems without time zone files, such as the image

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/workercmd"
	"github.com/spf13/cobra"
)

// memoryLimit, in bytes, is where the garbage collector begins to work harder. Commands hold far less than that of any file, and their
// garbage must not push them to 256 MiB (docs/limits.md).
const memoryLimit = 192 << 20

func main() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	cli.Main(root())
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fencepost",
		Short: "Exactly-once, ordered, single-writer binary logs, fed from a queue by as many workers as you like",
		Long: `Fencepost inspects and operates the files that workers write, the types in the queue, and the locks. It also serves messages over HTTP.

` + cli.ExitHelp,
		Example: `  fencepost demo                       # the whole thing on this machine, with a worker killed in the middle
  fencepost verify data/*.fpl
  fencepost cat data/orders.fpl
  fencepost types ls
  fencepost locks ls
  fencepost dead ls`,
		Args: cli.NoArgs,
		Run:  cli.Help,
	}
	checkOutput(cmd)
	// The demo starts worker processes from this program.
	w := workercmd.New()
	w.Hidden = true
	cmd.AddCommand(demoCommand(), topCommand(), uiCommand(), serveCommand(), verifyCommand(), catCommand(), tailCommand(), compactCommand(), copyCommand(), keepCommand(), repairCommand(), typesCommand(), locksCommand(), setupCommand(), doctorCommand(), deadCommand(), scheduledCommand(), healthcheckCommand(), conformCommand(), w)
	return cmd
}
