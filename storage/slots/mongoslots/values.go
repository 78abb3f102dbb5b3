package mongoslots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

// durable is the write concern of inserts and deletions, regardless of URL and client.
//
// rule: acknowledged writes survive a failover (majority) and a crash (journal)
var durable = bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}

// Create stores a value, see [slots.Store.Create]: it inserts the document. Index: _id; its uniqueness
// decides.
func (s *Store) Create(ctx context.Context, name string, data []byte) error {
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	if len(data) > MaxValue {
		return s.refused("create", name,
			fmt.Sprintf("the value has %d bytes; the maximum is %d", len(data), MaxValue),
			"store it in parts", nil)
	}
	n, err := s.write(ctx, bson.D{
		{Key: "insert", Value: s.collection},
		{Key: "documents", Value: bson.A{bson.D{
			{Key: "_id", Value: name},
			{Key: "n", Value: int64(len(data))},
			{Key: "b", Value: bson.Binary{Data: data}},
		}}},
	})
	switch {
	case err == nil && n == 1:
		return nil
	case err == nil:
		return fmt.Errorf("%s: create %s: the server's answer makes no sense: it has inserted %d documents",
			s.address, name, n)
	case mongo.IsDuplicateKeyError(err) && !onlyHere(err):
		return s.exists(ctx, name)
	}
	return s.explain(ctx, "create", name, err)
}

// exists returns the error of Create after E11000. The existing document is not the one that Create sent:
// that was sent once, and refused.
//
// rule: "exists" counts only if a majority has the value. The server also reports values that
// the next failover rolls back, which frees the name again.
func (s *Store) exists(ctx context.Context, name string) error {
	_, err := s.findCertainly(ctx, name, bson.D{{Key: "_id", Value: 1}})
	switch {
	case err == nil:
		return fmt.Errorf("%s: create %s: %w", s.address, name, fs.ErrExist)
	case errors.Is(err, mongo.ErrNoDocuments):
		return fmt.Errorf("%s: create %s: there was a value, and it is gone: a failover took it back, or it was deleted",
			s.address, name)
	case ctx.Err() != nil:
		return s.explain(ctx, "create", name, err)
	}
	// Only its text is kept: a refused read says nothing about the create.
	return fmt.Errorf("%s: create %s: there is a value, but it may not be durable: %v",
		s.address, name, s.explain(ctx, "read", name, err))
}

// Delete removes a value, see [slots.Store.Delete]: it deletes {_id: name}. Index: _id.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	_, err := s.write(ctx, bson.D{
		{Key: "delete", Value: s.collection},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: byName(name)}, {Key: "limit", Value: 1}}}},
	})
	return s.explain(ctx, "delete", name, err)
}

// write sends a write command, once, and returns its n.
//
// rule: one request, so that its answer covers everything that was sent. The driver's own retry
// (retryWrites, the default) reports only the last answer: for example "full", for a value that the first
// request has stored. RunCommand never repeats a command that may have been applied, whatever the settings
// of the client.
func (s *Store) write(ctx context.Context, command bson.D) (n int64, err error) {
	command = append(command, bson.E{Key: "writeConcern", Value: durable})
	raw, err := s.db.RunCommand(alone(ctx), command).Raw()
	if err != nil {
		return 0, err
	}
	n, _ = raw.Lookup("n").AsInt64OK()
	return n, nil
}

// Read returns a value, see [slots.Store.Read].
func (s *Store) Read(ctx context.Context, name string) ([]byte, error) {
	raw, err := s.find(ctx, "read", name, bson.D{{Key: "n", Value: 1}, {Key: "b", Value: 1}})
	if err != nil {
		return nil, err
	}
	data, ok := decodeValue(raw)
	if !ok {
		return nil, s.foreign(name)
	}
	return data, nil
}

// decodeValue returns the value of a document.
func decodeValue(raw bson.Raw) ([]byte, bool) {
	n, ok := raw.Lookup("n").Int64OK()
	_, data, isBinary := raw.Lookup("b").BinaryOK()
	return data, ok && isBinary && int64(len(data)) == n
}

// Size returns the length of a value, see [slots.Store.Size].
func (s *Store) Size(ctx context.Context, name string) (int64, error) {
	raw, err := s.find(ctx, "look up", name, bson.D{{Key: "n", Value: 1}})
	if err != nil {
		return 0, err
	}
	n, ok := raw.Lookup("n").Int64OK()
	if !ok || n < 0 {
		return 0, s.foreign(name)
	}
	return n, nil
}

func (s *Store) foreign(name string) error {
	return fmt.Errorf("%w: %s: the document %s was not stored by this package, {_id, n: length of b, b: binary}; "+
		"find out who wrote it, and remove it or restore the right one", storage.ErrIntegrity, s.address, name)
}

// find finds {_id: name}. Index: _id.
func (s *Store) find(ctx context.Context, doing, name string, want bson.D) (bson.Raw, error) {
	if err := slotname.Check(s, name); err != nil {
		return nil, err
	}
	raw, err := s.findIn(ctx, s.majority, name, want)
	// rule: a value is absent only if a linearizable read does not find it. A majority snapshot may be older
	// than this call, and that of a deposed primary is.
	if errors.Is(err, mongo.ErrNoDocuments) {
		raw, err = s.findCertainly(ctx, name, want)
	}
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, fmt.Errorf("%s: %s %s: %w", s.address, doing, name, fs.ErrNotExist)
	}
	return raw, s.explain(ctx, doing, name, err)
}

func (s *Store) findIn(
	ctx context.Context, c *mongo.Collection, name string, want bson.D,
) (bson.Raw, error) {
	return c.FindOne(alone(ctx), byName(name), options.FindOne().SetProjection(want)).Raw()
}

// findCertainly finds {_id: name} linearizably: a majority has what it returns, and it finds
// every value that was created before it began.
func (s *Store) findCertainly(ctx context.Context, name string, want bson.D) (bson.Raw, error) {
	// The driver derives the server's maxTimeMS from the deadline.
	bounded, cancel := context.WithTimeout(ctx, certainTimeout)
	defer cancel()
	raw, err := s.findIn(bounded, s.certain, name, want)
	if !isConcernUnknown(err) {
		return raw, err
	}
	// A standalone server refuses linearizable reads, and does not need them: no other server accepts writes, and
	// its answer about this name came after it wrote its journal, as the insert had requested.
	//
	// rule: any read is certain if there is only one server, and only then
	if alone, asked := s.standsAlone(bounded); asked != nil || !alone {
		return nil, err
	}
	return s.findIn(bounded, s.majority, name, want)
}

func byName(name string) bson.D { return bson.D{{Key: "_id", Value: name}} }
