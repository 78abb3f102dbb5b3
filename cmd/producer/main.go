// Command producer publishes typed messages to a Fencepost queue. See producer publish --help.
package main

import (
	_ "time/tzdata" // for TZ on systems without time zone files, such as the image

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

func main() { cli.Main(root()) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "producer",
		Short: "Publish typed messages",
		Args:  cli.NoArgs,
		Run:   cli.Help,
	}
	cmd.AddCommand(publishCommand())
	return cmd
}
