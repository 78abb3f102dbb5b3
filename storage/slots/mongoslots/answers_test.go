package mongoslots_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
)

// member is the only server of a replica set that answers. Documents that it alone has may be rolled back.
type member struct {
	*fake.Server
	standalone bool

	mu       sync.Mutex
	commands []bson.Raw             // inserts, deletes, finds
	majority map[string]bson.D      // documents that a majority has
	alone    map[string]bson.D      // documents that only this member has
	reply    map[string]bson.D      // answers to commands by name, whatever their fields
	repeat   map[string]bson.D      // answers from the second command on
	lin      func(m *member) bson.D // answers linearizable reads, unless it returns nil; called under mu
}

func startMember(t *testing.T) *member {
	t.Helper()
	m := &member{majority: map[string]bson.D{}, alone: map[string]bson.D{}, reply: map[string]bson.D{}, repeat: map[string]bson.D{}}
	started := make(chan struct{})
	m.Server = fake.StartWith(t, func(command string, document bson.Raw) bson.D {
		<-started
		return m.answer(command, document)
	})
	close(started)
	return m
}

func (m *member) url(more string) string {
	return "mongodb://" + m.Addr() + "/db?directConnection=true&heartbeatFrequencyMS=100000" + more
}

func (m *member) answer(command string, document bson.Raw) bson.D {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.reply[command]; a != nil {
		if again := m.repeat[command]; again != nil {
			m.reply[command] = again
		}
		m.commands = append(m.commands, document)
		return a
	}
	switch {
	case fake.IsHello(command) && m.standalone:
		return fake.Hello(bson.E{Key: "isWritablePrimary", Value: true}, bson.E{Key: "ismaster", Value: true})
	case fake.IsHello(command):
		return append(m.Member(true), bson.E{Key: "logicalSessionTimeoutMinutes", Value: 30})
	case command == "listCollections":
		return fake.Found("db.$cmd.listCollections")
	case command == "insert":
		m.commands = append(m.commands, document)
		documents, _ := document.Lookup("documents").Array().Values()
		var d bson.D
		if err := bson.Unmarshal(documents[0].Document(), &d); err != nil {
			panic(err)
		}
		name := d[0].Value.(string)
		if m.majority[name] != nil || m.alone[name] != nil {
			return append(answered(0), writeError(11000))
		}
		m.majority[name] = d
		return answered(1)
	case command == "delete":
		m.commands = append(m.commands, document)
		return answered(1)
	case command == "find":
		m.commands = append(m.commands, document)
		return m.find(document)
	}
	return nil
}

func (m *member) find(document bson.Raw) bson.D {
	name, _ := document.Lookup("filter", "_id").StringValueOK()
	level, _ := document.Lookup("readConcern", "level").StringValueOK()
	if level == "linearizable" && m.lin != nil {
		if a := m.lin(m); a != nil {
			return a
		}
	}
	d := m.majority[name]
	if d == nil && level != "majority" && level != "linearizable" {
		d = m.alone[name]
	}
	if d == nil {
		return fake.Found("db.slots")
	}
	return fake.Found("db.slots", d)
}

func (m *member) took() []bson.Raw {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.commands)
}

func answered(n int) bson.D { return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: n}} }

func writeError(code int) bson.E {
	return bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}}}}
}

var concernError = bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}}}

func saying(code int, text string) bson.D {
	return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: text}}
}

func value(name, data string) bson.D {
	return bson.D{{Key: "_id", Value: name}, {Key: "n", Value: int64(len(data))}, {Key: "b", Value: bson.Binary{Data: []byte(data)}}}
}

// over returns a store on a client of the test.
func over(t *testing.T, url string) (*mongoslots.Store, *mongo.Client) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(url).SetServerSelectionTimeout(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return newStore(t, client.Database("db")), client
}

// meaning returns what a caller learns from an error.
func meaning(err error) string {
	_, refused := errors.AsType[*slots.RefusedError](err)
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, fs.ErrExist):
		return "exists"
	case errors.Is(err, fs.ErrNotExist):
		return "absent"
	case errors.Is(err, slots.ErrFull) && !refused:
		return "full"
	case refused:
		return "refused"
	}
	return "unclear"
}

