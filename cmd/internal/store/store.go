// Package store opens the store that --store names. A store keeps files where every machine can reach
// them, instead of in a directory.
//
//	mongodb:                    a collection of the database of --url
//	mongodb://host/database     a collection of another database
//	s3://bucket/prefix          a bucket of S3 or of a service with the same protocol
//	shared:/srv/fencepost       a directory that machines share over the network
//
// Its errors contain no secrets.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/mongourl"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

const (
	askTimeout = 10 * time.Second
	clearers   = 8 // concurrent deletions
)

// Place is an open store. It is safe for concurrent use.
type Place struct {
	FS   *slots.FS // for the functions of package storage
	Dir  string    // the directory to pass to them; paths in their errors begin with it
	Name string    // for people: the address without secrets

	// Address is the value for --store, without secrets: the name and the settings for writing.
	Address string

	store slots.Store
}

// Flag adds --store to a command whose files are otherwise in a directory.
func Flag(cmd *cobra.Command) *string {
	return cli.StoreFlag(cmd, "the files are in a store that every machine reaches, instead of --dir")
}

// FlagOfReader adds --store to a command that reads the files that its arguments name.
func FlagOfReader(cmd *cobra.Command) *string {
	return cli.StoreFlag(cmd, "the files are in a store, and arguments are types or names of files in it, as in orders or orders@0002.fpl")
}

// URLFlag adds --url and --url-file to a command that needs them with --store only.
func URLFlag(cmd *cobra.Command) *string {
	url := new(string)
	cli.URLVar(cmd, url, fencepost.DefaultURL, "with --store mongodb: the database that the store is in")
	return url
}

// CheckFlags refuses flags that cannot be combined, and an invalid address. It queries no server.
func CheckFlags(cmd *cobra.Command, address, url string) error {
	if address == "" {
		return nil // files are in a directory
	}
	return errors.Join(cli.NoDirWithStore(cmd), Check(address, url))
}

// Check refuses an invalid address. It queries no server.
func Check(address, url string) error {
	scheme, rest, _ := strings.Cut(address, ":")
	switch {
	case address == "mongodb:":
		if !IsMongo(url) {
			return cli.Usagef("store mongodb: means the database of --url, and %s is an embedded one on this machine; use --url mongodb://host/database, or the store shared:/directory",
				fencepost.Redact(url))
		}
		return nil
	case IsMongo(address):
		return nil
	case scheme == "s3":
		if err := s3slots.CheckAddress(address); err != nil {
			return cli.Usagef("store: %w", err)
		}
		return nil
	case scheme+":" == cli.SharedScheme:
		return checkShared(rest)
	}
	return cli.Usagef("%s is not the address of a store; use mongodb: for the database of --url, mongodb://host/database, s3://bucket/prefix, or shared:/directory. "+
		"Name a directory of this machine by its path, not as a store", cli.StoreName(address))
}

// IsMongo reports whether an address or --url names a MongoDB server.
func IsMongo(url string) bool {
	return strings.HasPrefix(url, "mongodb://") || strings.HasPrefix(url, "mongodb+srv://")
}

func checkShared(dir string) error {
	if !filepath.IsAbs(dir) {
		return cli.Usagef("store %s%s: the directory must be an absolute path, as in shared:/srv/fencepost", cli.SharedScheme, dir)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// rule: a shared directory is never created: the mount may be missing, and no other machine
		// would see files on this machine's disk.
		return cli.Usagef("store %s%s: the directory does not exist; mount its file system, or create the directory once", cli.SharedScheme, dir)
	case err != nil:
		return cli.Usagef("store %s%s: %w", cli.SharedScheme, dir, err)
	case !info.IsDir():
		return cli.Usagef("store %s%s is not a directory; name one", cli.SharedScheme, dir)
	}
	return nil
}

// Linger returns how long a worker waits by default for more messages before it writes to the store. address
// is one that Check has accepted.
func Linger(address string) time.Duration {
	switch {
	case strings.HasPrefix(address, cli.SharedScheme):
		return dirslots.Linger
	case strings.HasPrefix(address, "s3:"):
		return s3slots.Linger
	}
	return mongoslots.Linger
}

