// Command order-and-event stores an order and publishes its event in one MongoDB transaction: both, or neither. A worker then drains the
// events. It needs a server with transactions: a replica set, which may have a single member.
//
//	go run ./examples/order-and-event --url 'mongodb://127.0.0.1:27017/shop?replicaSet=rs0'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "order-and-event:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("order-and-event", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "mongodb://127.0.0.1:27017/shop?replicaSet=rs0", "URL of a replica set, with the database of orders and events")
	dir := flags.String("dir", "data", "directory of the files; use the same one in every run with this database")
	flags.Parse(args)
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
	s, err := openShop(ctx, *url)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	for _, o := range []order{{"chair", 1}, {"table", 0}, {"lamp", 3}} {
		switch err := s.place(ctx, o); {
		case errors.Is(err, errSoldOut):
			fmt.Fprintf(out, "%s: %v: neither an order nor an event\n", o.Item, err)
		case err != nil:
			return err
		default:
			fmt.Fprintf(out, "%s: an order and its event\n", o.Item)
		}
	}
	return drain(ctx, *url, *dir, out)
}

// order is a document of the shop, not of the queue.
type order struct {
	Item   string `bson:"item"`
	Amount int    `bson:"amount"`
}

var errSoldOut = errors.New("sold out")

// shop has its own client, like any program that already uses MongoDB, and a queue on the same server.
type shop struct {
	client *mongo.Client
	orders *mongo.Collection
	queue  *mongoqueue.Queue
}

func openShop(ctx context.Context, url string) (*shop, error) {
	q, err := mongoqueue.Open(ctx, url, mongoqueue.Options{})
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(url))
	if err != nil {
		q.Close()
		return nil, err
	}
	return &shop{client, client.Database(q.Database()).Collection("orders"), q}, nil
}

func (s *shop) close(ctx context.Context) {
	s.queue.Close()
	_ = s.client.Disconnect(context.WithoutCancel(ctx))
}

// place stores an order and publishes its event. WithTransaction may call the function more than once: each attempt creates its own event,
// and the rollback of an attempt removes it. So the function must do nothing that a rollback does not undo.
func (s *shop) place(ctx context.Context, o order) error {
	session, err := s.client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		event := queue.Message{Type: "ordered", Payload: fmt.Appendf(nil, "%d × %s", o.Amount, o.Item)}
		if _, err := s.queue.PublishInTransaction(ctx, event); err != nil {
			return nil, err // unchanged or wrapped: WithTransaction inspects it to decide whether to retry
		}
		if o.Amount == 0 {
			return nil, errSoldOut // removes the event, too
		}
		_, err := s.orders.InsertOne(ctx, bson.D{{Key: "item", Value: o.Item}, {Key: "amount", Value: o.Amount}})
		return nil, err
	})
	if err == nil {
		_ = s.queue.Notify(ctx, []string{"ordered"}) // a hint: without it a worker finds the event up to 30 s later
	}
	return err
}

// drain appends the events to a file, and reads it.
func drain(ctx context.Context, url, dir string, out io.Writer) error {
	b, err := fencepost.Open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx))
	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker,
		To:         worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}}, // the writable layer of a container is good enough for an example
		Types:      []string{"ordered"},
		UntilEmpty: true,
	})
	if err != nil {
		return err
	}
	if err := pool.Run(ctx); err != nil {
		return err
	}
	r, err := storage.OpenReader(filepath.Join(dir, storage.FileName("ordered")), storage.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "in the file: %s\n", m.Payload)
	}
}
