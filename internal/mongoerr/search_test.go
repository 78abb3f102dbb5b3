package mongoerr_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

// down is a server whose last answer was an error.
func down(err error) description.Server { return description.Server{Addr: "db1:27017", LastError: err} }

var (
	refused = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unknown = &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "db1", IsNotFound: true}}
)

// notFound is the driver's error after a search among these servers.
func notFound(servers ...description.Server) error {
	return topology.ServerSelectionError{Wrapped: context.DeadlineExceeded, Desc: description.Topology{SetName: "rs7", Servers: servers}}
}

// The error of a search says why each server is not usable and what to check, and not everything that the driver knows.
func TestBrief(t *testing.T) {
	many := []description.Server{down(refused), down(refused), down(refused), down(refused), down(refused)}
	for name, tc := range map[string]struct {
		servers    []description.Server
		why, check string
	}{
		"unknown host":           {[]description.Server{down(unknown)}, "db1:27017: no such host", "the name of the host"},
		"one host is unknown":    {[]description.Server{down(unknown), down(refused)}, "db1:27017: no such host, db1:27017: connection refused", "the server runs"},
		"refused":                {[]description.Server{down(refused)}, "db1:27017: connection refused", "the server runs"},
		"not asked yet":          {[]description.Server{down(nil)}, "db1:27017: no answer", "the server runs"},
		"given up":               {[]description.Server{down(context.Canceled)}, "db1:27017: no answer", "the server runs"},
		"many":                   {many, strings.Repeat("db1:27017: connection refused, ", 3) + "and 2 more", "the server runs"},
		"something else":         {[]description.Server{down(errors.New("it snows"))}, "db1:27017: it snows", "the server runs"},
		"TLS":                    {[]description.Server{down(x509.UnknownAuthorityError{})}, "db1:27017: x509: certificate signed by unknown authority", "tlsCAFile="},
		"hung up":                {[]description.Server{down(io.EOF)}, "db1:27017: connection closed by the server", "only one side uses TLS"},
		"no primary":             {[]description.Server{down(refused), {Addr: "db2:27017", Kind: description.ServerKindRSSecondary}}, "the replica set has no primary, an election may be under way", "a majority"},
		"a set of another name":  {nil, "no server of the URL belongs to the replica set rs7", "replicaSet in the URL"},
		"usable again, too late": {[]description.Server{{Addr: "db2:27017", Kind: description.ServerKindStandalone}}, "db2:27017: has just come back", "the server runs"},
	} {
		got := mongoerr.Brief(fmt.Errorf("hello: %w", notFound(tc.servers...)))
		var brief *mongoerr.Search
		if !errors.As(got, &brief) || got.Error() != tc.why || !strings.Contains(brief.Check, tc.check) {
			t.Errorf("%s: %#v, want %q and a check of %q", name, got, tc.why, tc.check)
		}
		if !errors.As(got, new(topology.ServerSelectionError)) || !errors.Is(got, context.DeadlineExceeded) {
			t.Errorf("%s: the driver's error is lost", name)
		}
	}
	if other := errors.New("boom"); mongoerr.Brief(other) != other {
		t.Error("another error was changed")
	}
}
