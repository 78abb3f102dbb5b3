// Package conform checks third-party publishers, in any language, against the rules of docs/protocol.md.
//
//	             lines                     ┌───────┐  as it is, or        ┌────────┐
//	Run ──────────────────────▶ program ──▶│ proxy │─ lost, late, stalled ▶│ server │
//	 ▲  ◀──── ok, unknown, rejected ───┘   └───┬───┘                      └───┬────┘
//	 │                                         │ what was sent and answered   │ a worker drains
//	 └──────────── judge ◀─────────────────────┴───────── files ◀─────────────┘
//
// The program publishes what it reads, through a proxy that loses answers and requests, delivers requests late, stalls and cuts, while the program
// itself is killed and restarted. Conform checks two things. The traffic: IDs, their order, at most one batch in flight, write concerns (a server
// on one machine never shows the losses of a wrong one). And the files: each confirmed message is there once and in order, and no rejected one is.
package conform
