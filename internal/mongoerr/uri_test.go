package mongoerr_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

// The tests of packages that open connections check the same, with the URL's name around it.
func TestURI(t *testing.T) {
	const secret = "s3cr3t-pa55"
	for uri, want := range map[string]string{
		"mongodb://host/db": "",
		"mongodb://user:" + secret + "@host/db?tlsCertificateKeyFilePassword=" + secret: "",
		"mongodb://host/db?w=-5":                                                            "w",
		"mongodb://user:" + secret + "@host:port/db":                                        "port",
		"mongodb://user:" + secret + "%zz@host/db":                                          "%40 for @",
		"mongodb://user:" + secret + "%zz@host:port/db":                                     "port",
		"mongodb://host/db?tlsCertificateKeyFilePassword=%zz" + secret:                      "%40 for @",
		"mongodb://host/db?sslClientCertificateKeyPassword=%zz" + secret:                    "%40 for @",
		"mongodb://host/db?TLSCERTIFICATEKEYFILEPASSWORD=%zz" + secret:                      "%40 for @",
		"mongodb://host/db?tlsCertificateKeyFilePasswor%64=%zz" + secret:                    "%40 for @",
		"mongodb://host/db?appName=a;tlsCertificateKeyFilePassword=%zz" + secret:            "%40 for @",
		"mongodb://host/db?authMechanism=MONGODB-AWS&authMechanismProperties=%zz" + secret:  "%40 for @",
		"mongodb://host/db?proxyHost=p&proxyUsername=%zz" + secret + "&proxyPassword=%zz%2": "%40 for @",
	} {
		got := mongoerr.URI(uri)
		if strings.Contains(got, secret[1:]) || strings.Contains(got, "zz") {
			t.Errorf("%s: reveals a secret: %s", uri, got)
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", uri, got, want)
		}
	}
}
