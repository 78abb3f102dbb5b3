package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/s3test"
)

// startBucket starts an s3test.Bucket with credentials.
func startBucket(t *testing.T, fault func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	s3test.Environment(t)
	return s3test.Bucket(t, fault)
}

// answer makes the bucket give a response to requests with a method; "" means all requests.
func answer(method string, status int, code string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if method != "" && r.Method != method {
			return false
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>what it says</Message></Error>", code)
		return true
	}
}

// lie is a gateway that ignores the condition of a create.
func lie(_ http.ResponseWriter, r *http.Request) bool {
	r.Header.Del("If-None-Match")
	return false
}

// database returns the URL of an empty embedded database.
func database(t *testing.T) string {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "orders")
	return url
}

// refused checks that doctor finds exactly one error, in the store, with the reason and the remedy.
func refused(t *testing.T, store string, says ...string) {
	t.Helper()
	code, out, errs := runRoot(t, "doctor", "--url", database(t), "--store", store)
	name, _, _ := strings.Cut(store, "?")
	var bad []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "bad ") {
			bad = append(bad, line)
		}
	}
	if code != cli.ExitFailed || len(bad) != 1 || !strings.HasPrefix(bad[0], "bad      store      "+name) || errs != "error: something is wrong, see above\n" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	for _, s := range says {
		if !strings.Contains(strings.Join(bad, ""), s) {
			t.Errorf("it does not say %q:\n%s", s, out)
		}
	}
}

// A store that cannot keep files, or would lose them, is bad: one line with the reason and a remedy.
func TestDoctorRefusesStores(t *testing.T) {
	const needed = "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
	for name, test := range map[string]struct {
		fault          func(http.ResponseWriter, *http.Request) bool
		reason, remedy string
	}{
		"it ignores conditions": {lie, "of 32 concurrent creates of the same value 32 succeeded, and exactly one must", "choose another store"},
		"it removes objects": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Has("lifecycle") {
				fmt.Fprint(w, "<LifecycleConfiguration><Rule><ID>old</ID><Status>Enabled</Status><Filter/><Expiration><Days>30</Days></Expiration></Rule></LifecycleConfiguration>")
				return true
			}
			return false
		}, `the lifecycle rule "old" of its bucket removes objects by their age`, "take the prefix out of the rule"},
		"it is read-only":        {answer(http.MethodPut, 403, "AccessDenied"), "access is denied", needed},
		"it may not be read":     {answer(http.MethodGet, 403, "AccessDenied"), "access is denied", needed},
		"nothing is allowed":     {answer("", 403, "AccessDenied"), "access is denied", needed},
		"nothing can be removed": {answer(http.MethodDelete, 403, "AccessDenied"), "access is denied", needed},
		"another region":         {answer("", 400, "AuthorizationHeaderMalformed"), "the bucket is in another region", "name its region with ?region="},
		"another region's host":  {answer("", 301, "PermanentRedirect"), "the bucket is in another region", "name its region with ?region="},
		"credentials expired":    {answer("", 400, "ExpiredToken"), "the credentials have expired", "get new ones"},
		"the clock is wrong":     {answer("", 403, "RequestTimeTooSkewed"), "the clock of this machine is wrong", "run an NTP client"},
		"the secret is wrong":    {answer("", 403, "SignatureDoesNotMatch"), "the secret key is wrong", "AWS_SECRET_ACCESS_KEY"},
		"there is no bucket":     {answer("", 404, "NoSuchBucket"), "there is no such bucket", "create it, or correct the address"},
		"it is full":             {answer(http.MethodPut, 507, "XMinioStorageFull"), "the store is full", "free some space in the store"},
		"it knows no conditions": {answer(http.MethodPut, 501, "NotImplemented"), "cannot create objects only where there are none", "use a store that knows If-None-Match"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, startBucket(t, test.fault), test.reason, test.remedy) })
	}
}

// A shared directory that was mounted read-only is bad, whether or not it was used before.
func TestDoctorRefusesReadOnlyDirectories(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system; run the tests as root to include this one")
	}
	dir := t.TempDir()
	mount := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
			t.Skipf("mount: %v: %s", err, out)
		}
	}
	mount("-t", "tmpfs", "-o", "ro", "tmpfs")
	defer exec.Command("umount", dir).Run()
	refused(t, "shared:"+dir, "the directory is read-only", "mount it for writing")
	mount("-o", "remount,rw")
	if err := os.Mkdir(filepath.Join(dir, ".slots"), 0o750); err != nil {
		t.Fatal(err)
	}
	mount("-o", "remount,ro")
	refused(t, "shared:"+dir, "the directory is read-only", "mount it for writing")
}

