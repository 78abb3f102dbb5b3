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
