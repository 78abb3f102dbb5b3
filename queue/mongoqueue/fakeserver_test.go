package mongoqueue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

func startFakeServer(t *testing.T, answer func(command string) bson.D) (*fake.Server, string) {
	t.Helper()
	s := fake.Start(t, answer)
	return s, "mongodb://" + s.Addr() + "/db?directConnection=true&heartbeatFrequencyMS=100000"
}

func helloReply(changes ...bson.E) bson.D { return fake.Hello(changes...) }

var (
	good         = bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 3}}
	concernError = bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}}}
)

func writeError(index, code int) bson.E {
	return bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: index}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}}}}
}

func commandError(code int) bson.D { return fake.Failed(code) }

// How Insert interprets a server's answers to a batch of three.
func TestInsertAnswers(t *testing.T) {
	found := func(keys ...int) bson.D {
		batch := bson.A{}
		for _, n := range keys {
			batch = append(batch, bson.D{{Key: "_id", Value: "orders/" + message("", n, nil).ID.String()}})
		}
		return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.messages"}, {Key: "firstBatch", Value: batch}}}}
	}
	duplicate := func(i int) bson.D { return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: i}, writeError(i, 11000)} }
	type answers []bson.D
	for name, tc := range map[string]struct {
		answers
		commands []string
		want     *queue.InsertError
		sentinel error
	}{
		"stored":                     {answers{good}, []string{"insert"}, nil, nil},
		"write concern timed out":    {answers{{{Key: "ok", Value: 1}, {Key: "n", Value: 3}, concernError}}, []string{"insert"}, &queue.InsertError{}, nil},
		"duplicate, not replicated":  {answers{append(duplicate(1), concernError)}, []string{"insert"}, &queue.InsertError{}, nil},
		"duplicate, rest is there":   {answers{duplicate(0), found(2, 3)}, []string{"insert", "find"}, nil, nil},
		"duplicate, rest is missing": {answers{duplicate(0), found(), good}, []string{"insert", "find", "insert"}, nil, nil},
		"last one is a duplicate":    {answers{duplicate(2)}, []string{"insert"}, nil, nil},
		"one by one": {answers{duplicate(0), commandError(148), duplicate(0), commandError(148), duplicate(0)},
			[]string{"insert", "find", "insert", "find", "insert"}, nil, nil},
		"reading fails": {answers{duplicate(0), commandError(10107), commandError(10107), good}, // the driver repeats reads
			[]string{"insert", "find", "find", "insert"}, nil, nil},
		"refused in the middle":         {answers{{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, writeError(1, 121)}}, []string{"insert"}, &queue.InsertError{Stored: 1, Refused: true}, queue.ErrUnsupported},
		"refused after a duplicate":     {answers{duplicate(0), found(2), {{Key: "ok", Value: 1}, {Key: "n", Value: 0}, writeError(0, 121)}}, []string{"insert", "find", "insert"}, &queue.InsertError{Stored: 2, Refused: true}, queue.ErrUnsupported},
		"refused, and not replicated":   {answers{{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, writeError(1, 121), concernError}}, []string{"insert"}, &queue.InsertError{}, nil},
		"an odd error in the middle":    {answers{{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, writeError(1, 1)}}, []string{"insert"}, &queue.InsertError{Stored: 1}, nil},
		"not permitted":                 {answers{commandError(13)}, []string{"insert"}, &queue.InsertError{Refused: true}, queue.ErrPermission},
		"no primary":                    {answers{commandError(10107)}, []string{"insert"}, &queue.InsertError{}, nil},
		"an unknown error":              {answers{commandError(424242)}, []string{"insert"}, &queue.InsertError{}, nil},
		"an answer that makes no sense": {answers{{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, writeError(77, 11000)}}, []string{"insert"}, &queue.InsertError{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			left := tc.answers
			s, uri := startFakeServer(t, func(command string) bson.D {
				if command != "insert" && command != "find" || len(left) == 0 {
					return nil
				}
				a := left[0]
				left = left[1:]
				return a
			})
			q := open(t, uri, mongoqueue.Options{})
			err := q.Insert(t.Context(), "orders", []queue.Message{message("orders", 1, nil), message("orders", 2, nil), message("orders", 3, nil)})
			var ie *queue.InsertError
			switch {
			case tc.want == nil:
				if err != nil {
					t.Errorf("got %v", err)
				}
			case !errors.As(err, &ie) || ie.Stored != tc.want.Stored || ie.Refused != tc.want.Refused || ie.Temporary != tc.want.Temporary:
				t.Errorf("got %#v, want %#v", err, tc.want)
			case tc.sentinel != nil && !errors.Is(err, tc.sentinel):
				t.Errorf("got %v, want %v", err, tc.sentinel)
			}
			if commands := s.Commands(); !slices.Equal(commands, tc.commands) {
				t.Errorf("commands %v, want %v", commands, tc.commands)
			}
		})
	}
}

