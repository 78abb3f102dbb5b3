// Package mongoqueue keeps a queue in MongoDB, or in a server that speaks its protocol.
//
// One collection, messages, holds everything that is pending, with no index but the one on _id:
//
//	{_id: "<type>/<32 characters of the ID>", b: BinData, h?: {…}}
//
// '/' occurs in no type name, so the messages of a type are the range ("<type>/", "<type>0"),
// whatever other types there are. A message is one document. Earlier versions stored messages of
// more than 8 MiB in several: a document with a field p is one of those, which this version cannot
// read, so it is an incomplete message.
//
// Headers are a document; if a key contains '.' or starts with '$', which servers treat in
// different ways, they are an array [key, value, key, value, …] instead. Messages of foreign
// publishers may have b as a string or not at all.
//
// What others store in the range of a type's messages, under a key that is no message's, is passed
// over, see queue.ForeignKeyStore.
//
// A message that a program has inserted in a transaction of its own has n = 0 in its ID and the
// header queue.LooseHeader, see Queue.PublishInTransaction.
//
// dead holds the dead letters in the same form, each with {reason, attempts, worker, at} besides.
//
// scheduled holds the delayed messages, see schedule.go, and how they are promoted, see promote.go.
//
// types holds {_id: "<type>", drain_paused?, publish_paused?, max_backlog?, why?, changed?} per
// registered type, files holds {_id: "<type>", file_id, epoch, durable_index}, marks {_id:
// "<type>", mark}, workers one document per running worker, notifications {_id: "0" to "7", n, t:
// [types]}, see Notify.
//
// Only find, insert, update, delete, count and hello are used, with classic operators, except where
// a program asks for a transaction: standalone servers, replica sets, sharded clusters (shard key
// _id) and compatible servers all work. What has to be durable is written with w:majority. The
// driver's own retries of writes are off: the protocol repeats by itself, and an error means what it
// says only if nothing was sent twice behind its back.
package mongoqueue