// Open opens the store at an address; mongodb: is in the database of url. It waits for a server for at
// most 10 s. All requests to the store end with ctx; see [Place.Until].
func Open(ctx context.Context, address, url string) (*Place, error) {
	if err := Check(address, url); err != nil {
		return nil, err
	}
	name := cli.StoreName(address)
	var s slots.Store
	var err error
	dir, isShared := strings.CutPrefix(address, cli.SharedScheme)
	switch {
	case isShared:
		s, err = dirslots.Open(dir)
	case strings.HasPrefix(address, "s3:"):
		s, err = s3slots.Open(ctx, address)
	default:
		if IsMongo(address) {
			url = address
		}
		s, err = mongoslots.Open(ctx, url, mongoslots.Options{Address: name})
	}
	if errors.Is(err, mongourl.ErrURL) {
		return nil, cli.Usagef("%w", err)
	}
	if err != nil {
		return nil, err
	}
	return newPlace(ctx, s, address), nil
}

func newPlace(ctx context.Context, s slots.Store, address string) *Place {
	name := cli.StoreName(address)
	return &Place{FS: slots.New(ctx, s), Dir: name, Name: name, Address: cli.StoreAddress(address), store: s}
}

// Until returns the file system of the place. Its requests end with ctx instead of the context of Open.
func (p *Place) Until(ctx context.Context) storage.FS { return p.FS.Until(ctx) }

// Observed is Until with an observer of the requests.
func (p *Place) Observed(ctx context.Context, observe func(slots.Request)) storage.FS {
	return p.FS.Observed(ctx, observe)
}

// Ask checks that the store answers, with one request that changes nothing.
func (p *Place) Ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := p.store.Folders(ctx, "")
	return err
}

// Probe checks that the store keeps its guarantees, see [slots.Probe].
func (p *Place) Probe(ctx context.Context) error { return p.FS.Until(ctx).Probe() }

// Patiently makes the place report on w, once, that a request takes long, and why.
func (p *Place) Patiently(w io.Writer) {
	var once sync.Once
	p.FS = p.FS.Slow(func(within time.Duration, err error) {
		once.Do(func() { cli.TellWaiting(w, p.Name, within, err) })
	})
}

// Clear removes everything from the store. No program may use it at the time.
func (p *Place) Clear(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(clearers)
	return errors.Join(p.clear(ctx, &g, ""), g.Wait())
}

func (p *Place) clear(ctx context.Context, g *errgroup.Group, folder string) error {
	folders, err := p.store.Folders(ctx, folder)
	if err != nil {
		return err
	}
	for _, name := range folders {
		sub := path.Join(folder, name)
		values, err := p.store.List(ctx, sub)
		if err != nil {
			return err
		}
		for _, v := range values {
			g.Go(func() error { return p.store.Delete(ctx, v.Name) })
		}
		if err := p.clear(ctx, g, sub); err != nil {
			return err
		}
	}
	return nil
}

// Close disconnects.
func (p *Place) Close() error {
	if c, ok := p.store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Files returns the paths of all files of a type, sorted by type and generation; "" means all types.
func (p *Place) Files(typ string) ([]string, error) {
	names, err := p.FS.List(p.Dir, typ)
	if err != nil {
		return nil, err
	}
	type file struct {
		typ        string
		generation uint64
	}
	var found []file
	for _, name := range names {
		if t, g, ok := storage.ParseName(name); ok && (typ == "" || t == typ) {
			found = append(found, file{t, g})
		}
	}
	slices.SortFunc(found, func(a, b file) int { return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.generation, b.generation)) })
	paths := make([]string, 0, len(found))
	for _, f := range slices.Compact(found) {
		paths = append(paths, p.path(storage.GenerationName(f.typ, f.generation)))
	}
	return paths, nil
}

func (p *Place) path(name string) string { return filepath.Join(p.Dir, name) }

// Argument returns what an argument of a command names: a type, or the path of one file.
func (p *Place) Argument(arg string) (typ, path string, err error) {
	name := arg
	if base := filepath.Base(arg); base != arg && filepath.Dir(arg) == filepath.Clean(p.Dir) {
		name = base // a path as in errors of package storage
	}
	if _, _, ok := storage.ParseName(name); ok {
		return "", p.path(name), nil
	}
	if queue.ValidateType(name) == nil {
		return name, "", nil
	}
	return "", "", cli.Usagef("%q is neither a type nor the name of a type's file; with --store %s name one as in orders, orders.fpl or orders@0002.fpl. "+
		"Files in directories are named without --store", arg, p.Name)
}

// Nothing returns the error of a command that finds no files of a type; "" means of any type.
func (p *Place) Nothing(typ string) error {
	err := fmt.Errorf("there are no files in %s", p.Name)
	if typ != "" {
		err = fmt.Errorf("there are no files of type %s in %s", typ, p.Name)
	}
	return &cli.Error{Code: cli.ExitNothing, Err: err}
}
