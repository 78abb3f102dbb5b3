package cli

import (
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/redact"
	"github.com/spf13/cobra"
)

// SharedScheme begins the address of a store in a directory.
const SharedScheme = "shared:"

// StoreFlag adds --store and --store-file.
func StoreFlag(cmd *cobra.Command, usage string) *string {
	store := new(string)
	addressVar(cmd, store, storeFlag, "", usage+": mongodb: (the database of --url), mongodb://host/database (another one), s3://bucket/prefix, or "+
		"shared:/directory (a directory shared over the network, for example by NFS)", "files")
	return store
}

// Settings in the address of a bucket. None of them is secret.
var (
	placeSettings = []string{"endpoint", "region", "path-style"} // where the bucket is
	writeSettings = []string{"sse", "sse-kms-key-id"}            // how values are written; readers do not need them
)

// StoreName returns the address of a store without secrets and without the settings for writing. Messages
// use it as the store's name, and package storage uses it as the directory of its files.
func StoreName(address string) string { return storeWith(address, placeSettings) }

// StoreAddress returns the address of a store without secrets, for commands that a user may run.
func StoreAddress(address string) string {
	return storeWith(address, slices.Concat(placeSettings, writeSettings))
}

func storeWith(address string, known []string) string {
	if dir, ok := strings.CutPrefix(address, SharedScheme); ok && dir != "" {
		return SharedScheme + filepath.Clean(dir)
	}
	if !strings.Contains(address, "://") {
		return redact.Text(address)
	}
	name, settings, _ := strings.Cut(address, "?")
	if name = redact.URL(name); !strings.HasPrefix(name, "s3://") {
		return redact.URL(address)
	}
	sep := "?"
	for _, s := range strings.Split(settings, "&") {
		if key, value, _ := strings.Cut(s, "="); slices.Contains(known, key) && !strings.Contains(value, "@") {
			name, sep = name+sep+s, "&"
		}
	}
	return name
}

// StoreArgument returns --store with the address of a store, quoted for a shell.
func StoreArgument(address string) string { return "--" + storeFlag + " " + shellWord(address) }

// shellWord quotes a word for a shell if it needs that.
func shellWord(word string) string {
	if strings.ContainsAny(word, "?&*[]$;()<>|\\\"' \t`!#~{}") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// StoreText replaces the paths of a store's files in text with the name of the file and of the
// store; package storage builds the paths from both. A path with an @ looks like a password.
func StoreText(text, store string) string {
	if store == "" {
		return text
	}
	store = StoreName(store)
	path := regexp.MustCompile(regexp.QuoteMeta(filepath.Clean(store)+string(filepath.Separator)) + `(\.?[a-z0-9][a-z0-9._-]*(?:@[0-9]+)?\.fpl(?:\.[0-9a-f]{16}\.tmp)?)\b`)
	return path.ReplaceAllString(text, "$1 in "+strings.ReplaceAll(store, "$", "$$"))
}

// StoreWriter applies StoreText to everything written, each Write by itself.
func StoreWriter(w io.Writer, store string) io.Writer {
	if store == "" {
		return w
	}
	return storeWriter{w, store}
}

// InStore returns err as a command with --store reports it: with the command that helps, and with
// the names of the file and the store in place of paths.
func InStore(err error, store string) error {
	if err == nil || store == "" {
		return err
	}
	err = withRemedy(err, store)
	return &inStore{err, StoreText(err.Error(), store)}
}

type inStore struct {
	error
	text string
}

func (e *inStore) Error() string { return e.text }
func (e *inStore) Unwrap() error { return e.error }

type storeWriter struct {
	w     io.Writer
	store string
}

func (s storeWriter) Write(p []byte) (int, error) {
	// p is printable already, and so is the name of the store where it is found in p.
	if _, err := s.w.Write([]byte(StoreText(string(p), s.store))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// storeOf returns the address of the store that a command was told to use, "" if there is none.
func storeOf(cmd *cobra.Command) string {
	if cmd != nil {
		if f := cmd.Flags().Lookup(storeFlag); f != nil {
			return StoreAddress(f.Value.String())
		}
	}
	return ""
}

// NoDirWithStore refuses --dir on the command line together with --store. It ignores a directory from
// another source: the container image sets FENCEPOST_DIR.
func NoDirWithStore(cmd *cobra.Command) error {
	store, dir := cmd.Flags().Lookup(storeFlag), cmd.Flags().Lookup("dir")
	if store.Value.String() == "" || !OnCommandLine(dir) {
		return nil
	}
	return Usagef("%s and --dir cannot be combined: files are in the store or in the directory; leave out one of them", Where(store))
}
