package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tokens writes a token file and returns the tokens by name.
func tokens(t testing.TB, path string, lines ...[3]string) map[string]string {
	t.Helper()
	secrets, text := map[string]string{}, "# clients\n\n"
	for _, l := range lines {
		var types []string
		if l[2] != "" {
			types = strings.Split(l[2], ",")
		}
		secret, line, err := NewToken(l[0], strings.Split(l[1], ","), types)
		if err != nil {
			t.Fatal(err)
		}
		secrets[l[0]], text = "Bearer "+secret, text+line+"\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return secrets
}

// A token permits what it is for, and nothing else.
func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	secret := tokens(t, path, [3]string{"shop", "publish", "orders,invoices.*"}, [3]string{"reader", "read", "orders"}, [3]string{"ops", "publish,read", ""})
	file, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.Tokens = file })
	s.writer("orders").put(2)
	s.writer("audit").put(2)
	for _, test := range []struct {
		who, method, path string
		status            int
	}{
		{"shop", "POST", orders, 201},
		{"shop", "POST", "/v1/types/invoices.eu/messages", 201},
		{"shop", "POST", "/v1/types/audit/messages", 403},
		{"shop", "GET", orders, 403},
		{"shop", "GET", "/v1/types", 403},
		{"shop", "GET", "/metrics", 403},
		{"reader", "GET", orders, 200},
		{"reader", "GET", "/v1/types/orders", 200},
		{"reader", "GET", orders + "/0", 200},
		{"reader", "GET", "/v1/types/audit/messages", 403},
		{"reader", "GET", "/v1/types/audit/tail", 403},
		{"reader", "POST", orders, 403},
		{"ops", "POST", "/v1/types/audit/messages", 201},
		{"ops", "GET", "/v1/types/audit", 200},
		{"ops", "GET", "/metrics", 200},
	} {
		if a := s.do(test.method, test.path, "x", "Authorization", secret[test.who]); a.status != test.status {
			t.Errorf("%s %s %s: %d %s", test.who, test.method, test.path, a.status, a.body)
		} else if a.status == 403 {
			a.want(t, 403, "forbidden")
		}
	}
	if a := s.do("GET", "/v1/types", "", "Authorization", secret["reader"]); a.body != `{"types":[{"type":"orders"}]}`+"\n" {
		t.Error(a.body)
	}
	for name, value := range map[string]string{"none": "", "wrong": "Bearer fpt_wrong", "no token": "Bearer", "cut": secret["ops"][:40], "with the hash": "Bearer " + strings.Fields(readFile(t, path))[3],
		"password": "Basic " + strings.TrimPrefix(secret["ops"], "Bearer "), "in two headers": secret["ops"]} {
		headers := []string{"Authorization", value}
		if name == "in two headers" {
			headers = append(headers, "Authorization", value)
		}
		for _, r := range [][2]string{{"POST", orders}, {"GET", "/v1/types"}, {"GET", "/metrics"}, {"GET", "/nothing"}, {"PUT", orders}} {
			a := s.do(r[0], r[1], "x", headers...)
			a.want(t, 401, "unauthorized")
			if a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: %q", name, a.header)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if a := s.do("GET", path, ""); a.status != 200 || a.body != "ok\n" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	for name, value := range secret {
		if log := s.log.String(); strings.Contains(log, strings.TrimPrefix(value, "Bearer ")) || !strings.Contains(log, `"client":"`+name+`"`) {
			t.Errorf("%s in the log:\n%s", name, log)
		}
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// No log line contains a payload, a header or a secret of a client.
func TestLogHasNoPayloads(t *testing.T) {
	s := start(t, nil)
	s.do("POST", orders, "s3cret", "Fencepost-Header-A", "s3cret", "Idempotency-Key", "s3cret", "Authorization", "Bearer s3cret")
	s.do("GET", "/v1/types?after=s3cret", "")
	if log := s.log.String(); strings.Contains(log, "s3cret") || strings.Count(log, `"message":"request"`) != 2 || !strings.Contains(log, `"status":201`) {
		t.Error(log)
	}
}

// An invalid token file is refused, and no error quotes it.
func TestTokensThatCannotBeRead(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	for want, text := range map[string]string{
		"contains no token":   "# nothing\n",
		"line 2 does not":     "# s3cret\ns3cret\n",
		"the second field":    "s3cret s3cret publish\n",
		"the second field is": "s3cret " + hash[2:] + " publish\n",
		"the third field":     "s3cret " + hash + " s3cret\n",
		"the fourth field":    "s3cret " + hash + " read s3cret[\n",
		"line 1 does not":     "s3cret " + hash + " read a b\n",
		"line 2 repeats":      "s3cret " + hash + " read\ns3cret " + hash + " publish\n",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTokens(path); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := LoadTokens(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is not there is taken")
	}
	for _, name := range []string{"", "two words", "#x"} {
		if _, _, err := NewToken(name, []string{"read"}, nil); err == nil {
			t.Errorf("%q is taken as a name", name)
		}
	}
	if _, _, err := NewToken("x", []string{"write"}, nil); err == nil || !strings.Contains(err.Error(), `no scope "write"; use publish`) {
		t.Errorf("an unknown scope: %v", err)
	}
	for _, types := range []string{"ORDERS", "a b", "Orders.*", "a[", ""} {
		if _, _, err := NewToken("x", []string{"read"}, []string{"orders", types}); err == nil || strings.Contains(err.Error(), "field") {
			t.Errorf("%q as types: %v", types, err)
		}
	}
	if _, _, err := NewToken("x", []string{"read"}, []string{"orders", "audit.*", "[a-c]?"}); err != nil {
		t.Error(err)
	}
}

// A revoked token is soon refused, and its tails end. An invalid file changes nothing.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	secret := tokens(t, path, [3]string{"shop", "publish,read", ""})
	file, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.Tokens = file })
	w := s.writer("orders")
	w.put(1)
	ask := func(token string) int { return s.do("GET", "/v1/types", "", "Authorization", token).status }
	tail := s.tail("orders", "?from=0", "Authorization", secret["shop"])
	if e := tail.next(); e.id != "0" {
		t.Fatalf("%+v", e)
	}
	if err := os.WriteFile(path, []byte("broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the log tells of the broken file", func() bool {
		if got := ask(secret["shop"]); got != 200 {
			t.Fatalf("while the file is broken: %d", got)
		}
		return strings.Contains(s.log.String(), "is invalid; its previous content stays in effect")
	})
	other := tokens(t, path, [3]string{"other", "publish,read", ""})
	until(t, "the new token is taken", func() bool { return ask(other["other"]) == 200 })
	if got := ask(secret["shop"]); got != 401 {
		t.Errorf("the revoked token: %d", got)
	}
	if e := tail.next(); e.event != "problem" || !strings.Contains(e.data, "revoked") {
		t.Errorf("%+v", e)
	}
}

// Removing the last token, or the whole file, revokes the token. A refilled file admits clients again.
func TestLastTokenIsRevoked(t *testing.T) {
	t.Parallel()
	for name, revoke := range map[string]func(path string) error{
		"an empty file":  func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"only a comment": func(path string) error { return os.WriteFile(path, []byte("# nobody\n\n"), 0o600) },
		"no file":        os.Remove,
		"no directory":   func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "secrets")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "tokens")
			secret := tokens(t, path, [3]string{"shop", "publish,read", ""})
			file, err := LoadTokens(path)
			if err != nil {
				t.Fatal(err)
			}
			s := start(t, func(o *Options) { o.Access.Tokens = file })
			s.writer("orders").put(1)
			ask := func(token string) int { return s.do("GET", "/v1/types", "", "Authorization", token).status }
			tail := s.tail("orders", "?from=0", "Authorization", secret["shop"])
			if e := tail.next(); e.id != "0" {
				t.Fatalf("%+v", e)
			}
			if err := revoke(path); err != nil {
				t.Fatal(err)
			}
			until(t, "the token is refused", func() bool { return ask(secret["shop"]) == 401 })
			if e := tail.next(); e.event != "problem" || !strings.Contains(e.data, "revoked") {
				t.Errorf("%+v", e)
			}
			if n := strings.Count(s.log.String(), "the file no longer contains a token"); n < 1 || n > 2 { // 2: the file was seen half written
				t.Errorf("the log tells %d times that nobody comes in:\n%s", n, s.log)
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			other := tokens(t, path, [3]string{"other", "read", ""})
			until(t, "a new token is taken", func() bool { return ask(other["other"]) == 200 })
			if got := ask(secret["shop"]); got != 401 {
				t.Errorf("the revoked token: %d", got)
			}
		})
	}
}

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	a.cert, a.key, _, _ = a.sign("authority", true)
	return a
}

