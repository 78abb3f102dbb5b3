// Package worker drains typed messages from a queue, into one binary file per type or through a
// [Handler], with as many replicas as you like.
//
// A [Pool] serves a set of types. For each of them it waits for backlog, takes the type's lock,
// opens the type's file with the lock's fencing token as epoch, and runs a session until the type
// is idle, the pool stops, or the lock is lost:
//
//	           backlog                  token                    fence, scan
//	watching ───────────▶ acquiring ───────────▶ opening ───────────────────────▶ draining
//	   ▲                      │ empty meanwhile     │ refused, I/O error             │ idle · stopped · lost · fenced
//	   └──────────────────────┴─────────────────────┴───────── close, release ◀──────┘
//
// A draining session is a pipeline of three stages joined by bounded channels:
//
//	fetch ──▶ append ──▶ ack
//	          contiguity check, encode, one write per batch, one fsync for all that is ready (group commit)
//
// Two rules make the pipeline exactly-once. A message is acknowledged only after the file said it
// is durable and nobody has fenced the writer; and the ledger (last counter per producer, rebuilt
// from the file at every open) refuses what the file has already. The lock only keeps replicas from
// wasting each other's time: if it fails, the file decides.
//
// # Where to read
//
// A message's way, in the order of reading:
//
//	pipeline.go         a session: three stages and what joins them
//	fetch.go            reads the queue in the order of IDs, and goes back for what arrives late
//	append.go           admits, filters, writes, syncs; handle.go in its place with a Handler
//	internal/ledger     what is new, a copy, late, or has to wait; rebuilt from the file
//	ack.go              removes from the queue what is durable
//
// Around it:
//
//	pool.go             watches types, takes locks and slots, runs sessions
//	listen.go           which types have messages: what publishers tell, and sweeps
//	file.go, registry.go  the session's file, and what the queue knows of it
//	deadletter.go       what does not get into the file
//	retry.go            pauses, attempts, and errors that no retry can help
//	handoff.go          how a type goes to another replica; internal/share decides to which
//	scheduler.go        delayed messages that are due
//	memory.go           bounds what all types have fetched together
//	poison.go           finds a message that kills the process
//	unfit.go            what can be neither appended nor handled
//	replica.go, status.go  what sessions share, and what Status says about them
//
// # Handlers
//
// With [Handling] the append stage hands the messages to your code instead:
//
//	pool, err := worker.New(worker.Config{
//		Queue: b.Queue, Locker: b.Locker, Types: []string{"orders"},
//		To: worker.Handling{Handler: worker.Each(func(ctx context.Context, lease worker.Lease, m queue.Message) error { return ship(ctx, m.Payload) })},
//		OnError: worker.DeadLetter,
//	})
//
// Order per producer and one holder at a time are kept; exactly once becomes at least once, as
// there is no file that refuses copies: [Handler] says precisely what holds. A Handler gets
// batches; [Each] makes one of a function for single messages, [Keyed] handles several keys of a
// type at the same time. What becomes of a message:
//
//	           nil                                      acknowledged
//	Handle ────────────────────────────────────────────▶ (deleted from the queue)
//	  ▲  │ error, panic, Timeout
//	  │  └──▶ the batch is divided until the message is found ──▶ Block, or fewer than MaxAttempts: pause
//	  │                                                    │                                           │
//	  └────────────────────────────────────────────────────┼───────────────────────────────────────────┘
//	                                                       └──▶ DeadLetter: dead letter (fencepost dead ls)
//
// A message that kills the process is found, too (docs/decisions/0003). A handler whose destination
// refuses an old token returns [ErrFenced], and the session ends without blaming a message;
// examples/custom-sink has such a destination. Package workertest helps to test handlers.
//
// # Messages that do not get into a file
//
// A file takes all that a publisher of ours can publish. What Files.Filter refuses, or a foreign
// publisher stored beyond the limits, leaves a skip entry in the file and becomes a dead letter, in
// this order, so that a crash in between is made up for by the next holder.
package worker
