// Command worker runs one replica of a Fencepost worker pool. See worker --help.
package main

import (
	_ "time/tzdata" // for TZ on systems without time zone files, such as the image

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/workercmd"
)

func main() { cli.Main(workercmd.New()) }
