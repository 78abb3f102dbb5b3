// Package storage is a fenced, append-only file of records: exactly one writer at a time can add to
// it, and a writer that lost its turn cannot damage it, whatever it still believes.
//
// # The idea
//
// A lock cannot stop a process that was paused while it held it. So the file is the judge. Every
// record carries its own file offset, the epoch of its writer (the fencing token of the lock) and
// the index of its first record. "It landed exactly where its writer expected" is the moment a
// batch becomes real; a record that landed anywhere else is void for every reader, by itself.
//
//	header │ FENCE e=7 │ OPEN e=7 │ batch │ batch │ checkpoint │ batch │ FENCE e=8 │ (batch e=7: void) │ ...
//
// A new writer appends a FENCE. From then on the end of the file is not where the old writer
// expects it, so whatever the old writer still appends lands elsewhere, and its own checks tell it
// so. The new writer flushes, drops the page cache, reads what is really there, and goes on behind
// it.
//
//	Open ──fence──▶ fenced ──scan──▶ prefix known ──OPEN record──▶ writing ──Append, Sync, Checkpoint──▶ Close
//	  │ epoch too low: *EpochError                                    │ any I/O error, any mis-landing
//	  │ wrong volume, damage: ErrIntegrity                            ▼
//	  ▼                                                            poisoned: every call returns the same *PoisonedError
//
// # Guarantees, on one host's ext4, xfs, btrfs (or tmpfs, without power loss)
//
//   - A record below the index that Sync returned is in every later view of the file, whatever a crash leaves of it.
//   - Nothing is in a view twice, indexes are contiguous, and views are prefixes of each other, except that a record that
//     was never below a Sync may disappear in a crash.
//   - The file is only ever appended to: never truncated, overwritten or repaired in place.
//   - Damage below what is known to be durable is reported, never skipped in silence. What a crash tore off above it is
//     the end of a region, not an error.
//
// The bytes are specified in FORMAT.md; [Verify], [Reader] and the scan of a new [Writer] share one
// implementation of what is accepted.
package storage
