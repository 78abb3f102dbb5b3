package main

import "time"

// The rules of the HTTP API.
var httpRules = []rule{
	{file: "cmd/internal/lines/lines.go", rule: "a truncated line is not a message", tests: "TestCutLineIsNoLine",
		old: `case errors.Is(err, io.EOF) && len(r.buf) > 0:`, new: `case (errors.Is(err, io.EOF) || err != nil) && len(r.buf) > 0:`},
	{file: "cmd/fencepost/serve.go", rule: "a server that other machines can reach requires credentials", tests: "TestOtherMachinesNeedAToken",
		old: `if f.open && f.tokenFile == ""`, new: `if !f.open && f.tokenFile == ""`},
	{file: "cmd/internal/api/access.go", rule: "no error quotes a line", tests: "TestTokensThatCannotBeRead",
		old: `in 64 hex digits")`, new: `in 64 hex digits: " + fields[1])`},
	{file: "cmd/internal/api/access.go", rule: "the time taken does not reveal how much of a token is right", untested: "the difference is below what a test can measure"},
	{file: "cmd/internal/reload/reload.go", rule: "an invalid file changes nothing", in: "cmd/internal/api", tests: "TestRevokedToken",
		old: `	value, err := r.readWhole()
`, new: `	value, err := r.readWhole()
	r.value = value
`},
	{file: "cmd/internal/reload/reload.go", rule: "a removed file counts as an empty one", in: "cmd/internal/api", hangs: true, timeout: 30 * time.Second, tests: "TestLastTokenIsRevoked",
		old: `	if errors.Is(err, fs.ErrNotExist) {
		return`, new: `	if false {
		return`},
	{file: "cmd/internal/api/api.go", rule: "with --client-ca, a client without a certificate signed by the authority gets no answer except to probes", tests: "TestTLS",
		old: `if !s.o.Access.certified(r) {`, new: `if false {`},
	{file: "cmd/internal/api/tail.go", rule: "a tail ends when the authority of its client's certificate is removed", hangs: true, timeout: 30 * time.Second, tests: "TestRemovedAuthority",
		old: `if !t.s.o.Access.certified(t.r) {`, new: `if false {`},
	{file: "cmd/internal/api/api.go", rule: "a refused request holds its connection only briefly", hangs: true, timeout: 30 * time.Second, tests: "TestRefusedRequestsMakeRoom",
		old: `if err != nil || rt.method == http.MethodGet {`, new: `if err == nil && rt.method == http.MethodGet {`},
	{file: "cmd/internal/api/limits.go", rule: "a client that sends too slowly loses its connection", tests: "TestSlowBody",
		old: `b.c.SetReadDeadline(began.Add(b.left))`, new: `b.c.SetReadDeadline(time.Time{})`, hangs: true, timeout: 30 * time.Second},
	{file: "cmd/internal/api/limits.go", rule: "a client that does not read its response holds it for a limited time", hangs: true, timeout: 30 * time.Second, tests: "TestClientThatDoesNotRead",
		old: `a.c.SetWriteDeadline(began.Add(a.left))`, new: `a.c.SetWriteDeadline(time.Time{})`},
	{file: "cmd/internal/api/limits.go", rule: "a client that does not read its response holds it for a limited time", how: "at least at slowestClient", tests: "TestClientThatReadsSlowly",
		old: `	if !a.reader {`, new: `	if true {`},
	{file: "cmd/internal/api/problem.go", rule: "a message that may be stored is reported neither as a success nor as a failure", tests: "TestOutcomes",
		old: `case errors.Is(err, queue.ErrUnknown):`, new: `case false:`},
	{file: "cmd/internal/api/api.go", rule: "a request that arrived before the stop is finished", how: "it is cut off", tests: "TestStopWhilePublishing",
		old: `	s.inFlight.Add(1)
	return nil`, new: `	return nil`, also: []edit{{"cmd/internal/api/api.go", `defer s.inFlight.Done()`, ``}}},
	{file: "cmd/internal/api/api.go", rule: "a request that arrived before the stop is finished", how: "a later one is taken", tests: "TestStopWhilePublishing",
		old: `	case s.stops:
		return stopping()
	case s.waiting`, new: `	case s.waiting`},
	{file: "cmd/internal/api/api.go", rule: "a page of another origin must not publish", tests: "TestRefusedRequests",
		old: `if err := crossOrigin.Check(r); err != nil {`, new: `if err := crossOrigin.Check(r); false && err != nil {`},
	{file: "cmd/internal/api/api.go", rule: "no payload, header or token is logged", tests: "TestLogHasNoPayloads",
		old: `Str("path", printable.Short(r.URL.Path)).Int("status"`, new: `Str("path", printable.Short(r.URL.String())).Int("status"`},
	{file: "cmd/internal/api/api.go", rule: "no part of a query is ignored", tests: "TestQueries",
		old: `return who, rt.checkQuery(r.URL.RawQuery)`, new: `return who, nil`},
	{file: "cmd/internal/api/publish.go", rule: "clients, which choose the types, cannot take memory for any number of them", tests: "TestTypesInMemoryAreBounded",
		old: `if s.inUse.take(msgs[0].Type) {`, new: `if true {`},
	{file: "cmd/internal/api/publish.go", rule: "bodies that arrive on all connections at the same time do not take more memory", hangs: true, timeout: 30 * time.Second, tests: "TestMediumBodiesWait",
		old: `if err = sp.grow(ctx, size); err != nil {`, new: `if false {`},
	{file: "cmd/internal/api/publish.go", rule: "nothing is decompressed", tests: "TestRefusedRequests",
		old: `if enc := r.Header.Get("Content-Encoding"); enc != ""`, new: `if enc := r.Header.Get("Content-Encoding"); false && enc != ""`},
	{file: "cmd/internal/api/publish.go", rule: "the lines of a request have different keys", tests: "TestLines",
		old: `if line > 0 { // rule`, new: `if false { // rule`},
	{file: "cmd/internal/api/publish.go", rule: "a payload is stored as it was sent, or not at all", tests: "TestMessageLines",
		old: `case replaced(line, l.Payload, l.Headers):`, new: `case false && replaced(line, l.Payload, l.Headers):`},
	{file: "cmd/internal/api/publishlines.go", rule: "lines never share one key", tests: "TestRefusedRequests",
		old: `if _, there := e.headers[queue.KeyHeader]; there {`, new: `if false {`},
	{file: "cmd/internal/api/publishlines.go", rule: "nothing after a line that cannot be stored is read", tests: "TestBadLineEndsARequest",
		old: `			return &badLine{in.lines.Line, in.s.problem(err)}`, new: `			continue`},
	{file: "cmd/internal/api/publishlines.go", rule: "201 means that every line is stored, 504 that the outcome of one is unknown", how: "the last line decides", tests: "TestUnknownLineDecides",
		old: `if o.problem != nil && (first == nil || o.problem.Code == codeUnknown && first.Code != codeUnknown) {`, new: `if first = o.problem; false {`},
	{file: "cmd/internal/api/publishlines.go", rule: "201 means that every line is stored, 504 that the outcome of one is unknown", how: "another problem hides it", tests: "TestUnknownLineDecides",
		old: `|| o.problem.Code == codeUnknown && first.Code != codeUnknown) {`, new: `) {`},
	{file: "cmd/internal/api/records.go", rule: "only the registered file is served", tests: "TestOtherFiles",
		old: `case !registeredHere:`, new: `case false:`},
	{file: "cmd/internal/api/records.go", rule: "only durable, final records are served", untested: "records lost in a crash cannot be seen without one; package storage shows it with TestFollowReturnsWhatIsDurable"},
	{file: "cmd/internal/api/records.go", rule: "an end before the last durable record is damage", tests: "TestDamagedFiles",
		old: `next < f.durable {`, new: `next < f.durable && false {`},
	{file: "cmd/internal/api/tail.go", rule: "a client that comes too late for removed messages is told what it missed", tests: "TestRemovedFiles",
		old: `if t.from < at.First { // rule`, new: `if false { // rule`},
	{file: "cmd/internal/api/tail.go", rule: "revoking a token ends the tails that were opened with it", hangs: true, timeout: 30 * time.Second, tests: "TestRevokedToken",
		old: `c == nil || !c.may(scopeRead) || !c.mayUse(t.typ) {`, new: `c != nil && !c.may(scopeRead) {`},
}
