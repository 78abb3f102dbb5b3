package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/volume"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func doctorCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	var d doctor
	cmd := &cobra.Command{
		Use:   "doctor [TYPE]…",
		Short: "Check server, indexes, clocks, directory, files and pending messages, and say how to fix what is wrong",
		Long: `Doctor checks everything that workers rely on. It writes only a test file to the directory or test values to the store, and removes
them. It exits with 1 if something would prevent workers from working, or one of the oldest 100 messages of a type cannot be appended, with 3 if
a file is not the registered one, or a file of a type is missing, cut, renamed or a copy, and with 4 if no type has the given name. A
warning means that something works, but not as well as it could.

Of each file it reads the header and the end, from the last checkpoint on. In a store it also finds a slot that is missing anywhere.
To find damaged bytes in the middle of a file, use "fencepost verify", which reads all files.

It checks the files and messages of all types, or of those given by name or glob. If only some of the types have their files here, and others in
a store, or here is a store, it says where those are, as a warning. When --within has passed, it does not begin another type,
and reports how many it skipped.`,
		Example: `  fencepost doctor --dir /srv/fencepost
  fencepost doctor --url mongodb://db1,db2,db3/shop --dir /srv/fencepost -o json
  fencepost doctor --url mongodb://db1,db2,db3/shop --store mongodb:
  fencepost doctor --dir /srv/fencepost --within 1h 'customer-*'`,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().StringVar(&d.dir, "dir", "data", "directory of the files")
	d.files.address, d.files.url, d.files.stderr = store.Flag(cmd), url, cmd.ErrOrStderr
	cmd.Flags().BoolVar(&d.overlay, "allow-overlay", false, "accept a directory on an overlay file system")
	cmd.Flags().DurationVar(&d.within, "within", 5*time.Minute, "check files for at most this long, and then messages for as long again")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(cli.Between(cmd, "within", d.within, 1, 0, "more than 0"), checkGlobs(args)); err != nil {
			return err
		}
		if err := store.CheckFlags(cmd, *d.files.address, *url); err != nil {
			return err
		}
		defer d.files.close()
		if err := d.examine(cmd, *url, args); err != nil {
			return err
		}
		if output.Value == "json" {
			if err := printJSON(cmd, d.findings); err != nil {
				return err
			}
		} else {
			d.print(d.files.out(cmd.OutOrStdout()))
		}
		if d.code != 0 {
			return &cli.Error{Code: d.code, Err: errors.New("something is wrong, see above")}
		}
		return nil
	}
	return cmd
}

// finding is one line of the doctor's report.
type finding struct {
	Verdict string `json:"verdict"` // ok, warning, bad
	What    string `json:"what"`
	Text    string `json:"text"`
}

// leastRoom, in bytes: a volume with less is full.
const leastRoom = 1 << 20

type doctor struct {
	files    fileFlags
	dir      string // of the files, unless they are in a store
	overlay  bool
	types    []string      // to check
	within   time.Duration // for checking files, and again for checking messages
	findings []finding
	code     int // the program's exit code
}

func (d *doctor) good(what, format string, args ...any) {
	d.findings = append(d.findings, finding{"ok", what, fmt.Sprintf(format, args...)})
}

func (d *doctor) warn(what, format string, args ...any) {
	d.findings = append(d.findings, finding{"warning", what, fmt.Sprintf(format, args...)})
}

func (d *doctor) bad(code int, what, format string, args ...any) {
	d.findings = append(d.findings, finding{"bad", what, fmt.Sprintf(format, args...)})
	d.code = max(d.code, code)
}

func (d *doctor) print(w io.Writer) {
	for _, f := range d.findings {
		printable.Fprintf(w, "%-8s %-10s %s\n", f.Verdict, f.What, f.Text)
	}
}

// examine checks everything. An error means that it was stopped: all others are findings.
func (d *doctor) examine(cmd *cobra.Command, url string, args []string) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	defer cli.OnSignals(cancel, cancel)()
	err := withQueue(cmd, url, func(ctx context.Context, b *fencepost.Backend) error {
		d.good("server", "%s answers", b.Name)
		d.examineServer(ctx, b)
		var unlisted error
		d.types, unlisted = wantedTypes(ctx, b, args)
		if !d.examinePlace(ctx) {
			return errors.Join(ctx.Err(), unlisted, d.examineMessages(ctx, b.Queue))
		}
		if unlisted != nil {
			return errors.Join(ctx.Err(), unlisted)
		}
		dir := d.dir
		if d.files.place != nil {
			dir = d.files.place.Dir
		}
		// Findings made during a cancellation mean nothing.
		return errors.Join(ctx.Err(), d.examineFiles(ctx, b.Queue, dir), d.examineMessages(ctx, b.Queue))
	})
	// The place of the files can be examined without the queue, unless the files are in its database.
	if len(d.findings) == 0 && *d.files.address != "mongodb:" {
		d.examinePlace(ctx)
	}
	if errors.Is(err, context.Canceled) || ctx.Err() != nil {
		return cli.Stoppedf("stopped before everything was checked")
	}
	if code := cli.Code(err); code == cli.ExitNothing {
		d.bad(cmp.Or(d.code, code), "server", "%v", err) // the exit code of earlier findings takes precedence
	} else if err != nil {
		d.bad(code, "server", "%v", err)
	}
	return nil
}

