// Command worker runs one replica of a Fencepost worker pool. See worker --help.
package main

import (
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/workercmd"
)

func main() { cli.Main(workercmd.New()) }
