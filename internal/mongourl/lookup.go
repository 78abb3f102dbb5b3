package mongourl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/redact"
)

// lookUpFor bounds the look-ups of one call: there are two, and each may wait 5 s for a name server before it asks the next one.
const lookUpFor = 15 * time.Second

// Connect is mongo.Connect for options from Parse. The driver looks up the hosts of a mongodb+srv:// URL again: the error is like
// that of Parse if DNS does not answer, and otherwise contains no password.
func Connect(ctx context.Context, uri string, co *options.ClientOptions) (*mongo.Client, error) {
	return lookUp(ctx, uri, func() (*mongo.Client, error) {
		client, err := mongo.Connect(co)
		if err == nil {
			return client, nil
		}
		if silent := unanswered(uri, err); silent != nil {
			return nil, silent
		}
		return nil, fmt.Errorf("%s: %s", redact.URL(uri), redact.Password(err.Error(), uri))
	}, func(client *mongo.Client) {
		if client != nil {
			_ = client.Disconnect(context.Background()) // nothing was sent
		}
	})
}

// lookUp runs f, which looks up the hosts if uri is mongodb+srv://. The driver does that without a context, and for minutes if DNS does
// not answer: then lookUp returns at the end of ctx, or after lookUpFor, and drop gets what f returns later.
func lookUp[T any](ctx context.Context, uri string, f func() (T, error), drop func(T)) (T, error) {
	if !strings.HasPrefix(uri, "mongodb+srv://") {
		return f()
	}
	within, cancel := context.WithTimeout(ctx, lookUpFor)
	defer cancel()
	type outcome struct {
		result T
		err    error
	}
	found := make(chan outcome)
	go func() {
		result, err := f()
		select {
		case found <- outcome{result, err}:
		case <-within.Done():
			drop(result)
		}
	}()
	select {
	case o := <-found:
		return o.result, o.err
	case <-within.Done():
	}
	var none T
	err := silence(uri, &net.DNSError{Err: "no answer in time", IsTimeout: true})
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return none, err
}

// unanswered returns the error for a look-up without an answer, nil if err is about something else, such as a name that does not exist.
func unanswered(uri string, err error) error {
	var dns *net.DNSError
	if !errors.As(err, &dns) || dns.IsNotFound {
		return nil
	}
	return silence(uri, dns)
}

// silence says that DNS did not answer. It names the host as redact does, because the driver takes a part of a malformed password for
// the host.
func silence(uri string, err *net.DNSError) error {
	name := redact.URL(uri)
	_, host, _ := strings.Cut(name, "://")
	host, _, _ = strings.Cut(host, "/")
	return fmt.Errorf("%s: its hosts are not known, because DNS does not answer: %w; check the name servers of this machine, or name the hosts in a mongodb:// URL",
		name, &net.DNSError{Err: err.Err, Name: host, Server: err.Server, IsTimeout: err.IsTimeout, IsTemporary: err.IsTemporary})
}
