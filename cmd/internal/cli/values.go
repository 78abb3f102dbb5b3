package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// plain rewrites an error about a flag's value as one line: the flag, the value, what is expected, an example. It returns other errors
// unchanged.
func plain(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	f := bad.GetFlag()
	parsed(f)
	return fmt.Errorf("--%s: %w", f.Name, wrongValue(f, bad.GetValue(), errors.Unwrap(bad)))
}

// wrongValue explains why a flag does not accept a value. The flag types of this package explain that themselves; those of pflag quote strconv.
func wrongValue(f *pflag.Flag, value string, err error) error {
	if errors.Is(err, errTwice) || !strings.HasPrefix(fmt.Sprintf("%T", f.Value), "*pflag.") {
		return err
	}
	is := "is not"
	if strings.Contains(err.Error(), "value out of range") || strings.Contains(err.Error(), "invalid duration") && isNumber(value) {
		is = "is too large for"
	}
	switch f.Value.Type() {
	case "int", "int64":
		return fmt.Errorf("%q %s a whole number; write it as in --%s %s", value, is, f.Name, example(f, "10"))
	case "uint", "uint64":
		return fmt.Errorf("%q %s a whole number of 0 or more; write it as in --%s %s", value, is, f.Name, example(f, "10"))
	case "duration":
		why := ""
		if strings.Contains(err.Error(), "missing unit") {
			why = " (missing unit)"
		}
		return fmt.Errorf("%q %s a duration%s; write it as in --%s %s; units are ms, s, m and h", value, is, why, f.Name, example(f, "30s"))
	case "bool":
		return fmt.Errorf("%q is neither true nor false; write --%s, or --%s=false", value, f.Name, f.Name)
	}
	return err
}

// isNumber reports whether a text has the form of a duration, of any size.
func isNumber(value string) bool {
	return strings.Trim(value, "0123456789.") != value && strings.Trim(strings.TrimRight(value, "nµumsh"), "+-0123456789.") == ""
}

// example returns a valid value for a flag: its default, if that is a helpful example.
func example(f *pflag.Flag, otherwise string) string {
	if slices.Contains([]string{"", "0", "0s", "1"}, f.DefValue) {
		return otherwise
	}
	return f.DefValue
}

// notNegative refuses negative numbers and durations: no flag accepts one.
func notNegative(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		if failed != nil || !f.Changed || !strings.HasPrefix(value, "-") || !slices.Contains([]string{"int", "int64", "duration"}, f.Value.Type()) {
			return
		}
		failed = Usagef("%s: %q is negative; write it as in --%s %s", Where(f), value, f.Name, example(f, map[bool]string{true: "30s", false: "10"}[f.Value.Type() == "duration"]))
	})
	return failed
}

// Where names a flag and the source of its value, for an error.
func Where(f *pflag.Flag) string {
	source := strings.Join(f.Annotations[sourceKey], "")
	name, isEnv := strings.CutPrefix(source, "env ")
	path, isFile := strings.CutPrefix(source, "file ")
	switch {
	case source == "":
		return "--" + f.Name
	case isEnv:
		return fmt.Sprintf("environment variable %s (--%s)", name, f.Name)
	case isFile:
		return fmt.Sprintf("--%s%s %s", f.Name, inFile, path)
	}
	return fmt.Sprintf("config file %s: %s (--%s)", source, f.Name, f.Name)
}

// Sourced adds to an error about the value of a flag where the value is from, unless it was given on the command line.
func Sourced(f *pflag.Flag, err error) error {
	if err == nil || Where(f) == "--"+f.Name {
		return err
	}
	return fmt.Errorf("%w; the value is from %s", err, Where(f))
}

// Between refuses a value of a flag that is out of range. most = 0 means no upper bound.
func Between[T cmp.Ordered](cmd *cobra.Command, name string, value, least, most T, expected string) error {
	var none T
	if value >= least && (most == none || value <= most) {
		return nil
	}
	f := cmd.Flags().Lookup(name)
	return Usagef("%s: %s is out of range; use %s, as in --%s %s", Where(f), f.Value, expected, name, f.DefValue)
}
