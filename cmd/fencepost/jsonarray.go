package main

import (
	"encoding/json"
	"io"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/spf13/cobra"
)

func printJSON(cmd *cobra.Command, v any) error {
	return printable.EncodeJSON(cmd.OutOrStdout(), v, "  ")
}

// jsonArray writes an array element by element, in the format of printJSON. A command that fails leaves its array without an end.
type jsonArray struct {
	w     io.Writer
	begun bool
}

func (a *jsonArray) add(v any) error {
	b, err := json.MarshalIndent(v, "  ", "  ")
	if err != nil {
		return err
	}
	before := ",\n  "
	if !a.begun {
		before = "[\n  "
	}
	a.begun = true
	_, err = printable.JSONWriter(a.w).Write(append([]byte(before), b...))
	return err
}

func (a *jsonArray) end() error {
	if !a.begun {
		_, err := printable.Fprintf(a.w, "[]\n")
		return err
	}
	_, err := printable.Fprintf(a.w, "\n]\n")
	return err
}
