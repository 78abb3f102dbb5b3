package s3slots_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/internal/s3test"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

const secret = s3test.Secret

func open(t *testing.T, url string) *s3slots.Store {
	t.Helper()
	s, err := s3slots.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	s3test.Environment(t)
	url := s3test.Bucket(t, nil)
	slotstest.Run(t, func(t *testing.T) slots.Store { return open(t, url) })
}

// TestConforms: files in a bucket.
func TestConforms(t *testing.T) {
	s3test.Environment(t)
	s := open(t, s3test.Bucket(t, nil))
	b := slotstest.Backend(func(*testing.T) slots.Store { return s })
	b.Most = 1
	storagetest.Run(t, b)
}

// TestPrefixes: stores in the same bucket do not see each other's values.
func TestPrefixes(t *testing.T) {
	s3test.Environment(t)
	url := s3test.Bucket(t, nil)
	whole := open(t, strings.Replace(url, "/some/prefix", "", 1))
	below := open(t, url)
	beside := open(t, strings.Replace(url, "/some/prefix", "/some/prefix2", 1))
	if err := below.Create(t.Context(), "orders/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := whole.Read(t.Context(), "some/prefix/orders/1"); err != nil || string(b) != "x" {
		t.Errorf("from the bucket: %q, %v", b, err)
	}
	if _, err := beside.Read(t.Context(), "orders/1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("beside: %v", err)
	}
	for s, want := range map[*s3slots.Store]string{whole: "[some]", below: "[orders]", beside: "[]"} {
		if names, err := s.Folders(t.Context(), ""); err != nil || fmt.Sprint(names) != want {
			t.Errorf("%s: %v, %v", s, names, err)
		}
	}
}

// TestRealStore runs the tests of TestStore at the address in the environment, below a fresh prefix.
func TestRealStore(t *testing.T) {
	url := os.Getenv("FENCEPOST_TEST_S3")
	if url == "" {
		t.Skip("FENCEPOST_TEST_S3 names no store, such as s3://bucket/prefix?endpoint=http://127.0.0.1:9000&path-style=true")
	}
	path, settings, _ := strings.Cut(url, "?")
	path = strings.TrimSuffix(path, "/") + "/" + strings.ToLower(t.Name()) + fmt.Sprint(os.Getpid())
	slotstest.Run(t, func(t *testing.T) slots.Store { return open(t, path+"?"+settings) })
}

// answering starts a server that gives the same answer to all requests, and counts them.
func answering(t *testing.T, status int, code string) (*s3slots.Store, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead && code != "" {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>what it says</Message><StringToSign>%s</StringToSign></Error>", code, secret)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return open(t, s3test.Address(server)), n
}

func TestErrors(t *testing.T) {
	s3test.Environment(t)
	const refused, full, exists, unclear = "refused", "full", "exists", "unclear"
	for _, c := range []struct {
		status int
		code   string
		want   string
		says   string
	}{
		{412, "PreconditionFailed", exists, ""},
		{409, "ConditionalRequestConflict", unclear, ""},
		{404, "NoSuchBucket", refused, "create it, or correct the address"},
		{403, "AccessDenied", refused, "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"},
		{403, "InvalidAccessKeyId", refused, "AWS_ACCESS_KEY_ID"},
		{404, "XAdminUserNotFound", refused, "AWS_ACCESS_KEY_ID"},
		{403, "SignatureDoesNotMatch", refused, "AWS_SECRET_ACCESS_KEY"},
		{403, "RequestTimeTooSkewed", refused, "run an NTP client"},
		{400, "ExpiredToken", refused, "get new ones"},
		{400, "AuthorizationHeaderMalformed", refused, "?region="},
		{301, "PermanentRedirect", refused, "?region="},
		{501, "NotImplemented", refused, "If-None-Match"},
		{403, "QuotaExceeded", full, "no room: the store is full: QuotaExceeded: what it says; free some space in the store, or raise its quota, nothing acknowledged is lost"},
		{507, "", full, "raise its quota"},
		{507, "XMinioStorageFull", full, "raise its quota"},
		{400, "XMinioAdminBucketQuotaExceeded", full, "raise its quota"},
		{507, "InsufficientStorage", full, ""},
		{404, "", unclear, ""},
		{500, "InternalError", unclear, ""},
		{503, "SlowDown", unclear, ""},
		{503, "ServiceUnavailable", unclear, ""},
		{504, "", unclear, ""},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			s, n := answering(t, c.status, c.code)
			err := s.Create(t.Context(), "orders/1", []byte("x"))
			got := unclear
			switch {
			case err == nil:
				got = "success"
			case errors.Is(err, storage.ErrRefused):
				got = refused
			case errors.Is(err, slots.ErrFull):
				got = full
			case errors.Is(err, fs.ErrExist):
				got = exists
			}
			if got != c.want || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(fmt.Sprint(err), "s3://types/some/prefix") {
				t.Errorf("%v is %s; want %s that says %q", err, got, c.want, c.says)
			}
			if strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("it contains a secret: %v", err)
			}
			if n.Load() != 1 {
				t.Errorf("%d attempts", n.Load())
			}
			for op, read := range map[string]func() error{
				"read": func() error { _, err := s.Read(t.Context(), "orders/1"); return err },
				"size": func() error { _, err := s.Size(t.Context(), "orders/1"); return err },
				"list": func() error { _, err := s.List(t.Context(), "orders"); return err },
			} {
				if err := read(); err == nil || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", op, err)
				}
			}
		})
	}
}