// examineServer checks the kind of server, its indexes and its clock.
func (d *doctor) examineServer(ctx context.Context, b *fencepost.Backend) {
	if m, ok := b.Queue.(mongoBackend); ok {
		d.examineMongo(ctx, m.DB())
	}
	before := time.Now()
	now, err := b.Queue.Now(ctx)
	if err != nil {
		d.bad(cli.ExitFailed, "clock", "%v", err)
		return
	}
	switch off := now.Round(0).Sub(before.Round(0)); {
	case off > clock.Tolerance:
		d.warn("clock", "the server's is %v ahead of this machine's, more than %v; correct the one that is wrong. A worker on this machine promotes delayed messages by its own clock "+
			"at first, and by the server's after %v", off.Round(time.Second), clock.Tolerance, clock.Patience)
	case off < -clock.Tolerance:
		d.warn("clock", "the server's is %v behind this machine's, more than %v; correct the one that is wrong. Delayed messages are promoted by the server's", -off.Round(time.Second), clock.Tolerance)
	default:
		d.good("clock", "the server's and this machine's are at most %v apart", clock.Tolerance)
	}
}

func (d *doctor) examineMongo(ctx context.Context, db *mongo.Database) {
	var build struct {
		Version  string `bson:"version"`
		FerretDB struct {
			Version string `bson:"version"`
		} `bson:"ferretdb"`
	}
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
	}
	if err := db.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build); err != nil {
		d.warn("server", "does not report its version: %v", err)
	}
	if err := db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		d.warn("server", "does not report whether it is a replica set: %v", err)
	}
	switch {
	case build.FerretDB.Version != "":
		d.good("server", "FerretDB %s, compatible with MongoDB %s; durability is its PostgreSQL's", build.FerretDB.Version, build.Version)
	case hello.Msg == "isdbgrid":
		d.good("server", "MongoDB %s, sharded; shard the collections by _id", build.Version)
	case hello.SetName != "":
		d.good("server", "MongoDB %s, replica set %s", build.Version, hello.SetName)
		d.examineMajority(ctx, db)
	default:
		d.warn("server", "MongoDB %s, standalone: a crash may lose confirmed messages; use a replica set", build.Version)
	}
	d.good("writes", "publishes, dead letters, files and locks are acknowledged by a majority, whatever write concern the URL has")
	switch err := mongolock.CheckSetup(ctx, db, mongolock.Options{}); {
	case errors.Is(err, mongolock.ErrSetup):
		d.warn("indexes", "%v", err)
	case err != nil:
		d.bad(cli.ExitFailed, "indexes", "%v", err)
	default:
		d.good("indexes", "set up")
	}
}

// examineMajority checks whether a majority of the replica set can acknowledge writes, even if one more member fails.
func (d *doctor) examineMajority(ctx context.Context, db *mongo.Database) {
	var status struct {
		Majority int `bson:"writeMajorityCount"`
		Members  []struct {
			Name  string `bson:"name"`
			State string `bson:"stateStr"`
		} `bson:"members"`
	}
	err := db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Decode(&status)
	if err != nil || status.Majority == 0 {
		d.good("writes", "this user may not see which members are up")
		return
	}
	bearing := 0
	var down []string
	for _, m := range status.Members {
		switch {
		case m.State == "PRIMARY" || m.State == "SECONDARY":
			bearing++
		case m.State != "ARBITER":
			down = append(down, m.Name+" "+m.State)
		}
	}
	switch {
	case bearing < status.Majority:
		d.bad(cli.ExitFailed, "writes", "%d members can acknowledge writes, a majority is %d: nothing can be published or locked; %s", bearing, status.Majority, strings.Join(down, ", "))
	case len(down) > 0:
		d.warn("writes", "%s: the other members are enough for now", strings.Join(down, ", "))
	case bearing == status.Majority:
		d.warn("writes", "when one of the %d data-bearing members is down, nothing can be published or locked; three of them tolerate one failure", bearing)
	default:
		d.good("writes", "%d members can acknowledge writes, a majority is %d", bearing, status.Majority)
	}
}

// examinePlace checks where the files are. It returns whether files can be checked there.
func (d *doctor) examinePlace(ctx context.Context) (usable bool) {
	if *d.files.address != "" {
		return d.examineStore(ctx)
	}
	return d.examineDirectory(d.dir)
}

