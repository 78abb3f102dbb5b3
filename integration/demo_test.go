package integration

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// TestDemo runs the first command of the README.
func TestDemo(t *testing.T) {
	t.Parallel()
	demoWorks(t)
}

func demoWorks(t *testing.T, args ...string) result {
	t.Helper()
	r := mustRun(t, nil, "fencepost", append([]string{"demo"}, args...)...)
	for _, words := range []string{"kill -9", "all good", "have the path and SHA-256 of their original, each exactly once"} {
		if !strings.Contains(r.stdout, words) {
			t.Errorf("the output does not have %q:\n%v", words, r)
		}
	}
	return r
}

// TestDemoInAStore: the demo keeps its files in a store, separate from other files, and removes everything it created.
func TestDemoInAStore(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	for i := range 1500 { // 24 MiB, which is several slots
		content := strings.Repeat(fmt.Sprintf("%5d all work and no play makes Jack a dull boy\n", i), 320)
		must(t, os.WriteFile(filepath.Join(source, fmt.Sprintf("%d.txt", i)), []byte(content), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(source, "one.c"), []byte("int main() {}\n"), 0o600))
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		theirs := filepath.Join(dir, "txt")
		must(t, os.Mkdir(theirs, 0o700))
		demoWorks(t, "--source", source, "--store", "shared:"+dir)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "txt" {
			t.Errorf("the directory has %v (%v); want what was there before", left, err)
		}
		// With --keep it prints a command that reads the kept files.
		r := demoWorks(t, "--source", source, "--store", "shared:"+dir, "--keep")
		kept := regexp.MustCompile(`Kept: (\S+), .*; try  fencepost verify --store (\S+) (\S+)`).FindStringSubmatch(r.stdout)
		if kept == nil {
			t.Fatalf("it does not tell what it kept: %v", r)
		}
		t.Cleanup(func() { os.RemoveAll(kept[1]) })
		mustRun(t, nil, "fencepost", "verify", "--store", kept[2], kept[3])
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		server := mongotest.URI(t)
		_, db := mongotest.Fresh(t)
		for _, store := range []string{"mongodb:", server} {
			r := demoWorks(t, "--source", source, "--url", server, "--store", store)
			own := regexp.MustCompile(`fencepost_demo_\w+`).FindAllString(r.stdout, -1)
			if len(own) == 0 {
				t.Fatalf("it does not tell the name of its database: %v", r)
			}
			for _, name := range own {
				if left, err := db.Client().Database(name).ListCollectionNames(t.Context(), bson.D{}); err != nil || len(left) > 0 {
					t.Errorf("--store %s: %s has %v (%v) afterwards", store, name, left, err)
				}
			}
		}
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		bucket := s3mem.New()
		must(t, bucket.CreateBucket("files"))
		server := httptest.NewServer(gofakes3.New(bucket, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
		t.Cleanup(server.Close)
		r := demoWorks(t, "--source", source, "--store", "s3://files/?endpoint="+server.URL+"&path-style=true")
		if !strings.Contains(r.stdout, "files go to s3://files/fencepost-demo-") {
			t.Errorf("it does not tell where the files are: %v", r)
		}
		list, err := bucket.ListBucket("files", nil, gofakes3.ListBucketPage{})
		must(t, err)
		for _, o := range list.Contents {
			t.Errorf("%s is left in the bucket", o.Key)
		}
	})
}
