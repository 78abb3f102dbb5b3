package locktest

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// BenchmarkRenewMany measures a full batch of renewals together with the query for requests that follows each batch.
func BenchmarkRenewMany(b *testing.B, s lock.Store) {
	batch := make([]lock.Renewal, lock.MaxRenewals)
	names := make([]string, len(batch))
	for i := range batch {
		names[i] = fmt.Sprint("n", i)
		batch[i] = renewal(names[i], newHold(20*time.Second))
		if ok, err := s.Create(b.Context(), names[i], batch[i].Hold, lock.NewVersion()); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	renewer := s.(lock.BatchRenewer)
	for b.Loop() {
		for i := range batch {
			batch[i].Version = lock.NewVersion()
		}
		if found, err := renewer.RenewMany(b.Context(), batch); found != len(batch) || err != nil {
			b.Fatal(found, err)
		}
		if _, err := renewer.Requests(b.Context(), names); err != nil {
			b.Fatal(err)
		}
	}
}
