// Package worker drains typed messages from a queue into one binary file per type, with as many replicas as you like.
//
// A [Pool] serves a set of types. For each of them it waits for backlog, takes the type's lock, opens the type's file
// with the lock's fencing token as epoch, and runs a session until the type is idle, the pool stops, or the lock is
// lost:
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
// Two rules make the pipeline exactly-once. A message is acknowledged only after the file said it is durable and nobody
// has fenced the writer; and the ledger (last counter per producer, rebuilt from the file at every open) refuses what the
// file has already. The lock only keeps replicas from wasting each other's time: if it fails, the file decides.
package worker
