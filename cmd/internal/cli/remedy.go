package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// WithRemedy is withRemedy for files in directories.
func WithRemedy(err error) error { return withRemedy(err, "") }

// withRemedy adds to an error the command that helps; store is the address of the files' store. The libraries do not know the commands: their
// errors say what is wrong, and what to do in words. Errors joined by errors.Join get a remedy each.
func withRemedy(err error, store string) error {
	if parts := printable.Joined(err); parts != nil {
		for i, part := range parts {
			parts[i] = withRemedy(part, store)
		}
		return errors.Join(parts...)
	}
	if command := remedy(err, store); command != "" {
		return &remedied{err, command}
	}
	return err
}

type remedied struct {
	error
	command string
}

func (e *remedied) Error() string { return e.error.Error() + "; " + e.command }
func (e *remedied) Unwrap() error { return e.error }

// remedy returns the command that helps with err; "" if there is none.
func remedy(err error, store string) string {
	var (
		paused   *queue.PausedError
		full     *queue.BacklogFullError
		drained  *worker.PausedError
		blocked  *worker.BlockedError
		unfit    *worker.UnfitError
		damaged  *lock.DamagedError
		cut      *storage.CutError
		mismatch *storage.RegistryMismatch
		conflict *storage.CopyConflict
		busy     *admin.BusyError
		search   *mongoerr.Search
		told     *remedied
		server   *noServer // its text has the remedy
	)
	switch {
	case errors.As(err, &told), errors.As(err, &server):
		return ""
	case errors.As(err, &paused):
		return "to resume it: fencepost types resume " + paused.Type
	case errors.As(err, &full):
		return "the command for that: fencepost types limit " + full.Type + " --max-backlog N"
	case errors.As(err, &drained):
		return "to resume it: fencepost types resume " + drained.Type
	case errors.As(err, &blocked):
		return "to make such messages dead letters: start the worker with --on-error dead"
	case errors.As(err, &unfit):
		return "to list them: fencepost types show " + unfit.Type
	case errors.As(err, &damaged):
		return "to remove it: fencepost locks release --force --why TEXT " + damaged.Name
	case errors.As(err, &busy):
		return "to take the lock away: fencepost locks release --force --why TEXT " + busy.Lock
	case errors.As(err, &cut):
		return "to give up the missing messages: fencepost repair " + fileArguments("--accept-loss", cut.Path, store)
	case errors.As(err, &mismatch) && mismatch.Newer != 0:
		return "to register this one: fencepost repair " + fileArguments("--adopt", mismatch.Path, store)
	case errors.As(err, &mismatch) && mismatch.Lost():
		giveUp := "fencepost repair " + fileArguments("--accept-loss", mismatch.Path, store)
		if where := elsewhere(mismatch, store); where != "" {
			return "to continue with the file where it was kept, start workers of this type " + where + moveHere(mismatch, store) + "; only if it is lost there, give it up: " + giveUp
		}
		look := ""
		if store == "" && (mismatch.Missing || mismatch.Older != 0) {
			look = "to see whether it has another name there: fencepost verify " + filepath.Dir(mismatch.Path) + "; "
		}
		return look + "to give up the lost messages: " + giveUp
	case errors.As(err, &mismatch) && elsewhere(mismatch, store) != "":
		return "to continue with the registered file, start workers of this type " + elsewhere(mismatch, store) + moveHere(mismatch, store)
	case errors.As(err, &mismatch) && mismatch.FileID != storage.FileID{} && !mismatch.Unregistered:
		giveUp := "fencepost repair " + fileArguments("--accept-loss", mismatch.Path, store)
		if store == "" {
			return "after moving this one away: " + giveUp
		}
		// See storage/FORMAT.md, section slots: without its name, the file does not exist.
		typ, generation, _ := storage.ParseName(filepath.Base(mismatch.Path))
		return fmt.Sprintf("to move it away, save and remove the value %s/generations/%08d of the store, which is its name; then: %s", typ, generation, giveUp)
	case errors.As(err, &conflict) && conflict.Removed:
		return "to remove old files: fencepost keep"
	case errors.As(err, &search):
		return search.Check
	}
	return ""
}

// elsewhere returns how to start workers where the registered file was kept; "" if that is here or
// unknown.
func elsewhere(m *storage.RegistryMismatch, store string) string {
	place, here := m.Registered.Place, StoreName(store)
	if here == "" {
		here = worker.Place(nil, filepath.Dir(m.Path))
	}
	if place == "" || place == here {
		return ""
	}
	if host, dir, ok := Directory(place); ok {
		return "on host " + host + " with --dir " + dir
	}
	return "with " + StoreArgument(place)
}

// Directory returns the host and the directory of a place as workers register it; ok is false for a store.
func Directory(place string) (host, dir string, ok bool) {
	host, dir, _ = strings.Cut(place, ":")
	return host, dir, filepath.IsAbs(dir) && !strings.HasPrefix(dir, "//") && host+":" != SharedScheme
}

// moveHere returns how to copy the type from where its file was kept; "" if both places are directories, on different hosts.
func moveHere(m *storage.RegistryMismatch, store string) string {
	from, to, on := m.Registered.Place, store, ""
	if to == "" {
		to = filepath.Dir(m.Path)
	}
	if _, dir, ok := Directory(from); ok {
		if store == "" {
			return ""
		}
		from, on = dir, "on that host "
	}
	typ, _, _ := storage.ParseName(filepath.Base(m.Path))
	return ", or move the type here: " + on + "fencepost copy --yes " + shellWord(from) + " " + shellWord(to) + " " + typ
}

// fileArguments returns the arguments of a command for a file.
func fileArguments(option, path, store string) string {
	if store == "" {
		return option + " " + path
	}
	return StoreArgument(store) + " " + option + " " + filepath.Base(path)
}
