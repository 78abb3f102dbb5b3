package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

// fileFlags say where the files named in the arguments of a command are: in directories, or in the
// store of --store.
type fileFlags struct {
	address, url *string
	stderr       func() io.Writer
	place        *store.Place // the open store; nil: directories
}

func (f *fileFlags) add(cmd *cobra.Command, url *string) {
	f.address, f.url, f.stderr = store.FlagOfReader(cmd), url, cmd.ErrOrStderr
}

// Opening a store takes at most openMost; more than openSlow is reported.
const (
	openMost = 10 * time.Second
	openSlow = 3 * time.Second
)

// open opens the store, if the files are in one. Requests to it end with ctx. What takes long is reported on stderr.
func (f *fileFlags) open(ctx context.Context) (err error) {
	if *f.address == "" {
		return nil
	}
	told := wait.Note(openSlow, func() { cli.TellWaiting(f.stderr(), cli.StoreName(*f.address), openMost, nil) })
	f.place, err = store.Open(ctx, *f.address, *f.url)
	told()
	if err != nil {
		return err
	}
	f.place.Patiently(f.stderr())
	return nil
}

// close disconnects from the store.
func (f *fileFlags) close() {
	if f.place != nil {
		f.place.Close()
	}
}

// fs returns the file system for package storage; nil is the operating system's.
func (f *fileFlags) fs() storage.FS {
	if f.place == nil {
		return nil
	}
	return f.place.FS
}

// remedied adds to an error the command that helps.
func (f *fileFlags) remedied(err error) error {
	if f.place == nil {
		return cli.WithRemedy(err)
	}
	return cli.InStore(err, f.place.Address)
}

// out returns a writer to w for output to people, which names files of a store by their name and the store's.
func (f *fileFlags) out(w io.Writer) io.Writer {
	if f.place == nil {
		return w
	}
	return cli.StoreWriter(w, f.place.Name)
}

// command returns the arguments of a command for a file, as a user would type them.
func (f *fileFlags) command(path string) string {
	if f.place == nil {
		return path
	}
	return cli.StoreArgument(f.place.Address) + " " + filepath.Base(path)
}

// commandForAll returns the arguments of a command for all files of a directory, or of the store.
func (f *fileFlags) commandForAll(dir string) string {
	if f.place == nil {
		return dir
	}
	return cli.StoreArgument(f.place.Address)
}

// whole is a set of directories, or of types in a store, whose files are all among those of a command.
type whole map[chainKey]bool

func (w whole) has(k chainKey) bool { return w[chainKey{dir: k.dir}] || w[k] }

// paths returns the files that the arguments of a command stand for, and the directories or types
// that are among them completely.
func (f *fileFlags) paths(command string, args []string) (paths []string, all whole, err error) {
	if f.place == nil {
		return filePaths(command, args)
	}
	all = whole{}
	if len(args) == 0 {
		all[chainKey{dir: filepath.Clean(f.place.Dir)}] = true
		paths, err = f.ofType("")
		return paths, all, err
	}
	for _, arg := range args {
		typ, path, err := f.place.Argument(arg)
		if err != nil {
			return nil, nil, err
		}
		found := []string{path}
		if typ != "" {
			if found, err = f.ofType(typ); err != nil {
				return nil, nil, err
			}
			all[chainKey{filepath.Clean(f.place.Dir), typ}] = true
		} else if err := f.exists(path); err != nil && !forgives(command, err) {
			return nil, nil, err
		}
		paths = append(paths, found...)
	}
	return paths, all, nil
}

// ofType returns the files of a type in the store, at least one; "" means all types.
func (f *fileFlags) ofType(typ string) ([]string, error) {
	paths, err := f.place.Files(typ)
	if err == nil && len(paths) == 0 {
		err = f.place.Nothing(typ)
	}
	return paths, err
}

// one returns the file that an argument names. In a store a type stands for all its files, and for the commands of succeeds a missing file
// for those that continue it: choose picks one of them.
func (f *fileFlags) one(command, arg string, choose func(paths []string) string) (string, error) {
	typ, path, err := "", arg, error(nil)
	if f.place != nil {
		if typ, path, err = f.place.Argument(arg); err != nil {
			return "", err
		}
	}
	switch {
	case typ != "":
		paths, err := f.ofType(typ)
		if err != nil {
			return "", err
		}
		return choose(paths), nil
	case f.place != nil:
		err = f.exists(path)
	default:
		err = readable(command, path)
	}
	if gone := (*missingError)(nil); errors.As(err, &gone) && len(gone.later) > 0 && succeeds(command) {
		return choose(gone.later), nil
	}
	return path, err
}

// succeeds reports whether a command goes on to the newest file of a type, no matter which of its files is named: keep may have removed that one.
func succeeds(command string) bool { return command == "compact" || command == "tail" }

func oldest(paths []string) string { return paths[0] }
func newest(paths []string) string { return paths[len(paths)-1] }

// size returns the size of a file, bytes.
func (f *fileFlags) size(path string) (int64, error) {
	return sizeIn(f.fs(), path)
}

// sizeIn returns the size of a file in a file system, bytes; nil is the operating system's.
func sizeIn(fsys storage.FS, path string) (int64, error) {
	if fsys == nil {
		return sizeOf(path)
	}
	file, err := fsys.Open(path, storage.ModeRead)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	return info.Size, err
}

