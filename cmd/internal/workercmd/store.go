package workercmd

import (
	"context"

	"github.com/fencepost/fencepost/cmd/internal/store"
)

// openStore opens the store of the files.
//
// rule: nothing is written to a store before a probe has shown that it lets only one of several creates succeed.
func openStore(ctx context.Context, address, url string) (*store.Place, error) {
	place, err := store.Open(ctx, address, url)
	if err != nil {
		return nil, err
	}
	if err := place.Probe(ctx); err != nil {
		place.Close()
		return nil, err
	}
	return place, nil
}
