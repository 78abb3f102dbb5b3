// Package conform checks third-party publishers, in any language, against the rules of docs/protocol.md.
//
//	             lines                     ┌───────┐  unchanged, or       ┌────────┐
//	Run ──────────────────────▶ program ──▶│ proxy │─ lost, late, stalled ▶│ server │
//	 ▲  ◀──── ok, unknown, rejected ───┘   └───┬───┘                      └───┬────┘
//	 │                                         │ what was sent and answered   │ a worker drains
//	 └──────────── judge ◀─────────────────────┴───────── files ◀─────────────┘
//
// The program publishes the lines that it reads, through a proxy that loses responses and requests, delivers requests late, stalls and cuts
// connections, while the program itself is killed and restarted. Conform checks two things. The traffic: IDs, their order, at most one batch in
// flight, write concerns (on a single server, a wrong write concern never shows as a lost message). And the files: each confirmed message is there
// once and in order, and no rejected one is there.
package conform
