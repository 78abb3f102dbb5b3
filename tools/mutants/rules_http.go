package main

import "time"

// The rules of the HTTP API.
var httpRules = []rule{
	{file: "cmd/internal/lines/lines.go", rule: "a line that is cut off is no message", tests: "TestCutLineIsNoLine",
		old: `case errors.Is(err, io.EOF) && len(r.buf) > 0:`, new: `case (errors.Is(err, io.EOF) || err != nil) && len(r.buf) > 0:`},
	{file: "cmd/fencepost/serve.go", rule: "what other machines reach asks for credentials", tests: "TestOtherMachinesNeedAToken",
		old: `if f.open && f.tokenFile == ""`, new: `if !f.open && f.tokenFile == ""`},
	{file: "cmd/internal/api/access.go", rule: "no error tells what a line says", tests: "TestTokensThatCannotBeRead",
		old: `in 64 hex digits", n)`, new: `in 64 hex digits: %s", n, fields[1])`},
	{file: "cmd/internal/api/access.go", rule: "how long it takes does not tell how much of a token is right", untested: "the difference is below what a test can measure"},
	{file: "cmd/internal/api/reload.go", rule: "a file that cannot be used changes nothing", tests: "TestRevokedToken",
		old: `	value, err := r.readWhole()
`, new: `	value, err := r.readWhole()
	r.value = value
`},
	{file: "cmd/internal/api/reload.go", rule: "a file that was removed is like one that was emptied", hangs: true, timeout: 30 * time.Second, tests: "TestLastTokenIsRevoked",
		old: `	if errors.Is(err, fs.ErrNotExist) {
		err = nil`, new: `	if false {
		err = nil`},
	{file: "cmd/internal/api/tls.go", rule: "without a certificate of a client that the authority has signed there is no connection", tests: "TestTLS",
		old: `= tls.RequireAndVerifyClientCert,`, new: `= tls.VerifyClientCertIfGiven,`},
	{file: "cmd/internal/api/api.go", rule: "a request that is refused holds its connection for a moment", hangs: true, timeout: 30 * time.Second, tests: "TestRefusedRequestsMakeRoom",
		old: `if err != nil || rt.method == http.MethodGet {`, new: `if err == nil && rt.method == http.MethodGet {`},
	{file: "cmd/internal/api/limits.go", rule: "a client that sends too slowly loses its connection", tests: "TestSlowBody",
		old: `b.c.SetReadDeadline(began.Add(b.left))`, new: `b.c.SetReadDeadline(time.Time{})`, hangs: true, timeout: 30 * time.Second},
	{file: "cmd/internal/api/limits.go", rule: "a client that does not read its answer", hangs: true, timeout: 30 * time.Second, tests: "TestClientThatDoesNotRead",
		old: `	a.c.SetWriteDeadline(time.Now().Add(a.timeout))
	n, err := a.ResponseWriter.Write(p)`, new: `	n, err := a.ResponseWriter.Write(p)`},
	{file: "cmd/internal/api/problem.go", rule: "what may be stored is neither a success nor a failure", tests: "TestOutcomes",
		old: `case errors.Is(err, queue.ErrUnknown):`, new: `case false:`},
	{file: "cmd/internal/api/api.go", rule: "a request that came before the stop is finished", how: "it is cut off", tests: "TestStopWhilePublishing",
		old: `	s.inFlight.Add(1)
	return true`, new: `	return true`, also: []edit{{"cmd/internal/api/api.go", `defer s.inFlight.Done()`, ``}}},
	{file: "cmd/internal/api/api.go", rule: "a request that came before the stop is finished", how: "one behind it is taken", tests: "TestStopWhilePublishing",
		old: `	if s.stops {
		return false
	}`, new: ``},
	{file: "cmd/internal/api/api.go", rule: "a page of another origin must not publish", tests: "TestRefusedRequests",
		old: `if err := crossOrigin.Check(r); err != nil {`, new: `if err := crossOrigin.Check(r); false && err != nil {`},
	{file: "cmd/internal/api/api.go", rule: "no payload, header or token is logged", tests: "TestLogHasNoPayloads",
		old: `Str("path", r.URL.Path).Int("status"`, new: `Str("path", r.URL.String()).Int("status"`},
	{file: "cmd/internal/api/publish.go", rule: "nothing is unpacked", tests: "TestRefusedRequests",
		old: `if enc := r.Header.Get("Content-Encoding"); enc != ""`, new: `if enc := r.Header.Get("Content-Encoding"); false && enc != ""`},
	{file: "cmd/internal/api/publish.go", rule: "the lines of a request have different keys", tests: "TestLines",
		old: `if line > 0 { // rule`, new: `if false { // rule`},
	{file: "cmd/internal/api/publish.go", rule: "a payload is stored as it was sent, or not at all", tests: "TestMessageLines",
		old: `case replaced(line, l.Payload, l.Headers):`, new: `case false && replaced(line, l.Payload, l.Headers):`},
	{file: "cmd/internal/api/publishlines.go", rule: "no key is that of every line", tests: "TestRefusedRequests",
		old: `if _, there := e.headers[queue.KeyHeader]; there {`, new: `if false {`},
	{file: "cmd/internal/api/publishlines.go", rule: "nothing behind a line that cannot be stored is read", tests: "TestBadLineEndsARequest",
		old: `			return &badLine{in.lines.Line, in.s.problem(err)}`, new: `			continue`},
	{file: "cmd/internal/api/publishlines.go", rule: "201 says that every line is stored, and only 504 that nobody knows of one", how: "the last line decides", tests: "TestUnknownLineDecides",
		old: `if o.problem != nil && (first == nil || o.problem.Code == codeUnknown && first.Code != codeUnknown) {`, new: `if first = o.problem; false {`},
	{file: "cmd/internal/api/publishlines.go", rule: "201 says that every line is stored, and only 504 that nobody knows of one", how: "another problem hides it", tests: "TestUnknownLineDecides",
		old: `|| o.problem.Code == codeUnknown && first.Code != codeUnknown) {`, new: `) {`},
	{file: "cmd/internal/api/records.go", rule: "what is answered is the file in which workers have put the messages", tests: "TestOtherFiles",
		old: `case !registeredHere:`, new: `case false:`},
	{file: "cmd/internal/api/records.go", rule: "what is answered is durable, and final", untested: "what a crash undoes cannot be seen without one; package storage shows it with TestFollowReturnsWhatIsDurable"},
	{file: "cmd/internal/api/records.go", rule: "an end before the last durable record is damage", tests: "TestDamagedFiles",
		old: `next < f.durable {`, new: `next < f.durable && false {`},
	{file: "cmd/internal/api/tail.go", rule: "what a client misses because it came too late is told", tests: "TestRemovedFiles",
		old: `if t.from < at.First { // rule`, new: `if false { // rule`},
	{file: "cmd/internal/api/tail.go", rule: "a token that was revoked ends what was begun with it", hangs: true, timeout: 30 * time.Second, tests: "TestRevokedToken",
		old: `c == nil || !c.may(scopeRead) || !c.mayUse(t.typ) {`, new: `c != nil && !c.may(scopeRead) {`},
}
