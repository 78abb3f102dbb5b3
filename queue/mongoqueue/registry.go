package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongomany"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// RegisterType implements queue.Queue.
//
//	insertOne {_id: "<type>"} into types, w: majority; index: _id. Duplicate key: registered already.
func (q *Queue) RegisterType(ctx context.Context, typ string) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	_, err := q.types.InsertOne(ctx, bson.D{{Key: "_id", Value: typ}})
	if err != nil && !isDuplicate(err) {
		return q.explain(ctx, "register type "+typ, err)
	}
	return nil
}

// registerOnce registers a type once per process. It ignores failures: the next call tries again, and a type with messages is listed
// anyway.
func (q *Queue) registerOnce(ctx context.Context, typ string) {
	q.mu.Lock()
	known := q.registered[typ]
	q.mu.Unlock()
	if !known && q.RegisterType(ctx, typ) == nil {
		q.mu.Lock()
		q.registered[typ] = true
		q.mu.Unlock()
	}
}

// isDuplicate reports whether an insertOne failed because the document already exists, durably.
func isDuplicate(err error) bool {
	var write mongo.WriteException
	return errors.As(err, &write) && write.WriteConcernError == nil && write.HasErrorCode(codeDuplicateKey)
}

// Types implements queue.Queue.
//
//	find {} in types and in files → _id only: at most one document per type.
//	A skip scan over messages and one over dead, see skipScan.
func (q *Queue) Types(ctx context.Context) ([]string, error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	scan := func(ctx context.Context, c *mongo.Collection, found map[string]bool) error {
		return q.skipScan(ctx, c, false, found)
	}
	for _, look := range []struct {
		in   *mongo.Collection
		find func(context.Context, *mongo.Collection, map[string]bool) error
	}{{q.types, q.listed}, {q.files, q.listed}, {q.messages, scan}, {q.dead.write, scan}} {
		if err := look.find(ctx, look.in, found); err != nil {
			return nil, q.explain(ctx, "list types", err)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// listed adds the types that have a document in c.
func (q *Queue) listed(ctx context.Context, c *mongo.Collection, found map[string]bool) error {
	cursor, err := c.Find(ctx, bson.D{}, options.Find().SetProjection(idOnly))
	if err != nil {
		return err
	}
	strays := straysOf(c, "documents that are not a type's")
	err = eachKey(ctx, cursor, func(key string) {
		if queue.ValidateType(key) == nil {
			found[key] = true
		} else {
			queuedriver.CountStray(&strays, key)
		}
	})
	if err == nil {
		q.strays.Set(strays)
	}
	return err
}

// skip returns the type in a key of messages, and a later key: all keys between the two are of the same kind, so a scan can continue there
// without reading the messages of a type one by one. typ is empty if the key belongs to no type.
func skip(key string) (typ, next string, stray bool) {
	n := 0
	for n < len(key) && isTypeByte(key[n]) {
		n++
	}
	if n == len(key) {
		return "", key, true // no separator at all
	}
	name := key[:n]
	valid := queue.ValidateType(name) == nil
	switch key[n] {
	case headSeparator[0]:
		if valid {
			typ = name
		}
		return typ, name + headEnd, !valid
	case pieceSeparator[0]:
		return "", name + pieceEnd, !valid
	}
	r, _ := utf8.DecodeRuneInString(key[n:])
	if r == utf8.RuneError || !utf8.ValidRune(r+1) {
		return "", key, true // the next key, whatever it is
	}
	return "", name + string(r+1), true
}

func isTypeByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// fileDoc is a document of files.
type fileDoc struct {
	Type         string      `bson:"_id"`
	FileID       bson.Binary `bson:"file_id"`       // changed by SucceedFile only
	Generation   int64       `bson:"generation"`    // missing in entries of earlier versions: 1
	Epoch        int64       `bson:"epoch"`         // only grows
	DurableIndex int64       `bson:"durable_index"` // only grows
	Place        string      `bson:"place,omitempty"`
}

// encodeFile refuses values that do not fit into the signed integers of BSON.
func encodeFile(typ string, f queue.RegistryEntry) (fileDoc, error) {
	if max(f.Generation, f.Epoch, f.DurableIndex) > math.MaxInt64 {
		return fileDoc{}, fmt.Errorf("mongoqueue: file of %s: generation %d, epoch %d or durable index %d exceeds 63 bits", typ, f.Generation, f.Epoch, f.DurableIndex)
	}
	return fileDoc{Type: typ, FileID: bson.Binary{Data: f.FileID[:]}, Generation: int64(max(f.Generation, 1)), Epoch: int64(f.Epoch),
		DurableIndex: int64(f.DurableIndex), Place: f.Place}, nil
}

// RegistryEntry implements queue.Queue.
//
//	find {_id: "<type>"} in files, or {_id: {$in: […]}} for concurrent calls; index: _id. Nothing matched: no file is registered.
func (q *Queue) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	raw, err := q.shared.entries.Do(ctx, typ)
	if err != nil {
		return queue.RegistryEntry{}, false, q.explain(ctx, "read the file entry of "+typ, err)
	}
	if raw == nil {
		return queue.RegistryEntry{}, false, nil
	}
	f, err := decodeFile(raw)
	if err != nil {
		return queue.RegistryEntry{}, false, fmt.Errorf("mongoqueue: %w: %w; repair the document %q in the collection files, or remove it: the next worker registers "+
			"the file again", queue.ErrDamaged, err, typ)
	}
	return f, true, nil
}

// decodeFile decodes a registry entry. The caller says what to do about an error.
func decodeFile(raw bson.Raw) (f queue.RegistryEntry, err error) {
	var doc fileDoc
	if err := bson.Unmarshal(raw, &doc); err != nil {
		return f, err
	}
	if len(doc.FileID.Data) != len(f.FileID) {
		return f, fmt.Errorf("file_id has %d bytes, want %d", len(doc.FileID.Data), len(f.FileID))
	}
	copy(f.FileID[:], doc.FileID.Data)
	f.Generation, f.Epoch, f.DurableIndex = uint64(max(doc.Generation, 1)), uint64(max(doc.Epoch, 0)), uint64(max(doc.DurableIndex, 0))
	f.Place = doc.Place[:min(len(doc.Place), queue.MaxPlace)]
	return f, nil
}

// RegisterFile implements queue.Queue.
//
//	insertOne into files, or one insert for concurrent calls, w: majority; index: _id. Duplicate key: a file is registered, which is then read. No upsert, so
//	two concurrent processes cannot both win.
func (q *Queue) RegisterFile(ctx context.Context, typ string, f queue.RegistryEntry) (queue.RegistryEntry, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.RegistryEntry{}, err
	}
	doc, err := encodeFile(typ, f)
	if err != nil {
		return queue.RegistryEntry{}, err
	}
	inserted, err := q.shared.inserts.Do(ctx, doc)
	if err != nil {
		return queue.RegistryEntry{}, q.explain(ctx, "register the file of "+typ, err)
	}
	if inserted {
		f.Generation = max(f.Generation, 1)
		return f, nil
	}
	registered, ok, err := q.RegistryEntry(ctx, typ)
	if err == nil && !ok {
		err = fmt.Errorf("mongoqueue: register the file of %s: the entry was removed at the same moment; try again", typ)
	}
	return registered, err
}

// UpdateFile implements queue.Queue.
//
//	updateOne {_id: "<type>", file_id: f.FileID} → {$max: {epoch, durable_index}, $set: {place}} in files, w: majority;
//	index: _id. Nothing matched: none is registered, or another file. Without a place there is no $set. Concurrent calls
//	share an update with one statement each.
func (q *Queue) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	return q.raiseFile(ctx, typ, f)
}

