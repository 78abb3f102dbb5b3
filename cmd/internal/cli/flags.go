package cli

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvPrefix starts the name of every environment variable that sets a flag: --batch-bytes is FENCEPOST_BATCH_BYTES.
// A flag on the command line takes precedence over the variable, which takes precedence over the configuration file.
const EnvPrefix = "FENCEPOST_"

// URLUsage describes --url.
const URLUsage = "backend: mongodb://host/database, mongodb+srv://… or sqlite://path (embedded, one machine)"

// URLFlag adds --url and --url-file.
func URLFlag(cmd *cobra.Command) *string {
	url := new(string)
	URLVar(cmd, url, fencepost.DefaultURL, URLUsage)
	return url
}

// URLVar is URLFlag with the caller's variable, default and description.
func URLVar(cmd *cobra.Command, url *string, byDefault, usage string) {
	addressVar(cmd, url, urlFlag, byDefault, usage, "db")
}

const (
	urlFlag   = "url"
	storeFlag = "store"

	inFile         = "-file"  // suffix of flags that name a file with the value of another flag
	maxAddressFile = 64 << 10 // bytes; no address is longer
)

// addressVar adds a flag for an address that may contain a password, and one for a file that contains the address.
func addressVar(cmd *cobra.Command, address *string, name, byDefault, usage, example string) {
	env := EnvPrefix + strings.ToUpper(name)
	cmd.Flags().StringVar(address, name, byDefault, usage+"; pass a password by --"+name+inFile+" or "+env+", because every user can see command lines with ps")
	cmd.Flags().String(name+inFile, "", "file whose only line is the value of --"+name+", or a pipe, as in --"+name+inFile+" <(pass show "+example+")")
}

// fromAddressFile sets --url or --store from the file that --url-file or --store-file names. If both are given, the command line takes
// precedence over the environment, and the environment over the configuration file.
func fromAddressFile(cmd *cobra.Command, name string) error {
	address, file := cmd.Flags().Lookup(name), cmd.Flags().Lookup(name+inFile)
	if file == nil {
		return nil
	}
	path := file.Value.String()
	switch a, b := rank(address), rank(file); {
	case address.Changed && address.Value.String() == "" && a >= b:
		return emptyAddress(address)
	case a > b || b == 0:
		return nil
	case path == "":
		return emptyAddress(file)
	case a == b:
		return Usagef("--%s and --%s cannot be combined; use one of them", name, file.Name)
	}
	line, err := addressIn(cmd, "--"+file.Name+" "+path, path)
	if err != nil {
		return err
	}
	setSource(address, "file "+path)
	return cmd.Flags().Set(name, line)
}

// emptyAddress returns the error of an address that was given but is empty, as an unset variable of a shell leaves it. To ignore it would
// mean the default: messages that get into a database on this machine, although another one was meant.
func emptyAddress(f *pflag.Flag) error {
	otherwise := "files in a directory"
	if strings.HasPrefix(f.Name, urlFlag) {
		otherwise = "the embedded database"
	}
	return Usagef("%s is empty; give it a value, or leave it out for %s", Where(f), otherwise)
}

// Address returns an argument that is an address or, if it is @FILE, the address in the file.
func Address(cmd *cobra.Command, arg string) (string, error) {
	if path, ok := strings.CutPrefix(arg, "@"); ok {
		return addressIn(cmd, arg, path)
	}
	return arg, nil
}

// addressIn returns the only line of a file. Messages call the file what.
func addressIn(cmd *cobra.Command, what, path string) (string, error) {
	text, mode, err := readFile(path, maxAddressFile, fileWithin)
	if err != nil {
		return "", Usagef("%s: %w", what, err)
	}
	line := strings.TrimSpace(string(text))
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return "", Usagef("%s: its only line must be an address, as in mongodb://user:password@host/database", what)
	}
	warnOfReaders(cmd, what, mode, line)
	return line, nil
}

const commandLine = 3 // the highest rank

// rank returns the precedence of the source of a flag's value.
func rank(f *pflag.Flag) int {
	source := f.Annotations[sourceKey]
	switch {
	case !f.Changed:
		return 0
	case len(source) == 0:
		return commandLine
	case strings.HasPrefix(source[0], "env "):
		return 2
	}
	return 1
}

// OnCommandLine reports whether a flag was given on the command line, not by environment or file.
func OnCommandLine(f *pflag.Flag) bool { return rank(f) == commandLine }

// readSettings makes a command, and those below it, read the environment and the configuration file before RunE. Help has no settings.
func readSettings(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := fromEnv(cmd); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		readSettings(sub)
	}
}

// fromEnv sets every flag that was not given from its environment variable or, if that is not set either, from the
// configuration file (--config); flags of a single call are an error there. Effective then shows the source of each value.
func fromEnv(cmd *cobra.Command) error {
	cmd.Flags().VisitAll(parsed)
	warnOfVariables(cmd, os.Environ())
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		v, ok := os.LookupEnv(name)
		if !ok || f.Changed || failed != nil || f.Name == "help" || f.Name == "version" {
			return
		}
		if slices.Contains(ofOneCall, f.Name) {
			failed = Usagef("environment variable %s: --%s concerns a single call; unset the variable, and give --%s on the command line", name, f.Name, f.Name)
			return
		}
		var err error
		if list, isList := f.Value.(pflag.SliceValue); isList {
			err = list.Replace(strings.Split(v, ","))
			f.Changed = true
		} else {
			err = cmd.Flags().Set(f.Name, v)
		}
		if err != nil {
			failed = Usagef("environment variable %s: %w", name, plain(err))
		}
		setSource(f, "env "+name)
	})
	if failed != nil {
		return failed
	}
	if f := cmd.Flags().Lookup("config"); f != nil && f.Value.String() != "" {
		if err := fromFile(cmd, f.Value.String()); err != nil {
			return err
		}
	}
	if err := notNegative(cmd); err != nil {
		return err
	}
	for _, name := range []string{urlFlag, storeFlag} {
		if err := fromAddressFile(cmd, name); err != nil {
			return err
		}
	}
	return nil
}

