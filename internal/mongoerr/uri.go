package mongoerr

import (
	"net/url"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// URI returns why the driver refuses a connection string, without its secrets: the driver quotes
// text that it cannot parse, which may be a password. It returns "" for a string that the driver
// accepts. For mongodb+srv:// it queries DNS.
func URI(uri string) string {
	if options.Client().ApplyURI(uri).Validate() == nil {
		return ""
	}
	// rule: the driver's text is about a string without secrets
	if err := options.Client().ApplyURI(withoutSecrets(uri)).Validate(); err != nil {
		return err.Error()
	}
	return "the credentials are malformed; percent-encode special characters in user name, password and the password of a key file (%40 for @, %3A for :, %2F for /, %25 for %)"
}

// secretOptions are the options, in lower case, that may be secret or need a user.
var secretOptions = []string{"authmechanism", "authmechanismproperties", "authsource", "tlscertificatekeyfilepassword", "sslclientcertificatekeypassword",
	"proxypassword", "proxyusername"}

// withoutSecrets removes the user and the options that can be secret.
func withoutSecrets(uri string) string {
	scheme, rest, _ := strings.Cut(uri, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	rest, query, ok := strings.Cut(rest, "?")
	if ok {
		// The driver splits at both, and accepts percent-encoded keys.
		pairs := strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
		rest += "?" + strings.Join(slices.DeleteFunc(pairs, isSecret), "&")
	}
	return scheme + "://" + rest
}

func isSecret(pair string) bool {
	key, _, _ := strings.Cut(pair, "=")
	if plain, err := url.QueryUnescape(key); err == nil {
		key = plain
	}
	return slices.Contains(secretOptions, strings.ToLower(key))
}
