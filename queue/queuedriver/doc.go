// Package queuedriver is for authors of a backend of package queue. A program that only uses queues
// does not need it.
//
// # How to write a backend
//
// Implement [queue.Queue], role by role. The comment of each method is its contract. These rules decide
// whether messages are lost or stored twice:
//
//   - Insert and Delay are idempotent by ID, and durable before they return nil. Callers rely on the [*queue.InsertError]: Refused means
//     that nothing more of the call will ever be stored. When in doubt, leave it unset; the caller then inserts the same messages again.
//   - The messages of a call become visible in order, even if a server executes an abandoned attempt late.
//   - Fetch does not claim messages, and Ack need not be durable. AckFile raises the registry entry first; no failure may keep the
//     removal and lose the raised entry.
//   - MoveToDeadLetters stores before it removes.
//   - Promote gives each due message one new ID, from one [Sequence] per type. The sequence is as durable as the messages, and changes in
//     the same step that assigns the IDs.
//   - Notify may lose notifications. [ReadNotifications] has the logic of Notifications, given the logs.
//
// Every method calls the Check function with its name first, if there is one. So all backends refuse
// the same input with the same errors, and store texts in the same form. Check what you read, too,
// because other programs may have written it: [TooManyHeaders] before decoding headers, [DecideDue]
// before promoting. Skip entries that are not messages, and report them in Strays, see [StrayRecord].
//
// Run the conformance suite of package queuetest against the backend. It includes retries after lost
// answers and concurrent callers.
package queuedriver