// How Create interprets the answers of a server.
func TestCreateAnswers(t *testing.T) {
	insert := func(code int) bson.D { return append(answered(0), writeError(code)) }
	for name, tc := range map[string]struct {
		answer bson.D
		want   string
	}{
		"stored":                        {answered(1), "done"},
		"an answer that makes no sense": {answered(0), "unclear"},
		"written here only":             {append(answered(1), concernError), "unclear"},
		"exists, not replicated":        {append(insert(11000), concernError), "unclear"},
		"refused, not replicated":       {append(insert(121), concernError), "unclear"},
		"exists, and is not found":      {insert(11000), "unclear"},
		"no rights":                     {fake.Failed(13), "refused"},
		"validator":                     {insert(121), "refused"},
		"a view":                        {fake.Failed(166), "refused"},
		"too large":                     {fake.Failed(10334), "refused"},
		"writes are blocked":            {fake.Failed(371), "refused"},
		"writes are blocked, disk":      {saying(371, "User writes blocked, DiskUseThresholdExceeded"), "full"},
		"disk is full":                  {insert(14031), "full"},
		"quota of an older host":        {insert(12501), "full"},
		"quota of Atlas":                {append(answered(0), bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 8000}, {Key: "errmsg", Value: "you are over your space quota, using 513 MB of 512 MB"}}}}), "full"},
		"no rights in Atlas":            {saying(8000, "user is not allowed to do action [insert] on [db.slots]"), "refused"},
		"something in Atlas":            {saying(8000, "no"), "unclear"},
		"shutting down":                 {fake.Failed(91), "unclear"},
		"no primary":                    {fake.Failed(10107), "unclear"},
		"election":                      {insert(11602), "unclear"},
		"time is over":                  {fake.Failed(50), "unclear"},
		"an unknown code":               {insert(424242), "unclear"},
		"an unknown error":              {fake.Failed(424242), "unclear"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMember(t)
			m.reply["insert"] = tc.answer
			s, _ := over(t, m.url(""))
			err := s.Create(t.Context(), "a/1", []byte("x"))
			if got := meaning(err); got != tc.want {
				t.Errorf("%s, want %s: %v", got, tc.want, err)
			}
			if err != nil && !strings.Contains(err.Error(), "mongodb:db.slots: create a/1: ") {
				t.Errorf("it does not name the place: %v", err)
			}
			if tc.want == "full" && (!errors.Is(err, storage.ErrNoSpace) || !strings.Contains(err.Error(), "no room: the store is full: ") ||
				!strings.HasSuffix(err.Error(), "; free some space in the store, or raise its quota, nothing acknowledged is lost")) {
				t.Errorf("it is not the error of a full store: %v", err)
			}
			if e, ok := errors.AsType[*slots.RefusedError](err); ok && (e.Remedy == "" || e.Err == nil) {
				t.Errorf("no remedy, or no cause: %#v", e)
			}
		})
	}
}

// Create returns "exists" only after a majority has the value.
func TestExistsIsWhatAMajorityHas(t *testing.T) {
	for name, tc := range map[string]struct {
		lin  func(m *member) bson.D
		want string
		then string // answer of a create after the failover
	}{
		"it is replicated meanwhile": {func(m *member) bson.D {
			m.majority["a/1"], m.alone, m.lin = m.alone["a/1"], nil, nil
			return nil
		}, "exists", "exists"},
		"a failover takes it back":         {func(m *member) bson.D { m.alone = nil; return nil }, "unclear", "done"},
		"a failover ends the read":         {func(m *member) bson.D { m.alone, m.lin = nil, nil; return fake.Failed(11602) }, "unclear", "done"},
		"there is no majority":             {func(m *member) bson.D { return fake.Failed(50) }, "unclear", "unclear"},
		"reading is not permitted":         {func(m *member) bson.D { return fake.Failed(13) }, "unclear", "unclear"},
		"the disk is full as it looks":     {func(m *member) bson.D { return fake.Failed(14031) }, "unclear", "unclear"},
		"a member that knows no such read": {func(m *member) bson.D { return fake.Failed(123) }, "unclear", "unclear"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMember(t)
			m.alone["a/1"], m.lin = value("a/1", "of another writer"), tc.lin
			s, _ := over(t, m.url("&retryReads=false"))
			err := s.Create(t.Context(), "a/1", []byte("x"))
			if got := meaning(err); got != tc.want {
				t.Errorf("%s, want %s: %v", got, tc.want, err)
			}
			if got := meaning(s.Create(t.Context(), "a/1", []byte("x"))); got != tc.then {
				t.Errorf("afterwards %s, want %s", got, tc.then)
			}
		})
	}
}

