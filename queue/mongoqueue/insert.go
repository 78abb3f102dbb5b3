package mongoqueue

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Bounds of one insert command. A server accepts 48 MB and 100,000 documents.
const (
	commandDocuments = 2000
	commandBytes     = 24 << 20
)

// Insert implements queue.Queue.
//
// The documents are sent in order, usually in one command. A duplicate key means that this document was stored before. It also proves that
// it is durable: the server waits for the write concern of its latest operation even after failed writes (LastOpFixer in its
// write_ops_exec.cpp). The first duplicate is usually followed by others from an earlier attempt, so Insert then reads which documents
// exist, and inserts only the rest.
func (q *Queue) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	if err := queuedriver.CheckInsert(typ, msgs); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return &queue.InsertError{Refused: true, Err: err}
	}
	return insert(ctx, q.store, documents(typ, msgs), func(err error) error { return q.explain(ctx, "insert "+typ, err) })
}

// inserter is the part of a server that Insert needs.
type inserter interface {
	// insertOrdered inserts documents in order. landed is the number of leading documents that are certainly durable. duplicate means that
	// the next one already existed, durably; otherwise err says why the rest was not inserted.
	insertOrdered(ctx context.Context, docs []document) (landed int, duplicate bool, err error)
	// present returns which of the documents exist durably. It may miss some.
	present(ctx context.Context, docs []document) (map[string]bool, error)
}

// insert inserts documents in order, in as few commands as possible. After the first duplicate it reads which documents exist, because an
// earlier attempt has probably stored more of them. The error, if any, is an *InsertError.
func insert(ctx context.Context, to inserter, pending []document, explain func(error) error) error {
	for len(pending) > 0 {
		command := pending[:commandLen(pending)]
		// rule: only ever in order, and the next command only after the answer to this one. At no instant is n+1 visible without n: a
		// publisher may die at any point, and a consumer would declare n a gap and refuse it later.
		landed, duplicate, err := to.insertOrdered(ctx, command)
		pending = pending[landed:]
		switch {
		case duplicate:
			pending = pending[1:]
			if len(pending) == 0 {
				return nil
			}
			there, err := to.present(ctx, pending)
			if err != nil {
				return insertError(pending, fmt.Errorf("read what is stored: %w", explain(err)), verdict{})
			}
			missing := pending[:0:0]
			for _, d := range pending {
				if !there[d.key] {
					missing = append(missing, d)
				}
			}
			pending = missing
		case err != nil:
			v := judgeInsert(err)
			explained := explain(err)
			if v.document {
				explained = &documentError{why: firstWriteError(err), err: explained}
			}
			return insertError(pending, explained, v)
		}
	}
	return nil
}

// insertError counts the messages before the first pending document as stored.
func insertError(pending []document, err error, v verdict) *queue.InsertError {
	return &queue.InsertError{Stored: pending[0].message, Refused: v.refused, Temporary: v.temporary, Err: err}
}

// commandLen returns how many documents fit into one command; at least one.
func commandLen(docs []document) int {
	size := 0
	for i, d := range docs {
		size += d.size
		if i == commandDocuments || (i > 0 && size > commandBytes) {
			return i
		}
	}
	return len(docs)
}

// judgeInsert classifies the error of an insert command, which concerns the whole command or one document.
func judgeInsert(err error) verdict {
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) {
		return judge(err)
	}
	if bulk.WriteConcernError != nil || len(bulk.WriteErrors) == 0 {
		return verdict{} // rule: written, but not known to be durable: unclear
	}
	return judgeDocument(bulk.WriteErrors[0].Code)
}

// firstWriteError is the server's message about the document that it refuses.
func firstWriteError(err error) string {
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || len(bulk.WriteErrors) == 0 {
		return err.Error()
	}
	return fmt.Sprintf("%s (code %d)", bulk.WriteErrors[0].Message, bulk.WriteErrors[0].Code)
}

// target is the collection that documents are inserted into.
type target struct {
	write    *mongo.Collection // w:majority
	majority *mongo.Collection // read concern majority
}

// insertOrdered implements inserter.
//
//	insert, ordered: true, w: majority; index: _id.
//	Write error i: documents before i are stored, i and all after it were not inserted by this command. Duplicate key (11000):
//	document i already existed. A write concern error: nothing is certain, not even about documents without a write error.
func (to target) insertOrdered(ctx context.Context, docs []document) (landed int, duplicate bool, err error) {
	bodies := make([]any, len(docs))
	for i, d := range docs {
		bodies[i] = d.body
	}
	_, err = to.write.InsertMany(ctx, bodies, options.InsertMany().SetOrdered(true))
	if err == nil {
		return len(docs), false, nil
	}
	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) && bulk.WriteConcernError == nil && len(bulk.WriteErrors) > 0 {
		first := bulk.WriteErrors[0]
		if first.Index >= 0 && first.Index < len(docs) {
			return first.Index, first.HasErrorCode(codeDuplicateKey), err
		}
	}
	return 0, false, err
}

// present implements inserter.
//
//	find {_id: {$in: keys}} → _id only, read concern majority: what it returns survives a failover, so it is stored. Index:
//	_id. A document that it does not return may still exist: then inserting it again is a duplicate.
//	A server without read concerns ignores it, or refuses (then nothing is known, and duplicates show one by one).
func (to target) present(ctx context.Context, docs []document) (map[string]bool, error) {
	keys := make(bson.A, len(docs))
	for i, d := range docs {
		keys[i] = d.key
	}
	there := make(map[string]bool, len(docs))
	cursor, err := to.majority.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}},
		options.Find().SetProjection(idOnly).SetBatchSize(int32(len(docs)+1)))
	if err == nil {
		err = eachKey(ctx, cursor, func(key string) { there[key] = true })
	}
	if err != nil && ctx.Err() == nil && errorCode(err) != 0 {
		return there, nil
	}
	return there, err
}

var idOnly = bson.D{{Key: "_id", Value: 1}}

// eachKey calls f with the _id of every document whose _id is a string, and closes the cursor.
func eachKey(ctx context.Context, cursor *mongo.Cursor, f func(string)) error {
	defer cursor.Close(ctx)
	for cursor.Next(ctx) {
		if key, ok := cursor.Current.Lookup("_id").StringValueOK(); ok {
			f(key)
		}
	}
	return cursor.Err()
}
