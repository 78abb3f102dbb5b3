package cli

// The public certification authorities, for images and machines that have none (FROM scratch). Where the system has some, and
// where SSL_CERT_FILE names some, those count and these do not.
import _ "golang.org/x/crypto/x509roots/fallback"
