package mongoslots

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

// The names of a folder are a range of the index of _id, which sorts strings by their bytes.
// '0' is the byte that follows '/':
//
//	a/         from here
//	a/x          a value of a
//	a/x-1        another one
//	a/x/1    ┐
//	a/x/2    │   the values of a/x: skipped at once
//	a/x0     ┘   … by continuing here
//	a0         to here
//
// So both bounds of every find are known, and a deeper folder costs the same, however many values it
// has.

// firstBatch is the maximum number of documents in the first answer to a listing.
const firstBatch = 16

// all is the upper bound of the root: names consist of bytes below it.
const all = "\x7f"

// span is a range of names: from <= name < to.
type span struct{ prefix, from, to string }

func folderSpan(folder string) span {
	if folder == "" {
		return span{"", "", all}
	}
	return span{folder + "/", folder + "/", folder + "0"}
}

// filter selects the names of the span.
func (r span) filter(more ...bson.E) bson.D {
	bounds := bson.D{{Key: "$gte", Value: r.from}, {Key: "$lt", Value: r.to}}
	return bson.D{{Key: "_id", Value: append(bounds, more...)}}
}

// List returns the values of a folder, see [slots.Store.List].
func (s *Store) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	if folder != "" {
		if err := slotname.Check(s, folder); err != nil {
			return nil, err
		}
	}
	return s.list(ctx, folder, folderSpan(folder), 0)
}

// list returns the values of a folder whose names are in a span, or only the first n of them if n is not 0.
func (s *Store) list(ctx context.Context, folder string, r span, n int) ([]slots.Entry, error) {
	var list []slots.Entry
	for r.from < r.to && (n == 0 || len(list) < n) {
		next, err := s.appendValues(ctx, &list, r, max(n-len(list), 0))
		if err != nil {
			return nil, s.explain(ctx, "list", folder+"/", err)
		}
		if next == "" {
			break
		}
		r.from = next
	}
	return list, nil
}

// Between returns a part of the values of a folder, see [slots.Ordered.Between].
func (s *Store) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	if err := slotname.Check(s, folder); err != nil {
		return nil, err
	}
	r := folderSpan(folder)
	if r.from = max(r.from, from); to != "" {
		r.to = min(r.to, to)
	}
	return s.list(ctx, folder, r, n)
}

// Count returns how many documents a folder has, see [slots.Ordered.Count]. The server uses the index alone.
//
//	aggregate $match {_id: {$gte, $lt}}, $group; index: _id
func (s *Store) Count(ctx context.Context, folder string) (int, error) {
	if err := slotname.Check(s, folder); err != nil {
		return 0, err
	}
	n, err := s.majority.CountDocuments(alone(ctx), folderSpan(folder).filter())
	if err != nil {
		return 0, s.explain(ctx, "count", folder+"/", err)
	}
	return int(n), nil
}

// Last returns the last value of a folder, see [slots.Ordered.Last].
func (s *Store) Last(ctx context.Context, folder string) (slots.Entry, error) {
	if err := slotname.Check(s, folder); err != nil {
		return slots.Entry{}, err
	}
	for r := folderSpan(folder); ; {
		e, before, err := s.lastValue(ctx, r)
		if err != nil {
			return slots.Entry{}, s.explain(ctx, "list the end of", folder+"/", err)
		}
		if before == "" {
			return e, nil
		}
		r.to = before
	}
}

