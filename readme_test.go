package fencepost_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// Every test named in the documents exists.
func TestDocumentsNameExistingTests(t *testing.T) {
	var code strings.Builder
	documents := []string{"README.md"}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			b, err := os.ReadFile(path)
			code.Write(b)
			return err
		case strings.HasSuffix(path, ".md") && path != "README.md":
			documents = append(documents, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)(…?)[`/]")
	for _, doc := range documents {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(b), -1) {
			end := "("
			if m[2] != "" {
				end = ""
			}
			if !strings.Contains(code.String(), "func "+m[1]+end) {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}

// Every function named in docs/architecture.md is in the file given for it.
func TestArchitectureNamesExistingFunctions(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	places := regexp.MustCompile("`([a-z/]+\\.go):([A-Za-z]+)`").FindAllStringSubmatch(string(text), -1)
	if len(places) < 20 {
		t.Errorf("only %d functions found", len(places))
	}
	for _, m := range places {
		code, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
			continue
		}
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[2] + `[\[(]`).Match(code) {
			t.Errorf("%s has no function %s", m[1], m[2])
		}
	}
}

// docs/decisions/README.md lists every decision with its title.
func TestDecisionsAreListed(t *testing.T) {
	list, err := os.ReadFile("docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("docs/decisions/0*.md")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d decisions, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		number, title, ok := strings.Cut(strings.TrimPrefix(first, "# "), ": ")
		if line := "* [" + number + "](" + filepath.Base(file) + "): " + title + "\n"; !ok || !strings.Contains(string(list), line) {
			t.Errorf("the list has no line %s", line)
		}
	}
}

// The Go code in the README and in docs/handlers.md appears line by line in library_test.go, where it is compiled.
func TestGoInDocumentsCompiles(t *testing.T) {
	var text []byte
	for _, doc := range []string{"README.md", "docs/handlers.md"} {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	compiled, err := os.ReadFile("library_test.go")
	if err != nil {
		t.Fatal(err)
	}
	spaces := regexp.MustCompile(`\s+`)
	trim := func(line string) string { return spaces.ReplaceAllString(strings.TrimSpace(line), " ") }
	rest := strings.Split(string(compiled), "\n")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of Go code", len(blocks))
	}
	for _, block := range blocks {
		for line := range strings.Lines(block[1]) {
			if trim(line) == "" {
				continue
			}
			i := slices.IndexFunc(rest, func(l string) bool { return trim(l) == trim(line) })
			if i < 0 {
				t.Fatalf("a document says %q, which is not in library_test.go at its place", trim(line))
			}
			rest = rest[i+1:]
		}
	}
}

func TestRedactHidesSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"mongodb://user:secret@a,b:1/db?tlsCertificateKeyFilePassword=secret": "mongodb://a,b:1/db",
		"mongodb://u:p@ss@host/db": "mongodb://host/db",
		"user:secret@host":         "host",
		"sqlite://data/x.db":       "sqlite://data/x.db",
	} {
		if got := fencepost.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

// The numbers in the table of limits match the code, and each row names tests; TestDocumentsNameExistingTests checks that those
// exist.
func TestLimitsAreThoseOfTheCode(t *testing.T) {
	text, err := os.ReadFile("docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	table, _, _ := strings.Cut(string(text), "\n## ") // measurements follow
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 4 || strings.HasPrefix(line, "| what |") {
			continue
		}
		rows[strings.TrimPrefix(cells[0], "| ")] = cells[1]
		if !strings.Contains(cells[3], "`Test") {
			t.Errorf("no test: %s", line)
		}
	}
	for row, limits := range map[string][]int64{
		"type name":                              {queue.MaxTypeLen, storage.MaxType},
		"payload of a message":                   {queue.MaxPayload, storage.MaxPayload},
		"idempotency key":                        {queue.MaxKeyLen},
		"record ID in a file":                    {storage.MaxID},
		"checkpoint state":                       {storage.MaxState},
		"backlog limit (`types limit`)":          {queue.MaxBacklogLimit},
		"headers of a message, keys and values":  {queue.MaxHeaders, storage.MaxHeaders},
		"holders and waiters of one lock record": {lock.MaxEntries},
		"name of a lock":                         {lock.MaxName},
		"what a lock is held for; reason of a request or of a forced release; each text about its owner": {lock.MaxWhy},
		"lease of a lock":        {int64(lock.MaxLease.Hours()), int64(lock.MinLease.Seconds())},
		"publish batch":          {queue.DefaultBatchMessages, queue.DefaultBatchBytes},
		"record batch in a file": {storage.MaxBatchBytes, storage.MaxBatchRecords},
	} {
		for i, limit := range limits {
			shown := []string{strconv.FormatInt(limit, 10), humanize.Comma(limit), strings.Replace(humanize.IBytes(uint64(limit)), ".0 ", " ", 1)}
			if !slices.ContainsFunc(shown, func(s string) bool { return strings.Contains(rows[row], s) }) {
				t.Errorf("%s: %q does not have limit %d, one of %q", row, rows[row], i+1, shown)
			}
		}
	}
}

// The README stays short, and its light and dark pictures differ only in style.
func TestFrontDoor(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(readme))); n > 1200 {
		t.Errorf("the README has %d words, want 1,200 at most: details go to docs/", n)
	}
	style := regexp.MustCompile(`(?s)<style>.*</style>`)
	var pictures []string
	for _, theme := range []string{"light", "dark"} {
		b, err := os.ReadFile("docs/images/overview-" + theme + ".svg")
		if err != nil {
			t.Fatal(err)
		}
		pictures = append(pictures, style.ReplaceAllString(string(b), ""))
	}
	if pictures[0] != pictures[1] {
		t.Error("the pictures differ by more than their style")
	}
}
