package cli

import (
	"errors"

	"github.com/spf13/pflag"
)

// once is the value of a flag while the command line is parsed. It refuses a second, different value: the last one would win, and what was meant
// for the first one would be done to another.
type once struct {
	pflag.Value
	given *string
}

// errTwice does not quote the values: they may have passwords.
var errTwice = errors.New("given twice, with different values; give it once")

// Set sets the value.
func (o *once) Set(v string) error {
	if o.given != nil && *o.given != v {
		return errTwice
	}
	o.given = &v
	return o.Value.Set(v)
}

// giveOnce makes a flag refuse a second value on the command line, unless it takes a list.
func giveOnce(f *pflag.Flag) {
	_, isList := f.Value.(pflag.SliceValue)
	if _, done := f.Value.(*once); !done && !isList {
		f.Value = &once{Value: f.Value}
	}
}

// parsed ends giveOnce: the command line is parsed, and other sources set the flag from now on.
func parsed(f *pflag.Flag) {
	if o, ok := f.Value.(*once); ok {
		f.Value = o.Value
	}
}
