package storage

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// recentFor is how long [sharedFS.listRecent] may reuse a listing.
const recentFor = time.Second

// Shared returns an FS for many writers of one process whose files are in the same directory. Listing or syncing a large
// directory takes long, so calls that wait at the same time share one execution. A store of slots has nothing to share, and
// is returned unchanged.
func Shared(fsys FS) FS {
	fsys = orOS(fsys)
	if _, slots := fsys.(HalfRemover); slots {
		return fsys
	}
	return &sharedFS{FS: fsys, dirs: map[string]*sharedDir{}}
}

type sharedFS struct {
	FS
	mu   sync.Mutex
	dirs map[string]*sharedDir
}

type sharedDir struct {
	list gather[string, map[string][]string]   // the names of the files of some types
	all  gather[struct{}, map[string][]string] // the names of the files of all types, listed within the last second
	sync gather[struct{}, struct{}]

	// Used only by the running call of all.
	recent map[string][]string
	listed time.Time // when that listing began
}

func (s *sharedFS) dir(name string) *sharedDir {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dirs[name]
	if d == nil {
		d = &sharedDir{list: newGather[string, map[string][]string](), all: newGather[struct{}, map[string][]string](), sync: newGather[struct{}, struct{}]()}
		s.dirs[name] = d
	}
	return d
}

// List returns only the names of one type's files, so that its caller need not go through those of all others.
func (s *sharedFS) List(dir, typ string) ([]string, error) {
	if typ == "" {
		return s.FS.List(dir, typ)
	}
	byType, err := s.dir(dir).list.do(typ, func(types []string) (map[string][]string, error) {
		byType := make(map[string][]string, len(types))
		for _, t := range types {
			byType[t] = nil
		}
		names, err := s.FS.List(dir, "")
		for _, name := range names {
			t := typeOfName(name)
			if of, asked := byType[t]; asked {
				byType[t] = append(of, name)
			}
		}
		return byType, err
	})
	return slices.Clone(byType[typ]), err
}

// listRecent returns a result of List that was current within the last second. A process that opens thousands of types lists
// their directory once a second, not once for each type.
func (s *sharedFS) listRecent(dir, typ string) ([]string, error) {
	d := s.dir(dir)
	byType, err := d.all.do(struct{}{}, func([]struct{}) (map[string][]string, error) {
		if time.Since(d.listed) < recentFor {
			return d.recent, nil
		}
		began := time.Now()
		names, err := s.FS.List(dir, "")
		if err != nil {
			return nil, err
		}
		d.recent, d.listed = make(map[string][]string, len(names)), began
		for _, name := range names {
			t := typeOfName(name)
			d.recent[t] = append(d.recent[t], name)
		}
		return d.recent, nil
	})
	return byType[typ], err
}

func (s *sharedFS) SyncDir(name string) error {
	_, err := s.dir(name).sync.do(struct{}{}, func([]struct{}) (struct{}, error) { return struct{}{}, s.FS.SyncDir(name) })
	return err
}

// typeOfName returns the type for which ParseName or ParseTempName may accept name; for a name that both refuse the result is
// arbitrary. It is called for each name in a directory, and allocates nothing.
func typeOfName(name string) string {
	if temp, ok := strings.CutSuffix(name, ".tmp"); ok && strings.HasPrefix(temp, ".") {
		name = temp[1:max(strings.LastIndexByte(temp, '.'), 1)]
	}
	name = strings.TrimSuffix(name, fileSuffix)
	typ, _, _ := strings.Cut(name, "@")
	return typ
}

// gather lets calls that wait at the same time share one execution. Each call has an argument.
type gather[A, T any] struct {
	turn chan struct{} // full while a shared call runs
	mu   sync.Mutex
	next *gathered[A, T] // the shared call that has not begun, or nil
}

type gathered[A, T any] struct {
	args   []A
	done   chan struct{}
	result T
	err    error
}

func newGather[A, T any]() gather[A, T] { return gather[A, T]{turn: make(chan struct{}, 1)} }

// do returns the result of f for the arguments of several calls, including arg.
func (g *gather[A, T]) do(arg A, f func(args []A) (T, error)) (T, error) {
	g.mu.Lock()
	c := g.next
	first := c == nil
	if first {
		c = &gathered[A, T]{done: make(chan struct{})}
		g.next = c
	}
	c.args = append(c.args, arg)
	g.mu.Unlock()
	if first {
		g.turn <- struct{}{}
		// rule: a call that arrives from here on waits for the next shared call. This one may miss a change that the caller has just
		// made, or that another process made before the caller got its lock.
		g.mu.Lock()
		g.next = nil
		g.mu.Unlock()
		c.result, c.err = f(c.args)
		close(c.done)
		<-g.turn
	}
	<-c.done
	return c.result, c.err
}
