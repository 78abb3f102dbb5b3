package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// If all letters stay for the same reason, it is reported once.
func TestRequeueSaysOnceWhyLettersStay(t *testing.T) {
	ctx := context.Background()
	q := queuetest.NewMemory()
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(ctx)
	var letters []queue.DeadLetter
	for n := range uint64(50) {
		letters = append(letters, queue.DeadLetter{Message: queue.Message{Type: "orders", ID: queue.NewID(time.Now(), 1, n+1), Payload: []byte("x")}})
	}
	if err := q.MoveToDeadLetters(ctx, "orders", letters); err != nil {
		t.Fatal(err)
	}
	on := true
	if _, err := q.PatchSettings(ctx, "orders", queue.SettingsPatch{PublishPaused: &on}); err != nil {
		t.Fatal(err)
	}
	n, err := queue.Requeue(ctx, q, p, letters)
	if n != 0 || !errors.Is(err, queue.ErrPaused) {
		t.Fatalf("requeued %d: %v", n, err)
	}
	if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "50 dead letters stay") {
		t.Errorf("the error is %q", text)
	}
	if left, err := q.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 100}); err != nil || len(left) != 50 {
		t.Errorf("%d letters are left (%v)", len(left), err)
	}
}
