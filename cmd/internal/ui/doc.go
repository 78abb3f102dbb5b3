// Package ui is what a person looks at with a browser, and acts on: types, files, messages, dead letters, workers, locks.
//
//	                 one look for all viewers, every --refresh
//	queue, locks ──▶ watcher ──▶ snapshot ──┐
//	                                        ├─▶ view ──▶ template ──▶ printable ──▶ page, or server-sent event
//	queue, files ──▶ what one page asks ────┘
//
// Pages are made on the server. Each has an address that says all that it shows, so it can be bookmarked and sent to somebody. The same
// address answers a request for text/event-stream with the same page, again and again, whenever it has changed: that is how a page stays
// true while it is open. A page works without JavaScript, but is as old as its last load then.
//
// Nothing is asked while nobody looks, and nothing is changed but by an action:
//
//	GET /act/ACTION?about=what ──▶ plan: a dry run ──▶ confirmation page, whose form has the signed order
//	POST /act/ACTION ──▶ read the order ──▶ begin, once ──▶ package admin ──▶ outcome
//	GET /done/NUMBER ──▶ the outcome, or how far it is
//
// So what is done is what the page described, and sending a form again leads to the outcome of the first time. Users that may not act
// (Options.Write, Options.Writers) see no link to an action, and are refused at its address. The log has all of it.
//
// Texts of others are made harmless twice: html/template escapes what a browser would take for markup, and everything that is
// sent passes package printable, so that nothing can reorder or hide what is beside it.
package ui