// lastValue returns the value with the last name of a span. If that is foreign, or its name continues with another slash, the caller has to
// continue with the names before "before".
//
//	find {_id: {$gte, $lt}}, sort _id descending, projection n, limit 1; index: _id
func (s *Store) lastValue(ctx context.Context, r span) (e slots.Entry, before string, err error) {
	raw, err := s.majority.FindOne(alone(ctx), r.filter(),
		options.FindOne().SetSort(bson.D{{Key: "_id", Value: -1}}).SetProjection(bson.D{{Key: "n", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return slots.Entry{}, "", nil
	}
	if err != nil {
		return slots.Entry{}, "", err
	}
	name, _ := raw.Lookup("_id").StringValueOK()
	part, deeper, err := r.deeper(name)
	switch {
	case err != nil:
		return slots.Entry{}, "", err
	case name >= r.to: // continuing from here would loop forever, too
		return slots.Entry{}, "", errNotAsked(name)
	case deeper:
		return slots.Entry{}, r.prefix + part + "/", nil
	}
	e, ok := decodeEntry(raw, r.prefix)
	if !ok {
		return slots.Entry{}, name, nil
	}
	return e, "", nil
}

// Folders returns the folders of a folder, see [slots.Store.Folders].
func (s *Store) Folders(ctx context.Context, folder string) ([]string, error) {
	if folder != "" {
		if err := slotname.Check(s, folder); err != nil {
			return nil, err
		}
	}
	var list []string // not sorted: a-/1 precedes a/1
	r := folderSpan(folder)
	for {
		part, err := s.firstFolder(ctx, r)
		if err != nil {
			return nil, s.explain(ctx, "list the folders of", folder+"/", err)
		}
		if part == nil {
			slices.Sort(list)
			return list, nil
		}
		if slotname.Valid(*part) {
			list = append(list, *part)
		}
		r.from = r.prefix + *part + "0"
	}
}

// firstFolder returns the first part after the prefix among the names of the span that continue with
// another slash; nil if there is none. The server uses the index alone.
//
//	find {_id: {$gte, $lt, $regex: ^prefix[^/]*/}}, sort _id, projection _id, limit 1; index: _id
func (s *Store) firstFolder(ctx context.Context, r span) (part *string, err error) {
	deep := bson.E{Key: "$regex", Value: "^" + regexp.QuoteMeta(r.prefix) + "[^/]*/"}
	byID := bson.D{{Key: "_id", Value: 1}}
	raw, err := s.majority.FindOne(alone(ctx), r.filter(deep),
		options.FindOne().SetSort(byID).SetProjection(byID)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	name, _ := raw.Lookup("_id").StringValueOK()
	first, ok, err := r.deeper(name)
	if err == nil && !ok {
		err = errNotAsked(name)
	}
	return &first, err
}

// appendValues finds the values of a span, sorted by _id, projection n, limit n, up to the first name that continues with another slash. The
// listing continues at next, after that folder or after foreign documents, unless next is empty. Index: _id. The folders that Fencepost lists
// contain no folders, so one find suffices. If there is a folder, only its first few documents are transferred. Foreign documents are left out.
func (s *Store) appendValues(ctx context.Context, list *[]slots.Entry, r span, n int) (next string, err error) {
	cur, err := s.majority.Find(alone(ctx), r.filter(), options.Find().SetLimit(int64(n)).
		SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "n", Value: 1}}).SetBatchSize(int32(max(n, firstBatch))))
	if err != nil {
		return "", err
	}
	cur.SetBatchSize(0) // later batches have as many as fit
	defer cur.Close(context.WithoutCancel(ctx))
	found := 0
	for ; cur.Next(alone(ctx)); found++ {
		name, _ := cur.Current.Lookup("_id").StringValueOK()
		if part, ok, err := r.deeper(name); err != nil {
			return "", err
		} else if ok {
			return r.prefix + part + "0", nil
		}
		if e, ok := decodeEntry(cur.Current, r.prefix); ok {
			*list = append(*list, e)
		}
		next = name + "!" // '!' precedes every character that can follow in a valid name
	}
	if n == 0 || found < n {
		next = ""
	}
	return next, cur.Err()
}

// deeper returns the first part of a name after the prefix of the span, if the name continues with another slash.
func (r span) deeper(name string) (part string, ok bool, err error) {
	if name < r.from || !strings.HasPrefix(name, r.prefix) { // continuing from here would loop forever
		return "", false, errNotAsked(name)
	}
	part, _, ok = strings.Cut(name[len(r.prefix):], "/")
	return part, ok, nil
}

func errNotAsked(name string) error {
	return fmt.Errorf("the server found %.600q, which was not asked for", name)
}

// decodeEntry returns the entry of a document in a listing of names with a prefix. ok is false for foreign documents.
func decodeEntry(raw bson.Raw, prefix string) (e slots.Entry, ok bool) {
	name, _ := raw.Lookup("_id").StringValueOK()
	n, ok := raw.Lookup("n").Int64OK()
	return slots.Entry{Name: name, Size: n}, ok && slotname.Valid(name) && !strings.Contains(strings.TrimPrefix(name, prefix), "/")
}
