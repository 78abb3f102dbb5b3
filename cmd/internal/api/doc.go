// Package api is Fencepost over HTTP: programs in any language publish messages, and read the files that workers write.
//
//	POST /v1/types/{type}/messages               one message, or one on each line
//	GET  /v1/types                               names of types
//	GET  /v1/types/{type}                        backlog, file and settings of one
//	GET  /v1/types/{type}/messages               durable messages of the file, in order
//	GET  /v1/types/{type}/messages/{message}     one of them, by index or ID
//	GET  /v1/types/{type}/tail                   all that come from now on, as server-sent events
//	GET  /livez, /readyz, /metrics               as workers have them
//
// docs/openapi.yaml describes every answer, and docs/http.md says how to use it.
//
// Its promises are those of queue.Publisher. An answer says 201 when the queue has stored a message durably, and never before; it says 504
// with the code unknown_outcome when nobody knows; any other status means that the message is not stored and never will be. A request with
// many lines answers for each.
//
// All that a client can take from others is bounded: bytes of a body, the time it may take, lines, connections, readers, tails. See limits.go.
package api
