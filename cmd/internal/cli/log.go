package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// LogFlags are --log-format and --log-level.
type LogFlags struct {
	format *OneOf
	level  *OneOf
	cmd    *cobra.Command
}

// AddLogFlags adds the logging flags.
func AddLogFlags(cmd *cobra.Command) *LogFlags {
	l := &LogFlags{NewOneOf("auto", "text", "json"), NewOneOf("info", "debug", "warn", "error"), cmd}
	cmd.Flags().Var(l.format, "log-format", "log format on stderr; auto is text on a terminal and json otherwise")
	cmd.Flags().Var(l.level, "log-level", "lowest level that is logged")
	return l
}

// Logger returns the logger that the flags describe.
func (l *LogFlags) Logger(stderr io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(l.level.Value)
	if err != nil {
		panic(fmt.Sprintf("log level %q was not checked", l.level.Value)) // the flag accepts known levels only
	}
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	store := storeOf(l.cmd)
	zerolog.ErrorMarshalFunc = func(err error) any { return withRemedy(err, store) }
	clean := StoreWriter(redact.Writer(stderr), store)
	// rule: nothing in an event can control the terminal on which the log is read.
	out := printable.JSONWriter(clean)
	if l.format.Value == "text" || l.format.Value == "auto" && IsTerminal(stderr) {
		out = console(clean, !IsTerminal(stderr) || os.Getenv("NO_COLOR") != "")
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}

// console formats logs for people. It adds its own output, such as colours, to texts that are already printable.
func console(out io.Writer, noColor bool) io.Writer {
	value := func(v any) string { return printable.Text(fmt.Sprintf("%s", v)) }
	return zerolog.ConsoleWriter{Out: out, TimeFormat: "15:04:05.000", NoColor: noColor, FormatFieldValue: value, FormatErrFieldValue: value,
		FormatPrepare: func(event map[string]any) error {
			if message, ok := event[zerolog.MessageFieldName].(string); ok {
				event[zerolog.MessageFieldName] = printable.Text(message)
			}
			return nil
		}}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
