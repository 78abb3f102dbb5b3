package mongoslots_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
)

// Problems of a collection, and their remedies.
func TestCheck(t *testing.T) {
	collection := func(typ string, options ...bson.E) bson.D {
		return fake.Found("db.$cmd.listCollections", bson.D{{Key: "name", Value: "slots"}, {Key: "type", Value: typ}, {Key: "options", Value: bson.D(options)}})
	}
	indexes := func(more ...bson.D) bson.D {
		return fake.Found("db.slots", append([]bson.D{{{Key: "v", Value: 2}, {Key: "name", Value: "_id_"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}}, more...)...)
	}
	router := fake.Hello(bson.E{Key: "isWritablePrimary", Value: true}, bson.E{Key: "ismaster", Value: true}, bson.E{Key: "msg", Value: "isdbgrid"})
	sharded := func(key bson.D) bson.D {
		return fake.Found("config.collections", bson.D{{Key: "_id", Value: "db.slots"}, {Key: "key", Value: key}})
	}
	set := fake.Hello(bson.E{Key: "isWritablePrimary", Value: true}, bson.E{Key: "ismaster", Value: true}, bson.E{Key: "setName", Value: "rs0"})
	config := func(settings ...bson.E) bson.D {
		return bson.D{{Key: "ok", Value: 1}, {Key: "config", Value: append(bson.D{{Key: "_id", Value: "rs0"}}, settings...)}}
	}
	good := map[string]bson.D{"listCollections": collection("collection"), "listIndexes": indexes()}
	type answers map[string]bson.D
	for name, tc := range map[string]struct {
		answers
		want   string
		remedy string
	}{
		"nothing yet":    {answers{"listCollections": fake.Found("db.$cmd.listCollections")}, "done", ""},
		"good":           {nil, "done", ""},
		"default values": {answers{"listCollections": collection("collection", bson.E{Key: "capped", Value: false}, bson.E{Key: "validator", Value: bson.D{}}, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})}, "done", ""},
		"capped":         {answers{"listCollections": collection("collection", bson.E{Key: "capped", Value: true})}, "refused", "copy it to an ordinary one"},
		"validator":      {answers{"listCollections": collection("collection", bson.E{Key: "validator", Value: bson.D{{Key: "n", Value: 1}}})}, "refused", "collMod"},
		"collation":      {answers{"listCollections": collection("collection", bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}})}, "refused", "copy it"},
		"expires":        {answers{"listCollections": collection("collection", bson.E{Key: "expireAfterSeconds", Value: int64(60)})}, "refused", "collMod"},
		"a view":         {answers{"listCollections": collection("view")}, "refused", "name another one"},
		"TTL index":      {answers{"listIndexes": indexes(bson.D{{Key: "name", Value: "at_1"}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "expireAfterSeconds", Value: 60}})}, "refused", `dropIndex("at_1")`},
		"unique index":   {answers{"listIndexes": indexes(bson.D{{Key: "name", Value: "n_1"}, {Key: "key", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "unique", Value: true}})}, "refused", `dropIndex("n_1")`},
		"another index":  {answers{"listIndexes": indexes(bson.D{{Key: "name", Value: "n_1"}, {Key: "key", Value: bson.D{{Key: "n", Value: 1}}}})}, "done", ""},
		"no rights":      {answers{"listCollections": fake.Failed(13)}, "refused", "readWrite on the database db"},
		"no primary":     {answers{"listIndexes": fake.Failed(10107)}, "unclear", ""},

		"a set":                       {answers{"hello": set, "replSetGetConfig": config(bson.E{Key: "writeConcernMajorityJournalDefault", Value: true})}, "done", ""},
		"a set, its default":          {answers{"hello": set, "replSetGetConfig": config()}, "done", ""},
		"a set with unknown settings": {answers{"hello": set, "replSetGetConfig": fake.Failed(13)}, "done", ""},
		"a set without journals":      {answers{"hello": set, "replSetGetConfig": config(bson.E{Key: "writeConcernMajorityJournalDefault", Value: false})}, "refused", "rs.reconfig()"},

		"not sharded":                  {answers{"hello": router, "find": fake.Found("config.collections")}, "done", ""},
		"sharded by _id":               {answers{"hello": router, "find": sharded(bson.D{{Key: "_id", Value: 1}})}, "done", ""},
		"sharded by _id, hashed":       {answers{"hello": router, "find": sharded(bson.D{{Key: "_id", Value: "hashed"}})}, "done", ""},
		"sharded by another field":     {answers{"hello": router, "find": sharded(bson.D{{Key: "n", Value: 1}})}, "refused", "{_id: 1}"},
		"sharded by _id and another":   {answers{"hello": router, "find": sharded(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 1}})}, "refused", "{_id: 1}"},
		"sharded by an unknown key":    {answers{"hello": router, "find": fake.Failed(13), "collStats": {{Key: "ok", Value: 1}, {Key: "sharded", Value: true}}}, "refused", "read on the database config"},
		"not sharded, says the server": {answers{"hello": router, "find": fake.Failed(13), "collStats": {{Key: "ok", Value: 1}, {Key: "sharded", Value: false}}}, "done", ""},
		"sharded, perhaps":             {answers{"hello": router, "find": fake.Failed(13), "collStats": {{Key: "ok", Value: 1}}}, "refused", "read on the database config"},
		"config does not answer":       {answers{"hello": router, "find": fake.Failed(133)}, "unclear", ""},
		"an old router":                {answers{"hello": fake.Failed(59), "isMaster": router, "find": sharded(bson.D{{Key: "n", Value: 1}})}, "refused", "{_id: 1}"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMember(t)
			m.standalone = true
			for _, from := range []answers{good, tc.answers} {
				for command, a := range from {
					m.reply[command] = a
				}
			}
			s, _ := over(t, m.url("&retryReads=false"))
			err := s.Check(t.Context())
			if got := meaning(err); got != tc.want || !strings.Contains(fmt.Sprint(err), tc.remedy) {
				t.Errorf("%s, want %s with %q: %v", got, tc.want, tc.remedy, err)
			}
			opened, openErr := mongoslots.Open(t.Context(), m.url("&retryReads=false"), mongoslots.Options{})
			if openErr == nil {
				defer opened.Close()
			}
			if meaning(openErr) != tc.want {
				t.Errorf("Open: %v", openErr)
			}
		})
	}
}
