package workercmd

import (
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/spf13/cobra"
)

// configCommand takes every flag of the worker, and prints the settings instead of running.
func configCommand() *cobra.Command {
	cmd := newCommand()
	cmd.Use = "config"
	cmd.Short = "Print every effective setting and where it comes from; run nothing"
	cmd.Long = `Config takes the same flags, environment variables and file as the worker. It prints the value of each setting and its source: flag,
name of the environment variable, file:line, or default. Passwords are not shown.`
	cmd.Example = `  worker config --config /etc/fencepost.yaml
  worker config -o json`
	cmd.Args = cli.NoArgs
	output := cli.NewOneOf("text", "json")
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settleLinger(cmd)
		var settings []cli.Setting
		for _, s := range cli.Effective(cmd) {
			if s.Name != "output" {
				settings = append(settings, s)
			}
		}
		if output.Value == "json" {
			return printable.EncodeJSON(cmd.OutOrStdout(), settings, "  ")
		}
		t := printable.NewWholeTable(cmd.OutOrStdout(), "SETTING", "VALUE", "SOURCE")
		for _, s := range settings {
			value := s.Value
			if value == "" {
				value = "-"
			}
			t.Row(s.Name, value, s.Source)
		}
		return t.Flush()
	}
	return cmd
}
