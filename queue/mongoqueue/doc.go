// Package mongoqueue implements queue.Queue in MongoDB, or in a server that speaks its protocol.
//
// One collection, messages, holds all pending messages, with no index but the one on _id:
//
//	{_id: "<type>/<32 characters of the ID>", b: BinData, h?: {…}}
//
// No type name has a '/', so the messages of a type are exactly the keys in ("<type>/", "<type>0"). A
// message is one document. Earlier versions stored messages of more than 8 MiB in several documents,
// with a field p; this version cannot decode them and treats them as incomplete messages.
//
// Headers are a document. If a key contains '.' or starts with '$', which servers treat differently,
// they are an array [key, value, key, value, …] instead. In messages of other programs, b may be a
// string or missing.
//
// Documents in the range of a type whose key is not a message ID are skipped, see
// queue.ForeignKeyStore.
//
// A message that a program has inserted in its own transaction has n = 0 in its ID and the header
// queue.LooseHeader, see Queue.PublishInTransaction.
//
// The other collections:
//
//	dead           dead letters, in the same form plus {reason, attempts, worker, at}
//	scheduled      delayed messages (schedule.go) and the plan of their promotion (promote.go)
//	types          {_id: "<type>", drain_paused?, publish_paused?, max_backlog?, why?, changed?} per registered type
//	files          {_id: "<type>", file_id, generation, epoch, durable_index, place?}, the registry of files
//	marks          {_id: "<type>", mark}, the holder notes
//	workers        one document per running worker
//	notifications  {_id: "0" to "7", n, t: [types]}, see Notify
//
// # Where to read
//
//	insert.go       Insert: ordered, idempotent, and what an error says about each message
//	fetch.go        Fetch, Ack, Depth
//	document.go     messages as documents, and documents of other programs
//	schedule.go     delayed messages; promote.go, plan.go, cancel.go: how they become pending, each under one ID
//	registry.go     types, and the registry of files
//	transaction.go  messages in the program's own transaction
//	strays.go       skipping foreign documents
//	errors.go       what a server error means
//
// # Servers
//
// Only find, insert, update, delete, count and hello are needed, with classic operators, unless a
// program asks for a transaction. So standalone servers, replica sets, sharded clusters (shard key _id)
// and compatible servers all work. Reads of many types share an aggregate with $unionWith if the server
// supports it. Writes that must be durable use w:majority. The driver's own write retries are off:
// callers retry, and an error is only reliable if nothing was sent twice.
package mongoqueue
