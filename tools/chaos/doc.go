//go:build unix

// Command chaos injects faults everywhere around a running Fencepost, and then checks every guarantee, message by message. Run it if you do
// not believe the README: `make chaos`, and `make chaos ARGS=--help`.
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
// Workers are the product's binaries, with a few options drawn from the seed. Producers are this binary: a small user of the library that
// records each message before it sends it, and then the answer. Every connection to the server goes through a link, a proxy that can lose
// the answer to an executed request, or deliver a request after its sender has given up.
//
// # Hosts that share nothing
//
// In the scenario nodes each worker is on its own host (integration/kit.Node): a network namespace, an in-memory file system, a host name.
// There is no common disk; files are in a store:
//
//	           ┌─ host ───────┐
//	server ◀──── link ── worker│        queue and locks
//	 store ◀──── link ──      ││        slots: MongoDB, two S3 gateways onto one directory,
//	           └──────────────┘         or a shared directory
//
// The link to the store recognises requests that create a slot. It can hold one back and deliver it after a successor has begun, answer
// with an error although the request was executed, or refuse a request like a store that is full or whose credentials were revoked. For
// MongoDB it also fakes these answers: test servers have no users. The gateways are killed and frozen themselves. The shared directory is
// one ext4 mounted into each host, in place of NFS, whose client needs kernel support: so its faults are disk faults and a read-only host.
// On the embedded backend the hosts share only the directory of the queue's database, in place of a server.
//
// A run's faults begin within three leases. Then all faults end, the producers end, and the workers must drain the backlog and exit
// cleanly. The checks are in check.go and run.go; check_test.go shows that they find each kind of damage.
//
// Time limits are far above the guaranteed times, so that a busy machine does not cause a violation; the results contain the measured
// times.
package main
