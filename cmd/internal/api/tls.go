package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/rs/zerolog"
)

// TLS is a certificate, and an authority of clients. Both are read again when their files have changed. Safe for concurrent use.
type TLS struct {
	own     *reloaded[*tls.Certificate]
	clients *reloaded[*x509.CertPool] // nil: clients need no certificate
}

// LoadTLS reads a certificate and its key, and with clientCA the certificates of the authorities that have signed those of clients. All are PEM.
func LoadTLS(cert, key, clientCA string) (*TLS, error) {
	t := &TLS{}
	var err error
	t.own, err = load(func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, err
	}, cert, key)
	if err != nil || clientCA == "" {
		return t, err
	}
	t.clients, err = load(func(texts [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(texts[0]) {
			return nil, errors.New("there is no certificate in it, as PEM")
		}
		return pool, nil
	}, clientCA)
	return t, err
}

func (t *TLS) logTo(log zerolog.Logger) {
	t.own.logTo(log)
	if t.clients != nil {
		t.clients.logTo(log)
	}
}

// Config is for a listener.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*t.own.get()}}
		if t.clients != nil {
			// rule: without a certificate of a client that the authority has signed there is no connection.
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, t.clients.get()
		}
		return c, nil
	}}
}