// An entry that is not replicated yet could be rolled back: it registers nothing.
func TestRegistryNeedsTheMajority(t *testing.T) {
	for name, answer := range map[string]bson.D{
		"stored":    {{Key: "ok", Value: 1}, {Key: "n", Value: 1}, concernError},
		"duplicate": {{Key: "ok", Value: 1}, {Key: "n", Value: 0}, writeError(0, 11000), concernError},
	} {
		s, uri := startFakeServer(t, func(command string) bson.D {
			switch command {
			case "insert", "update":
				return answer
			case "delete":
				return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}
			}
			return nil
		})
		q := open(t, uri, mongoqueue.Options{})
		if _, err := q.RegisterFile(t.Context(), "orders", queue.RegistryEntry{}); err == nil {
			t.Errorf("%s: RegisterFile took it for durable", name)
		}
		if err := q.RegisterType(t.Context(), "orders"); err == nil {
			t.Errorf("%s: RegisterType took it for durable", name)
		}
		if updated, err := q.UpdateFile(t.Context(), "orders", queue.RegistryEntry{}); err == nil || updated {
			t.Errorf("%s: UpdateFile took it for durable", name)
		}
		if _, ok, err := q.SucceedFile(t.Context(), "orders", [16]byte{}, queue.RegistryEntry{}); err == nil || ok {
			t.Errorf("%s: SucceedFile took it for durable", name)
		}
		if ok, err := q.AckFile(t.Context(), "orders", queue.RegistryEntry{}, []queue.ID{message("", 1, nil).ID}); err == nil || ok {
			t.Errorf("%s: AckFile took it for durable", name)
		}
		if commands := s.Commands(); slices.Contains(commands, "delete") {
			t.Errorf("%s: messages were deleted before the entry was durable: %v", name, commands)
		}
	}
}

func TestOpenExaminesTheServer(t *testing.T) {
	for name, tc := range map[string]struct {
		hello  bson.D
		want   error
		remedy string
	}{
		"primary":   {nil, nil, ""},
		"secondary": {helloReply(bson.E{Key: "isWritablePrimary", Value: false}, bson.E{Key: "secondary", Value: true}, bson.E{Key: "setName", Value: "rs"}), queue.ErrUnreachable, "replicaSet="},
		"no rights": {commandError(13), queue.ErrPermission, "authSource"},
		"old":       {commandError(59), nil, ""}, // isMaster works
		"no clock":  {helloReply(bson.E{Key: "isWritablePrimary", Value: true}), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			handshakes := 0
			_, uri := startFakeServer(t, func(command string) bson.D {
				// The driver's own greetings are isMaster; ours is hello.
				if command == "hello" {
					handshakes++
					return tc.hello
				}
				return nil
			})
			q, err := mongoqueue.Open(t.Context(), uri, mongoqueue.Options{ConnectTimeout: 2 * time.Second})
			if err == nil {
				defer q.Close()
			}
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || !strings.Contains(fmt.Sprint(err), tc.remedy) {
				t.Fatalf("got %v, want %v with %q", err, tc.want, tc.remedy)
			}
			if handshakes == 0 {
				t.Error("the server was not examined")
			}
			if err != nil {
				return
			}
			now, err := q.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			base := time.UnixMilli(1_700_000_000_000)
			if name == "no clock" {
				base = time.Now()
			}
			if d := now.Sub(base); d.Abs() > time.Minute {
				t.Errorf("the clock is %v off", d)
			}
		})
	}
}

// Settings of a URI that must have no effect: write retries by the driver, reads from a secondary, reads of data that a failover may roll
// back.
func TestTheURICannotChangeWhatAnAnswerMeans(t *testing.T) {
	_, uri := startFakeServer(t, func(command string) bson.D {
		switch command {
		case "hello", "isMaster":
			return helloReply(bson.E{Key: "isWritablePrimary", Value: true}, bson.E{Key: "ismaster", Value: true}, bson.E{Key: "setName", Value: "rs"},
				bson.E{Key: "logicalSessionTimeoutMinutes", Value: 30}, bson.E{Key: "localTime", Value: time.UnixMilli(1_700_000_000_000)})
		case "insert":
			return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}, writeError(0, 11000)} // it may have been stored before
		case "find":
			return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.messages"}, {Key: "firstBatch", Value: bson.A{}}}}}
		}
		return nil
	})
	w := &wire{}
	q := open(t, uri+"&retryWrites=true&readPreference=secondaryPreferred&readConcernLevel=local", mongoqueue.Options{Monitor: w.monitor()})
	// The first one existed; the others that exist are read; the second one is not found, but existed.
	if err := q.Insert(t.Context(), "orders", []queue.Message{message("orders", 1, nil), message("orders", 2, nil)}); err != nil {
		t.Error(err)
	}
	names, commands := w.take()
	inserts, finds := 0, 0
	for i, c := range commands {
		switch names[i] {
		case "insert":
			inserts++
			if _, err := c.LookupErr("txnNumber"); err == nil {
				t.Error("the driver may retry an insert")
			}
		case "find":
			finds++
			if level, _ := c.Lookup("readConcern", "level").StringValueOK(); level != "majority" {
				t.Errorf("what is found to be there was read with the read concern %q", level)
			}
			if mode, _ := c.Lookup("$readPreference", "mode").StringValueOK(); strings.HasPrefix(mode, "secondary") {
				t.Errorf("reads go to a member that is %s", mode)
			}
		}
	}
	if inserts != 2 || finds != 1 {
		t.Errorf("%q", names)
	}
}
