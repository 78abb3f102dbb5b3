// Package conform judges publishers that others wrote, in any language, by what docs/protocol.md says of publishers.
//
//	             lines                     ┌───────┐  as it is, or        ┌────────┐
//	Run ──────────────────────▶ program ──▶│ proxy │─ lost, late, stalled ▶│ server │
//	 ▲  ◀──── ok, unknown, rejected ───┘   └───┬───┘                      └───┬────┘
//	 │                                         │ what was sent and answered   │ a worker drains
//	 └──────────── judge ◀─────────────────────┴───────── files ◀─────────────┘
//
// The program publishes what it reads, through a proxy that loses answers and requests, delivers requests late, stalls and cuts, while the program
// itself is killed and started again. Two things are judged. The traffic: IDs, their order, what one batch in flight means, write concerns (a
// server of one machine never shows what a wrong one loses). And the files: what was confirmed is there once and in order, what was rejected is
// not.
package conform
