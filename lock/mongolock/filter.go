package mongolock

import (
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/lock"
)

// Filters and updates in classic operators, which all supported servers understand.

// and is the filter for the document of name if it meets all conditions.
func and(name string, conditions ...bson.D) bson.D {
	d := bson.D{{Key: "_id", Value: name}}
	for _, c := range conditions {
		d = append(d, c...)
	}
	return d
}

// is makes a filter, or a part of an update, with one field.
func is(key string, value any) bson.D { return bson.D{{Key: key, Value: value}} }

// absent is the condition that a field, or an element of an array such as "q.0", does not exist.
func absent(key string) bson.D { return is(key, is("$exists", false)) }

// turn is the condition that the queue is empty or h is first in it.
func turn(h lock.Hold) bson.D {
	return is("$or", bson.A{absent("q.0"), is("q.0.id", bson.ObjectID(h.ID))})
}

// room is the condition that there are few enough shares to add h, and that h is not already one of
// them: a request may arrive twice.
func room(h lock.Hold) bson.D {
	if !h.Shared() {
		return absent("s.0")
	}
	return append(absent("s."+strconv.Itoa(h.Permits-1)), is("s.id", is("$ne", bson.ObjectID(h.ID)))...)
}

// take is the update of every grant: it sets the new hold, the next token and the server's dates, and
// removes h from the queue.
func take(h lock.Hold, v lock.Version) bson.D {
	set := is("v", bson.ObjectID(v))
	d := bson.D{
		{Key: "$inc", Value: is("token", int64(1))},
		{Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}, {Key: "since", Value: true}}},
		{Key: "$pull", Value: is("q", is("id", bson.ObjectID(h.ID)))},
	}
	if h.Shared() {
		d = append(d, bson.E{Key: "$push", Value: is("s", entry(h, v))}, bson.E{Key: "$unset", Value: is("h", "")})
	} else {
		set = append(set, is("h", held(h))...)
	}
	return append(d, bson.E{Key: "$set", Value: set})
}

// touch is the update of a renewal: a new version, which shows that the holder is alive.
func touch(h lock.Hold, v lock.Version) bson.D {
	set := is("v", bson.ObjectID(v))
	if h.Shared() {
		set = append(set, is("s.$.v", bson.ObjectID(v))...)
	}
	return bson.D{
		{Key: "$set", Value: set},
		{Key: "$currentDate", Value: is("at", true)},
	}
}

// remove is the update of a release.
func remove(h lock.Hold, v lock.Version) bson.D {
	d := bson.D{
		{Key: "$set", Value: is("v", bson.ObjectID(v))},
		{Key: "$currentDate", Value: is("at", true)},
	}
	if h.Shared() {
		return append(d, bson.E{Key: "$pull", Value: is("s", is("id", bson.ObjectID(h.ID)))})
	}
	return append(d, bson.E{Key: "$unset", Value: is("h", "")})
}

// mine is the filter of every operation of a holder.
//
// rule: by the id of the acquisition, not by name alone (that would touch a successor), and not by version (a renewal
// whose answer was lost would end the holder's own lease).
func mine(name string, h lock.Hold) bson.D {
	if h.Shared() {
		return and(name, is("s.id", bson.ObjectID(h.ID)))
	}
	return and(name, is("h.id", bson.ObjectID(h.ID)))
}

// seen is the condition that an array contains the entry id with version v.
func seen(id lock.HoldID, v lock.Version) bson.D {
	return is("$elemMatch", bson.D{{Key: "id", Value: bson.ObjectID(id)}, {Key: "v", Value: bson.ObjectID(v)}})
}
