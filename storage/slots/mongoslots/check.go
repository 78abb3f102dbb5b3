package mongoslots

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Check examines whether the collection is suitable for slots. It returns a
// [*slots.RefusedError] with the remedy if documents expire (capped, TTL), if a name could exist
// twice (a shard key other than _id), if two names could be equal (a collation), or if some values
// would be refused (a validator, another unique index). A missing collection is fine: the first
// Create makes it. Check also refuses a replica set that acknowledges writes before they are in a
// journal, if the user may read its configuration. Check changes nothing, and takes two to five
// round trips.
func (s *Store) Check(ctx context.Context) error {
	ctx = alone(ctx)
	server, err := s.hello(ctx)
	if err != nil {
		return s.explain(ctx, "connect for", s.collection, err)
	}
	if server.Set != "" {
		if err := s.checkSet(ctx); err != nil {
			return err
		}
	}
	there, err := s.checkCollection(ctx)
	if err != nil || !there {
		return err
	}
	if err := s.checkIndexes(ctx); err != nil || !server.isRouter() {
		return err
	}
	return s.checkSharding(ctx)
}

// checkSet examines the configuration of a replica set, if the user may read it. A worker does not need
// that role: the default configuration is suitable.
//
//	replSetGetConfig
func (s *Store) checkSet(ctx context.Context) error {
	raw, err := s.db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Raw()
	if err != nil {
		if ctx.Err() != nil {
			return s.explain(ctx, "examine the replica set of", s.collection, err)
		}
		return nil
	}
	// rule: a write that a majority has only in memory is not durable
	if journal, ok := raw.Lookup("config", "writeConcernMajorityJournalDefault").BooleanOK(); ok && !journal {
		return s.unfit("the replica set acknowledges writes before they are journaled",
			"set writeConcernMajorityJournalDefault: true with rs.reconfig()")
	}
	return nil
}

// unfit returns a refusal of the collection.
func (s *Store) unfit(reason, remedy string) error {
	return s.refused("use the collection", s.collection, reason, remedy, nil)
}

// checkCollection examines the options of the collection.
//
//	listCollections {name}
func (s *Store) checkCollection(ctx context.Context) (there bool, err error) {
	cur, err := s.db.ListCollections(ctx, bson.D{{Key: "name", Value: s.collection}})
	var found []struct {
		Type    string   `bson:"type"`
		Options bson.Raw `bson:"options"`
	}
	if err == nil {
		err = cur.All(ctx, &found)
	}
	if err != nil || len(found) == 0 {
		return false, s.explain(ctx, "examine the collection", s.collection, err)
	}
	const anew = " to an ordinary one, and name that"
	if found[0].Type != "collection" && found[0].Type != "" {
		return true, s.unfit("it is a "+found[0].Type, "name another one")
	}
	for _, o := range []struct{ option, reason, remedy string }{
		// rule: nothing but Delete removes a value
		{"capped", "it is capped: the server removes its oldest values", "copy it" + anew},
		{"expireAfterSeconds", "its values expire", `turn that off: collMod {expireAfterSeconds: "off"}`},
		// A collation may treat two names as equal, and sorts them differently.
		{"collation", "it has a collation", "copy it" + anew},
		{"validator", "it has a validator, which may refuse values", "remove it: collMod {validator: {}}"},
	} {
		if v, err := found[0].Options.LookupErr(o.option); err == nil && isSet(v) {
			return true, s.unfit(o.reason, o.remedy)
		}
	}
	return true, nil
}

// isSet reports whether an option differs from its default.
func isSet(v bson.RawValue) bool {
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	if d, ok := v.DocumentOK(); ok {
		elements, err := d.Elements()
		locale, _ := d.Lookup("locale").StringValueOK()
		return err != nil || len(elements) > 0 && locale != "simple"
	}
	return v.Type != bson.TypeNull
}

