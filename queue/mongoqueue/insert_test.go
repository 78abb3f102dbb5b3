package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/queue"
)

// fakeServer performs inserts one document at a time, interleaved with other writers, and dies at any point.
type fakeServer struct {
	rng *rand.Rand

	docs     map[string]bool
	ever     []bool // per message, in the order of the call
	index    map[string]int
	rivals   [][]document // earlier attempts with the same documents, still in flight; each is performed in order
	majority bool         // reads see everything stored
	broken   error        // a promise was broken
	faults   int          // number of further answers that get lost

	unordered bool // commands are performed in any order
}

func newFakeServer(rng *rand.Rand, docs []document) *fakeServer {
	s := &fakeServer{rng: rng, docs: map[string]bool{}, index: map[string]int{}, ever: make([]bool, len(docs))}
	for i, d := range docs {
		s.index[d.key] = i
	}
	return s
}

// store makes one document visible, and checks that none before it is missing.
func (s *fakeServer) store(d document) bool {
	if s.docs[d.key] {
		return false
	}
	s.docs[d.key] = true
	i := s.index[d.key]
	s.ever[i] = true
	for j := range i {
		if !s.ever[j] && s.broken == nil {
			s.broken = fmt.Errorf("document %d is visible, %d never was", i, j)
		}
	}
	return true
}

// others lets earlier attempts continue for a while, and the consumer acknowledge messages.
func (s *fakeServer) others() {
	for i := range s.rivals {
		for range s.rng.IntN(4) {
			if len(s.rivals[i]) == 0 {
				break
			}
			if !s.store(s.rivals[i][0]) {
				s.rivals[i] = nil // a duplicate ends an ordered insert
				break
			}
			s.rivals[i] = s.rivals[i][1:]
		}
	}
	if s.rng.IntN(10) == 0 {
		for key := range s.docs {
			delete(s.docs, key)
			break
		}
	}
}

var errLost = errors.New("connection reset")

func (s *fakeServer) insertOrdered(_ context.Context, docs []document) (int, bool, error) {
	order := make([]int, len(docs))
	for i := range order {
		order[i] = i
	}
	if s.unordered { // a server may spread them over shards
		s.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	die := -1
	if s.faults > 0 {
		s.faults--
		die = s.rng.IntN(len(docs) + 1)
	}
	for n, i := range order {
		if n == die {
			if s.rng.IntN(2) == 0 { // the server continues without the client
				rest := make([]document, 0, len(docs))
				for _, k := range order[n:] {
					rest = append(rest, docs[k])
				}
				s.rivals = append(s.rivals, rest)
			}
			return 0, false, errLost
		}
		s.others()
		if !s.store(docs[i]) && !s.unordered {
			return i, true, nil
		}
	}
	if die == len(docs) {
		return 0, false, errLost
	}
	return len(docs), false, nil
}

func (s *fakeServer) present(_ context.Context, docs []document) (map[string]bool, error) {
	s.others()
	there := map[string]bool{}
	if !s.majority {
		return there, nil // a server without read concern: nothing is known
	}
	if s.faults > 0 && s.rng.IntN(4) == 0 {
		s.faults--
		return nil, errLost
	}
	for _, d := range docs {
		if s.docs[d.key] {
			there[d.key] = true
		}
	}
	return there, nil
}

// repeatUntilStored publishes a batch as a publisher does, despite faults, and returns what went wrong.
func repeatUntilStored(seed uint64, size, faults int, majority, unordered bool) error {
	rng := rand.New(rand.NewPCG(seed, 9))
	var msgs []queue.Message
	for n := range size {
		msgs = append(msgs, queue.Message{Payload: []byte{byte(n)}})
		msgs[n].ID[19] = byte(n + 1)
	}
	docs := documents("orders", msgs)
	s := newFakeServer(rng, docs)
	s.faults, s.majority, s.unordered = faults, majority, unordered
	from := 0
	for attempt := 0; ; attempt++ {
		err := insert(context.Background(), s, documents("orders", msgs[from:]), func(err error) error { return err })
		if s.broken != nil {
			return s.broken
		}
		stored := len(msgs) - from
		var ie *queue.InsertError
		if errors.As(err, &ie) {
			stored = ie.Stored
		}
		for i := from; i < from+stored; i++ {
			if !s.ever[i] {
				return fmt.Errorf("message %d is reported stored and never was", i)
			}
		}
		from += stored
		if err == nil {
			return nil
		}
		if attempt > faults {
			return fmt.Errorf("no end after %d faults: %w", faults, err)
		}
	}
}

func TestRepeatedInsertIsVisibleInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		err := repeatUntilStored(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 40).Draw(t, "messages"),
			rapid.IntRange(0, 6).Draw(t, "faults"), rapid.Bool().Draw(t, "majority reads"), false)
		if err != nil {
			t.Fatal(err)
		}
	})
}

