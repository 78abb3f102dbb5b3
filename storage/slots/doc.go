// Package slots keeps the files of package storage in a store that every machine can reach: a
// database, object storage, a shared directory. Any replica can then continue any type, wherever
// the previous one ran.
//
//	        storage.Writer, Reader, Verify: regions, epochs, fences, checkpoints, generations
//	                       │ storage.FS
//	                  slots.FS: buffers appended bytes until Datasync, then creates a slot
//	                       │ Store: create if absent, read, list
//	     ┌─────────────┬───┴─────────┬─────────────┐
//	mongoslots      dirslots      s3slots        yours
//
// # The idea
//
// A slot is a value that never changes. Its name ends with the offset of its first byte, so the
// slots of a file, concatenated in the order of their names, are the file, byte for byte:
//
//	orders/generations/00000001                         which folder is orders.fpl: 3f2a9c0d11e4b7a6
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000000000   4096 bytes: the file header
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000004096    160 bytes: FENCE
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000004256     64 KiB: OPEN, batches
//
// A file that storage.Keep removed leaves behind its name, two values beside the name, and the slots that
// prevent writers from appending to it.
//
// The store decides which writer appends: if two create the slot at the end of the file, one
// succeeds, and the other learns that the file continues without it. This replaces the append of a
// local file system and the check of where the append landed; everything else is the same. A writer
// that was paused, cut off or presumed dead can create a slot only at the offset where it believes
// the file ends. If its successor's fence is there, the create fails. If not, its bytes precede the
// fence, and its successor reads them.
//
// # Rules
//
// These are the rules of docs/decisions/0118, which a model checker has verified:
//
//   - One create at a time per file. A writer creates at E only if it knows everything below E.
//   - After a lost answer a writer retries with the same bytes; "exists" means success only if the bytes are the
//     same.
//   - The file ends where no slot exists. A listing is only a hint where to look.
//   - Slots of a named file are deleted only if it is sealed and the registry names a later file; slots that begin
//     with a fence are never deleted (remove.go).
//
// [Probe] tests whether a store meets the contract on which all of this depends.
package slots
