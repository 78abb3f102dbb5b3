//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fencepost/fencepost/tools/internal/overlay"
)

// variant is the product with some lines of its source, or of Go's own, replaced in the build (go build -overlay): for what cannot be done
// to a program from outside, and to show what happens without a safety rule.
type variant struct {
	text  string
	edits []edit
	adds  map[string]string // new files

	rewrite func(source string) string // of every file of the product
}

// product are the directories that rewrite applies to.
var product = []string{".", "cmd", "internal/backlog", "internal/sqlitedb", "lock", "queue", "storage", "worker"}

var timeNow = regexp.MustCompile(`\btime\.Now\b`)

func clockRewrite(source string) string {
	if !timeNow.MatchString(source) || !strings.Contains(source, "\t\"time\"\n") {
		return source
	}
	source = timeNow.ReplaceAllString(source, "chaosclock.Now")
	source = packageClause.ReplaceAllString(source, `$0; import "github.com/fencepost/fencepost/internal/chaosclock"`)
	return source + "\nvar _ time.Duration\n" // the import may have no other use
}

var packageClause = regexp.MustCompile(`(?m)^package \w+`)

// sources lists the files that rewrite applies to.
func sources(module string) (files []string, err error) {
	for _, dir := range product {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(module, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && dir == "." && path != module:
				return fs.SkipDir
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				files = append(files, path)
			}
			return nil
		}))
	}
	return files, err
}

// edit replaces a text that must be in the file exactly once.
type edit struct{ file, old, new string }

// clockFile and historyDir configure a variant's programs.
const (
	clockFile  = "CHAOS_CLOCK"   // a file with the offset of the wall clock in seconds
	historyDir = "CHAOS_HISTORY" // a directory for the histories of locks
)

var variants = map[string]variant{
	// A static Go program gets the time from the kernel, through no library that could be replaced, and all processes share the kernel's
	// wall clock. So every time that the product itself reads goes through a function that shifts the wall clock part.
	"clock": {
		text:    "the wall clock is wrong by what a file says",
		rewrite: clockRewrite,
		adds: map[string]string{"internal/chaosclock/clock.go": `package chaosclock
import ("os"; "strconv"; "sync/atomic"; "time"; "unsafe")
var wrongBy atomic.Int64
// Now is time.Now, with a wall clock that is wrong and a monotonic one that is right. A Time has the seconds above bit 30 of its first word.
func Now() time.Time {
	t := time.Now()
	*(*uint64)(unsafe.Pointer(&t)) += uint64(wrongBy.Load()) << 30
	return t
}
func init() {
	path := os.Getenv("` + clockFile + `")
	if path == "" { return }
	look := func() {
		if b, err := os.ReadFile(path); err == nil {
			if n, err := strconv.ParseInt(string(b), 10, 64); err == nil { wrongBy.Store(n) }
		}
	}
	look()
	go func() { for { time.Sleep(20 * time.Millisecond); look() } }()
}
`},
	},
	"history": {
		text: "what is done to locks is written down",
		edits: []edit{{"fencepost.go", "\tlocker, err := lock.New(store, lock.Options{})\n",
			"\tlocker, err := lock.New(recorded(store), lock.Options{})\n"}},
		adds: map[string]string{"chaos_history.go": `package fencepost
import ("fmt"; "os"; "path/filepath"; "golang.org/x/sys/unix"; "github.com/fencepost/fencepost/lock"; "github.com/fencepost/fencepost/lock/locktest")
func recorded(store lock.Store) lock.Store {
	dir := os.Getenv("` + historyDir + `")
	if dir == "" { return store }
	f, err := os.CreateTemp(dir, "*.history")
	if err != nil { panic(err) }
	return locktest.Record(store, filepath.Base(f.Name()), func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil { panic(fmt.Sprint(err)) }
		return ts.Nano()
	}, f)
}
`},
	},
}

// rules are safety rules that workers can be built without. The loss of each must be noticed.
var rules = map[string]variant{
	"contiguity": {
		text:  "a message that is in the file already is not appended again",
		edits: []edit{{"worker/internal/ledger/ledger.go", "	switch {\n\tcase n == 0:\n", "	if !m.Incomplete {\n\t\tl.record(m.ID)\n\t\treturn Append\n\t}\n\tswitch {\n\tcase n == 0:\n"}},
	},
	"comparison": {
		text:  "a slot that is there already is the writer's own only if it has the same bytes",
		edits: []edit{{"storage/slots/requests.go", "case !bytes.Equal(there, data):", "case bytes.Equal(there, nil):"}},
	},
	"condition": {
		text:  "an object is created only where there is none",
		edits: []edit{{"storage/slots/s3slots/s3slots.go", "\t\tIfNoneMatch: aws.String(\"*\"),", "\t\t"}},
	},
}

// overlay returns the files of the variant: module is the source tree.
func (v variant) overlay(module string) (overlay.Files, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	place := func(file string) string {
		if rest, ok := strings.CutPrefix(file, "$GOROOT/"); ok {
			return filepath.Join(strings.TrimSpace(string(root)), rest)
		}
		return filepath.Join(module, file)
	}
	files := overlay.Files{}
	for _, e := range v.edits {
		if err := files.Edit(place(e.file), e.old, e.new); err != nil {
			return nil, err
		}
	}
	if v.rewrite != nil {
		sources, err := sources(module)
		if err != nil {
			return nil, err
		}
		rewritten := 0
		for _, path := range sources {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if text := v.rewrite(string(b)); text != string(b) {
				files[path] = text
				rewritten++
			}
		}
		if rewritten == 0 {
			return nil, fmt.Errorf("%s: there is nothing to rewrite; tools/chaos/variant.go has to follow the source", v.text)
		}
	}
	for file, text := range v.adds {
		files[place(file)] = text
	}
	return files, nil
}
