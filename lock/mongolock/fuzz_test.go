package mongolock

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/lock"
)

// FuzzDecodeRecord: documents of locks, including documents written by other programs. A document that cannot be decoded is reported as damaged,
// with its name; a decoded one must be decoded unchanged from a document that this package encodes.
func FuzzDecodeRecord(f *testing.F) {
	h := lock.Hold{ID: lock.HoldID{1}, Lease: 20 * time.Second, Owner: lock.Process{Host: "h", PID: 4711, Instance: "i", Boot: "b", PIDNamespace: "n", Started: "s"}, Why: "why", Asked: "please"}
	shared := h
	shared.Permits = 3
	now := time.UnixMilli(1_700_000_000_000)
	v := lock.Version{2}
	id := bson.E{Key: "_id", Value: "orders"}
	version := bson.E{Key: "v", Value: bson.ObjectID(v)}
	for _, doc := range []any{
		document{ID: "orders", Token: 7, Version: bson.ObjectID(v), Hold: held(h), Since: now, At: now, Forced: &forced{bson.ObjectID{3}, "by hand"}},
		document{ID: "orders", Token: 7, Version: bson.ObjectID(v), Shares: []hold{*entry(shared, v), *entry(shared, lock.Version{9})}, Queue: []hold{*entry(h, v)}},
		bson.D{id}, bson.D{id, {Key: "v", Value: "none"}}, bson.D{id, version, {Key: "h", Value: int32(7)}}, bson.D{id, version, {Key: "q", Value: bson.A{"somebody"}}},
		bson.D{id, version, {Key: "token", Value: 1.5}}, bson.D{id, version, {Key: "h", Value: bson.D{{Key: "id", Value: bson.ObjectID{1}}, {Key: "ms", Value: int64(math.MaxInt64 / 3)}}}},
	} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decode("orders", raw)
		if err != nil {
			var damaged *lock.DamagedError
			if !errors.As(err, &damaged) || damaged.Name != "orders" || damaged.Cause == nil {
				t.Fatalf("%v", err)
			}
			return
		}
		raw2, err := bson.Marshal(encode(r))
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", r, err)
		}
		again, err := decode("orders", raw2)
		if err != nil || !again.Since.Equal(r.Since) || !again.At.Equal(r.At) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
		if again.Since, again.At = r.Since, r.At; !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

// encode builds the document of a record as this package's operations do, field by field.
func encode(r lock.Record) document {
	d := document{ID: r.Name, Token: r.Token, Version: bson.ObjectID(r.Version), Since: r.Since, At: r.At}
	if r.Hold != nil {
		d.Hold = held(*r.Hold)
	}
	if r.Forced != nil {
		d.Forced = &forced{ID: bson.ObjectID(r.Forced.ID), Why: r.Forced.Why}
	}
	for _, e := range r.Shares {
		d.Shares = append(d.Shares, *entry(e.Hold, e.Version))
	}
	for _, e := range r.Queue {
		d.Queue = append(d.Queue, *entry(e.Hold, e.Version))
	}
	return d
}