// reach is what to check if a store cannot be reached.
const reach = "check that the store runs, and endpoint and region in the address"

// TestNobodyListens: a lost connection is an unclear answer, in one sentence that says what to check.
func TestNobodyListens(t *testing.T) {
	s3test.Environment(t)
	server := httptest.NewServer(http.NotFoundHandler())
	s := open(t, s3test.Address(server))
	server.Close()
	err := s.Create(t.Context(), "orders/1", []byte("x"))
	if err == nil || errors.Is(err, storage.ErrRefused) || errors.Is(err, slots.ErrFull) || err.Error() != s.String()+": connection refused; "+reach {
		t.Errorf("create: %v", err)
	}
}

// TestAnotherServer: a server that does not speak S3 may be a proxy, so its answer is unclear.
func TestAnotherServer(t *testing.T) {
	s3test.Environment(t)
	for status, says := range map[int]string{404: "with status 404, is not S3", 200: "with status 200, is not S3", 0: "the connection was closed without an answer"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
			fmt.Fprint(w, "<html><meta></html>")
		}))
		t.Cleanup(server.Close)
		s := open(t, s3test.Address(server))
		_, err := s.List(t.Context(), "orders")
		if err == nil || errors.Is(err, storage.ErrRefused) || !strings.HasPrefix(err.Error(), s.String()+": ") || !strings.HasSuffix(err.Error(), says+"; "+reach) {
			t.Errorf("list, with status %d: %v", status, err)
		}
	}
}

// TestHeaderThatIsIgnored: the probe detects a gateway that replaces existing objects.
func TestHeaderThatIsIgnored(t *testing.T) {
	s3test.Environment(t)
	err := slots.Probe(t.Context(), open(t, s3test.Bucket(t, func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("If-None-Match")
		return false
	})))
	if !errors.Is(err, storage.ErrRefused) {
		t.Errorf("the probe: %v", err)
	}
}

// TestAnswerWithoutALength: without its length in the answer, a value may be incomplete.
func TestAnswerWithoutALength(t *testing.T) {
	s3test.Environment(t)
	_, host, _ := strings.Cut(s3test.Bucket(t, nil), "endpoint=http://")
	gateway := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", host },
		ModifyResponse: func(answer *http.Response) error {
			if answer.Request.Method == http.MethodGet {
				answer.Header.Del("Content-Length")
				answer.ContentLength = -1
			}
			return nil
		},
	}
	server := httptest.NewServer(gateway)
	t.Cleanup(server.Close)
	s := open(t, s3test.Address(server))
	if err := s.Create(t.Context(), "orders/1", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Read(t.Context(), "orders/1"); err == nil || !strings.Contains(err.Error(), "no length of orders/1 arrived") {
		t.Errorf("%q, %v", b, err)
	}
}

