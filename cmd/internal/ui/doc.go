// Package ui is what a person looks at with a browser: types, files, messages, dead letters, workers, locks.
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
// Nothing here changes anything. Nothing is asked while nobody looks.
//
// Texts of others are made harmless twice: html/template escapes what a browser would take for markup, and everything that is
// sent passes package printable, so that nothing can reorder or hide what is beside it.
package ui
