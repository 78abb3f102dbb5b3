package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/reload"
	"github.com/rs/zerolog"
)

// TLS is a server certificate and, optionally, a certificate authority for clients. Both are read again after their files have changed.
// Safe for concurrent use.
type TLS struct {
	own     *reload.Files[*tls.Certificate]
	clients *reload.Files[*x509.CertPool] // nil: clients need no certificate
}

// LoadTLS reads a certificate and its key and, unless clientCA is empty, the authorities that sign client certificates. All files are PEM.
func LoadTLS(cert, key, clientCA string) (*TLS, error) {
	t := &TLS{}
	var err error
	t.own, err = reload.Load(func(texts [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		return &pair, err
	}, nil, cert, key)
	if err != nil || clientCA == "" {
		return t, err
	}
	t.clients, err = reload.Load(func(texts [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(texts[0]) {
			return nil, errors.New("the file contains no PEM certificate")
		}
		return pool, nil
	}, nil, clientCA)
	return t, err
}

func (t *TLS) logTo(log zerolog.Logger) {
	t.own.LogTo(log)
	if t.clients != nil {
		t.clients.LogTo(log)
	}
}

// trusts reports whether the client of a connection still has an authority's signature. chain was verified when the connection began; what has expired
// since is accepted: a client presents its new certificate when it connects again.
func (t *TLS) trusts(chain []*x509.Certificate) bool {
	o := x509.VerifyOptions{Roots: t.clients.Get(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: time.Now()}
	for _, c := range chain {
		o.Intermediates.AddCert(c)
		if c.NotAfter.Before(o.CurrentTime) {
			o.CurrentTime = c.NotAfter
		}
	}
	_, err := chain[0].Verify(o)
	return err == nil
}

// Config returns the configuration for a listener.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*t.own.Get()}}
		if t.clients != nil {
			// Probes have no certificate. All other requests without one are refused, see Access.certified.
			c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, t.clients.Get()
		}
		return c, nil
	}}
}
