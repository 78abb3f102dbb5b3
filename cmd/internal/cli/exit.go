// Package cli contains the shared code of Fencepost's programs: exit codes, flags that fall back to environment variables,
// logging, handling of the first and the second signal, and printing of errors.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

// Exit codes of all programs.
const (
	ExitOK        = 0   // done
	ExitFailed    = 1   // failed
	ExitUsage     = 2   // wrong flag, argument or input
	ExitIntegrity = 3   // a file is damaged, foreign or not the registered one
	ExitNothing   = 4   // nothing matched
	ExitHeld      = 5   // lock held elsewhere, or fenced by another writer
	ExitNotNow    = 6   // the backlog is full or the type is paused
	ExitPartial   = 7   // part of the work was done, the rest cannot be done
	ExitStopped   = 130 // stopped by a signal
)

// ExitHelp documents the exit codes in every program's help.
const ExitHelp = `Exit codes: 0 ok · 1 failed · 2 usage · 3 integrity violation · 4 nothing matched · 5 lock held elsewhere or fenced ·
6 backlog full or paused · 7 partial · 130 stopped`

// Error is an error with its own exit code.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error about wrong usage of the program.
func Usagef(format string, args ...any) error {
	return &Error{ExitUsage, fmt.Errorf(format, args...)}
}

// Stoppedf returns the error of a command that a signal stopped before it finished.
func Stoppedf(format string, args ...any) error {
	return &Error{ExitStopped, fmt.Errorf(format, args...)}
}

// gravest lists the exit codes by precedence, for several errors at once. First the failures that a repetition of the command cannot overcome.
// Then a stop: it may have caused the failures after it. Last the failures that may succeed later, partial results, and nothing found.
var gravest = []int{ExitIntegrity, ExitUsage, ExitStopped, ExitFailed, ExitHeld, ExitNotNow, ExitPartial, ExitNothing}

// Code maps an error to the exit code. Of errors joined by errors.Join the gravest decides.
func Code(err error) int {
	if parts := printable.Joined(err); parts != nil {
		return Code(slices.MinFunc(parts, func(a, b error) int { return slices.Index(gravest, Code(a)) - slices.Index(gravest, Code(b)) }))
	}
	var (
		e       *Error
		foreign *storage.ForeignFileError
		other   *storage.WrongTypeError
		unfit   *worker.UnfitError
		partial *admin.PartialError
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &partial):
		return ExitPartial
	case errors.Is(err, queue.ErrInvalidType), errors.Is(err, fencepost.ErrURL), errors.Is(err, queue.ErrInvalidURL), errors.Is(err, worker.ErrConfig),
		errors.Is(err, queue.ErrTooLarge), errors.Is(err, queue.ErrInvalidHeader), errors.Is(err, storage.ErrLimit), errors.Is(err, lock.ErrInvalid):
		return ExitUsage
	case errors.Is(err, storage.ErrIntegrity), errors.As(err, &foreign), errors.As(err, &other):
		return ExitIntegrity
	case errors.Is(err, lock.ErrHeld), errors.Is(err, storage.ErrFenced), errors.Is(err, lock.ErrLost):
		return ExitHeld
	case errors.Is(err, queue.ErrPaused), errors.Is(err, queue.ErrBacklogFull), errors.Is(err, worker.ErrPaused):
		return ExitNotNow
	case errors.As(err, &unfit):
		return ExitPartial
	case errors.Is(err, context.Canceled):
		return ExitStopped
	}
	return ExitFailed
}

// Main runs a program's root command and exits with the right code. Errors are printed once, on stderr.
func Main(root *cobra.Command) {
	os.Exit(Run(context.Background(), root))
}

// Run is Main without the exit.
func Run(ctx context.Context, root *cobra.Command) int {
	Prepare(root)
	cmd, err := root.ExecuteContextC(ctx)
	code := Code(err)
	if err != nil && strings.HasPrefix(err.Error(), "unknown command") {
		code = ExitUsage
	}
	stopped := code == ExitStopped && errors.Is(err, context.Canceled) && printable.Joined(err) == nil // no other error
	if err != nil && !stopped {
		store := storeOf(cmd)
		text := redact.Text(StoreText(printable.Error(withRemedy(err, store)), store)) // paths in a store may look like URLs
		printable.Fprintf(root.ErrOrStderr(), "error: %s\n", printable.Safe(strings.ReplaceAll(text, "\n", "\nerror: ")))
	}
	return code
}

// Prepare adds the parts that all programs share to a root command. Run calls it.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = worker.Version()
	root.PersistentFlags().String("config", "", configHelp)
	readSettings(root)
	refuseShells(root)
	eachFlag(root, giveOnce)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%w; see '%s --help'", plain(err), cmd.CommandPath())
	})
}

// Help is the Run of a command that only has subcommands.
func Help(cmd *cobra.Command, _ []string) { cmd.Help() }

// NoArgs refuses arguments with an error that names them, and a command that may have been meant.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	known := map[string]bool{}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known[sub.Name()] = true
		}
	}
	if near := meant(args[0], known); near != "" {
		return Usagef("unknown argument %q; did you mean '%s %s'?", args[0], cmd.CommandPath(), near)
	}
	return Usagef("unknown argument %q; see '%s --help'", args[0], cmd.CommandPath())
}

// refuseShells makes the command for completion, which the library adds, refuse shells that it does not know.
func refuseShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if cmd, _, err := root.Find([]string{"completion"}); err == nil && cmd != root {
		cmd.Args, cmd.Run = NoArgs, Help
	}
}
