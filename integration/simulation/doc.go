// Package simulation plays random schedules of faults against the whole of Fencepost, in one process and in virtual time. It holds tests
// only.
//
//	make sim                  # 100,000 schedules, on all processors
//	make sim N=1000 SEED=5000 # 1000 of them, from seed 5000 on
//	make sim ARGS=-seed=47    # one, with everything that happens in it
//	make sim ARGS=-mutants=all
//
// A schedule is a number, its seed. It chooses who is there (one to three workers, one or two producers, one or two types), where the files
// are (on the disk of the one host of all workers, or, in about one of four schedules, in a store of slots, with each worker on a host of its own), how
// all of them are configured, and how rough it gets; then there is a storm of some seconds, in which anything may go wrong at any step; then
// all faults end, the workers drain the queue, and what is left is checked.
//
//	producers ── queue.Publisher ─┐                       ┌─ worker.Pool, lock.Locker, storage ─┐
//	                              ├─ faults ── queue, locks ── faults ─┤                        ├─ faults ── disk, or
//	operator ─────────────────────┘   (in memory)         └─ another worker …                ─┘     storage/slots ── faults ── store
//	                                                                                                (in memory)
//
// # What is real
//
// All code of packages queue, lock, storage, slots and worker that a program uses: publishers, the lock's protocol, sessions, files, the
// scheduler of delayed messages, the sharing of types. The edges are models: queuetest.Memory, locktest.Memory, storagetest.Mem and
// slotstest.Mem, of which the first and the last pass the conformance suites that the servers pass, too.
//
// # What goes wrong
//
//   - A worker or a producer is killed before or after any operation on the queue, the locks or the disk, perhaps in the middle of a write, and
//     starts again; or is stopped there for up to two leases, and goes on as if nothing had happened.
//   - The host loses power: all workers die, and of what was not synced a random part survives, block by block, names and sizes, too.
//   - A request or its answer is lost, slow, carried out for a part, or carried out long after its caller has given up and repeated it; a write
//     to the lock store is seen and then rolled back.
//   - A server is away, or cannot be reached by somebody.
//   - A store: a create is lost, carried out without an answer, or carried out when others have taken over, or when all is over; its host sleeps for up to three
//     leases while it is under way. Listings are old, or leave some out. The store is full, slow, away (for a minute in some schedules), or refuses the
//     credentials for a while: then a worker may end with that error, and is started again. Somebody's answers are lost, and the requests are not.
//   - In one of seven schedules with a store somebody removes a slot, or sets the whole store back by some seconds, while workers use it. Later an operator does what
//     errors advise: repairs, accepts the loss.
//   - A disk operation fails, a sync fails and leaves the cache as it is, the kernel fails to write in the background, the disk is full.
//   - Somebody deletes a lock, takes it away, asks for it, restores it from a backup; pauses and resumes a type; rolls a worker; compacts or repairs a file.
//   - A script makes pending messages undecodable, and is undone within the gap timeout.
//   - Everybody is killed, and the queue is restored from a backup. The files stay.
//   - Clocks go at different rates, within the 1/16 that the lock allows for.
//   - The queue's clock is off by two minutes, an hour or two days, ahead or behind, as one process reads it: for its whole life, or for a while. A process that
//     is stopped was asleep: its clock of the queue has stood still, while that of its locks has not.
//
// In some schedules the messages go to handlers, which store them in a destination that keeps tokens and IDs. Among the messages are delayed ones, ones with idempotency keys and ones that the workers' filter refuses.
//
// # What is checked
//
//   - Every confirmed message is in the file of its type exactly once, what had an unknown outcome at most once, what was refused never; of those
//     with the same key one; what the filter refuses is a dead letter, once, and nowhere else. This after one more loss of power, so that
//     nothing rests on what was not synced.
//   - After a restore this holds for what was confirmed before the backup or after the restore. What was confirmed between them is in the file at
//     most once. A delayed message whose number is in use is a dead letter instead.
//   - The confirmed messages of a producer are in order; there is no gap.
//   - storage.Verify finds nothing wrong; indexes are contiguous, epochs increase, the registry names this file and knows of no more than it holds.
//   - A lock changes hands by takeover only after it has stood still for its holder's whole lease, is never granted while it is held, and its
//     tokens increase.
//   - Locks that others take, alone, shared, with permits, fair: nobody is inside who excludes another one.
//   - The slots of a file, one behind the other, are a file for storage.Verify, and the same one.
//   - A byte of a file is damaged when all is over, or a slot is removed, or all slots from one on: a repair keeps all that is before it, and what later
//     writers wrote behind it, at its index, and marks the rest as lost, which Verify or the opening of the file has told before; a worker goes on
//     behind it.
//   - Behind a removed slot, or a store that was set back, all of the above but this: as many confirmed messages may be missing as there are records that the file marks as lost, or
//     more if they were in an older file of which Verify says that it is damaged. Workers and repairs need no other help than their errors name.
//   - What publishers report agrees with what was ever visible in the queue.
//   - No worker gives up; the queue is empty in time after the faults are over; all goroutines end.
//
// tools/mutants drops rules one by one, and expects that this notices: make sim does it for one rule of each package, and
// make sim ARGS=-mutants=all for all that are marked for it there.
//
// # The same again
//
// A fault depends on the seed, on who does what, and for the how manieth time: never on what others have done before. That is not
// enough to see the same again, as Go itself leaves much to chance. So make sim builds with a few lines of the standard library
// changed, see package seeded: the choice of a select, the order of a map, math/rand and the order of timers come from the seed; crypto/rand is
// seeded as well (testing/cryptotest); there is one processor, a time slice does not end, and garbage is collected between schedules. What a step asks the kernel for, it asks
// without telling the scheduler (internal/clock): on a busy machine others would run before the answer.
// Then a seed is a history, to the nanosecond: TestSameSeedSameHistory plays schedules twice, in different order, and compares a digest of
// all steps. Time never passes inside a step, so a schedule is a sequence of steps and not of instructions: what depends on two
// goroutines being at the same instruction is for the race detector.
//
// Under plain go test nothing is changed: the same weather and the same script of each party, but perhaps another order of what happens at the
// same instant, and other numbers of crypto/rand for each party. And a process cannot be stopped in the middle of a write or of a check of
// the file's size, as the time of a bubble stands still while somebody waits for a mutex.
//
// # What is not covered
//
//   - The drivers of MongoDB and SQLite, real files, real processes, command lines: see package integration.
//   - A process that is stopped makes no progress at any of these operations; its timers go on. That it notices nothing between two
//     of them is for the tests with SIGSTOP.
//   - A file system that several hosts share: without a store all workers are on one.
//   - Stores of servers, with their drivers: see their packages, and the chaos scenarios.
package simulation
