// Package mongourl turns the URL of a MongoDB database into the driver's options. Its errors
// contain no secrets.
package mongourl

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/redact"
)

// DefaultDatabase is the database if the URL names none.
const DefaultDatabase = "fencepost"

// Parse turns a connection string into client options and the database to use. Errors begin with
// the URL, without secrets, and name the problem. They match ErrURL, except if DNS does not answer about the
// hosts of a mongodb+srv:// URL: that error wraps a *net.DNSError that is not about a missing name.
func Parse(ctx context.Context, uri string) (*options.ClientOptions, string, error) {
	co, database, err := parse(ctx, uri)
	if reason, _ := mongoerr.Passing(err); err != nil && reason == "" {
		err = invalid{err}
	}
	return co, database, err
}

// ErrURL matches errors about a URL that is not valid.
var ErrURL = errors.New("invalid URL")

type invalid struct{ error }

func (invalid) Is(target error) bool { return target == ErrURL }
func (e invalid) Unwrap() error      { return e.error }

func parse(ctx context.Context, uri string) (*options.ClientOptions, string, error) {
	scheme, _, ok := strings.Cut(uri, "://")
	if !ok || (scheme != "mongodb" && scheme != "mongodb+srv") {
		return nil, "", fmt.Errorf("%s: want mongodb://host:port/database or mongodb+srv://host/database", redact.URL(uri))
	}
	if err := checkFiles(uri); err != nil {
		return nil, "", fmt.Errorf("%s: %w", redact.URL(uri), err)
	}
	co, err := lookUp(ctx, uri, func() (*options.ClientOptions, error) { return apply(uri) }, func(*options.ClientOptions) {})
	if err != nil {
		return nil, "", err
	}
	if err := unknownOption(uri); err != nil {
		return nil, "", fmt.Errorf("%s: %w", redact.URL(uri), err)
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
	database, err = url.PathUnescape(database)
	if err != nil || !ValidDatabase(database) {
		return nil, "", fmt.Errorf("%s: the path must be %s", redact.URL(uri), DatabaseRule)
	}
	return co, database, nil
}

// DatabaseRule says which names ValidDatabase accepts.
const DatabaseRule = "a database name of at most 63 bytes without / \\ . \" $ * < > : | ? or a space"

// ValidDatabase reports whether every server accepts name as that of a database.
func ValidDatabase(name string) bool {
	return name != "" && len(name) <= 63 && !strings.ContainsAny(name, "/\\. \"$*<>:|?\x00")
}

// apply lets the driver parse a connection string.
func apply(uri string) (*options.ClientOptions, error) {
	co := options.Client().ApplyURI(uri)
	err := co.Validate()
	if err == nil {
		return co, nil
	}
	if silent := unanswered(uri, err); silent != nil {
		return nil, silent
	}
	return nil, fmt.Errorf("%s: %s", redact.URL(uri), mongoerr.URI(uri))
}

// fileOptions are the options that name files, in lower case. The driver reads these files without
// a size limit, and each client reads them again.
var fileOptions = []string{"tlscafile", "sslcertificateauthorityfile", "tlscertificatekeyfile", "sslclientcertificatekeyfile", "tlscertificatefile",
	"tlsprivatekeyfile"}

// checkFiles rejects pipes and devices: reading one may never end. It leaves files that cannot be
// examined to the driver.
func checkFiles(uri string) error {
	_, query, _ := strings.Cut(uri, "?")
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		path, err := url.QueryUnescape(value)
		if err != nil || !slices.Contains(fileOptions, strings.ToLower(key)) {
			continue
		}
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s=%s is not a regular file; name one, it is read several times", key, path)
		}
	}
	return nil
}

// unknownOption returns an error about the first option of a valid URL that the driver does not know. The driver ignores it: with tsl=true
// instead of tls=true, messages and passwords would go unencrypted.
func unknownOption(uri string) error {
	_, rest, _ := strings.Cut(uri, "://")
	if at := strings.IndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:] // a password may contain a question mark
	}
	_, query, _ := strings.Cut(rest, "?")
	before := ""
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		// An error is about the option's value, or that it needs another one.
		alone, err := connstring.Parse("mongodb://host/?" + pair)
		switch {
		case err != nil || len(alone.UnknownOptions) == 0:
			before = key
		case strings.Contains(strings.ToLower(before), "password"):
			return fmt.Errorf("unknown option after %s; if it belongs to the password, write & as %%26 and ; as %%3B there", before)
		default:
			return fmt.Errorf("unknown option %q; correct or remove it", key)
		}
	}
	return nil
}
