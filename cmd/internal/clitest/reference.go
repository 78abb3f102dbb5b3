package clitest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/generated"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference compares a program's part of a document with its commands. With -update it writes that part.
func Reference(t testing.TB, file string, root *cobra.Command) {
	t.Helper()
	cli.Prepare(root)
	generated.Part(t, file, root.Name(), reference(root))
}

// reference describes a program in Markdown: each of its commands, then the flags that they have in common.
func reference(root *cobra.Command) string {
	commands := documented(root)
	// The most frequent form of each flag is common, if several commands have it.
	count, usual := map[string]int{}, map[string]string{}
	for _, cmd := range commands {
		for _, row := range flagRows(cmd) {
			if count[row.text]++; count[row.text] > max(1, count[usual[row.name]]) {
				usual[row.name] = row.text
			}
		}
	}
	isCommon := func(row flagRow) bool { return usual[row.name] == row.text }
	var b strings.Builder
	for _, cmd := range commands {
		level := "###"
		if cmd == root {
			level = "##"
		}
		fmt.Fprintf(&b, "%s %s\n\n", level, cmd.CommandPath())
		if cmd.Long != "" {
			b.WriteString(prose(cmd.Long))
		} else {
			fmt.Fprintf(&b, "%s.\n\n", cmd.Short)
		}
		own, common := []flagRow{}, []string{}
		for _, row := range flagRows(cmd) {
			if isCommon(row) {
				common = append(common, row.name)
			} else {
				own = append(own, row)
			}
		}
		if usage := cmd.UseLine(); cmd.Runnable() && (cmd != root || len(own)+len(common) > 0) {
			fmt.Fprintf(&b, "```text\n%s\n", usage)
			if cmd.Example != "" {
				fmt.Fprintf(&b, "\n%s\n", unindent(cmd.Example))
			}
			b.WriteString("```\n\n")
		}
		writeTable(&b, own)
		if len(common) > 0 {
			fmt.Fprintf(&b, "[Common flags](#common-flags-of-%s): %s\n\n", root.Name(), strings.Join(common, " "))
		}
	}
	var common []flagRow
	for _, cmd := range commands {
		for _, row := range flagRows(cmd) {
			if isCommon(row) {
				common, usual[row.name] = append(common, row), ""
			}
		}
	}
	if len(common) > 0 {
		fmt.Fprintf(&b, "### Common flags of %s\n\n", root.Name())
		writeTable(&b, common)
	}
	return b.String()
}

// documented returns a command and its subcommands, recursively.
func documented(cmd *cobra.Command) (all []*cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return nil
	}
	all = []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, documented(sub)...)
	}
	return all
}

// prose converts a help text to Markdown. Exit codes are explained once for all programs.
func prose(help string) string {
	text, codes, found := strings.Cut(help, cli.ExitHelp)
	var b strings.Builder
	for _, paragraph := range strings.Split(strings.TrimSpace(text+codes), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			fmt.Fprintf(&b, "```text\n%s\n```\n\n", unindent(paragraph))
			continue
		}
		fmt.Fprintf(&b, "%s\n\n", strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`).Replace(paragraph))
	}
	if found {
		b.WriteString("See [exit codes](#exit-codes).\n\n")
	}
	return b.String()
}

func unindent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	return strings.TrimRight(b.String(), "\n")
}

type flagRow struct {
	name, text string // the flag with its dashes, and its table row
}

// flagRows returns the local flags of a command.
func flagRows(cmd *cobra.Command) (rows []flagRow) {
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" || f.Name == "config" {
			return
		}
		name, value := "--"+f.Name, ""
		if f.Shorthand != "" {
			name += ", -" + f.Shorthand
		}
		switch kind := f.Value.Type(); kind {
		case "bool":
		case "stringSlice", "stringArray":
			name += " string…"
		default:
			name += " " + strings.ReplaceAll(kind, "|", `\|`)
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		rows = append(rows, flagRow{"`--" + f.Name + "`", fmt.Sprintf("| `%s` | %s | %s |\n", name, value, cell.Replace(f.Usage))})
	})
	return rows
}

func writeTable(b *strings.Builder, rows []flagRow) {
	if len(rows) == 0 {
		return
	}
	b.WriteString("| flag | default | |\n|---|---|---|\n")
	for _, row := range rows {
		b.WriteString(row.text)
	}
	b.WriteString("\n")
}
