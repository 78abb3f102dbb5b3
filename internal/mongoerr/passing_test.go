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

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

// Errors that a starting program waits out, or that a person has to correct. The tests of the programs see some of
// them on the wire.
func TestPassing(t *testing.T) {
	member := func(kind description.ServerKind) description.Server {
		return description.Server{Addr: "db2:27017", Kind: kind}
	}
	for name, tc := range map[string]struct {
		err    error
		reason string // "": not worth waiting for
		heard  bool
	}{
		"nothing":                   {nil, "", false},
		"not the primary":           {mongo.CommandError{Code: 10107}, "not the primary", true},
		"stepped down":              {mongo.CommandError{Code: 189}, "stepped down", true},
		"interrupted":               {mongo.CommandError{Code: 11602}, "stepped down", true},
		"read from no primary":      {mongo.CommandError{Code: 13435}, "not the primary", true},
		"starting":                  {mongo.CommandError{Code: 13436}, "starting", true},
		"shutting down":             {mongo.CommandError{Code: 91}, "shutting down", true},
		"no rights":                 {mongo.CommandError{Code: 13}, "", false},
		"wrong password":            {mongo.CommandError{Code: 18}, "", false},
		"an unknown code":           {mongo.CommandError{Code: 424242}, "", false},
		"no code, cut off":          {mongo.CommandError{Labels: []string{"NetworkError"}, Wrapped: topology.ConnectionError{Wrapped: io.EOF}}, "closed", true},
		"no code, silent":           {mongo.CommandError{Wrapped: context.DeadlineExceeded}, "no answer", false},
		"given up by the driver":    {mongo.CommandError{Wrapped: topology.ConnectionError{Wrapped: &net.OpError{Op: "read", Err: net.ErrClosed}}}, "no answer", false},
		"a secondary":               {mongoerr.ErrNoPrimary, "no primary", true},
		"election":                  {notFound(down(refused), member(description.ServerKindRSSecondary)), "no primary", true},
		"election, one is unknown":  {notFound(down(unknown), member(description.ServerKindRSSecondary)), "no primary", true},
		"a member that recovers":    {notFound(member(description.ServerKindRSMember)), "no primary", true},
		"a set that is not set up":  {notFound(member(description.ServerKindRSGhost)), "no primary", true},
		"restart":                   {notFound(down(refused)), "db1:27017: connection refused", true},
		"one of two restarts":       {notFound(down(unknown), down(refused)), "connection refused", true},
		"silence":                   {notFound(down(os.ErrDeadlineExceeded)), "no answer", false},
		"silence and a refusal":     {notFound(down(os.ErrDeadlineExceeded), down(refused)), "connection refused", true},
		"not asked yet":             {notFound(down(nil)), "no answer", false},
		"greeting while it ends":    {notFound(down(driver.Error{Code: 11600})), "shutting down", true},
		"greeting is not permitted": {notFound(down(driver.Error{Code: 13})), "", false},
		"unknown host":              {notFound(down(unknown)), "", false},
		"name service unreachable":  {notFound(down(&net.DNSError{Err: "server misbehaving", IsTemporary: true})), "name service", false},
		"host is off":               {notFound(down(os.NewSyscallError("connect", syscall.EHOSTUNREACH))), "unreachable", false},
		"TLS":                       {notFound(down(refused), down(x509.UnknownAuthorityError{})), "", false},
		"no member of this set":     {notFound(), "", false},
		"something else":            {errors.New("no"), "", false},
	} {
		err := tc.err
		if err != nil {
			err = fmt.Errorf("mongoqueue: connect: %w", err)
		}
		if reason, heard := mongoerr.Passing(err); !strings.Contains(reason, tc.reason) || (reason == "") != (tc.reason == "") || heard != tc.heard {
			t.Errorf("%s: %q, %v; want %q, %v", name, reason, heard, tc.reason, tc.heard)
		}
	}
}
