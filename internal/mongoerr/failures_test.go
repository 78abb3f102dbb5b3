package mongoerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/fencepost/fencepost/internal/mongoerr"
)

// The driver gave up its last attempt, and its error does not mention the earlier refusal.
func TestARefusalIsNotForgotten(t *testing.T) {
	refused := errors.New("remote error: tls: certificate required")
	canceled := fmt.Errorf("connection(127.0.0.1:27017): %w", context.Canceled)
	answered := error(nil)
	for _, test := range []struct {
		name     string
		attempts []error
		err      error
		want     string // in the remedy; "" for none
	}{
		{"refused, then given up", []error{refused, canceled}, notFound(down(canceled)), "tlsCertificateKeyFile="},
		{"refused, then given up before it began", []error{refused, canceled}, notFound(down(nil)), "tlsCertificateKeyFile="},
		{"refused, then gone", []error{refused, canceled, io.EOF}, notFound(down(errors.New("connection refused"))), ""},
		{"refused, then answered", []error{refused, answered}, notFound(down(canceled)), ""},
		{"hung up on, then given up", []error{io.EOF, canceled}, notFound(down(canceled)), "only one side uses TLS"},
		{"reset, then given up", []error{syscall.ECONNRESET, canceled}, notFound(down(canceled)), "only one side uses TLS"},
		{"answered, then hung up on, then given up", []error{answered, io.EOF, canceled}, notFound(down(canceled)), ""},
		{"given up only", []error{canceled}, notFound(down(canceled)), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := options.Client()
			f := mongoerr.Watch(o)
			for _, err := range test.attempts {
				if err == nil {
					o.ServerMonitor.ServerHeartbeatSucceeded(&event.ServerHeartbeatSucceededEvent{})
				} else {
					o.ServerMonitor.ServerHeartbeatFailed(&event.ServerHeartbeatFailedEvent{Failure: err})
				}
			}
			got := f.Recall(test.err)
			if !errors.As(got, new(topology.ServerSelectionError)) {
				t.Errorf("%v: the error of the client is lost", got)
			}
			if remedy := mongoerr.TLS(got); !strings.Contains(remedy, test.want) || (remedy == "") != (test.want == "") {
				t.Errorf("%v: remedy %q, want %q", got, remedy, test.want)
			}
		})
	}
	if err := (*mongoerr.Failures)(nil).Recall(canceled); err != canceled {
		t.Errorf("without a monitor: %v", err)
	}
}