// sizeOf returns the size of a file of the operating system, bytes.
func sizeOf(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// exists returns a *missingError if a file does not exist in the store, or was removed.
func (f *fileFlags) exists(path string) error {
	_, err := f.place.FS.Stat(path)
	removed := err == nil && f.removed(path)
	if !removed && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	typ, _, _ := storage.ParseName(filepath.Base(path))
	others, err := f.place.Files(typ)
	if err != nil {
		return err
	}
	return missing(path, others, removed, "check its name, and that this is the right store")
}

// removed reports whether a file was removed from the store, where Stat still finds it.
func (f *fileFlags) removed(path string) bool {
	file, err := f.place.FS.Open(path, storage.ModeRead)
	if err == nil {
		file.Close()
	}
	return errors.Is(err, fs.ErrNotExist)
}

// meant returns a usage error if arg does not exist, according to err from looking for it, and does not look like a file name:
// it may be the name of a type.
func meant(arg string, err error) error {
	if errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(arg, storage.FileName("")) {
		if isStore(arg) {
			return cli.Usagef("%s looks like the address of a store; give it as %s, and types or names of files in it as arguments", cli.StoreName(arg), cli.StoreArgument(cli.StoreName(arg)))
		}
		return cli.Usagef("%s does not exist; name a type's file, such as data/orders.fpl", arg)
	}
	return nil
}

// filesIn returns the paths of the types' files in a directory. It does not use filepath.Glob, which takes some directory names for patterns.
func filesIn(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), storage.FileName("")) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// filePaths returns the files that the arguments of a command stand for, and the directories among
// the arguments.
func filePaths(command string, args []string) (paths []string, dirs whole, err error) {
	if len(args) == 0 {
		return nil, nil, cli.Usagef("no file; name the files to %s, as in fencepost %s data/orders.fpl", command, command)
	}
	dirs = whole{}
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			if err := readable(command, arg); err != nil && !forgives(command, err) {
				return nil, nil, err
			}
			paths = append(paths, arg)
			continue
		}
		found, err := filesIn(arg)
		if err != nil {
			return nil, nil, err
		}
		if len(found) == 0 {
			return nil, nil, &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no %s files in %s", storage.FileName(""), arg)}
		}
		dirs[chainKey{dir: filepath.Clean(arg)}] = true
		paths = append(paths, found...)
	}
	return paths, dirs, nil
}

// forgives reports whether a command takes a file that is missing according to err: a file means all files of its type to keep, which may have
// removed this one.
func forgives(command string, err error) bool {
	return command == "keep" && errors.As(err, new(*missingError))
}

// readable returns an error that says what to do if the argument of a command is not a file that can hold messages. It says nothing about the
// contents of a file with the name of one.
func readable(command, arg string) error {
	info, err := os.Stat(arg)
	switch named := strings.HasSuffix(arg, storage.FileName("")); {
	case errors.Is(err, fs.ErrNotExist) && named:
		others, _ := filesIn(filepath.Dir(arg)) // without a directory there are none
		return missing(arg, others, false, "check the path, and that its volume is mounted")
	case err != nil:
		return meant(arg, err) // opening it reports other errors
	case info.IsDir():
		return cli.Usagef("%s is a directory; name a type's file in it, as in fencepost %s %s", arg, command, filepath.Join(arg, storage.FileName("orders")))
	case named || !info.Mode().IsRegular():
		return nil
	}
	r, err := storage.OpenReader(arg, storage.ReaderOptions{})
	if err == nil {
		return r.Close()
	}
	if foreign := (*storage.ForeignFileError)(nil); !errors.As(err, &foreign) {
		return nil
	}
	what := "is not a Fencepost file"
	if isEmbeddedDatabase(arg) {
		what = "belongs to the embedded database, which holds queue, registry and locks; leave it there"
	}
	return cli.Usagef("%s %s; name a type's file, such as %s", arg, what, filepath.Join(filepath.Dir(arg), storage.FileName("orders")))
}

// isEmbeddedDatabase reports whether a file belongs to an SQLite database.
func isEmbeddedDatabase(path string) bool {
	path = strings.TrimSuffix(strings.TrimSuffix(path, "-wal"), "-shm")
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	const magic = "SQLite format 3\x00"
	b := make([]byte, len(magic))
	_, err = io.ReadFull(f, b)
	return err == nil && string(b) == magic
}

// missingError says that a type's file does not exist, and which files the type has there.
type missingError struct {
	path, typ string
	others    []string // paths, oldest first
	later     []string // those of later generations
	check     string   // what to check if there are none
	removed   bool     // from a store: it never exists again
}

func (e *missingError) Error() string {
	what, restore := e.path+" does not exist", ", or restore "+filepath.Base(e.path)+" from a copy if it was there"
	if e.removed {
		what, restore = e.path+" was removed as an old one", ""
	}
	switch n := len(e.others); n {
	case 0:
		return what + "; " + e.check
	case 1:
		return fmt.Sprintf("%s; the file of type %s there is %s: name that one%s", what, e.typ, filepath.Base(e.others[0]), restore)
	default:
		return fmt.Sprintf("%s; the files of type %s there are %s to %s: name one of them%s", what, e.typ, filepath.Base(e.others[0]), filepath.Base(e.others[n-1]), restore)
	}
}

// missing returns the error for a type's file that does not exist among those in its place.
func missing(path string, there []string, removed bool, check string) error {
	e := &missingError{path: path, check: check, removed: removed}
	generationOf := func(path string) (g uint64) {
		_, g, _ = storage.ParseName(filepath.Base(path))
		return g
	}
	var ok bool
	if e.typ, _, ok = storage.ParseName(filepath.Base(path)); ok {
		for _, p := range there {
			if typ, _, _ := storage.ParseName(filepath.Base(p)); typ == e.typ {
				e.others = append(e.others, p)
			}
		}
	}
	slices.SortFunc(e.others, func(a, b string) int { return cmp.Compare(generationOf(a), generationOf(b)) })
	for i, p := range e.others {
		if generationOf(p) > generationOf(path) {
			e.later = e.others[i:]
			break
		}
	}
	return &cli.Error{Code: cli.ExitUsage, Err: e}
}
