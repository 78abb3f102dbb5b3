package main

import (
	"strings"
	"time"
)

// simulation plays schedules of faults against everything together; see its documentation. A mutant that it plays is one that some
// schedule notices by itself: in a world as small as that not every rule is needed.
const simulation = "integration/simulation"

// inSimulation is the entry of a mutant as the simulation plays it. The schedules are the same each time, and enough of them: most mutants
// are noticed within a few, the last ones within some hundreds.
func (r rule) inSimulation() rule {
	return rule{file: r.file, rule: r.rule, old: r.old, new: r.new, also: r.also, how: strings.TrimPrefix(r.how+", in the simulation", ", "),
		in: simulation, tests: "TestSimulation/schedules", args: []string{"-test.cpu=1", "-schedules=5000"}, timeout: 10 * time.Minute}
}

// simulationRules are mutants that only the simulation plays. Others that it plays have their entries, with sim, where those of their
// packages are.
var simulationRules = []rule{
	{file: "storage/writer.go", rule: "nothing is durable before fdatasync said so",
		old: `w.end != w.durableEnd, w.usableLocked()`, new: `false, w.usableLocked()`},
	{file: "storage/writer.go", rule: "any error is the end", how: "a second fdatasync",
		old: "	w.mu.Lock()\n\tdefer w.mu.Unlock()\n\tif syncErr != nil {", new: "	if syncErr != nil {\n\t\tsyncErr = w.file.Datasync()\n\t}\n\tw.mu.Lock()\n\tdefer w.mu.Unlock()\n\tif syncErr != nil {"},
	{file: "storage/writer.go", rule: "a record that is not where it was meant to be", how: "nor is the size looked at",
		old: `case end != h.offset+int64(n):`, new: "case true:\n\tcase end != h.offset+int64(n):",
		also: []edit{{"storage/writer.go", `case info.Size != w.end`, `case false && info.Size != w.end`}}},
	{file: "storage/open.go", rule: "fdatasync before the scan",
		old: `if err := w.file.Datasync(); err != nil {`, new: `if err := error(nil); err != nil {`},
	{file: "storage/open.go", rule: "a region counts only with its fence",
		old: `func (w *Writer) checkFence() error {`, new: "func (w *Writer) checkFence() error {\n\treturn nil"},
	{file: "storage/open.go", rule: "after a failed fdatasync of somebody else",
		old: `return ioError("drop the page cache of", w.path, w.file.DropCache(off, n))`, new: `return nil`},
	{file: "storage/scan.go", rule: "epochs of accepted fences strictly increase", how: "nor does a writer insist on it",
		old: `return h.epoch > w.epoch`, new: `return true || h.epoch > w.epoch`,
		also: []edit{{"storage/open.go", `case v.epoch >= w.epoch`, `case false && v.epoch >= w.epoch`}}},

	{file: "queue/stream.go", rule: "the repetition carries the same documents with the same IDs",
		old: "		// rule: the repetition carries the same documents with the same IDs",
		new: "		p.mu.Lock()\n\t\tfor i := range msgs {\n\t\t\ts.n++\n\t\t\tmsgs[i].ID = NewID(msgs[i].ID.Time(), s.producer, s.n)\n\t\t}\n\t\tp.mu.Unlock()\n\t\t// rule: the repetition carries the same documents with the same IDs"},
	{file: "queue/stream.go", rule: "one batch in flight per (producer, type)",
		old: "		s.send(batch)\n\t\ts.sent()", new: "		s.p.streamsWG.Go(func() { s.send(batch) })"},
	{file: "queue/stream.go", rule: `after anything but "all stored" a new producer number`, how: "nor after a pause",
		old: "	if s.p.opt.Resume != nil {\n\t\ts.broken = err.Err", new: "	if s.p.opt.Resume == nil {\n\t\treturn\n\t}\n\tif s.p.opt.Resume != nil {\n\t\ts.broken = err.Err",
		also: []edit{{"queue/stream.go", `if s.n > 0 && time.Since(s.stored) >= s.p.opt.IdleRotate`, `if false && s.n > 0 && time.Since(s.stored) >= s.p.opt.IdleRotate`}}},
	{file: "queue/stream.go", rule: "never Rejected for a message that may have landed", how: "where the type is paused",
		old: `batch, msgs = batch[done:], msgs[done:]`,
		new: "batch, msgs = batch[done:], msgs[done:]\n\t\tif set, err := p.q.Settings(p.sending, s.typ); len(batch) > 0 && err == nil && set.PublishPaused {\n\t\t\ts.settle(batch, Rejected, ErrPaused)\n\t\t\treturn\n\t\t}"},
	{file: "queue/admit.go", rule: "what is refused here was never sent", how: "it gets a number",
		old: `refused = append(refused, it)`, new: "s.n++\n\t\t\trefused = append(refused, it)"},

	{file: "lock/acquire.go", rule: "a takeover comes only after a full observed lease",
		old: `return standstill(h.Lease)`, new: `return 0`},
}
