package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

// Among several types, the gravest error decides, wherever it is in the order.
func TestCodeOfJoinedErrors(t *testing.T) {
	nothing, partial := &Error{ExitNothing, io.EOF}, &Error{ExitPartial, io.EOF}
	for _, test := range []struct {
		a, b error
		want int
	}{
		{nothing, storage.ErrIntegrity, ExitIntegrity},
		{nothing, errors.Join(partial, storage.ErrIntegrity), ExitIntegrity},
		{Usagef("no"), storage.ErrIntegrity, ExitIntegrity},
		{Usagef("no"), io.EOF, ExitUsage},
		{context.Canceled, io.EOF, ExitStopped},
		{context.Canceled, partial, ExitStopped},
		{partial, io.EOF, ExitFailed},
		{nothing, fmt.Errorf("orders: %w", lock.ErrHeld), ExitHeld},
		{nothing, nil, ExitNothing},
		{fmt.Errorf("%w: %w", nothing, storage.ErrIntegrity), nil, ExitNothing}, // one error, which has a code
	} {
		for _, err := range []error{errors.Join(test.a, test.b), errors.Join(test.b, test.a)} {
			if code := Code(err); code != test.want {
				t.Errorf("%q: %d, want %d", err, code, test.want)
			}
		}
	}
}

// A user who stops a program is not told so, but is told about earlier errors.
func TestErrorsOfAStoppedProgram(t *testing.T) {
	for want, err := range map[string]error{"": context.Canceled, "error: EOF\nerror: context canceled\n": errors.Join(&Error{ExitNothing, io.EOF}, context.Canceled)} {
		var stderr bytes.Buffer
		root := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return err }}
		root.SetErr(&stderr)
		root.SetArgs(nil)
		if code := Run(t.Context(), root); code != ExitStopped || stderr.String() != want {
			t.Errorf("%q: %d, %q", err, code, stderr.String())
		}
	}
}

// A duration before now may be in days, as everywhere where a flag takes an age.
func TestSinceInDays(t *testing.T) {
	var days, hours Since
	if err := errors.Join(days.Set("2d"), hours.Set("48h")); err != nil || hours.Sub(days.Time) > time.Hour {
		t.Errorf("2d is %v, 48h is %v (%v)", days, hours, err)
	}
}
