package mongoqueue

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/queue"
)

// parseURI turns a connection string into client options and the database to use.
func parseURI(uri string) (*options.ClientOptions, string, error) {
	scheme, _, ok := strings.Cut(uri, "://")
	if !ok || (scheme != "mongodb" && scheme != "mongodb+srv") {
		return nil, "", fmt.Errorf("%w %s: want mongodb://host:port/database or mongodb+srv://host/database", queue.ErrInvalidURL, redact.URL(uri))
	}
	if err := checkFiles(uri); err != nil {
		return nil, "", fmt.Errorf("%w %s: %w", queue.ErrInvalidURL, redact.URL(uri), err)
	}
	co := options.Client().ApplyURI(uri)
	if err := co.Validate(); err != nil {
		// The driver's text may quote what it cannot parse, and that may be the password.
		bare := withoutSecrets(uri)
		if bareErr := options.Client().ApplyURI(bare).Validate(); bareErr != nil {
			return nil, "", fmt.Errorf("%w %s: %s", queue.ErrInvalidURL, redact.URL(uri), bareErr)
		}
		return nil, "", fmt.Errorf("%w %s: the credentials are malformed; percent-encode special characters in user name and password (%%40 for @, %%3A for :, %%2F for /, %%25 for %%)",
			queue.ErrInvalidURL, redact.URL(uri))
	}
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	_, database, _ := strings.Cut(rest, "/")
	if database == "" {
		return co, DefaultDatabase, nil
	}
	database, err := url.PathUnescape(database)
	if err != nil || strings.ContainsAny(database, "/\\. \"$*<>:|?\x00") || len(database) > 63 {
		return nil, "", fmt.Errorf("%w %s: the path must be a database name of at most 63 bytes without / \\ . \" $ * < > : | ? or a space", queue.ErrInvalidURL, redact.URL(uri))
	}
	return co, database, nil
}

// fileOptions are those that name files, in lower case. The driver reads them without a bound, and
// each client reads them again.
var fileOptions = []string{"tlscafile", "sslcertificateauthorityfile", "tlscertificatekeyfile", "sslclientcertificatekeyfile", "tlscertificatefile",
	"tlsprivatekeyfile"}

// checkFiles refuses pipes and devices: reading one may never end. What cannot be looked at the
// driver reports.
func checkFiles(uri string) error {
	_, query, _ := strings.Cut(uri, "?")
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		path, err := url.QueryUnescape(value)
		if err != nil || !slices.Contains(fileOptions, strings.ToLower(key)) {
			continue
		}
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s=%s is no regular file; name one, it is read several times", key, path)
		}
	}
	return nil
}

// withoutSecrets removes the user and the options that can be secret.
func withoutSecrets(uri string) string {
	scheme, rest, _ := strings.Cut(uri, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	rest, query, ok := strings.Cut(rest, "?")
	if ok {
		var kept []string
		for _, pair := range strings.Split(query, "&") {
			key, _, _ := strings.Cut(pair, "=")
			switch strings.ToLower(key) {
			case "authmechanism", "authmechanismproperties", "authsource", "tlscertificatekeyfilepassword", "sslclientcertificatekeypassword", "proxypassword", "proxyusername":
			default:
				kept = append(kept, pair)
			}
		}
		rest += "?" + strings.Join(kept, "&")
	}
	return scheme + "://" + rest
}
