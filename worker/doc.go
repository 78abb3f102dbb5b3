// Package worker drains typed messages from a queue, into one binary file per type or through a
// [Handler], with any number of replicas.
//
// Start with [New] and [Pool.Run]. [Config] says which types to serve; [Files] and [Handling] are
// the two targets.
//
// A [Pool] serves a set of types. For each of them it waits for backlog, acquires the type's lock,
// opens the type's file with the lock's fencing token as epoch, and runs a session until the type is
// idle, the pool stops, or the lock is lost:
//
//	           backlog                  token                    fence, scan
//	watching ───────────▶ acquiring ───────────▶ opening ───────────────────────▶ draining
//	   ▲                      │ empty meanwhile     │ refused, I/O error             │ idle · stopped · lost · fenced
//	   └──────────────────────┴─────────────────────┴───────── close, release ◀──────┘
//
// The type's lock has the type's name, without a prefix, in the same namespace as the locks that your
// program takes from Config.Locker. Use other names for those, with a character that no type has, such as
// "job:nightly": a type whose lock your program holds is not served, and your program waits while a pool
// serves the type. The lock of the schedulers is "_scheduler".
//
// A draining session is a pipeline of three stages joined by bounded channels:
//
//	fetch ──▶ append ──▶ ack
//	          contiguity check, encode, one write per batch, one fsync for all that is ready (group commit)
//
// Two rules make the pipeline exactly-once. First, a message is acknowledged only after its record is
// durable, and only if no later holder has fenced the writer. Second, the ledger (the last number of
// each producer, rebuilt from the file at every open) refuses messages that the file already has. The
// lock only keeps replicas from working on the same type concurrently: if it fails, the file decides.
//
// # Where to read
//
// The path of a message:
//
//	pipeline.go         a session: three stages and the channels between them
//	fetch.go            reads the queue in the order of IDs, and goes back for late arrivals
//	append.go           admits, filters, writes, syncs; with a Handler handle.go takes its place
//	internal/ledger     decides whether a message is new, a copy, late, or has to wait
//	ack.go              removes durable messages from the queue
//
// Around it:
//
//	watch.go            waits until a type has messages that this pool should take
//	pool.go             takes locks and slots, runs sessions
//	listen.go           finds types with messages: notifications and sweeps
//	file.go, registry.go  the session's file, and its entry in the registry of files
//	deadletter.go       messages that the file or the filter refuses
//	retry.go            pauses, attempts, and permanent errors
//	handoff.go          hands a type off to another replica; internal/share decides which one
//	scheduler.go        promotes delayed messages that are due
//	memory.go           bounds the memory of all fetched messages together
//	poison.go           finds a message that kills the process
//	unfit.go            messages and keys that can be neither appended nor handled
//	replica.go, status.go  what sessions share, and what Status reports about them
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
// Order per producer is still guaranteed, and so is one holder at a time. Exactly once becomes at least
// once, because there is no file to refuse copies: [Handler] has the exact guarantees. A Handler gets
// batches; [Each] makes one from a function for single messages, [Keyed] handles several keys of a type
// concurrently. What can happen to a message:
//
//	           nil                                      acknowledged
//	Handle ────────────────────────────────────────────▶ (deleted from the queue)
//	  ▲  │ error, panic, Timeout
//	  │  └──▶ the batch is divided until the message is found ──▶ Block, or fewer than MaxAttempts: pause
//	  │                                                    │                                           │
//	  └────────────────────────────────────────────────────┼───────────────────────────────────────────┘
//	                                                       └──▶ DeadLetter: dead letter (fencepost dead ls)
//
// A message that kills the process is detected, too, and with DeadLetter becomes a dead letter
// (docs/decisions/0003). A handler whose destination refuses an old token returns [ErrFenced]: the
// session ends, and no message counts as failed; examples/custom-sink has such a destination. Package
// workertest helps to test handlers.
//
// # Panics in your code
//
// A panic in a [Handler], a [Middleware], the key function of [Keyed] or [Files].Filter is an error of that
// call ([PanicError]), and so is runtime.Goexit, which t.FailNow calls. A panic in Config.Events,
// Config.Observe or Files.Trace ends the process.
//
// # Messages that are not appended
//
// A file can take every message that a [queue.Publisher] accepts. A message that [Files].Filter
// refuses first leaves a skip entry in the file, then becomes a dead letter. So does a message that
// another program stored and that exceeds the limits of a file, if OnError is [DeadLetter]; with
// [Block], the default, it blocks its type. If the worker crashes between the two steps, the next
// holder does the second one.
package worker
