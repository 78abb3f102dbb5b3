package mongourl_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/mongourl"
)

// FuzzParse: no error contains a password. Names of files are left out, because the files are read.
func FuzzParse(f *testing.F) {
	const secret = "S3cr3t9Zq"
	for _, s := range [][3]string{{"user", "", "h/db?w=1"}, {"", "", "h1,h2:27017/db"}, {"u", "%zz", "h"}, {"u", "@/?", "h/a b"}, {"u", ":", "h:port/db"}, {"u", "", "h/db?replicaSet"},
		{"u", "", "?authMechanism=" + secret}, {"u", "/", "h/db%2f"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, user, more, rest string) {
		uri := "mongodb://" + user + ":" + secret + more + "@" + rest
		if lower := strings.ToLower(uri); strings.Contains(lower, "file") || strings.Contains(lower, "%") && strings.Contains(lower, "=") || len(rest) > 1000 ||
			strings.Contains(rest, secret) || strings.ContainsAny(user, "/?") {
			return // rest: its options may be quoted, and are not passwords
		}
		co, database, err := mongourl.Parse(t.Context(), uri)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("mongourl.Parse(%q): %v", uri, err)
			}
			return
		}
		if len(co.Hosts) == 0 || database == "" || len(database) > 63 || strings.ContainsAny(database, "/\\. \"$*<>:|?\x00") {
			t.Fatalf("mongourl.Parse(%q) = %v, %q", uri, co.Hosts, database)
		}
	})
}

// The driver ignores options that it does not know, and would send clear text after tsl=true. Those that it knows are accepted.
func TestUnknownOptions(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://h/db?tsl=true&journla=x":                               `mongodb://h/db: unknown option "tsl"; correct or remove it`,
		"mongodb://u:p%3F?&a=b@h/db?w=1;journla=x":                        `unknown option "journla"`,
		"mongodb://h/?tls=true&tlsCertificateKeyFilePassword=pa&ssw0rd=1": "unknown option after tlsCertificateKeyFilePassword; if",
		"mongodb://u:pw?x=y@h/db?w=1":                                     "",
		"mongodb://h/db":                                                  "",
		"mongodb://h/db?":                                                 "",
		"mongodb://u:p@h1,h2/db?replicaSet=rs&tls=true&tlsInsecure=true&authSource=admin&authMechanism=SCRAM-SHA-256&w=majority&journal=true&readConcernLevel=local&readPreference=primary&" +
			"retryWrites=true&RetryReads=false&appName=x&compressors=zstd&zstdCompressionLevel=3&maxPoolSize=9&minPoolSize=1&maxIdleTimeMS=1&connectTimeoutMS=1&heartbeatFrequencyMS=500&" +
			"serverSelectionTimeoutMS=1&localThresholdMS=1&serverMonitoringMode=poll&timeoutMS=1000&socketTimeoutMS=1000": "",
		"mongodb://h/db?directConnection=true&ssl=false": "",
	} {
		_, _, err := mongourl.Parse(t.Context(), uri)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "ssw0rd")) {
			t.Errorf("%s: %v, want %q", uri, err, want)
		}
	}
}