// The rule is necessary: with unordered inserts the same check fails.
func TestUnorderedInsertIsNoticed(t *testing.T) {
	for seed := range uint64(200) {
		if err := repeatUntilStored(seed, 20, 3, true, true); err != nil {
			t.Logf("seed %d: %v", seed, err)
			return
		}
	}
	t.Error("200 batches inserted in any order, unnoticed")
}

// Repeating a batch that was stored completely takes two commands, not one per message.
func TestRepetitionIsCheap(t *testing.T) {
	msgs := make([]queue.Message, 1000)
	for n := range msgs {
		msgs[n].ID[18], msgs[n].ID[19] = byte((n+1)>>8), byte(n+1)
	}
	docs := documents("orders", msgs)
	s := &countingServer{fakeServer: newFakeServer(rand.New(rand.NewPCG(1, 1)), docs)}
	s.majority = true
	for _, d := range docs {
		s.store(d)
	}
	if err := insert(t.Context(), s, docs, func(err error) error { return err }); err != nil {
		t.Fatal(err)
	}
	if s.commands > 2 {
		t.Errorf("%d commands", s.commands)
	}
}

type countingServer struct {
	*fakeServer
	commands int
}

func (s *countingServer) insertOrdered(_ context.Context, docs []document) (int, bool, error) {
	s.commands++
	return 0, true, nil
}

func (s *countingServer) present(ctx context.Context, docs []document) (map[string]bool, error) {
	s.commands++
	there := map[string]bool{}
	for _, d := range docs {
		there[d.key] = s.docs[d.key]
	}
	return there, nil
}

