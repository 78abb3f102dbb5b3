// Package ui serves web pages that show types, files, messages, dead letters, workers and locks, and offer actions on them.
//
//	                 one query for all viewers, every --refresh
//	queue, locks ──▶ watcher ──▶ snapshot ──┐
//	                                        ├─▶ view ──▶ template ──▶ printable ──▶ page, or server-sent event
//	queue, files ──▶ queries of one page ───┘
//
// Pages are rendered on the server. The address of a page determines everything that it shows, so it can be bookmarked and shared. The same
// address answers a request for text/event-stream with the same page again whenever it has changed, which keeps an open page up to date.
// Without JavaScript a page works, but shows the state of its last load.
//
// While no page is open, nothing is queried. Nothing is changed except by an action:
//
//	GET /act/ACTION?about=what ──▶ plan: a dry run ──▶ confirmation page, whose form has the signed order
//	POST /act/ACTION ──▶ read the order ──▶ begin, once ──▶ package admin ──▶ outcome
//	GET /done/NUMBER ──▶ the outcome, or the progress so far
//
// So an action does what its page described, and sending a form again leads to the outcome of the first time. Users that may not act
// (Options.Write, Options.Writers) see no links to actions, and are refused at their addresses. The log records all actions and refusals.
//
// Untrusted text is made harmless twice: html/template escapes markup, and everything that is sent passes package printable, so that
// no text can reorder or hide the text beside it.
package ui
