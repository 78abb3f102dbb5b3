// Command worker runs one replica of a Fencepost worker pool. See worker --help.
package main

import (
	_ "time/tzdata" // for TZ, where there are no files of time zones, as in the image

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/workercmd"
)

func main() { cli.Main(workercmd.New()) }