// raiseFile raises epoch and durable index of the type's entry, and sets its place, if the entry is for the same file and the guards hold.
func (q *Queue) raiseFile(ctx context.Context, typ string, f queue.RegistryEntry, guards ...bson.E) (found bool, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return false, err
	}
	if err := q.enter(ctx); err != nil {
		return false, err
	}
	doc, err := encodeFile(typ, f)
	if err != nil {
		return false, err
	}
	update := bson.D{{Key: "$max", Value: bson.D{{Key: "epoch", Value: doc.Epoch}, {Key: "durable_index", Value: doc.DurableIndex}}}}
	if doc.Place != "" {
		update = append(update, bson.E{Key: "$set", Value: bson.D{{Key: "place", Value: doc.Place}}})
	}
	found, err = q.shared.updates.Do(ctx, mongomany.Update{ID: typ, Filter: append(bson.D{{Key: "_id", Value: typ}, {Key: "file_id", Value: doc.FileID}}, guards...), Update: update})
	return found, q.explain(ctx, "update the file entry of "+typ, err)
}

// AckFile implements queue.Queue.
//
//	updateOne {_id: "<type>", file_id: f.FileID, epoch: {$lte: f.Epoch}} → {$max: {epoch, durable_index}} in files, w: majority; index: _id.
//	Nothing matched: it belongs to another writer. Then as Ack.
//
// rule: the majority has the entry before a message is deleted, as the two may be on different shards: a failover could roll back one and
// keep the other.
func (q *Queue) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	f.Place = "" // UpdateFile has set it
	ours, err := q.raiseFile(ctx, typ, f, bson.E{Key: "epoch", Value: bson.D{{Key: "$lte", Value: int64(f.Epoch)}}})
	// rule: nothing is removed for a writer that is not the registered one.
	if err != nil || !ours {
		return false, err
	}
	if err := q.Ack(ctx, typ, ids); err != nil {
		return false, err
	}
	return true, nil
}

// SucceedFile implements queue.Queue.
//
//	updateOne {_id: "<type>", file_id: {$in: [old, f.FileID]}} → {$set: {file_id, generation, place}, $max: {epoch,
//	durable_index}} in files, w: majority; index: _id. Then find {_id: "<type>"}. The filter also matches f's own identity, so that a retry waits until
//	an earlier update is durable.
func (q *Queue) SucceedFile(ctx context.Context, typ string, old [16]byte, f queue.RegistryEntry) (queue.RegistryEntry, bool, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.RegistryEntry{}, false, err
	}
	doc, err := encodeFile(typ, f)
	if err != nil {
		return queue.RegistryEntry{}, false, err
	}
	set := bson.D{{Key: "file_id", Value: doc.FileID}, {Key: "generation", Value: doc.Generation}}
	if doc.Place != "" {
		set = append(set, bson.E{Key: "place", Value: doc.Place})
	}
	_, err = q.files.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: typ}, {Key: "file_id", Value: bson.D{{Key: "$in", Value: bson.A{bson.Binary{Data: old[:]}, doc.FileID}}}}},
		bson.D{
			{Key: "$set", Value: set},
			{Key: "$max", Value: bson.D{{Key: "epoch", Value: doc.Epoch}, {Key: "durable_index", Value: doc.DurableIndex}}},
		})
	if err != nil {
		return queue.RegistryEntry{}, false, q.explain(ctx, "replace the file entry of "+typ, err)
	}
	return q.RegistryEntry(ctx, typ)
}
