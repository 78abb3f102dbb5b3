package mongolock

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongomany"
	"github.com/fencepost/fencepost/lock"
)

var _ lock.BatchRenewer = (*store)(nil)

// RenewMany: for each hold, mine → touch; one update command with a statement for each, w:majority.
// Index: _id. The server returns how many matched, not which. The statements are unordered, so that a
// failing one does not stop the others; the answer is then an error.
func (s *store) RenewMany(ctx context.Context, renewals []lock.Renewal) (found int, err error) {
	updates := make([]mongomany.Update, len(renewals))
	for i, r := range renewals {
		updates[i] = mongomany.Update{ID: r.Name, Filter: mine(r.Name, r.Hold), Update: touch(r.Hold, r.Version)}
	}
	if found, err = mongomany.UpdateAll(ctx, s.locks, updates); err != nil {
		return 0, s.explain("renew many", err)
	}
	return found, nil
}

// Requests finds {_id: one of names, h.rq or s.rq: present}. Index: _id. It skips documents that
// cannot be decoded: the single renewal of that lock reports them.
func (s *store) Requests(ctx context.Context, names []string) (map[lock.HoldID]string, error) {
	filter := bson.D{
		{Key: "_id", Value: is("$in", names)},
		{Key: "$or", Value: bson.A{is("h.rq", is("$exists", true)), is("s.rq", is("$exists", true))}},
	}
	cur, err := s.locks.Find(ctx, filter, options.Find().SetProjection(bson.D{
		{Key: "h.id", Value: 1}, {Key: "h.rq", Value: 1}, {Key: "s.id", Value: 1}, {Key: "s.rq", Value: 1}}))
	if err != nil {
		return nil, s.explain("read requests for", err)
	}
	var docs []bson.Raw
	if err := cur.All(ctx, &docs); err != nil {
		return nil, s.explain("read requests for", err)
	}
	asked := make(map[lock.HoldID]string)
	for _, raw := range docs {
		r, err := decode("", raw)
		if err != nil {
			continue
		}
		for _, h := range r.Holds() {
			if h.Asked != "" {
				asked[h.ID] = h.Asked
			}
		}
	}
	return asked, nil
}