// A value is absent only if a linearizable read says so.
func TestAbsentIsCertain(t *testing.T) {
	for name, tc := range map[string]struct {
		lin  func(m *member) bson.D
		want string
	}{
		"absent":                   {nil, "absent"},
		"the majority's is older":  {func(m *member) bson.D { m.majority["a/1"] = value("a/1", "x"); return nil }, "done"},
		"a deposed primary":        {func(m *member) bson.D { return fake.Failed(189) }, "unclear"},
		"there is no majority":     {func(m *member) bson.D { return fake.Failed(50) }, "unclear"},
		"no such read in this set": {func(m *member) bson.D { return fake.Failed(123) }, "unclear"},
		"not permitted":            {func(m *member) bson.D { return fake.Failed(13) }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMember(t)
			s, _ := over(t, m.url("&retryReads=false"))
			for _, read := range []func() error{
				func() error { return second(s.Read(t.Context(), "a/1")) }, func() error { return second(s.Size(t.Context(), "a/1")) },
			} {
				m.mu.Lock()
				m.majority, m.lin = map[string]bson.D{}, tc.lin
				m.mu.Unlock()
				if err := read(); meaning(err) != tc.want {
					t.Errorf("want %s: %v", tc.want, err)
				}
			}
		})
	}
}

// A standalone server refuses linearizable reads; its answers are certain nevertheless.
func TestStandalone(t *testing.T) {
	for _, code := range []int{123, 72, 115, 2} {
		m := startMember(t)
		m.standalone, m.lin = true, func(*member) bson.D { return fake.Failed(code) }
		s, _ := over(t, m.url(""))
		for i, want := range []string{"done", "exists"} {
			if err := s.Create(t.Context(), "a/1", []byte("x")); meaning(err) != want {
				t.Errorf("%d: create %d: %v", code, i, err)
			}
		}
		if _, err := s.Size(t.Context(), "a/2"); meaning(err) != "absent" {
			t.Errorf("%d: size: %v", code, err)
		}
	}
}

