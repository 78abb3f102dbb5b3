package cli

// The public certificate authorities, for images and machines that have none (FROM scratch). Those of the system or of
// SSL_CERT_FILE, if any, replace these.
import _ "golang.org/x/crypto/x509roots/fallback"
