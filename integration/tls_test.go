package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	return authority{}.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
}

// issue signs a certificate; with the zero authority it is self-signed. It is valid for a day unless it says otherwise.
func (a authority) issue(t *testing.T, c *x509.Certificate) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(24 * time.Hour)
	}
	c.NotBefore = time.Now().Add(-48 * time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) server(t *testing.T, name string, notAfter time.Time) authority {
	c := &x509.Certificate{NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{name}}
	if ip := net.ParseIP(name); ip != nil {
		c.DNSNames, c.IPAddresses = nil, []net.IP{ip}
	}
	return a.issue(t, c)
}

func (a authority) client(t *testing.T, notAfter time.Time) authority {
	return a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "worker"}, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func (a authority) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a authority) keyPEM(t *testing.T) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// file writes the certificate to a file, with the key if there is one, and returns its path.
func (a authority) file(t *testing.T, withKey bool) string {
	t.Helper()
	path, content := filepath.Join(t.TempDir(), "tls.pem"), a.certPEM()
	if withKey {
		content = append(content, a.keyPEM(t)...)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// terminateTLS puts a TLS server that demands client certificates of clients' authority in front of a plain one.
func terminateTLS(t *testing.T, server, clients authority, target string) (addr string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(clients.cert)
	config := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{server.cert.Raw}, PrivateKey: server.key}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	serve := func(raw net.Conn) {
		defer raw.Close()
		c := tls.Server(raw, config)
		var plain tls.RecordHeaderError
		switch err := c.Handshake(); {
		case errors.As(err, &plain): // close the connection, as servers do
			return
		case err != nil:
			io.Copy(io.Discard, raw) // closing at once would reset the connection, and the client might not see the alert
			return
		}
		to, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer to.Close()
		wg.Go(func() {
			io.Copy(to, c)
			to.Close()
		})
		io.Copy(c, to)
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() }) // all clients are processes that have ended by then
	return l.Addr().String()
}

// longSelection is the server selection timeout of a client: longer than the handshakes take on a busy machine.
const longSelection = "&serverSelectionTimeoutMS=10000"

// A server that requires TLS and client certificates: with the right ones everything works, and each mistake gets one error that
// names the remedy.
func TestTLS(t *testing.T) {
	t.Parallel()
	plainURI := mongotest.URI(t)
	u, err := url.Parse(plainURI)
	if err != nil || u.User != nil || strings.Contains(u.RawQuery, "tls=") {
		t.Skipf("the test's server %s is not a plain one", u.Redacted())
	}
	_, db := mongotest.Fresh(t)
	ours, others := newAuthority(t), newAuthority(t)
	yesterday := time.Now().Add(-24 * time.Hour)
	right := terminateTLS(t, ours.server(t, "127.0.0.1", time.Time{}), ours, u.Host)
	expired := terminateTLS(t, ours.server(t, "127.0.0.1", yesterday), ours, u.Host)
	otherName := terminateTLS(t, ours.server(t, "db.example", time.Time{}), ours, u.Host)
	ca, client := "&tlsCAFile="+ours.file(t, false), "&tlsCertificateKeyFile="+ours.client(t, time.Time{}).file(t, true)
	urlOf := func(addr, options string) string {
		return "mongodb://" + addr + "/" + db.Name() + "?directConnection=true" + options
	}

	b := backend{url: urlOf(right, "&tls=true"+ca+client), dir: filepath.Join(t.TempDir(), "data")}
	drainable(t, b, 1000)
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}
	if got := len(payloads(t, b, "t")); got != 1000 {
		t.Errorf("%d of 1000 messages in the file", got)
	}

	for name, c := range map[string]struct {
		url   string
		code  int
		words []string
	}{
		"no authority":                     {urlOf(right, "&tls=true"+client), failed, []string{"does not trust", "tlsCAFile="}},
		"another authority":                {urlOf(right, "&tls=true&tlsCAFile="+others.file(t, false)+client), failed, []string{"does not trust", "tlsCAFile="}},
		"no client certificate":            {urlOf(right, "&tls=true"+ca), failed, []string{"wants a client certificate", "tlsCertificateKeyFile="}},
		"another's client certificate":     {urlOf(right, "&tls=true"+ca+"&tlsCertificateKeyFile="+others.client(t, time.Time{}).file(t, true)), failed, []string{"wants a client certificate", "tlsCertificateKeyFile="}},
		"expired client certificate":       {urlOf(right, "&tls=true"+ca+"&tlsCertificateKeyFile="+ours.client(t, yesterday).file(t, true)), failed, []string{"client certificate", "tlsCertificateKeyFile="}},
		"expired server certificate":       {urlOf(expired, "&tls=true"+ca+client), failed, []string{"server's certificate has expired", "renew"}},
		"certificate of another server":    {urlOf(otherName, "&tls=true"+ca+client), failed, []string{"other names", "db.example"}},
		"TLS with a server that has none":  {urlOf(u.Host, "&tls=true"+ca+client), failed, []string{"uses TLS", "tls=true"}},
		"plain with a server that has TLS": {urlOf(right, ""), failed, []string{"uses TLS", "tls=true"}},
		"no such file":                     {urlOf(right, "&tls=true&tlsCAFile=/nowhere.pem"), usage, []string{"/nowhere.pem"}},
		"not a certificate":                {urlOf(right, "&tls=true&tlsCAFile=/etc/hostname"), usage, []string{"certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, run(t, nil, "worker", "--type", "t", "--dir", b.dir, "--url", c.url+longSelection), c.code, c.words...)
		})
	}
}

