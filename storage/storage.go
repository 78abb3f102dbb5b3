// Package storage implements a fenced, append-only file of records: only one writer at a time can
// append to it, and a writer that lost its lock cannot damage it, even if it is unaware of the loss.
//
// # The idea
//
// A lock cannot stop a process that was paused while it held the lock, so the file itself does the
// fencing. Records are written in batches. Every batch carries its own file offset, the epoch of its
// writer (the fencing token of the lock) and the index of its first record. A batch counts only if it
// landed exactly where its writer expected; a batch that landed anywhere else is void for every reader.
//
//	header │ FENCE e=7 │ OPEN e=7 │ batch │ batch │ checkpoint │ batch │ FENCE e=8 │ (batch e=7: void) │ ...
//
// A new writer appends a FENCE. From then on the file does not end where the old writer expects, so
// everything the old writer still appends lands elsewhere, and its own checks detect that. The new
// writer flushes the file, drops its page cache, reads the actual content, and continues after it.
//
//	Open ──fence──▶ fenced ──scan──▶ prefix known ──OPEN record──▶ writing ──Append, Sync, Checkpoint──▶ Close
//	  │ epoch too low: *EpochError                                    │ any I/O error, any mis-landing
//	  │ wrong volume, damage: ErrIntegrity                            ▼
//	  ▼                                                            poisoned: every call returns the same *PoisonedError
//
// # Guarantees, on one host's ext4, xfs, btrfs (or tmpfs, without power loss)
//
//   - A record below the index that Sync returned is in every later view of the file, after any crash.
//   - No record is in a view twice, indexes are contiguous, and views are prefixes of each other, except that a record
//     that was never below a Sync may disappear in a crash.
//   - Writers only append to the file; they never truncate, overwrite or repair it in place.
//   - Damage below the known durable end is reported, never skipped silently. A torn tail above it is the end of a
//     region, not an error.
//
// FORMAT.md specifies the bytes; [Verify], [Reader] and the scan of a new [Writer] share one
// implementation of the acceptance rules.
//
// # Where to start
//
// Write with [Open], [Writer.Append] and [Writer.Sync]. Read with [OpenReader], or with [Follow] for records as they
// are appended. [Verify] checks a file, [ReadChain] and [Chain.Check] all files of a type.
//
// # Where to read
//
//	record.go, codec.go   the records of a batch, and its compression
//	format.go, bodies.go  headers, and the bodies of fences, open records, checkpoints and seals
//	window.go, scan.go    the view: which records count
//	torn.go               whether the end of a region is torn or damaged
//	open.go, look.go, takeover.go  taking over: look, fence, scan, open record
//	writer.go             append, sync, checkpoint, and the errors that poison a writer
//	create.go, registry.go  creating a file, and checking it against the registry
//	generation.go         sealing, and the successor; compact.go, copy.go, keep.go, giveup.go: why a file ends
//	anchor.go, reader.go, follow.go, verify.go, chain.go  reading and checking
//	fs.go, fs_linux.go, filesystems.go, pieces.go  the file system; package slots keeps files in a store
package storage