// Settings of the URL and of the client change nothing: concerns, members, retries.
func TestTheURLChangesNothing(t *testing.T) {
	m := startMember(t)
	const more = "&retryWrites=true&w=1&journal=false&readConcernLevel=local&readPreference=secondaryPreferred"
	opened, err := mongoslots.Open(t.Context(), m.url(more), mongoslots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	given, _ := over(t, m.url(more))
	for name, s := range map[string]*mongoslots.Store{"opened": opened, "given": given} {
		m.mu.Lock()
		m.commands = nil
		m.mu.Unlock()
		name = name + "/1"
		for i, err := range []error{
			s.Create(t.Context(), name, []byte("x")), s.Create(t.Context(), name, []byte("x")), // insert, insert and find
			second(s.Read(t.Context(), name)), second(s.Read(t.Context(), "none")), // find, find and find
			s.Delete(t.Context(), name), second(s.List(t.Context(), "a")),
		} {
			if want := []string{"done", "exists", "done", "absent", "done", "done"}[i]; meaning(err) != want {
				t.Fatalf("%d: %v, want %s", i, err, want)
			}
		}
		var got []string
		for _, c := range m.took() {
			elements, _ := c.Elements()
			is := elements[0].Key()
			if is == "find" {
				level, _ := c.Lookup("readConcern", "level").StringValueOK()
				is = level
				if _, bounded := c.Lookup("maxTimeMS").AsInt64OK(); level == "linearizable" && !bounded {
					t.Error("a linearizable read may wait forever")
				}
				if mode, _ := c.Lookup("$readPreference", "mode").StringValueOK(); strings.HasPrefix(mode, "secondary") {
					t.Errorf("a read goes to a member that is %s", mode)
				}
			} else if wc := c.Lookup("writeConcern").String(); wc != `{"w": "majority","j": true}` {
				t.Errorf("%s has the write concern %s", is, wc)
			}
			if _, err := c.LookupErr("txnNumber"); err == nil {
				t.Errorf("the driver may retry: %v", c)
			}
			got = append(got, is)
		}
		if want := "insert insert linearizable majority majority linearizable delete majority"; strings.Join(got, " ") != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A refusal refers to the only request that was sent. After a retry, the first request might have been applied.
func TestOneAttempt(t *testing.T) {
	m := startMember(t)
	m.reply["insert"], m.repeat["insert"] = append(fake.Failed(11600), bson.E{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}}), append(answered(0), writeError(14031))
	s, _ := over(t, m.url("&retryWrites=true"))
	if err := s.Create(t.Context(), "a/1", nil); meaning(err) != "unclear" || len(m.took()) != 1 {
		t.Errorf("after %d requests: %v", len(m.took()), err)
	}
}

// A caller's transaction could be aborted after Create has reported success.
func TestNoPartOfATransaction(t *testing.T) {
	m := startMember(t)
	s, client := over(t, m.url(""))
	session, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(context.WithoutCancel(t.Context()))
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	ctx := mongo.NewSessionContext(t.Context(), session)
	create, missing := s.Create(ctx, "a/1", nil), second(s.Read(ctx, "a/2"))
	if meaning(create) != "done" || meaning(missing) != "absent" {
		t.Errorf("%v, %v", create, missing)
	}
	if err := errors.Join(second(s.List(ctx, "a")), second(s.Folders(ctx, "a")), s.Delete(ctx, "a/1"), s.Check(ctx)); err != nil {
		t.Error(err)
	}
	for _, c := range m.took() {
		if _, err := c.LookupErr("txnNumber"); err == nil {
			t.Errorf("part of the transaction: %v", c)
		}
	}
}

// Logins that fail: errors that an operator has to correct, and temporary ones.
func TestLogin(t *testing.T) {
	for name, tc := range map[string]struct {
		answer bson.D
		want   string
	}{
		"wrong password": {saying(18, "Authentication failed."), "refused"},
		"of Atlas":       {saying(8000, "bad auth : Authentication failed."), "refused"},
		"no mechanism":   {fake.Failed(334), "refused"},
		"no rights":      {fake.Failed(13), "refused"},
		"busy, in Atlas": {saying(8000, "no"), "unclear"},
		"shutting down":  {fake.Failed(91), "unclear"},
		"stepping down":  {fake.Failed(11602), "unclear"},
		"no users known": {fake.Failed(133), "unclear"},
		"unknown":        {fake.Failed(424242), "unclear"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMember(t)
			m.reply["saslStart"] = tc.answer
			url := strings.Replace(m.url("&authSource=admin&authMechanism=SCRAM-SHA-256"), "://", "://bob:s3cret@", 1)
			s, _ := over(t, url)
			for doing, do := range map[string]func() error{
				"create": func() error { return s.Create(t.Context(), "a/1", nil) },
				"read":   func() error { return second(s.Read(t.Context(), "a/1")) },
				"open":   func() error { return second(mongoslots.Open(t.Context(), url, mongoslots.Options{})) },
			} {
				err := do()
				for err != nil && strings.Contains(err.Error(), "was cleared") {
					err = do() // the driver reports another request's login, whose error it keeps only as text
				}
				if e, ok := errors.AsType[*slots.RefusedError](err); ok && !strings.Contains(e.Remedy, "authSource") {
					t.Errorf("%s: the remedy is %s", doing, e.Remedy)
				}
				if got := meaning(err); got != tc.want || strings.Contains(fmt.Sprint(err), "s3cret") {
					t.Errorf("%s: %s, want %s: %v", doing, got, tc.want, err)
				}
			}
		})
	}
}

// Wrong answers of a server do not cause endless loops.
func TestListingOfNonsense(t *testing.T) {
	m := startMember(t)
	s, _ := over(t, m.url(""))
	answer := func(name string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reply["find"] = fake.Found("db.slots", bson.D{{Key: "_id", Value: name}, {Key: "n", Value: int64(1)}})
	}
	check := func(errs map[string]error) {
		t.Helper()
		for doing, err := range errs {
			if meaning(err) != "unclear" {
				t.Errorf("%s: %v", doing, err)
			}
		}
	}
	last, first := func() error { return second(s.Last(t.Context(), "a")) }, func() error { return second(s.Between(t.Context(), "a", "", "", 1)) }
	answer("0/1") // in another folder
	check(map[string]error{"list": second(s.List(t.Context(), "a")), "folders": second(s.Folders(t.Context(), "a")), "last": last(), "between": first()})
	answer("a/X") // a foreign name, and the same one again
	check(map[string]error{"last": last(), "between": first()})
}

// The answer is lost. The value may exist or not.
func TestLostAnswer(t *testing.T) {
	m := startMember(t)
	ctx, cancel := context.WithCancel(t.Context())
	client, err := mongo.Connect(options.Client().ApplyURI(m.url("")).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if name, _ := e.Command.Lookup("documents", "0", "_id").StringValueOK(); name == "a/1" {
				cancel() // it is sent
			}
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.WithoutCancel(t.Context()))
	s := newStore(t, client.Database("db"))
	create(t, s, "a/0") // makes a connection
	m.Silent(true)
	if err := s.Create(ctx, "a/1", nil); meaning(err) != "unclear" || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	m.Silent(false)
}
