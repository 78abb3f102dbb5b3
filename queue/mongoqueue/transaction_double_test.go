package mongoqueue_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest/fake"
)

// txServer is a double of a replica set, to the extent that transactions need one: it stores documents, and those of a transaction at its
// commit. It can misbehave in ways rarely seen in real servers.
type txServer struct {
	*fake.Server

	mu      sync.Mutex
	stored  map[string]map[string]bson.Raw        // by collection and _id
	open    map[string]map[string][]bson.Raw      // by transaction and collection
	done    map[string]bool                       // transactions that were committed
	inserts map[string]int                        // by collection: commands
	fails   func(command, in string) bson.D       // the answer to a command that is to fail; a commit is carried out nevertheless
	early   bool                                  // it ignores transactions
	plain   bool                                  // it has no sessions
	ahead   func(ids []string) (missing []string) // of a read of what a majority has
}

func startTxServer(t *testing.T) (*txServer, string) {
	t.Helper()
	s := &txServer{stored: map[string]map[string]bson.Raw{}, open: map[string]map[string][]bson.Raw{}, done: map[string]bool{}, inserts: map[string]int{}}
	s.Server = fake.StartWith(t, s.answer)
	return s, "mongodb://" + s.Addr() + "/db?directConnection=true&heartbeatFrequencyMS=100000"
}

// failing sets which commands fail from now on.
func (s *txServer) failing(fails func(command, in string) bson.D) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = fails
}

// put stores a document, or removes it if doc is nil.
func (s *txServer) put(collection, id string, doc bson.D) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if doc == nil {
		delete(s.stored[collection], id)
		return
	}
	raw, err := bson.Marshal(append(bson.D{{Key: "_id", Value: id}}, doc...))
	if err != nil {
		panic(err)
	}
	s.store(collection, raw)
}

func (s *txServer) store(collection string, doc bson.Raw) {
	if s.stored[collection] == nil {
		s.stored[collection] = map[string]bson.Raw{}
	}
	s.stored[collection][doc.Lookup("_id").StringValue()] = slices.Clone(doc)
}

// ids returns the keys in a collection, except those of trials.
func (s *txServer) ids(collection string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.stored[collection])), func(id string) bool { return strings.HasPrefix(id, "~probe/") })
}

func (s *txServer) count(collection string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inserts[collection]
}

func (s *txServer) answer(command string, raw bson.Raw) bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	doc := raw[:binary.LittleEndian.Uint32(raw)]
	in, _ := doc.Lookup(command).StringValueOK()
	number, _ := doc.Lookup("txnNumber").AsInt64OK()
	autocommit, isSet := doc.Lookup("autocommit").BooleanOK()
	tx := fmt.Sprintf("%x/%d", doc.Lookup("lsid").Value, number)
	var failure bson.D
	if s.fails != nil {
		if failure = s.fails(command, in); failure != nil && command != "commitTransaction" {
			return failure
		}
	}
	switch command {
	case "insert":
		docs := section(raw, doc, "documents")
		s.inserts[in]++
		if isSet && !autocommit && !s.early {
			if s.open[tx] == nil {
				s.open[tx] = map[string][]bson.Raw{}
			}
			for _, d := range docs {
				s.open[tx][in] = append(s.open[tx][in], slices.Clone(d))
			}
			return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: len(docs)}}
		}
		for i, d := range docs {
			if s.stored[in][d.Lookup("_id").StringValue()] != nil {
				return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: i}, writeError(i, 11000)}
			}
			s.store(in, d)
		}
		return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: len(docs)}}
	case "commitTransaction":
		for collection, docs := range s.open[tx] {
			for _, d := range docs {
				s.store(collection, d)
			}
		}
		delete(s.open, tx)
		s.done[tx] = true
		if failure != nil {
			return failure
		}
		return bson.D{{Key: "ok", Value: 1}}
	case "abortTransaction":
		delete(s.open, tx)
		return bson.D{{Key: "ok", Value: 1}}
	case "find":
		return s.find(in, doc)
	case "delete":
		n := 0
		for _, d := range section(raw, doc, "deletes") {
			for id := range s.stored[in] {
				if matches(d.Lookup("q").Document(), id) {
					delete(s.stored[in], id)
					n++
				}
			}
		}
		return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: n}}
	}
	if fake.IsHello(command) && !s.plain {
		return append(s.Member(true), bson.E{Key: "logicalSessionTimeoutMinutes", Value: 30})
	}
	return nil
}

func (s *txServer) find(in string, doc bson.Raw) bson.D {
	limit, _ := doc.Lookup("limit").AsInt64OK()
	var ids, missing []string
	for _, id := range slices.Sorted(maps.Keys(s.stored[in])) {
		if matches(doc.Lookup("filter").Document(), id) {
			ids = append(ids, id)
		}
	}
	if level, _ := doc.Lookup("readConcern", "level").StringValueOK(); level == "majority" && s.ahead != nil {
		missing = s.ahead(ids)
	}
	batch := bson.A{}
	for _, id := range ids {
		if d := s.stored[in][id]; d != nil && !slices.Contains(missing, id) && (limit == 0 || len(batch) < int(limit)) {
			batch = append(batch, d)
		}
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db." + in}, {Key: "firstBatch", Value: batch}}}}
}

// matches evaluates filters on _id; any other matches.
func matches(filter bson.Raw, id string) bool {
	v, err := filter.LookupErr("_id")
	if err != nil {
		return true
	}
	if text, ok := v.StringValueOK(); ok {
		return text == id
	}
	if list, err := filter.LookupErr("_id", "$in"); err == nil {
		values, _ := list.Array().Values()
		return slices.ContainsFunc(values, func(v bson.RawValue) bool { return v.StringValue() == id })
	}
	return filter.Lookup("_id", "$gt").StringValue() < id && id < filter.Lookup("_id", "$lt").StringValue()
}

// section returns the documents of a command: an array in it, or a separate section after it.
func section(raw, doc bson.Raw, name string) (docs []bson.Raw) {
	if list, ok := doc.Lookup(name).ArrayOK(); ok {
		values, _ := list.Values()
		for _, v := range values {
			docs = append(docs, bson.Raw(v.Document()))
		}
		return docs
	}
	rest := raw[len(doc):] // kind 1, length, name, documents
	end := 5 + bytes.IndexByte(rest[5:], 0) + 1
	for list := rest[end : 1+binary.LittleEndian.Uint32(rest[1:])]; len(list) > 0; {
		n := binary.LittleEndian.Uint32(list)
		docs = append(docs, bson.Raw(list[:n]))
		list = list[n:]
	}
	return docs
}