// examineDirectory checks the directory of the files and its file system. It returns whether files can be checked in it.
func (d *doctor) examineDirectory(dir string) bool {
	info, err := os.Stat(dir)
	if err := storage.CheckDirectory(dir, storage.Options{AllowOverlay: d.overlay}); err != nil {
		d.bad(cli.ExitFailed, "directory", "%v", err)
		return info != nil && info.IsDir()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.good("directory", "%s does not exist yet; the first worker creates it", dir)
	case err != nil:
		d.bad(cli.ExitFailed, "directory", "%v", err)
		return false
	case !info.IsDir():
		d.bad(cli.ExitFailed, "directory", "%s is not a directory; name another one with --dir", dir)
		return false
	default:
		f, err := os.CreateTemp(dir, ".doctor-*")
		if err != nil {
			d.bad(cli.ExitFailed, "directory", "%s is not writable: %v; run as the user of the workers, or give that user access", dir, err)
			return true
		}
		f.Close()
		os.Remove(f.Name())
		d.examineRoom("directory", dir, dir+" is writable, on a trusted file system")
	}
	return true
}

// examineRoom checks how much room the volume of dir has. good says what is right about dir otherwise.
func (d *doctor) examineRoom(what, dir, good string) {
	room, err := volume.Of(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		d.good(what, "%s", good)
		return
	}
	if err != nil {
		d.bad(cli.ExitFailed, what, "%v", err)
		return
	}
	left := fmt.Sprintf("%s of %s free", humanize.IBytes(uint64(room.Free)), humanize.IBytes(uint64(room.Size)))
	const remedy = "free space or enlarge the volume; fencepost keep removes old files"
	switch {
	case room.Free < leastRoom:
		d.bad(cli.ExitFailed, what, "%s is on a full volume, %s: every type waits; %s", dir, left, remedy)
	case room.Low():
		d.warn(what, "%s is on a volume that fills up, %s: when it is full, every type waits; %s", dir, left, remedy)
	default:
		d.good(what, "%s, %s", good, left)
	}
}

// examineStore opens the store of the files, and probes whether it keeps its guarantees. It returns whether files can be checked in it.
func (d *doctor) examineStore(ctx context.Context) bool {
	if err := d.files.open(ctx); err != nil {
		d.bad(cli.ExitFailed, "store", "%v", err)
		return false
	}
	// rule: a store that breaks its guarantees is bad, even if everything else is fine.
	if err := d.files.place.Probe(ctx); err != nil {
		d.bad(cli.ExitFailed, "store", "%v", err)
		return !errors.As(err, new(*slots.UnreachedError)) // the files would be waited for in vain
	}
	good := d.files.place.Name + " let one of 32 creates of the same value succeed, as required"
	if dir, shared := strings.CutPrefix(d.files.place.Address, cli.SharedScheme); shared {
		d.examineRoom("store", dir, good)
	} else {
		d.good("store", "%s", good)
	}
	return true
}

// late reports whether no time is left for the types from next on, and warns about them.
func (d *doctor) late(what string, began time.Time, next int) bool {
	if time.Since(began) < d.within {
		return false
	}
	rest := d.types[next:]
	d.warn(what, "%d of %d types were not checked, the first one is %s: time ran out; use a longer --within, or name types", len(rest), len(d.types), rest[0])
	return true
}

// examineFiles compares the registered files with those in the directory.
func (d *doctor) examineFiles(ctx context.Context, q queue.FileRegistry, dir string) error {
	began, right, all := time.Now(), 0, true
	elsewhere := map[string][]absence{} // by the place that is registered
	for i, typ := range d.types {
		if d.late("files", began, i) {
			all = false
			break
		}
		f, ok, err := q.RegistryEntry(ctx, typ)
		switch {
		case errors.Is(err, queue.ErrDamaged):
			d.bad(cli.ExitFailed, "files", "%v", err)
			continue
		case err != nil:
			return err
		case !ok:
			continue // nothing was written yet
		}
		// The check that workers make. Nothing else finds a file that is only older than it was.
		wrong := []error{storage.CheckRegistered(d.files.fs(), dir, typ, storageEntry(f))}
		if wrong[0] == nil {
			var chain storage.Chain
			if chain, wrong = checkChain(d.files.fs(), dir, typ); len(chain) > 0 {
				d.tellWhatIsKept(typ, dir, chain)
				if err := d.compareNewest(ctx, q, typ, &chain[len(chain)-1]); err != nil {
					return err
				}
			}
		}
		var mismatch *storage.RegistryMismatch
		for _, err := range wrong {
			if errors.As(err, &mismatch) && (mismatch.Missing || mismatch.Older != 0) && f.Place != worker.Place(d.files.fs(), dir) {
				elsewhere[f.Place] = append(elsewhere[f.Place], absence{typ, err})
				continue
			}
			if errors.As(err, new(*storage.HoleError)) {
				err = fmt.Errorf("%w; fencepost verify %s shows which messages were in it", err, d.files.commandForAll(dir))
			}
			d.bad(cli.Code(err), "files", "%v", d.files.remedied(err))
		}
		if len(wrong) == 0 {
			right++
		}
	}
	d.tellWhatIsElsewhere(elsewhere, right > 0)
	if right > 0 {
		d.good("files", "%d of %d types have their registered files here. Of each file the header and the end, from the last checkpoint on, were read; "+
			"fencepost verify %s reads all of them", right, len(d.types), d.files.commandForAll(dir))
	} else if d.code == 0 && all {
		d.good("files", "none is registered yet")
	}
	return nil
}