// What an error of an insert command says about the documents that are not known to be stored.
func TestJudgeInsert(t *testing.T) {
	bulk := func(code int, wc *mongo.WriteConcernError) error {
		e := mongo.BulkWriteException{WriteConcernError: wc}
		if code != 0 {
			e.WriteErrors = []mongo.BulkWriteError{{WriteError: mongo.WriteError{Index: 3, Code: code}}}
		}
		return e
	}
	command := func(code int32, labels ...string) error { return mongo.CommandError{Code: code, Labels: labels} }
	for name, tc := range map[string]struct {
		err  error
		want verdict
	}{
		"validation":              {bulk(121, nil), verdict{refused: true, document: true, sentinel: queue.ErrUnsupported}},
		"too large":               {bulk(10334, nil), verdict{refused: true, document: true, sentinel: queue.ErrUnsupported}},
		"validation, not of one":  {command(121), verdict{refused: true, sentinel: queue.ErrUnsupported}},
		"no right to one":         {bulk(13, nil), verdict{refused: true, sentinel: queue.ErrPermission}},
		"quota at one":            {bulk(8000, nil), verdict{refused: true, sentinel: queue.ErrUnsupported}},
		"validation and w error":  {bulk(121, &mongo.WriteConcernError{Code: 64}), verdict{}},
		"write concern timeout":   {bulk(0, &mongo.WriteConcernError{Code: 64}), verdict{}},
		"unknown write error":     {bulk(1, nil), verdict{}},
		"write error not primary": {bulk(10107, nil), verdict{}},
		"unauthorized":            {command(13), verdict{refused: true, sentinel: queue.ErrPermission}},
		"authentication":          {command(18), verdict{refused: true, sentinel: queue.ErrPermission}},
		"command not found":       {command(59), verdict{refused: true, sentinel: queue.ErrUnsupported}},
		"quota":                   {command(8000), verdict{refused: true, sentinel: queue.ErrUnsupported}},
		"not primary":             {command(10107), verdict{}},
		"stepped down":            {command(189), verdict{}},
		"shutting down":           {command(91), verdict{}},
		"interrupted":             {command(11602), verdict{}},
		"time limit":              {command(50), verdict{}},
		"internal error":          {command(1), verdict{}},
		"network":                 {command(0, "NetworkError"), verdict{sentinel: queue.ErrUnreachable}},
		"deadline":                {context.DeadlineExceeded, verdict{}},
		"cancelled":               {context.Canceled, verdict{}},
		"anything":                {errors.New("boom"), verdict{}},
		"no server":               {topology.ServerSelectionError{Wrapped: context.DeadlineExceeded}, verdict{refused: true, temporary: true, sentinel: queue.ErrUnreachable}},
		"closed":                  {mongo.ErrClientDisconnected, verdict{refused: true, sentinel: queue.ErrClosed}},
	} {
		if got := judgeInsert(tc.err); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// answers is a server that gives one answer.
type answers struct {
	landed int
	err    error
}

func (s answers) insertOrdered(context.Context, []document) (int, bool, error) {
	return s.landed, false, s.err
}
func (s answers) present(context.Context, []document) (map[string]bool, error) { return nil, nil }

// TestRefusedDocument: only a certain answer about one document means that the server refuses this one message.
func TestRefusedDocument(t *testing.T) {
	bulk := func(code int, wc *mongo.WriteConcernError) error {
		return mongo.BulkWriteException{WriteConcernError: wc, WriteErrors: []mongo.BulkWriteError{{WriteError: mongo.WriteError{Index: 1, Code: code, Message: "Document failed validation"}}}}
	}
	var msgs []queue.Message
	for n := range uint64(3) {
		msgs = append(msgs, queue.Message{ID: queue.NewID(time.UnixMilli(1), 7, n+1)})
	}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"validation":             {bulk(121, nil), true},
		"validation and w error": {bulk(121, &mongo.WriteConcernError{Code: 64}), false},
		"no right":               {bulk(13, nil), false},
		"disk full":              {bulk(14031, nil), false},
		"quota":                  {bulk(8000, nil), false},
		"of the command":         {mongo.CommandError{Code: 121}, false},
		"not primary":            {bulk(10107, nil), false},
		"no server":              {topology.ServerSelectionError{Wrapped: context.DeadlineExceeded}, false},
		"no answer":              {context.DeadlineExceeded, false},
	} {
		err := insert(t.Context(), answers{1, tc.err}, documents("orders", msgs), func(err error) error { return err })
		message, why, ok := refusedDocument(err)
		if ok != tc.want || ok && (message != 1 || why != "Document failed validation (code 121)") {
			t.Errorf("%s: refused: %v, message %d, %q", name, ok, message, why)
		}
	}
	if _, _, ok := refusedDocument(nil); ok {
		t.Error("no error is a refusal")
	}
}

func TestCommandsStayWithinTheServersLimits(t *testing.T) {
	var docs []document
	for range 5000 {
		docs = append(docs, document{size: 300})
	}
	for range 9 {
		docs = append(docs, document{size: 8<<20 + 64})
	}
	docs = append(docs, document{size: commandBytes * 2}, document{size: 1})
	total := 0
	for len(docs) > 0 {
		n := commandLen(docs)
		size := 0
		for _, d := range docs[:n] {
			size += d.size
		}
		if n < 1 || n > commandDocuments || (n > 1 && size > commandBytes) {
			t.Fatalf("%d documents of %d bytes in one command", n, size)
		}
		docs = docs[n:]
		total += n
	}
	if total != 5011 {
		t.Errorf("%d documents in all", total)
	}
}

// A retry must carry the same bytes.
func TestDocumentsAreDeterministic(t *testing.T) {
	m := queue.Message{Payload: []byte("x"), Headers: map[string]string{"c": "3", "a": "1", "b": "2", "d.e": "5"}}
	m.ID[19] = 1
	want := fmt.Sprint(documents("orders", []queue.Message{m}))
	for range 50 {
		if got := fmt.Sprint(documents("orders", []queue.Message{m})); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
}

// Any message within the limits is one document: the largest payload, with the headers that take the most space, promoted, and then a
// dead letter with the longest reason.
func TestLargestMessageIsOneDocument(t *testing.T) {
	m := queue.Message{Type: strings.Repeat("x", queue.MaxTypeLen), Payload: make([]byte, queue.MaxPayload), Headers: map[string]string{}}
	m.ID[19] = 1
	// Many headers take the most. One has a dot, so they are stored as a list.
	key := func(i int) string { return fmt.Sprintf(".%0*d", queue.MaxHeaders/queue.MaxHeaderCount-1, i) }
	for i := range queue.MaxHeaderCount {
		m.Headers[key(i)] = ""
	}
	if err := m.Validate(); err != nil || len(m.Headers)*len(key(0)) != queue.MaxHeaders {
		t.Fatalf("%d headers of %d bytes: %v", len(m.Headers), len(key(0)), err)
	}
	letter := documents(m.Type, []queue.Message{m})[0].body
	text := strings.Repeat("x", queue.MaxReason)
	raw, err := bson.Marshal(append(letter, bson.E{Key: "reason", Value: text}, bson.E{Key: "worker", Value: text}, bson.E{Key: "attempts", Value: int64(1)},
		bson.E{Key: "at", Value: time.Now()}))
	if err != nil {
		t.Fatal(err)
	}
	const most = 16 << 20 // bytes of a document
	t.Logf("%d headers; %d bytes are left", len(m.Headers), most-len(raw))
	if len(raw) > most {
		t.Errorf("the document has %d bytes, at most %d are possible", len(raw), most)
	}
}
