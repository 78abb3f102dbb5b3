package s3slots_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/fencepost/fencepost/internal/s3test"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
)

// authority is a certification authority that no machine trusts by default.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "the company's own"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a certificate; the first one signs itself.
func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

// file returns the path of the authority's certificate.
func (a *authority) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts a store whose certificate the authority has signed for 127.0.0.1.
func (a *authority) serve(t *testing.T, until time.Time) *httptest.Server {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("types"); err != nil {
		t.Fatal(err)
	}
	cert, key := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "store"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"store.example"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotAfter: until})
	server := httptest.NewUnstartedServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestOwnAuthority: a store with a certificate of the company's own authority is refused, and works if the usual AWS settings
// name the authority.
func TestOwnAuthority(t *testing.T) {
	s3test.Environment(t)
	company := newAuthority(t)
	server := company.serve(t, time.Time{})
	refuses := func(url, says, remedy string) {
		t.Helper()
		s := open(t, url)
		for what, err := range map[string]error{
			"create": s.Create(t.Context(), "orders/1", []byte("x")), "read": second(s.Read(t.Context(), "orders/1")), "size": second(s.Size(t.Context(), "orders/1")),
			"list": second(s.List(t.Context(), "")), "delete": s.Delete(t.Context(), "orders/1"), "probe": slots.Probe(t.Context(), s),
		} {
			if !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), remedy) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want a refusal that says %q and %q", what, err, says, remedy)
			}
		}
	}
	refuses(s3test.Address(server), "does not trust the authority", "AWS_CA_BUNDLE")
	works := func() {
		t.Helper()
		if err := slots.Probe(t.Context(), open(t, s3test.Address(server))); err != nil {
			t.Errorf("with its authority: %v", err)
		}
	}
	t.Run("AWS_CA_BUNDLE", func(t *testing.T) {
		t.Setenv("AWS_CA_BUNDLE", company.file(t))
		works()
		refuses(strings.Replace(s3test.Address(server), "127.0.0.1", "localhost", 1), "is for other names (store.example)", "endpoint=")
		refuses(s3test.Address(company.serve(t, time.Now().Add(-time.Minute))), "has expired", "renew it")
		refuses(s3test.Address(newAuthority(t).serve(t, time.Time{})), "does not trust the authority", "AWS_CA_BUNDLE")
	})
	t.Run("ca_bundle", func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(config, []byte("[default]\nca_bundle = "+company.file(t)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_CONFIG_FILE", config)
		works()
	})
	t.Run("no such file", func(t *testing.T) {
		t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "none.pem"))
		_, err := s3slots.Open(t.Context(), s3test.Address(server))
		if !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "none.pem") || !strings.Contains(err.Error(), "AWS_") {
			t.Errorf("%v", err)
		}
	})
	t.Run("no certificates in it", func(t *testing.T) {
		empty := filepath.Join(t.TempDir(), "empty.pem")
		if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_CA_BUNDLE", empty)
		if _, err := s3slots.Open(t.Context(), s3test.Address(server)); !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "AWS_") {
			t.Errorf("%v", err)
		}
	})
	refuses(strings.Replace(s3test.Bucket(t, nil), "http://", "https://", 1), "does not speak TLS", "http://")
}
