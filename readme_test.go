package fencepost_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost"
)

// Every test that the documents name exists.
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
