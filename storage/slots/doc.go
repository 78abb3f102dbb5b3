// Package slots keeps the files of package storage in a store that any machine can reach: a
// database, object storage, a shared directory. Then any replica can go on with any type, wherever
// the one before it ran.
//
//	        storage.Writer, Reader, Verify: regions, epochs, fences, checkpoints, generations
//	                       │ storage.FS
//	                  slots.FS: what is appended is kept until Datasync, and created as a slot
//	                       │ Store: create if absent, read, list
//	     ┌─────────────┬───┴─────────┬─────────────┐
//	mongoslots      dirslots      s3slots        yours
//
// # The idea
//
// A slot is a value that never changes. Its name ends with the offset of its first byte, so the
// slots of a file in the order of their names, one behind the other, are the file, byte for byte:
//
//	orders/generations/00000001                         which folder is orders.fpl: 3f2a9c0d11e4b7a6
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000000000   4096 bytes: the file header
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000004096    160 bytes: FENCE
//	orders/00000001/3f2a9c0d11e4b7a6/00000000000000004256     64 KiB: OPEN, batches
//
// A file that was removed as an old one (storage.Keep) leaves its name, two values beside that, and the slots that keep
// writers from appending to it.
//
// The store decides who writes: of two that create the slot at the end of the file one succeeds,
// and the other one learns that the file goes on without it. That takes the place of the append of
// a local file system, and of the check where it landed; all else is as it is there. A writer that
// was paused, cut off or given up for dead can create a slot at no other offset than the one at
// which it knows the file to end. If its successor's fence is there it is told so. If not, its
// bytes are before the fence, and its successor reads them.
//
// # Rules
//
// They are those of docs/decisions/0118, which a model checker has proved:
//
//   - One create at a time per file. A writer creates at E when it knows everything below E.
//   - An answer that is lost is asked for again with the same bytes; "exists" means success only if the bytes are the
//     same ones.
//   - The end of a file is where there is no slot. A listing is a hint where to look for it.
//   - Slots of a file that has a name are deleted only when it was sealed and the registry names a later one; those that
//     begin with a fence never (remove.go).
//
// [Probe] finds out whether a store keeps the promise that all of it stands on.
package slots
