// Package simulation plays random schedules of faults against the whole of Fencepost, in one process and in virtual time. It contains
// only tests.
//
//	make sim                  # 100,000 schedules, on all processors
//	make sim N=1000 SEED=5000 # 1000 of them, from seed 5000 on
//	make sim ARGS=-seed=47    # one, printing every event
//	make sim ARGS=-mutants=all
//
// A schedule is a number, its seed. The seed chooses the participants (one to three workers, one or two producers, one or two types), the location of
// the files (the disk of one host that all workers share or, in about one of four schedules, a store of slots, with each worker on its own host), the
// configuration, and the intensity of faults. A storm of some seconds follows, in which anything may go wrong at any step. Then all faults end, the
// workers drain the queue, and the test checks the result.
//
//	producers ── queue.Publisher ─┐                       ┌─ worker.Pool, lock.Locker, storage ─┐
//	                              ├─ faults ── queue, locks ── faults ─┤                        ├─ faults ── disk, or
//	operator ─────────────────────┘   (in memory)         └─ another worker …                ─┘     storage/slots ── faults ── store
//	                                                                                                (in memory)
//
// # What is real
//
// All code of packages queue, lock, storage, slots and worker that a program uses: publishers, the lock protocol, sessions, files, the
// scheduler of delayed messages, the sharing of types. The edges are models: queuetest.Memory, locktest.Memory, storagetest.Mem and
// slotstest.Mem. The first and the last pass the conformance suites of the servers.
//
// # What goes wrong
//
//   - A worker or a producer is killed before or after any operation on the queue, the locks or the disk, or during a write, and starts again.
//     Or it is stopped there for up to two leases, and continues unaware.
//   - The host loses power: all workers die, and a random part of the unsynced blocks, names and sizes survives.
//   - A request or its answer is lost, slow, executed partly, or executed long after its caller has given up and repeated it; a write to the
//     lock store becomes visible and is then rolled back.
//   - A server is down, or unreachable for some participants.
//   - In a store: a create is lost, executed without an answer, or executed after another writer has taken over or after the storm; a host sleeps for up to
//     three leases while its create is in flight. Listings are stale or incomplete. The store is full, slow, unreachable (for a minute in some schedules), or
//     refuses the credentials for a while: then a worker may exit with that error, and is restarted. A participant's requests are executed but their answers are
//     lost.
//   - In one of seven schedules with a store, a slot is removed, or the whole store is rolled back by some seconds, while workers use it. Later an operator follows
//     the advice of the errors: repairs the file, and accepts the loss.
//   - A disk operation fails, a sync fails and leaves the cache as it is, the kernel's background writeback fails, the disk is full.
//   - An operator deletes a lock, takes it by force, requests it, restores it from a backup; pauses and resumes a type; restarts a worker; compacts or repairs
//     a file.
//   - A script makes pending messages undecodable; its changes are undone within the gap timeout.
//   - All processes are killed, and the queue is restored from a backup. The files stay.
//   - Clocks run at different rates, within the 1/16 that the lock tolerates.
//   - The queue's clock, as one process reads it, is ahead or behind by two minutes, an hour or two days: for the life of the process, or for a while. A
//     stopped process was asleep: its clock of the queue has stopped, while the clock of its locks has not.
//
// In some schedules the messages go to handlers, which store them in a destination that keeps tokens and IDs. Some messages are delayed, some have
// idempotency keys, some belong to transactions that are committed late, and some are refused by the workers' filter.
//
// # What is checked
//
//   - Every confirmed message is in the file of its type exactly once, a message with an unknown outcome at most once, a refused message never.
//     Of messages with the same key exactly one is there. A message that the filter refuses is a dead letter, once, and nowhere else. The check
//     follows one more power loss, so that nothing depends on unsynced data.
//   - After a restore this holds for messages confirmed before the backup or after the restore. Messages confirmed between them are in the file
//     at most once. A delayed message whose number is in use is a dead letter instead.
//   - The confirmed messages of a producer are in order; there is no gap.
//   - storage.Verify finds nothing wrong; indexes are contiguous, epochs increase, the registry names this file and records no more than it holds.
//   - A lock changes hands by takeover only after its record has not changed for the holder's whole lease, is never granted while it is held, and
//     its tokens increase.
//   - Locks of other users (exclusive, shared, with permits, fair): no two simultaneous holders exclude each other.
//   - The concatenated slots of a file are a valid file for storage.Verify, and the same one.
//   - After the storm, a byte of a file is damaged, or a slot is removed, or all slots from one on. A repair keeps everything before the damage, and
//     later writers' records after it, at their indexes, and marks the rest as lost, as Verify or opening the file reported before. A worker then
//     continues the file.
//   - After the removal of a slot or the rollback of a store, all of the above holds with one exception: as many confirmed messages may be missing as the file marks as lost, or
//     more if they were in an older file that Verify reports as damaged. Workers and repairs need no help beyond the advice of their errors.
//   - The publishers' reports agree with the messages that were visible in the queue.
//   - No worker gives up; the queue is empty in time after the faults end; all goroutines end.
//
// tools/mutants removes rules one by one and expects the simulation to detect each: make sim does it for one rule of each
// package, and make sim ARGS=-mutants=all for all rules marked for it there.
//
// # Replay
//
// A fault depends on the seed, on the participant and its operation, and on how often it did that operation before: never on past actions of
// other participants. That is not enough for a replay, because Go itself makes random choices. So make sim builds with a few lines of the
// standard library changed, see package seeded: the choice of a select, the order of a map, math/rand and the order of timers come from the seed;
// crypto/rand is seeded as well (testing/cryptotest); there is one processor, time slices do not end, and garbage is collected between schedules.
// A step calls the kernel without telling the scheduler (internal/clock): on a busy machine other goroutines would run before the answer. Then a
// seed determines a history, to the nanosecond: TestSameSeedSameHistory plays schedules twice, in different order, and compares a digest of all
// steps. Time never passes inside a step, so a schedule is a sequence of steps and not of instructions: the race detector covers bugs that need
// two goroutines at the same instruction.
//
// Plain go test uses an unmodified standard library: each participant has the same faults and the same script, but events of the same instant may
// happen in another order, and crypto/rand yields other numbers. Also, a process cannot be stopped during a write or a check of the file's size,
// because the time of a bubble does not advance while a goroutine waits for a mutex.
//
// # What is not covered
//
//   - The drivers of MongoDB and SQLite, real files, real processes, command lines: see package integration.
//   - A stopped process makes no progress at any of these operations, but its timers keep running. The tests with SIGSTOP cover stops
//     between two operations.
//   - A file system shared by several hosts: without a store all workers are on one host.
//   - Real stores with their drivers: see their packages, and the chaos scenarios.
package simulation
