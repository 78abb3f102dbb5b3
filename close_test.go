package fencepost_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Close ends soon after its context, even if the server does not answer.
func TestCloseEndsWithItsContext(t *testing.T) {
	var silent atomic.Bool
	received, ended := make(chan struct{}), make(chan struct{})
	receive := sync.OnceFunc(func() { close(received) })
	s := fake.Start(t, func(command string) bson.D {
		if silent.Load() {
			if !fake.IsHello(command) {
				receive()
			}
			<-ended
		}
		return nil
	})
	defer close(ended)
	b, err := fencepost.Open(t.Context(), "mongodb://"+s.Addr()+"/db")
	if err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(t.Context())
	end()
	other, err := fencepost.Open(t.Context(), "mongodb://"+s.Addr()+"/db")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(over); err != nil { // a program that closes with the context that its signal ended
		t.Errorf("with an ended context: %v", err)
	}
	silent.Store(true)
	asking, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = b.Queue.Types(asking)
	}()
	<-received
	ctx, cancelClose := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelClose()
	began := time.Now()
	_ = b.Close(ctx)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	cancel()
	<-asked
}