// absence is a type whose registered file is not here.
type absence struct {
	typ string
	err error
}

// tellWhatIsElsewhere reports the types whose files are registered in other places. If other types have their files here, a type in another kind of
// place was moved: that is a warning. Otherwise this may be the wrong place, or a volume is not mounted.
func (d *doctor) tellWhatIsElsewhere(places map[string][]absence, some bool) {
	const named = 10
	for _, place := range slices.Sorted(maps.Keys(places)) {
		var types []string
		for _, a := range places[place] {
			types = append(types, a.typ)
		}
		host, dir, isDir := cli.Directory(place)
		if some && place != "" && (d.files.place != nil || !isDir) {
			check := "fencepost doctor " + cli.StoreArgument(place)
			if isDir {
				check = "on host " + host + ", fencepost doctor --dir " + dir
			}
			if len(types) > named {
				d.warn("files", "%s and %d more types have their files in %s, and are not checked here; to check them: %s", strings.Join(types[:named], ", "), len(types)-named, place, check)
			} else {
				d.warn("files", "%s: the files are in %s, and are not checked here; to check them: %s %s", strings.Join(types, ", "), place, check, strings.Join(types, " "))
			}
			continue
		}
		err := places[place][0].err
		d.bad(cli.Code(err), "files", "%v", d.files.remedied(err))
		switch more := types[1:]; {
		case len(more) > named:
			d.bad(cli.ExitIntegrity, "files", "the same is true of %d more types: %s and others", len(more), strings.Join(more[:named], ", "))
		case len(more) > 0:
			d.bad(cli.ExitIntegrity, "files", "the same is true of %s", strings.Join(more, ", "))
		}
	}
}

// tellWhatIsKept reports that generations are missing, so that the operator looks for messages that a repair gave up.
func (d *doctor) tellWhatIsKept(typ, dir string, chain storage.Chain) {
	if newest := chain[len(chain)-1].Generation; newest > uint64(len(chain)) {
		d.good("files", "%s: %d of %d generations are here; the others were archived, replaced by a compaction, or given up by a repair: fencepost verify %s says "+
			"what is lost, and where the kept messages begin", typ, len(chain), newest, d.files.commandForAll(dir))
	}
}

// compareNewest looks for signs that the newest file of a type is used with another database, too, or that this database was restored to an
// earlier state. Workers may be running, so the registry entry is read after the file.
func (d *doctor) compareNewest(ctx context.Context, q queue.FileRegistry, typ string, newest *storage.Link) error {
	if newest.Err != nil {
		return nil
	}
	f, ok, err := q.RegistryEntry(ctx, typ)
	if err != nil || !ok {
		return err
	}
	switch {
	case f.Generation < newest.Generation:
		d.warn("files", "%s is registered as generation %d: the database was restored to an earlier state, or a worker was interrupted; the next worker of the type registers %s",
			typ, f.Generation, newest.Path)
	case f.FileID == newest.FileID && f.Epoch < newest.Epoch:
		d.warn("files", "%s was opened with epoch %d, and this database knows of epoch %d: it was restored to an earlier state, or workers of another database use this directory, "+
			"too, and keep taking the files from one another; fencepost verify -v says which host and process opened it last", newest.Path, newest.Epoch, f.Epoch)
	}
	return nil
}

// checkChain checks that the files of a type follow one another and that no slot is missing, and returns the files. It reads their headers and
// ends. It does not check that the newest is here: CheckRegistered did.
func checkChain(fsys storage.FS, dir, typ string) (chain storage.Chain, wrong []error) {
	chain, err := storage.ReadChain(fsys, dir, typ)
	if err != nil {
		return nil, []error{err}
	}
	for _, e := range chain.Check() {
		wrong = append(wrong, e)
	}
	var replaced map[string]bool
	if len(wrong) == 0 {
		replaced = chain.Replaced()
	}
	for i := range chain {
		if l := &chain[i]; !replaced[l.Path] {
			if err := cmp.Or(l.Err, l.Missing); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	return chain, wrong
}
