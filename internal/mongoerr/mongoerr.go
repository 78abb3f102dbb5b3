// Package mongoerr returns remedies for errors of the MongoDB driver about TLS. The driver wraps such errors deeply, or
// hides them behind the timeout of its server selection.
package mongoerr

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// TLS returns the remedy for err, or "" if it is not about TLS.
func TLS(err error) string {
	var selection topology.ServerSelectionError
	if errors.As(err, &selection) {
		for _, server := range selection.Desc.Servers { // why the search found none
			if remedy := ofAttempt(server.LastError); remedy != "" {
				return remedy
			}
		}
	}
	var before attempt
	if errors.As(err, &before) {
		return ofAttempt(before.error)
	}
	var (
		unknown x509.UnknownAuthorityError
		names   x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &unknown):
		return "this machine does not trust the authority that signed the server's certificate; name the file of its certification authority with tlsCAFile=… in the URL"
	case errors.As(err, &names):
		return fmt.Sprintf("the server's certificate is for other names (%s); name the server in the URL as its certificate does, or have that reissued",
			cmp.Or(strings.Join(names.Certificate.DNSNames, ", "), "none"))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not valid yet; renew it, and check this machine's clock"
	case errors.As(err, &record):
		return "the server does not speak TLS at this port; leave tls=true and the other tls options out of the URL, or name the port that does"
	}
	// The server reports its objection to this client by an alert, for which crypto/tls has no public type.
	_, alert, ok := strings.Cut(err.Error(), "remote error: tls: ")
	switch {
	case !ok:
		return ""
	case strings.Contains(alert, "expired certificate"):
		return "the server says that the client certificate has expired; renew the one that tlsCertificateKeyFile=… in the URL names"
	case strings.Contains(alert, "certificate"): // required, bad, unknown, unknown authority, revoked
		return "the server wants a client certificate, signed by an authority that it knows; name the file of certificate and key with tlsCertificateKeyFile=… in the URL"
	}
	return "the server refuses to speak TLS with this client; compare versions and settings of both"
}

// ofAttempt returns the remedy for a failed attempt to greet a server, or "" if it is not about TLS.
func ofAttempt(err error) string {
	if hungUp(err) {
		return "the server closed the connection during the handshake; perhaps only one side uses TLS: add tls=true to the URL, or leave it out"
	}
	return TLS(err)
}

func hungUp(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }
