package fencepost_test

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
)

// The server shuts down after the queue is open and before the locks are.
func TestAServerThatGoesWhileItIsOpened(t *testing.T) {
	s := fake.StartWith(t, func(command string, doc bson.Raw) bson.D {
		if fake.IsHello(command) && bytes.Contains(doc, []byte("fencepost-locks")) {
			return fake.Failed(91)
		}
		return nil
	})
	_, err := fencepost.Open(t.Context(), "mongodb://"+s.Addr()+"/db?serverSelectionTimeoutMS=300")
	if !errors.Is(err, queue.ErrUnreachable) {
		t.Errorf("%v is not %v", err, queue.ErrUnreachable)
	}
}