// secretPassword must never be in any output: see refused.
const secretPassword = "secret-4711"

// A server that requires a password (SCRAM) and TLS with client certificates: FerretDB itself, not an imitation. No output, answer or
// state of the programs contains the password.
func TestSCRAM(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	server := ours.server(t, "127.0.0.1", time.Time{})
	options := "?directConnection=true&tls=true&tlsCAFile=" + ours.file(t, false) + "&tlsCertificateKeyFile=" + ours.client(t, time.Time{}).file(t, true) + longSelection
	as := func(user string) func(addr string) string {
		return func(addr string) string { return "mongodb://" + user + addr + "/shop" + options }
	}
	bob := as("bob:" + secretPassword + "@")
	addr := mongotest.NewSecure(t, mongotest.Secure{User: "bob", Password: secretPassword, Cert: server.certPEM(), Key: server.keyPEM(t), CA: ours.certPEM()}, bob)

	b := backend{url: bob(addr), dir: filepath.Join(t.TempDir(), "data")}
	secretFile := filepath.Join(t.TempDir(), "url")
	write(t, secretFile, []byte(b.url+"\n"))
	for _, typ := range []string{"t", "stored"} {
		mustRun(t, nil, "producer", "publish", "--url-file", secretFile, "--type", typ, "--count", "1000", "--size", "64B")
	}
	w, address := startAnswering(t, "--url-file", secretFile, "--dir", b.dir, "--type", "t", "--lease", "5s", "--pprof", "--log-level", "debug")
	inStore := startWith(t, func(c *exec.Cmd) error {
		c.Env = append(c.Env, "FENCEPOST_URL="+b.url, "FENCEPOST_STORE="+b.url)
		return c.Start()
	}, "worker with a store", filepath.Join(bin, "worker"), "--listen", "127.0.0.1:0", "--type", "stored", "--lease", "5s", "--pprof", "--log-level", "debug")
	eventually(t, time.Minute, "everything drained", func() bool { return pending(t, b)["t"]+pending(t, b)["stored"] == 0 })
	if line := commandLine(t, w); !strings.Contains(line, "--url-file") {
		t.Errorf("ps shows %q", line)
	}
	tellsNoPassword(t, w, address)
	tellsNoPassword(t, inStore, "http://"+listensAt.FindStringSubmatch(inStore.stderr.String())[1])
	if got := len(payloads(t, b, "t")); got != 1000 {
		t.Errorf("%d of 1000 messages in the file", got)
	}

	for name, user := range map[string]string{"wrong password": "bob:secret-wrong@", "unknown user": "eve:" + secretPassword + "@", "no user": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, run(t, nil, "producer", "publish", "--type", "t", "--message", "x", "--url", as(user)(addr)), failed, "user name and password", "authSource")
		})
	}
	t.Run("no client certificate", func(t *testing.T) {
		t.Parallel()
		u := strings.Replace(b.url, "&tlsCertificateKeyFile=", "&appName=", 1)
		refused(t, run(t, nil, "worker", "--type", "t", "--dir", b.dir, "--url", u), failed, "tlsCertificateKeyFile=")
	})
}

// tellsNoPassword checks that no answer, status or log of a worker contains the password, and ends the worker.
func tellsNoPassword(t *testing.T, w *process, address string) {
	t.Helper()
	for _, page := range []string{"/", "/livez", "/readyz", "/statusz", "/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		if code, body := ask(address + page); code == 0 || strings.Contains(body, "secret") {
			t.Errorf("%s: %s: %d %s", w.name, page, code, body)
		}
	}
	if line := commandLine(t, w); strings.Contains(line, "secret") {
		t.Errorf("ps shows %q", line)
	}
	w.signal(t, syscall.SIGQUIT) // like a panic, this prints all goroutines
	w.wait(t, time.Minute)
	if log := w.stderr.String(); !strings.Contains(log, "goroutine ") || strings.Contains(log, "secret") {
		t.Errorf("%s: the log, with a dump of all goroutines, tells the password, or there is none:\n%s", w.name, tail(log, 20))
	}
}

// commandLine returns the command line of a process, as ps shows it.
func commandLine(t *testing.T, p *process) string {
	t.Helper()
	line, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(line), "\x00", " ")
}