// variable returns the name of the environment variable that sets a flag.
func variable(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ofService matches the variables that Kubernetes sets in the containers of a namespace for each Service, such as one with the name fencepost.
var ofService = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT(_[0-9]+_(TCP|UDP|SCTP)|$)`)

// warnOfVariables warns of variables that look like a misspelt flag: nothing reads them. Others, as programs that share an environment have
// them, are none of our business.
func warnOfVariables(cmd *cobra.Command, environ []string) {
	known := knownFlags(cmd.Root())
	for _, env := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(env, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		flag := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		if !ours || known[flag] || ofService.MatchString(name) {
			continue
		}
		if near := nearest(flag, known, 1+len(flag)/8); near != "" {
			printable.Fprintf(cmd.ErrOrStderr(), "warning: environment variable %s has no effect; did you mean %s?\n", name, variable(near))
		}
	}
}

// Size is a flag value in bytes: 4096, 64KiB, 4MiB, 1MB.
type Size int64

func (s *Size) String() string { return strings.ReplaceAll(humanize.IBytes(uint64(*s)), " ", "") }
func (s *Size) Type() string   { return "size" }

// Set parses a size.
func (s *Size) Set(v string) error {
	n, err := humanize.ParseBytes(v)
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is not a size; write bytes as in 4096, 64KiB or 4MiB", v)
	}
	*s = Size(n)
	return nil
}

// Count is a flag value that counts: 1000, 5k, 1e6, 2.5M. For a rate it may end in /s.
type Count int64

func (c *Count) String() string { return strconv.FormatInt(int64(*c), 10) }
func (c *Count) Type() string   { return "count" }

// Set parses a count.
func (c *Count) Set(v string) error {
	num, factor := strings.TrimSuffix(v, "/s"), 1.0
	switch {
	case strings.HasSuffix(num, "k"):
		num, factor = strings.TrimSuffix(num, "k"), 1e3
	case strings.HasSuffix(num, "M"):
		num, factor = strings.TrimSuffix(num, "M"), 1e6
	}
	f, err := strconv.ParseFloat(num, 64)
	switch f *= factor; {
	case err != nil || f < 0 || f != math.Trunc(f):
		return fmt.Errorf("%q is not a whole number of 0 or more; write it as in 1000, 5k or 1e6", v)
	case f > 1e15: // not every whole number above 2^53 is a float64
		return fmt.Errorf("%q is too large; it is at most 1e15", v)
	}
	*c = Count(f)
	return nil
}

// Age is a flag value that is a duration: 30d, 12h, 90m.
type Age time.Duration

func (a *Age) String() string {
	if d := time.Duration(*a); d%(24*time.Hour) != 0 || d == 0 {
		return d.String()
	}
	return strconv.FormatInt(int64(time.Duration(*a)/(24*time.Hour)), 10) + "d"
}

func (a *Age) Type() string { return "age" }

// Set parses an age.
func (a *Age) Set(v string) error {
	d, err := time.ParseDuration(v)
	if days, ok := strings.CutSuffix(v, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not an age; write it as in 30d, 12h or 90m", v)
	}
	*a = Age(d)
	return nil
}

// OneOf is a flag value from a fixed set; the first is the default.
type OneOf struct {
	Value  string
	values []string
}

// NewOneOf returns a OneOf whose value is the first of values.
func NewOneOf(values ...string) *OneOf { return &OneOf{values[0], values} }

func (o *OneOf) String() string { return o.Value }
func (o *OneOf) Type() string   { return strings.Join(o.values, "|") }

// Set accepts one of the values.
func (o *OneOf) Set(v string) error {
	for _, known := range o.values {
		if v == known {
			o.Value = v
			return nil
		}
	}
	return fmt.Errorf("%q must be one of %s", v, strings.Join(o.values, ", "))
}

// Moment is a flag value that is a point in time: RFC 3339, or a day.
type Moment struct{ time.Time }

func (m *Moment) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Format(time.RFC3339Nano)
}
func (m *Moment) Type() string { return "time" }

// Since1970 returns t, or the beginning of 1970 if that is later: no message is older, and the zero time would mean no time.
func Since1970(t time.Time) time.Time {
	if epoch := time.UnixMilli(0); t.Before(epoch) {
		return epoch
	}
	return t
}

// Set parses a time.
func (m *Moment) Set(v string) error {
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		t, err = time.Parse(time.DateOnly, v)
	}
	if err != nil {
		return fmt.Errorf("%q is not a time; write it as in 2026-01-31T15:04:05Z, 2026-01-31T15:04:05+01:00 or 2026-01-31 (UTC)", v)
	}
	m.Time = Since1970(t)
	return nil
}

// Since is a Moment that can also be given as a duration before now.
type Since struct{ Moment }

// Set parses a time or a duration.
func (s *Since) Set(v string) error {
	var age Age
	if age.Set(v) == nil {
		s.Time = time.Now().Add(-time.Duration(age))
		return nil
	}
	if s.Moment.Set(v) != nil {
		return fmt.Errorf("%q is neither a time nor a duration; write it as in 2026-01-31T15:04:05Z, 90m or 30d", v)
	}
	return nil
}
