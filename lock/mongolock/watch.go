package mongolock

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/lock"
)

var _ lock.Watcher = (*store)(nil)

// freed selects the events after which a record may be free: h is unset, shares are removed, the
// document is deleted. It excludes renewals, which are most of the events: they set s.0.v, not s.
var freed = mongo.Pipeline{
	{{Key: "$match", Value: is("$or", bson.A{
		is("operationType", "delete"),
		is("updateDescription.removedFields", "h"),
		is("updateDescription.updatedFields.s", is("$exists", true)),
		is("updateDescription.truncatedArrays.field", "s"),
	})}},
	{{Key: "$project", Value: is("documentKey", 1)}},
}

// Watch opens a change stream. Standalone servers and most compatible servers do not support change
// streams: Watch returns an error. If the server is only temporarily unavailable (unreachable, electing
// a primary), Watch returns a closed channel, so that the caller tries again.
func (s *store) Watch(ctx context.Context) (<-chan string, error) {
	stream, err := s.locks.Watch(ctx, freed, options.ChangeStream())
	names := make(chan string)
	if reason, _ := mongoerr.Passing(err); reason != "" {
		close(names)
		return names, nil
	}
	if err != nil {
		return nil, s.explain("watch", err)
	}
	go func() {
		defer close(names)
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
			defer cancel()
			_ = stream.Close(end)
		}()
		for stream.Next(ctx) {
			var event struct {
				Key struct {
					Name string `bson:"_id"`
				} `bson:"documentKey"`
			}
			if stream.Decode(&event) != nil {
				continue
			}
			select {
			case names <- event.Key.Name:
			case <-ctx.Done():
			}
		}
	}()
	return names, nil
}
