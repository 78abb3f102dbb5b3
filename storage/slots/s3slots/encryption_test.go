package s3slots_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/fencepost/fencepost/internal/s3test"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

const sseHeader = "X-Amz-Server-Side-Encryption"

const arn = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"

// kms is a bucket that encrypts an object if the request says so: the ETag is then not the MD5 of the content. It records what each PUT
// requests.
type kms struct {
	*httptest.Server
	mu   sync.Mutex
	puts []http.Header
}

func startKMS(t *testing.T) *kms {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("types"); err != nil {
		t.Fatal(err)
	}
	plain := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	k := &kms{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		plain.ServeHTTP(answer, r)
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		if w.Header().Get("ETag") != "" {
			w.Header().Set("ETag", `"00112233445566778899aabbccddeeff"`)
		}
		if r.Method == http.MethodPut {
			k.mu.Lock()
			k.puts = append(k.puts, r.Header.Clone())
			k.mu.Unlock()
			if how := r.Header.Get(sseHeader); how != "" {
				w.Header().Set(sseHeader, how)
			}
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(k.Close)
	return k
}

// took returns what the PUTs since the last call requested.
func (k *kms) took() []http.Header {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer func() { k.puts = nil }()
	return k.puts
}

// TestEverythingIsEncrypted: all objects that package storage or the probe creates in a bucket are encrypted as the address requests.
// They can be read without these settings, which are not part of the store's name.
func TestEverythingIsEncrypted(t *testing.T) {
	s3test.Environment(t)
	for settings, want := range map[string][2]string{
		"":               {},
		"&sse=AES256":    {"AES256"},
		"&sse=aws:kms":   {"aws:kms"},
		"&sse=aws%3Akms": {"aws:kms"},
		"&sse-kms-key-id=" + arn + "&sse=aws:kms:dsse": {"aws:kms:dsse", arn},
		"&sse=aws:kms&sse-kms-key-id=alias/my-key_1":   {"aws:kms", "alias/my-key_1"},
	} {
		t.Run(settings, func(t *testing.T) {
			k := startKMS(t)
			s, plain := open(t, s3test.Address(k.Server)+settings), open(t, s3test.Address(k.Server))
			if s.String() != plain.String() {
				t.Errorf("its name is %s, and %s without encryption", s, plain)
			}
			fsys, other := slots.New(t.Context(), s), slots.New(t.Context(), open(t, strings.Replace(s3test.Address(k.Server), "/prefix", "/copies", 1)+settings))
			did := func(what string, atLeast int, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				puts := k.took()
				if len(puts) < atLeast {
					t.Errorf("%s: %d objects", what, len(puts))
				}
				for _, h := range puts {
					if got := [2]string{h.Get(sseHeader), h.Get(sseHeader + "-Aws-Kms-Key-Id")}; got != want {
						t.Errorf("%s: an object requests %q, want %q", what, got, want)
					}
				}
			}
			did("probe", 32, slots.Probe(t.Context(), s))
			w, err := storage.Open(t.Context(), "", "orders", 1, storage.Options{FS: fsys})
			did("open", 3, err)
			append3 := func() error {
				return errors.Join(w.Append([]storage.Record{{ID: []byte("1"), Payload: []byte("x")}, {ID: []byte("2")}, {ID: []byte("3")}}), second(w.Sync()))
			}
			did("append", 1, append3())
			did("checkpoint", 1, errors.Join(w.Checkpoint([]byte("state")), second(w.Sync())))
			w, err = w.Rotate(t.Context(), []byte("state"))
			did("rotate", 2, err)
			did("append", 1, append3())
			w, _, err = w.Compact(t.Context(), []byte("state"), storage.CompactOptions{})
			did("compact", 2, err)
			did("seal", 1, errors.Join(w.Seal(t.Context(), []byte("state")), w.Close()))
			_, err = storage.CopyFile(t.Context(), fsys, "orders.fpl", other, "", nil)
			did("copy", 1, err)

			fsys = slots.New(t.Context(), plain)
			chain, err := storage.ReadChain(fsys, "", "orders")
			if err != nil || len(chain) != 3 || len(chain.Check()) > 0 {
				t.Fatalf("read without the settings: %+v, %v", chain, err)
			}
			for _, l := range chain {
				rep, err := storage.Verify(t.Context(), l.Path, storage.VerifyOptions{FS: fsys, Deep: true})
				if err == nil {
					err = rep.Err()
				}
				if err != nil {
					t.Errorf("%s: %v", l.Path, err)
				}
			}
		})
	}
	k := startKMS(t)
	slotstest.Run(t, func(t *testing.T) slots.Store {
		return open(t, s3test.Address(k.Server)+"&sse=aws:kms&sse-kms-key-id="+arn)
	})
}

func second[T any](_ T, err error) error { return err }

// TestGatewaysThatDoNotEncrypt: a gateway that accepts the header and does nothing is refused.
func TestGatewaysThatDoNotEncrypt(t *testing.T) {
	s3test.Environment(t)
	url := s3test.Bucket(t, nil)
	for settings, refused := range map[string]bool{"": false, "&sse=AES256": true, "&sse=aws:kms": true} {
		s := open(t, url+settings)
		err := slots.Probe(t.Context(), s)
		if errors.Is(err, storage.ErrRefused) != refused || refused && (!strings.Contains(err.Error(), "does not confirm that it did") || !strings.Contains(err.Error(), "leave out sse=")) {
			t.Errorf("%q: %v", settings, err)
		}
		if names, err := s.Folders(t.Context(), ""); err != nil || slices.Contains(names, ".probe") {
			t.Errorf("left behind: %q, %v", names, err)
		}
	}
}

// TestEncryptionThatIsRefused: the answers of servers that do not encrypt, or may not decrypt.
func TestEncryptionThatIsRefused(t *testing.T) {
	s3test.Environment(t)
	const denied = "User: arn:aws:iam::1:user/w is not authorized to perform: kms:GenerateDataKey on resource: arn:aws:kms:x because no policy allows it"
	for _, c := range []struct {
		status             int
		code, message      string
		create, plain, get string // texts of the errors: of a create with and without sse=, and of a read; "" for unclear
	}{
		{400, "KMS.DisabledException", "key is disabled", "enable the key", "enable the key", "enable the key"},
		{400, "KMS.NotFoundException", "no such key", "sse-kms-key-id=", "settings of the bucket", "enable the key"},
		{400, "KMS.KMSInvalidStateException", "key is pending deletion", "enable the key", "enable the key", "enable the key"},
		{403, "AccessDenied", denied, "allow kms:GenerateDataKey and kms:Decrypt", "allow kms:GenerateDataKey and kms:Decrypt", "allow kms:GenerateDataKey and kms:Decrypt"},
		{403, "AccessDenied", "explicit deny in a resource-based policy", "s3:PutObject", "ask for it with sse=", "s3:GetObject"},
		{400, "InvalidArgument", "Server side encryption specified but KMS is not configured", "correct sse= and sse-kms-key-id=", "", ""},
		{400, "InvalidEncryptionAlgorithmError", "no", "correct sse= and sse-kms-key-id=", "", ""},
		{501, "NotImplemented", "A header you provided implies functionality that is not implemented", "leave them out", "If-None-Match", "If-None-Match"},
		{503, "SlowDown", "no", "", "", ""},
	} {
		t.Run(c.code, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(c.status)
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", c.code, c.message)
			}))
			defer server.Close()
			sse, plain := open(t, s3test.Address(server)+"&sse=aws:kms&sse-kms-key-id="+arn), open(t, s3test.Address(server))
			for what, test := range map[string]struct {
				err  error
				says string
			}{
				"create": {sse.Create(t.Context(), "orders/1", []byte("x")), c.create},
				"plain":  {plain.Create(t.Context(), "orders/1", []byte("x")), c.plain},
				"get":    {second(plain.Read(t.Context(), "orders/1")), c.get},
				"probe":  {slots.Probe(t.Context(), sse), c.create},
			} {
				if c.code == "SlowDown" && what == "probe" {
					continue
				}
				if errors.Is(test.err, storage.ErrRefused) != (test.says != "") || !strings.Contains(fmt.Sprint(test.err), test.says) ||
					!strings.Contains(fmt.Sprint(test.err), "s3://types/some/prefix") || strings.Contains(fmt.Sprint(test.err), "\n") {
					t.Errorf("%s: %v; want an error that says %q", what, test.err, test.says)
				}
			}
		})
	}
}

func TestAddressesOfEncryption(t *testing.T) {
	for settings, says := range map[string]string{
		"sse=aws:fsx":                      "sse is AES256, aws:kms or aws:kms:dsse",
		"sse=aes256":                       "sse is AES256",
		"sse=":                             "one value",
		"sse=AES256&sse=aws:kms":           "one value",
		"sse-kms-key-id=" + arn:            "needs sse=aws:kms",
		"sse=AES256&sse-kms-key-id=" + arn: "needs sse=aws:kms",
		"sse=aws:kms&sse-kms-key-id=" + secret + "%0d%0aX": "alias of a KMS key",
		"sse-c=AES256&sse-c-key=" + secret:                 "SSE-C",
		"sse-customer-key=" + secret:                       "let KMS keep it",
	} {
		err := s3slots.CheckAddress("s3://bucket/a?region=x&" + settings)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v; want an error that says %q", settings, err, says)
		}
	}
}
