package main

var mongoslotsRules = []rule{
	{file: "storage/slots/mongoslots/values.go", rule: "acknowledged writes survive a failover (majority) and a crash (journal)", how: "by one member", tests: "TestTheURLChangesNothing",
		old: `bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}`, new: `bson.D{{Key: "w", Value: 1}, {Key: "j", Value: true}}`},
	{file: "storage/slots/mongoslots/values.go", rule: "acknowledged writes survive a failover (majority) and a crash (journal)", how: "without the journal", tests: "TestTheURLChangesNothing",
		old: `bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}`, new: `bson.D{{Key: "w", Value: "majority"}}`},
	{file: "storage/slots/mongoslots/values.go", rule: `"exists" counts only if a majority has the value`, how: "it is not read", tests: "TestExistsIsWhatAMajorityHas & TestCreateAnswers",
		old: `_, err := s.findCertainly(ctx, name, bson.D{{Key: "_id", Value: 1}})`, new: `err := error(nil)`},
	{file: "storage/slots/mongoslots/values.go", rule: `"exists" counts only if a majority has the value`, how: "the primary's own view is read", tests: "TestExistsIsWhatAMajorityHas",
		old: `_, err := s.findCertainly(ctx, name, bson.D{{Key: "_id", Value: 1}})`, new: `_, err := s.findIn(ctx, s.db.Collection(s.collection), name, bson.D{{Key: "_id", Value: 1}})`},
	{file: "storage/slots/mongoslots/values.go", rule: `"exists" counts only if a majority has the value`, how: "or when reading is refused", tests: "TestExistsIsWhatAMajorityHas",
		old: `there is a value, but it may not be durable: %v"`, new: `there is a value, but it may not be durable: %w"`},
	{file: "storage/slots/mongoslots/values.go", rule: "one request, so that its answer covers everything that was sent", tests: "TestOneAttempt",
		old: `	raw, err := s.db.RunCommand(alone(ctx), command).Raw()
`, new: `	raw, err := s.db.RunCommand(alone(ctx), command).Raw()
	if server := mongo.ServerError(nil); errors.As(err, &server) && server.HasErrorLabel("RetryableWriteError") {
		raw, err = s.db.RunCommand(alone(ctx), command).Raw()
	}
`},
	{file: "storage/slots/mongoslots/values.go", rule: "a value is absent only if a linearizable read does not find it", tests: "TestAbsentIsCertain",
		old: `raw, err = s.findCertainly(ctx, name, want)`, new: `_ = s.findCertainly`},
	{file: "storage/slots/mongoslots/values.go", rule: "any read is certain if there is only one server, and only then", tests: "TestAbsentIsCertain",
		old: `asked != nil || !alone {`, new: `asked != nil || !alone && false {`},
	{file: "storage/slots/mongoslots/values.go", rule: "any read is certain if there is only one server, and only then", how: "nor there", tests: "TestStandalone",
		old: `asked != nil || !alone {`, new: `asked != nil || !alone || true {`},
	{file: "storage/slots/mongoslots/mongoslots.go", rule: "no request is part of a caller's transaction", tests: "TestNoPartOfATransaction",
		old: `{ return mongo.NewSessionContext(ctx, nil) }`, new: `{ return ctx }`},
	{file: "storage/slots/mongoslots/mongoslots.go", rule: "local is not replicated", tests: "TestOpenFails",
		old: `[]string{"admin", "config", "local"}`, new: `[]string{"admin", "config"}`},
	{file: "storage/slots/mongoslots/errors.go", rule: "an error is a refusal only if it is known to be one", tests: "TestCreateAnswers & TestLogin",
		old: "		return s.refused(doing, name, reason, remedy, err)\n	}\n	return unclear(\"\")", new: "		return s.refused(doing, name, reason, remedy, err)\n	}\n	return s.refused(doing, name, \"it failed\", \"\", err)"},
	{file: "storage/slots/mongoslots/errors.go", rule: "a write that missed its write concern is still a write", tests: "TestCreateAnswers",
		old: `case onlyHere(err):`, new: `case false:`},
	{file: "storage/slots/mongoslots/errors.go", rule: "a server that is shutting down, or a set that is electing a primary, refuses nothing permanently", tests: "TestCreateAnswers & TestLogin",
		old: `return unclear(reason + ": ")`, new: `return s.refused(doing, name, reason, "", err)`},
	{file: "storage/slots/mongoslots/check.go", rule: "nothing but Delete removes a value", how: "a capped collection does", tests: "TestCheck",
		old: `{"capped", "it`, new: `{"no such option", "it`},
	{file: "storage/slots/mongoslots/check.go", rule: "nothing but Delete removes a value", how: "a TTL index does", tests: "TestCheck",
		old: `raw.LookupErr("expireAfterSeconds"); err == nil {`, new: `raw.LookupErr("expireAfterSeconds"); err == nil && false {`},
	{file: "storage/slots/mongoslots/check.go", rule: "a write that a majority has only in memory is not durable", tests: "TestCheck",
		old: `ok && !journal {`, new: `ok && !journal && false {`},
	{file: "storage/slots/mongoslots/check.go", rule: "a name is on one shard only, or it could exist twice", tests: "TestCheck",
		old: `!ok || !isByName(key) {`, new: `(!ok || !isByName(key)) && false {`},
	{file: "storage/slots/mongoslots/check.go", rule: "an unknown shard key is not _id", tests: "TestCheck",
		old: `ok && !sharded {`, new: `ok && !sharded || true {`},
}