func TestAddresses(t *testing.T) {
	s3test.Environment(t)
	for url, says := range map[string]string{
		"":                                       "s3://",
		"bucket":                                 "s3://",
		"https://bucket/prefix":                  "s3://",
		"s3:///prefix":                           "bucket",
		"s3://host:9000/bucket":                  "?endpoint=",
		"s3://key:" + secret + "@bucket/prefix":  "must not contain credentials",
		"s3://bucket/a//b":                       "slashes",
		"s3://bucket/../a":                       "as a part",
		"s3://bucket/a/./b":                      "as a part",
		"s3://bucket/a/..":                       "as a part",
		"s3://bucket/a?secret=" + secret:         "the settings are",
		"s3://bucket/a?path-style=" + secret:     "true or false",
		"s3://bucket/a?endpoint=host:9000":       "https://",
		"s3://bucket/a?endpoint=http://k:s@host": "without credentials",
		"s3://bucket/a?region=a&region=b":        "one value",
		"s3://bucket/a":                          "AWS_REGION",
	} {
		_, err := s3slots.Open(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v; want an error that says %q", url, err, says)
		}
	}
}

func TestNoCredentials(t *testing.T) {
	s3test.Environment(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, err := s3slots.Open(context.Background(), "s3://bucket/a?region=eu-central-1")
	if !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
}

// TestTheClientPrintsNothing: credentials of the machine's role, from a metadata service without tokens. The client would
// print a warning about it to standard error.
func TestTheClientPrintsNothing(t *testing.T) {
	s3test.Environment(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	asked := false
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch role := "/latest/meta-data/iam/security-credentials/"; r.URL.Path {
		case "/latest/api/token":
			asked = true
			w.WriteHeader(http.StatusForbidden)
		case role:
			io.WriteString(w, "worker")
		case role + "worker":
			io.WriteString(w, `{"Code":"Success","AccessKeyId":"key","SecretAccessKey":"`+secret+`","Token":"t","Expiration":"2999-01-01T00:00:00Z"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(service.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.URL)

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	_, err = s3slots.Open(t.Context(), "s3://bucket/a?region=eu-central-1")
	os.Stderr = stderr
	w.Close()
	if err != nil || !asked {
		t.Errorf("with the role of the machine: %v, asked for a token: %v", err, asked)
	}
	if printed, err := io.ReadAll(r); err != nil || len(printed) > 0 {
		t.Errorf("printed: %q, %v", printed, err)
	}
}

// TestLifecycle: a bucket whose lifecycle rules remove or archive values is refused, if it reports its rules.
func TestLifecycle(t *testing.T) {
	s3test.Environment(t)
	const days, archive = "<Expiration><Days>30</Days></Expiration>", "<Transition><Days>1</Days><StorageClass>DEEP_ARCHIVE</StorageClass></Transition>"
	for _, c := range []struct{ rule, says string }{
		{"<Filter><Prefix></Prefix></Filter>" + days, "removes objects"},
		{"<Filter><Prefix>some/prefix/orders/</Prefix></Filter>" + days, "removes objects"},
		{"<Filter><And><Prefix>some</Prefix><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan></And></Filter>" + days, "removes objects"},
		{"<Prefix>some/</Prefix><Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration>", "removes objects"},
		{"<Filter/>" + archive, "archives objects"},
		{"<Filter><Prefix>other/</Prefix></Filter>" + days, ""},
		{"<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>" + days, ""},
		{"<Filter/><Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>", ""},
		{"<Filter/><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>", ""},
		{"<Filter/><Transition><Days>30</Days><StorageClass>STANDARD_IA</StorageClass></Transition>", ""},
	} {
		for _, status := range []string{"Enabled", "Disabled"} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !r.URL.Query().Has("lifecycle") {
					t.Errorf("asked for %s", r.URL)
				}
				fmt.Fprintf(w, "<LifecycleConfiguration><Rule><ID>old</ID><Status>%s</Status>%s</Rule></LifecycleConfiguration>", status, c.rule)
			}))
			err := open(t, s3test.Address(server)).Check(t.Context())
			server.Close()
			if want := c.says != "" && status == "Enabled"; (err != nil) != want || want && (!errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%s, %s: %v", c.rule, status, err)
			}
		}
	}
	for code, status := range map[string]int{"AccessDenied": 403, "NoSuchLifecycleConfiguration": 404, "NotImplemented": 501, "InternalError": 500} {
		if s, _ := answering(t, status, code); s.Check(t.Context()) != nil {
			t.Errorf("without an answer, %s, it is refused", code)
		}
	}
}
