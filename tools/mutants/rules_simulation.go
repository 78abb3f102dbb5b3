package main

import "time"

// simulation plays schedules of faults against everything together; see its documentation. A mutant that it plays is one that some
// schedule notices by itself: in a world as small as that not every rule is needed.
const simulation = "integration/simulation"

// inSimulation is the entry of a mutant as the simulation plays it. The schedules are the same each time, and enough of them: most mutants
// are noticed within a few, the last one within eighteen thousand.
func (r rule) inSimulation() rule {
	return rule{file: r.file, rule: r.rule, old: r.old, new: r.new, also: r.also, how: r.and("in the simulation"),
		in: simulation, tests: "TestSimulation/schedules", args: []string{"-test.cpu=1", "-schedules=30000"}, timeout: 30 * time.Minute}
}

// simulationRules are mutants that only the simulation plays. Others that it plays have their entries, with sim, where those of their
// packages are.
var simulationRules = []rule{
	{file: "storage/writer.go", rule: "a record that did not land at its intended offset", how: "nor is the size checked",
		old: `case end != h.offset+int64(n):`, new: "case true:\n\tcase end != h.offset+int64(n):",
		also: []edit{{"storage/writer.go", `case info.Size != w.end`, `case false && info.Size != w.end`}}},
	{file: "storage/scan.go", rule: "epochs of accepted fences strictly increase", how: "nor does a writer insist on it",
		old: `return h.epoch > w.epoch`, new: `return true || h.epoch > w.epoch`,
		also: []edit{{"storage/takeover.go", `case v.epoch >= w.epoch`, `case false && v.epoch >= w.epoch`}}},
	{file: "queue/repeat.go", rule: `after anything but "all stored" a new producer number`, how: "nor after a pause",
		old: "	if s.p.opt.Resume != nil {\n\t\ts.breakOff(err.Err)", new: "	if s.p.opt.Resume == nil {\n\t\treturn\n\t}\n\tif s.p.opt.Resume != nil {\n\t\ts.breakOff(err.Err)",
		also: []edit{{"queue/stream.go", `if s.n > 0 && s.stored.Elapsed() >= s.p.opt.IdleRotate`, `if false && s.n > 0 && s.stored.Elapsed() >= s.p.opt.IdleRotate`}}},
}