// checkIndexes examines the indexes.
//
//	listIndexes
func (s *Store) checkIndexes(ctx context.Context) error {
	cur, err := s.majority.Indexes().List(ctx)
	var found []bson.Raw
	if err == nil {
		err = cur.All(ctx, &found)
	}
	if err != nil {
		return s.explain(ctx, "list the indexes of", s.collection, err)
	}
	for _, raw := range found {
		name, _ := raw.Lookup("name").StringValueOK()
		drop := fmt.Sprintf("drop it: db.%s.dropIndex(%q)", s.collection, name)
		if _, err := raw.LookupErr("expireAfterSeconds"); err == nil {
			return s.unfit("the TTL index "+name+" removes values", drop)
		}
		unique, _ := raw.Lookup("unique").BooleanOK()
		key, _ := raw.Lookup("key").DocumentOK()
		if unique && !isByName(key) {
			return s.unfit("the index "+name+" is unique, which refuses values", drop)
		}
	}
	return nil
}

// isByName reports whether a key is _id and nothing else.
func isByName(key bson.Raw) bool {
	elements, err := key.Elements()
	return err == nil && len(elements) == 1 && elements[0].Key() == "_id"
}

// checkSharding queries a mongos for the shard key: each shard has an index of its own, so a name that
// may be on two shards is not unique.
//
//	find {_id: ns} in config.collections; if that is not permitted: collStats
func (s *Store) checkSharding(ctx context.Context) error {
	raw, err := s.db.Client().Database("config").Collection("collections").FindOne(ctx, bson.D{
		{Key: "_id", Value: s.db.Name() + "." + s.collection},
		{Key: "dropped", Value: bson.D{{Key: "$ne", Value: true}}},
	}).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil // it is not sharded
	case hasCode(err, codeUnauthorized) || hasCode(err, codeAtlas):
		return s.checkUnsharded(ctx)
	case err != nil:
		return s.explain(ctx, "look up the shard key of", s.collection, err)
	}
	// rule: a name is on one shard only, or it could exist twice
	if key, ok := raw.Lookup("key").DocumentOK(); !ok || !isByName(key) {
		return s.unfit(
			fmt.Sprintf("its shard key is %v, so that a name may exist once on each shard", raw.Lookup("key")),
			`copy it to one that is sharded by {_id: 1} or {_id: "hashed"}, or not at all, and name that`)
	}
	return nil
}

// checkUnsharded is checkSharding for users that may not read shard keys.
func (s *Store) checkUnsharded(ctx context.Context) error {
	raw, err := s.db.RunCommand(ctx, bson.D{{Key: "collStats", Value: s.collection}}).Raw()
	if err != nil {
		return s.explain(ctx, "examine the collection", s.collection, err)
	}
	// rule: an unknown shard key is not _id
	if sharded, ok := raw.Lookup("sharded").BooleanOK(); ok && !sharded {
		return nil
	}
	return s.unfit("it is sharded, and the user may not see by which key",
		"give the user the role read on the database config")
}

// greeting is the server's description of itself.
type greeting struct {
	Message string `bson:"msg"`
	Set     string `bson:"setName"`
}

func (g greeting) isRouter() bool { return g.Message == "isdbgrid" }

// hello returns the server's description of itself. Before MongoDB 4.4.2 the command is called isMaster.
func (s *Store) hello(ctx context.Context) (g greeting, err error) {
	admin := s.db.Client().Database("admin")
	err = admin.RunCommand(alone(ctx), bson.D{{Key: "hello", Value: 1}}).Decode(&g)
	if hasCode(err, codeCommandNotFound) {
		err = admin.RunCommand(alone(ctx), bson.D{{Key: "isMaster", Value: 1}}).Decode(&g)
	}
	return g, err
}

// standsAlone reports whether the server is neither a member of a replica set nor a router.
func (s *Store) standsAlone(ctx context.Context) (bool, error) {
	g, err := s.hello(ctx)
	return err == nil && g.Set == "" && !g.isRouter(), err
}
