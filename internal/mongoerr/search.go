package mongoerr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Search is the driver's error of a search for a usable server, in few words. The driver's own text is a list of everything that it knows
// about each server.
type Search struct {
	Why   string // for each server, at most maxWhy
	Check string // what a person should check
	err   error
}

// maxWhy bounds the list of servers in an error.
const maxWhy = 3

func (s *Search) Error() string { return s.Why }
func (s *Search) Unwrap() error { return s.err }

// What to check if there is no usable server.
const (
	checkName    = "check the name of the host in the URL"
	checkMembers = "check that a majority of the replica set's members runs"
	checkSet     = "check replicaSet in the URL"
	checkServer  = "check that the server runs, that host and port are right, that a replica set has a majority of its members, and that replicaSet and tls in the URL fit it (a server may want tls=true)"
)

// Brief returns err as a *Search that wraps it, if it is about one, and otherwise err.
func Brief(err error) error {
	var selection topology.ServerSelectionError
	if !errors.As(err, &selection) || selection.Desc.CompatibilityErr != nil {
		return err
	}
	why, check := whyNone(selection.Desc)
	var before attempt
	if errors.As(err, &before) {
		why = append(why, fmt.Sprintf("an attempt before: %v", before.error))
	}
	if more := len(why) - maxWhy; more > 0 {
		why = append(why[:maxWhy], fmt.Sprintf("and %d more", more))
	}
	return &Search{Why: strings.Join(why, ", "), Check: cmp.Or(TLS(err), check), err: err}
}

// whyNone returns why no server of a topology is usable, and what to check.
func whyNone(desc description.Topology) (why []string, check string) {
	if len(desc.Servers) == 0 { // the driver forgets those that say that they belong to another set, or to none
		return []string{"no server of the URL belongs to the replica set " + desc.SetName}, checkSet
	}
	unknownHosts := 0
	for _, s := range desc.Servers {
		if s.Kind&description.ServerKindRSMember != 0 && s.Kind != description.ServerKindRSPrimary {
			return []string{ErrNoPrimary.Error()}, checkMembers
		}
		reason := whyNot(s)
		if reason == noSuchHost {
			unknownHosts++
		}
		why = append(why, fmt.Sprintf("%s: %s", s.Addr, reason))
	}
	if unknownHosts == len(desc.Servers) {
		return why, checkName
	}
	return why, checkServer
}

const noSuchHost = "no such host"

// whyNot returns why one server is not usable.
func whyNot(s description.Server) string {
	var dns *net.DNSError
	switch {
	case s.Kind != 0:
		return "has just come back"
	case s.LastError == nil, errors.Is(s.LastError, context.Canceled):
		return "no answer"
	case errors.As(s.LastError, &dns) && dns.IsNotFound:
		return noSuchHost
	case TLS(s.LastError) != "":
		return s.LastError.Error()
	}
	reason, _ := passingAnswer(s.LastError)
	return cmp.Or(reason, s.LastError.Error())
}
