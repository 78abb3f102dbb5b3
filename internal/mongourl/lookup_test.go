package mongourl_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/internal/mongourl"
)

// Without the end of a context a look-up ends, too, before the driver's own does.
func TestLookUpIsBounded(t *testing.T) {
	fake.Names(t, func(context.Context) byte { return fake.NoSuchName })
	_, _, _ = mongourl.Parse(t.Context(), "mongodb+srv://cluster0.example.net") // so that package net reads its configuration, outside of the bubble
	fake.Names(t, func(question context.Context) byte { <-question.Done(); return 0 })
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, _, err := mongourl.Parse(t.Context(), "mongodb+srv://cluster0.example.net")
		var dns *net.DNSError
		if took := time.Since(began); took != 15*time.Second || !errors.As(err, &dns) || !dns.IsTimeout || dns.IsNotFound || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		time.Sleep(time.Hour) // until the driver's look-up has ended, too
	})
}
