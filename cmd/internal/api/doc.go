// Package api serves Fencepost over HTTP: programs in any language publish messages and read the files that workers write.
//
//	POST /v1/types/{type}/messages               one message, or one on each line
//	GET  /v1/types                               names of types
//	GET  /v1/types/{type}                        backlog, file and settings of one
//	GET  /v1/types/{type}/messages               durable messages of the file, in order
//	GET  /v1/types/{type}/messages/{message}     one of them, by index or ID
//	GET  /v1/types/{type}/tail                   new messages as they become durable, as server-sent events
//	GET  /livez, /readyz, /metrics               as on workers
//
// docs/openapi.yaml describes every response, docs/http.md how to use the API.
//
// The guarantees are those of queue.Publisher. The server responds with 201 only after the queue has stored the message durably, and with 504
// and the code unknown_outcome if the outcome is unknown. Any other status means that the message is not stored and never will be. The response
// to a request with many lines reports each of them.
//
// Every shared resource that a client can use is bounded: body size and duration, lines, connections, readers, tails, types. See limits.go.
package api
