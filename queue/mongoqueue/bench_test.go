package mongoqueue_test

import (
	"context"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// The benchmarks compare the queue with bare driver calls that move the same bytes on the same server, alternating in one
// run, and report the ratio of the medians: absolute numbers say more about the machine than about the queue.
//
//	go test -run '^$' -bench . -benchtime 9x ./queue/mongoqueue

const (
	benchMessages = 20_000
	benchBatch    = 1000
	benchSize     = 256
)

// inTurns runs both b.N times, alternating, and reports messages/s of each and the ratio.
func inTurns(b *testing.B, ours, bare func()) {
	var tOurs, tBare []time.Duration
	ours() // warm up: connections, caches, the collection
	bare()
	b.ResetTimer()
	measure := func(f func(), into *[]time.Duration) {
		begin := time.Now()
		f()
		*into = append(*into, time.Since(begin))
	}
	for round := range b.N {
		if round%2 == 0 {
			measure(ours, &tOurs)
			measure(bare, &tBare)
		} else {
			measure(bare, &tBare)
			measure(ours, &tOurs)
		}
	}
	b.StopTimer()
	rate := func(d []time.Duration) float64 {
		slices.Sort(d)
		return benchMessages / d[len(d)/2].Seconds()
	}
	b.ReportMetric(rate(tOurs), "queue-msg/s")
	b.ReportMetric(rate(tBare), "bare-msg/s")
	b.ReportMetric(rate(tOurs)/rate(tBare), "ratio")
	b.ReportMetric(0, "ns/op")
}

func payload(i int) []byte {
	p := make([]byte, benchSize)
	binary.LittleEndian.PutUint64(p, uint64(i))
	return p
}

func bareCollection(b *testing.B) *mongo.Collection {
	return mongotest.Database(b).Collection("bare", options.Collection().SetWriteConcern(writeconcern.Majority()))
}

// bareInsert inserts benchMessages documents in the queue's format, as a program without a queue would. Rounds have
// different IDs.
func bareInsert(b *testing.B, c *mongo.Collection, rounds *int) {
	*rounds++
	for from := 0; from < benchMessages; from += benchBatch {
		docs := make([]any, benchBatch)
		for i := range docs {
			id := queue.NewID(time.UnixMilli(int64(*rounds)), 1, uint64(from+i+1))
			docs[i] = bson.D{{Key: "_id", Value: "orders/" + id.String()}, {Key: "b", Value: bson.Binary{Data: payload(from + i)}}}
		}
		if _, err := c.InsertMany(b.Context(), docs); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPublish is the target of DESIGN: at least 0.9 of raw insertMany.
func BenchmarkPublish(b *testing.B) {
	uri, _ := mongotest.Fresh(b)
	q := open(b, uri, mongoqueue.Options{})
	bare, rounds := bareCollection(b), 0
	publisher := func(b *testing.B) *queue.Publisher {
		p, err := queue.NewPublisher(b.Context(), q, queue.PublisherOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close(context.Background()) })
		return p
	}
	b.Run("PublishAll", func(b *testing.B) {
		p := publisher(b)
		inTurns(b, func() {
			for from := 0; from < benchMessages; from += benchBatch {
				msgs := make([]queue.Message, benchBatch)
				for i := range msgs {
					msgs[i] = queue.Message{Type: "orders", Payload: payload(from + i)}
				}
				for _, r := range p.PublishAll(b.Context(), msgs) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
			}
		}, func() { bareInsert(b, bare, &rounds) })
	})
	b.Run("Send", func(b *testing.B) {
		p := publisher(b)
		inTurns(b, func() {
			var left atomic.Int64
			left.Store(benchMessages)
			done := make(chan struct{})
			for i := range benchMessages {
				err := p.Send(b.Context(), queue.Message{Type: "orders", Payload: payload(i)}, func(r queue.Result) {
					if r.Err != nil {
						b.Error(r.Err)
					}
					if left.Add(-1) == 0 {
						close(done)
					}
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			<-done
			b.ReportMetric(float64(p.Stats().Stored)/float64(p.Stats().Batches), "msg/batch")
		}, func() { bareInsert(b, bare, &rounds) })
	})
}

// BenchmarkFetchAck compares the consumer's loop with bare find and deleteMany. Neither includes the filling.
func BenchmarkFetchAck(b *testing.B) {
	uri, _ := mongotest.Fresh(b)
	q := open(b, uri, mongoqueue.Options{})
	bare, rounds := bareCollection(b), 0
	var ours, theirs []time.Duration
	for round := range b.N + 1 {
		for from := 0; from < benchMessages; from += benchBatch {
			msgs := make([]queue.Message, benchBatch)
			for i := range msgs {
				msgs[i] = queue.Message{ID: queue.NewID(time.UnixMilli(int64(round+2)), 1, uint64(from+i+1)), Payload: payload(from + i)}
			}
			if err := q.Insert(b.Context(), "orders", msgs); err != nil {
				b.Fatal(err)
			}
		}
		bareInsert(b, bare, &rounds)

		begin := time.Now()
		var after queue.ID
		for n := 0; n < benchMessages; {
			msgs, err := q.Fetch(b.Context(), "orders", after, queue.Limit{Messages: benchBatch, Bytes: 4 << 20})
			if err != nil || len(msgs) == 0 {
				b.Fatal(len(msgs), err)
			}
			ids := make([]queue.ID, len(msgs))
			for i := range msgs {
				ids[i] = msgs[i].ID
			}
			if err := q.Ack(b.Context(), "orders", ids); err != nil {
				b.Fatal(err)
			}
			n += len(msgs)
			after = ids[len(ids)-1]
		}
		middle := time.Now()
		last := "orders/"
		for n := 0; n < benchMessages; {
			cursor, err := bare.Find(b.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: last}, {Key: "$lt", Value: "orders0"}}}},
				options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(benchBatch).SetBatchSize(benchBatch))
			if err != nil {
				b.Fatal(err)
			}
			var docs []struct {
				ID string      `bson:"_id"`
				B  bson.Binary `bson:"b"`
			}
			if err := cursor.All(b.Context(), &docs); err != nil || len(docs) == 0 {
				b.Fatal(len(docs), err)
			}
			ids := make(bson.A, len(docs))
			for i := range docs {
				ids[i] = docs[i].ID
			}
			if _, err := bare.DeleteMany(b.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}); err != nil {
				b.Fatal(err)
			}
			n += len(docs)
			last = docs[len(docs)-1].ID
		}
		if round > 0 { // the first one warms up
			ours, theirs = append(ours, middle.Sub(begin)), append(theirs, time.Since(middle))
		}
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	o, t := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(benchMessages/o.Seconds(), "queue-msg/s")
	b.ReportMetric(benchMessages/t.Seconds(), "bare-msg/s")
	b.ReportMetric(float64(t)/float64(o), "ratio")
	b.ReportMetric(0, "ns/op")
}
