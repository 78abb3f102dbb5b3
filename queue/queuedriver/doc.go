// Package queuedriver is for those who write a backend of package queue. A program that only uses
// queues does not need it.
//
// # How to write a backend
//
// Implement [queue.Queue], role by role. Each method's comment is its contract. What decides
// whether messages are lost or stored twice:
//
//   - Insert and Delay are idempotent by ID and durable before they return nil. After an error the caller believes an [*queue.InsertError]:
//     Refused means that nothing more of the call will ever be stored. When in doubt leave it unset; the caller then repeats the same messages.
//   - Messages of a call become visible in order, also when a server carries out an abandoned attempt late.
//   - Fetch claims nothing, and Ack needs no durability. AckFile raises the registry entry first, in such a way that no failure keeps the
//     removal and loses what was raised.
//   - MoveToDeadLetters stores before it removes.
//   - Promote gives each due message one new ID, from one [Sequence] per type that is stored as durably as the messages are and changes in the same step.
//   - Notify may lose what it is told. [ReadNotifications] does what Notifications has to do once the logs are read.
//
// Every method begins with the Check function of its name, where there is one. So all backends
// refuse the same things with the same words, and store texts in the same form. What is read is
// checked as well, as others may have written it: [TooManyHeaders] before headers are decoded,
// [DecideDue] before a message is promoted. What is not a message at all is passed over and told in
// Strays, see [StrayRecord].
//
// Run package queuetest's conformance suite against the backend: it repeats each operation with its
// answer lost, its request late, and its writer killed.
package queuedriver
