package mongoerr_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

// TestTLS of package integration checks the same with real handshakes.
func TestTLS(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("connection refused"), ""},
		{io.EOF, ""},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, "tlsCAFile="},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"db1", "db2"}}, Host: "db3"}, "(db1, db2)"},
		{x509.CertificateInvalidError{Reason: x509.Expired}, "has expired"},
		{x509.CertificateInvalidError{Reason: x509.TooManyIntermediates}, ""},
		{tls.RecordHeaderError{Msg: "first record"}, "does not speak TLS"},
		{errors.New("remote error: tls: certificate required"), "tlsCertificateKeyFile="},
		{errors.New("remote error: tls: unknown certificate authority"), "tlsCertificateKeyFile="},
		{errors.New("remote error: tls: expired certificate"), "client certificate has expired"},
		{errors.New("remote error: tls: protocol version not supported"), "refuses to speak TLS"},
	} {
		wrapped := test.err
		if wrapped != nil {
			wrapped = fmt.Errorf("hello: %w", test.err)
		}
		for _, err := range []error{wrapped, notFound(down(nil), down(wrapped))} {
			want := test.want
			if _, selection := err.(topology.ServerSelectionError); selection && test.err == io.EOF {
				want = "closed the connection"
			}
			if got := mongoerr.TLS(err); !strings.Contains(got, want) || (got == "") != (want == "") {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
		}
	}
}