// Before anything is published, there is no embedded database. The store is checked all the same, and its errors count.
func TestDoctorLooksAtAStoreWithoutADatabase(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	var lies atomic.Bool
	store := startBucket(t, func(w http.ResponseWriter, r *http.Request) bool { return lies.Load() && lie(w, r) })
	for _, test := range []struct {
		place []string
		lies  bool
		code  int
		says  string
	}{
		{[]string{"--store", store}, false, cli.ExitNothing, "ok       store      s3://types/some/prefix"},
		{[]string{"--store", store}, true, cli.ExitFailed, "bad      store      s3://types/some/prefix"},
		{[]string{"--dir", t.TempDir()}, false, cli.ExitNothing, " directory  "},
	} {
		lies.Store(test.lies)
		code, out, errs := runRoot(t, append([]string{"doctor", "--url", url}, test.place...)...)
		if code != test.code || strings.Count(out, "\n") != 2 || !strings.Contains(out, test.says) || !strings.Contains(out, "bad      server     there is no database") {
			t.Errorf("%q: exit code %d, want %d, with %q\n%s%s", test.place, code, test.code, test.says, out, errs)
		}
	}
}

// Commands that write files refuse a store that lets every create succeed, and write nothing there.
func TestNothingIsWrittenToAStoreThatLies(t *testing.T) {
	t.Chdir(t.TempDir())
	var lies atomic.Bool
	var written atomic.Int64
	store := startBucket(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && !strings.Contains(r.URL.Path, "/.probe/") {
			written.Add(1)
		}
		return lies.Load() && lie(w, r)
	})
	url := database(t)
	publish(t, url, "orders", "one")
	if code, _, errs := runRoot(t, "worker", "--url", url, "--dir", "data", "--type", "orders", "--until-empty"); code != 0 {
		t.Fatal(errs)
	}
	for _, command := range [][]string{
		{"copy", "--yes", "data", store, "orders", "--url", url},
		{"compact", "--store", store, "orders", "--url", url},
	} {
		for _, wants := range []bool{false, true} {
			lies.Store(!wants)
			before := written.Load()
			code, out, errs := runRoot(t, command...)
			if wrote := written.Load() > before; (code == 0) != wants || wrote != wants || !wants && !strings.Contains(errs, "32 succeeded, and exactly one must") {
				t.Errorf("%s, and the store lies: %v: exit code %d, it was written to: %v\n%s%s", command[0], !wants, code, wrote, out, errs)
			}
		}
	}
}

// saying closes said when the text is written.
type saying struct {
	bytes.Buffer
	text string
	said chan struct{}
	once sync.Once
}

func (s *saying) Write(b []byte) (int, error) {
	s.Buffer.Write(b)
	if strings.Contains(s.String(), s.text) {
		s.once.Do(func() { close(s.said) })
	}
	return len(b), nil
}

// So does one that cannot even open its store.
func TestCommandsSayWhichStoreTheyOpen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	errs := &saying{text: "waiting for a usable server at mongodb://", said: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-errs.said:
		case <-time.After(time.Minute):
		}
		cancel()
	}()
	cmd := root()
	cmd.SetArgs([]string{"cat", "orders", "--store", "mongodb://" + l.Addr().String() + "/db?serverSelectionTimeoutMS=60000"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(errs)
	if got := cli.Run(ctx, cmd); got == cli.ExitOK || strings.Count(errs.String(), "waiting for") != 1 || !strings.Contains(errs.String(), ", for up to 10s: no answer yet\n") {
		t.Errorf("exit code %d: %s", got, errs)
	}
}

// A command whose store does not answer says so, once, long before it gives up.
func TestCommandsSayWhichStoreTheyWaitFor(t *testing.T) {
	var all sync.WaitGroup
	for args, code := range map[string]int{"cat orders": cli.ExitNothing, "doctor --url " + database(t): cli.ExitOK} {
		errs := &saying{text: "waiting for a usable server at s3://", said: make(chan struct{})}
		store := startBucket(t, func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-errs.said:
			case <-r.Context().Done():
			}
			return false
		})
		all.Go(func() {
			cmd := root()
			cmd.SetArgs(append(strings.Fields(args), "--store", store))
			cmd.SetOut(io.Discard)
			cmd.SetErr(errs)
			if got := cli.Run(t.Context(), cmd); got != code || strings.Count(errs.String(), "waiting for") != 1 || !strings.Contains(errs.String(), ", for up to 30s: no answer yet\n") {
				t.Errorf("%s: exit code %d, want %d: %s", args, got, code, errs)
			}
		})
	}
	all.Wait()
}
