//go:build unix

// Command chaos breaks everything around Fencepost while it works, and then checks every promise, message by message. It is for
// whoever does not believe the README: `make chaos`, and `make chaos ARGS=--help`.
//
// # A run
//
//	            link ─┐                              ┌─ link
//	producer ─────────┼──▶ server, or a SQLite file ◀┼───────── worker ──▶ orders.fpl
//	   │        link ─┘        (its own, shared)     └─ link        ▲
//	journal: sent, confirmed,                                       │ faults, by a seed's plan: scenario.go, faults.go
//	unknown, refused                                                │ on processes (member.go), links (link.go), the disk
//	   │                                                            │ (disk_linux.go), the server and through the product's own
//	   └──────────────▶ check.go ◀──── cat, verify, read_fpl.py ────┘ commands
//
// Workers are the product's binaries, with a few options that the seed draws. Producers are this binary: a small user of the library that
// writes down what it sends before it sends it, and what it was told. Everybody's way to the server is a link, a proxy that can lose
// an answer to a request that was carried out, or deliver a request after its sender has given it up.
//
// # Hosts that share nothing
//
// In the scenario nodes each worker is on a host of its own (integration/kit.Node): a network namespace, a file system in memory, a host name. There is no
// common disk; files are in a store:
//
//	           ┌─ host ───────┐
//	server ◀──── link ── worker│        queue and locks
//	 store ◀──── link ──      ││        slots: MongoDB, two S3 gateways onto one directory,
//	           └──────────────┘         or a shared directory
//
// The link to the store knows which requests create a slot. It can detain one and deliver it when a successor has begun, answer with an error although it
// was carried out, or refuse what it is asked for as a store does that is full, or whose credentials were revoked. Of MongoDB it makes these
// answers up, too: the servers of tests have no users. The gateways are killed and frozen themselves. What is shared is one ext4 that is
// mounted into each host, in place of NFS, whose client takes a kernel that has it: so its faults are those of the disk, and a host that may only read.
// On the embedded backend the hosts have the directory of the queue's database in common, in place of a server, and nothing else.
//
// A run's faults begin within three leases. Then everything is undone, the producers end, the backlog has to be drained, and the workers
// have to end cleanly. What is checked then is in check.go and run.go, and check_test.go shows that each kind of damage is found.
//
// Bounds of time are far above what is promised, so that a busy machine is no violation; what was measured is in the results.
package main