// sign creates a certificate.
func (a *authority) sign(name string, ca bool) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.n++
	template := &x509.Certificate{SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: ca, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, errCert := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	keyDER, errKey := x509.MarshalECPrivateKey(key)
	cert, errParse := x509.ParseCertificate(der)
	for _, err := range []error{err, errCert, errKey, errParse} {
		if err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// files writes certificates to a directory.
func (a *authority) files(dir, name string) (cert, key string) {
	a.t.Helper()
	_, _, certPEM, keyPEM := a.sign(name, false)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, text := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
}

// Only clients with a certificate of the authority are answered, except for probes, and a renewed certificate is used at once.
func TestTLS(t *testing.T) {
	t.Parallel()
	servers, clients := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	ca := filepath.Join(dir, "clients.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: clients.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := servers.files(dir, "first")
	files, err := LoadTLS(cert, key, ca)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.TLS = files })
	trusted := x509.NewCertPool()
	trusted.AddCert(servers.cert)
	publish := [2]string{"POST", orders}
	operation := publish
	ask := func(signer *authority) (status int, server string, err error) {
		c := &tls.Config{RootCAs: trusted}
		if signer != nil {
			_, _, certPEM, keyPEM := signer.sign("client-7", false)
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		res, err := transport.RoundTrip(s.request(operation[0], operation[1], "x").WithContext(ctx))
		if err != nil {
			return 0, "", err
		}
		res.Body.Close()
		if res.ProtoMajor != 1 {
			t.Errorf("it speaks %s, where requests of a connection have no bound", res.Proto)
		}
		return res.StatusCode, res.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	if status, server, err := ask(clients); status != 201 || server != "first" || err != nil {
		t.Errorf("%d %s %v", status, server, err)
	}
	if !strings.Contains(s.log.String(), `"client":"client-7"`) {
		t.Error(s.log.String())
	}
	for _, operation = range append(slices.Clone(paths), [2]string{"GET", "/no/such/path"}) {
		if status, _, err := ask(servers); err == nil {
			t.Errorf("%s with a certificate of another authority: %d", operation, status)
		}
		want := 401
		if operation[1] == "/livez" || operation[1] == "/readyz" {
			want = 200
		}
		if status, _, err := ask(nil); status != want || err != nil {
			t.Errorf("%s without a certificate: %d %v, want %d", operation, status, err, want)
		}
	}
	operation = publish
	if n := len(s.pending("orders")); n != 1 {
		t.Errorf("%d are stored", n)
	}
	servers.files(dir, "renewed")
	until(t, "the new certificate is used", func() bool { _, server, err := ask(clients); return err == nil && server == "renewed" })
	for what, paths := range map[string][3]string{"key": {cert, ca, ""}, "ca": {cert, key, key}, "missing": {cert, filepath.Join(dir, "none"), ""}} {
		if _, err := LoadTLS(paths[0], paths[1], paths[2]); err == nil {
			t.Errorf("%s: taken", what)
		} else if strings.Contains(fmt.Sprint(err), "PRIVATE") {
			t.Error(err)
		}
	}
}

// When an authority is removed from the file of --client-ca, its clients are refused on connections that are open, too, and their tails end. A
// certificate that expires while its connection is open still counts, as does one whose authority was renewed with the same key.
func TestRemovedAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servers, clients := newAuthority(t), newAuthority(t)
	ca := filepath.Join(dir, "clients.crt")
	write := func(authorities ...*x509.Certificate) {
		var text []byte
		for _, c := range authorities {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		if err := os.WriteFile(ca, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(clients.cert, servers.cert)
	cert, key := servers.files(dir, "server")
	files, err := LoadTLS(cert, key, ca)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.TLS = files })
	s.writer("orders").put(1)
	_, _, certPEM, keyPEM := clients.sign("client-7", false)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(servers.cert)
	dials := 0
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		dials++
		return &pair, nil
	}}}
	t.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Timeout: time.Minute, Transport: transport}
	tail := s.tail("orders", "?from=0")
	if e := tail.next(); e.id != "0" {
		t.Fatalf("%+v", e)
	}
	if status := s.do("GET", "/v1/types", "").status; status != 200 {
		t.Fatal(status)
	}
	renewed := *clients.cert
	renewed.SerialNumber = big.NewInt(100)
	der, err := x509.CreateCertificate(rand.Reader, &renewed, &renewed, clients.key.Public(), clients.key)
	if err != nil {
		t.Fatal(err)
	}
	write(&x509.Certificate{Raw: der}, servers.cert)
	until(t, "the renewed authority is read", func() bool {
		if status := s.do("GET", "/v1/types", "").status; status != 200 {
			t.Fatalf("of a renewed authority: %d", status)
		}
		return strings.Contains(s.log.String(), "was read again")
	})
	chain := []*x509.Certificate{{}, clients.cert}
	*chain[0] = *pair.Leaf
	chain[0].NotAfter = time.Now().Add(-time.Minute)
	if !files.trusts(chain) {
		t.Error("a certificate that has expired since is refused")
	}
	write(servers.cert)
	var last reply
	until(t, "the client is refused", func() bool { last = s.do("GET", "/v1/types", ""); return last.status != 200 })
	last.want(t, 401, "certificate_required")
	if e := tail.next(); e.event != "problem" || !strings.Contains(e.data, "certificate_required") {
		t.Errorf("%+v", e)
	}
	if dials != 2 {
		t.Errorf("%d connections", dials)
	}
	if _, err := s.client.Do(s.request("GET", "/v1/types", "")); err == nil || dials != 3 {
		t.Errorf("the connection stays: %v, %d connections", err, dials)
	}
}
