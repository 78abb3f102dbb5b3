package main

import "time"

// slotsRules are those of files in stores. Their tests are the ones of package storage, which know what may be lost.
var slotsRules = []rule{
	{file: "storage/slots/file.go", rule: "the end is where there is no slot", in: "storage", tests: "TestSlotsListingsMayBeOld",
		old: `return f.walk(math.MaxInt64)`, new: `return nil`, sim: true},
	{file: "storage/slots/file.go", rule: "what lies far behind the end is not the file's", in: "storage", tests: "TestSlotFarBehindTheEnd",
		old: `missing > mostMissing {`, new: `missing < 0 {`},
	{file: "storage/slots/fs.go", rule: "the name of a generation is created, never replaced", in: "storage", tests: "TestSlotsOfAFileWithoutANameStay",
		old: `if err := f.create(generationSlot(typ, g), fmt.Appendf(nil, "%016x", d.nonce)); err != nil {`,
		new: `if err := f.create(generationSlot(typ, g), fmt.Appendf(nil, "%016x", d.nonce)); err != nil && !errors.Is(err, errTaken) {`},
	{file: "storage/slots/fs.go", rule: "slots are deleted only when their generation has a name", in: "storage", tests: "TestSlotsOfAFileWithoutANameStay",
		old: `case errors.Is(err, fs.ErrNotExist), err == nil && other == nonce:`, new: "case errors.Is(err, fs.ErrNotExist):\n\tcase err == nil && other == nonce:"},
	{file: "storage/slots/fs.go", rule: "slots are deleted only when their generation has a name", how: "and it is another file's", in: "storage", tests: "TestSlotsPausedAtEveryRequest",
		old: `case errors.Is(err, fs.ErrNotExist), err == nil && other == nonce:`, new: `case errors.Is(err, fs.ErrNotExist), err == nil && other == nonce && false:`, sim: true},
	{file: "storage/slots/requests.go", rule: "what is there is ours only if it has our bytes", in: "storage", tests: "TestSlotsPausedAtEveryRequest & TestSlotsRandomSchedules",
		old: `case !bytes.Equal(there, data):`, new: `case bytes.Equal(there, nil):`, sim: true},
	{file: "storage/slots/file.go", rule: "one create at a time, at the end", how: "behind one whose outcome is not known", in: "storage", tests: "TestSlotsRandomSchedules",
		old: `if err := f.fs.create(f.folder.slot(at), going[:n]); err != nil {`,
		new: `if err := f.fs.create(f.folder.slot(at), going[:n]); errors.Is(err, errTaken) {`, sim: true},
	{file: "storage/slots/file.go", rule: "what a listing left out is asked for by its name", in: "storage", tests: "TestSlotsListingsMayBeOld",
		old: `if err := f.walk(p.off); err != nil {`, new: `if err := error(nil); err != nil {`},
	{file: "storage/writer.go", rule: "a file that keeps what is appended says so when it was fenced off", tests: "TestSlotsPausedAtEveryRequest",
		old: `if moved := (*MovedError)(nil); errors.As(syncErr, &moved) {`, new: `if moved := (*MovedError)(nil); errors.As(syncErr, &moved) && false {`},

	{file: "storage/slots/remove.go", rule: "no slot is deleted that begins with a fence", in: "storage", tests: "TestKeepWhileOthersSleep",
		old: `case bytes.HasPrefix(b[min(-p.off&(alignment-1), int64(len(b))):], fence):`, new: `case len(fence)+len(b) == 0:`},
	{file: "storage/slots/remove.go", rule: "readers are told first", in: "storage", tests: "TestKeepStopsAtEveryRequest",
		old: "	if err := f.mark(typ, generation, removedSuffix); err != nil {\n\t\treturn err\n\t}\n\tif err := f.sweep(folder{typ, generation, nonce}); err != nil {\n\t\treturn err\n\t}\n",
		new: "	if err := f.sweep(folder{typ, generation, nonce}); err != nil {\n\t\treturn err\n\t}\n\tif err := f.mark(typ, generation, removedSuffix); err != nil {\n\t\treturn err\n\t}\n"},
	{file: "storage/slots/fs.go", rule: "asked when the slots are known", in: "storage", tests: "TestKeepAndReaders",
		old: "	err = file.refresh()\n\tif err == nil {\n\t\terr = file.begins()\n\t}\n\tif err != nil {\n\t\treturn nil, &fs.PathError{Op: \"open\", Path: name, Err: err}\n\t}\n", new: "",
		also: []edit{{"storage/slots/fs.go", "Err: errRemoved}\n\t}\n\treturn file, nil", "Err: errRemoved}\n\t}\n\treturn file, file.refresh()"}}},
	{file: "storage/slots/fs.go", rule: "a generation that was removed is none that is missing", in: "storage", tests: "TestKeepWithOldListings",
		old: `if errors.Is(err, fs.ErrNotExist) {
			return names, newest, nil`, new: `if gone, _ := f.isRemoved(typ, newest+1); gone || errors.Is(err, fs.ErrNotExist) {
			return names, newest, nil`},
	{file: "storage/slots/read.go", rule: "who waits for room has none", hangs: true, timeout: 30 * time.Second, tests: "TestBytesThatAreKeptAreBounded",
		old: "\t\tf.dropCache()\n\t\tall := min(has+lacks, mostReading)", new: "\t\tall := lacks",
		also: []edit{{"storage/slots/read.go", "f.held = all", "f.held += all"}}},
	{file: "storage/slots/read.go", rule: "a slot that was removed with its file is no damage", in: "storage", tests: "TestKeepAndReaders",
		old: `err = f.whyMissing()`, new: `err = nil`},

	{file: "storage/keep.go", rule: "older files first, also on the disk", tests: "TestKeepOnADiskThatLosesPower",
		old: `return ioError("sync directory", k.dir, k.FS.SyncDir(k.dir))`, new: `return nil`},
	{file: "storage/keep.go", rule: "nothing is removed while a file is missing", tests: "TestKeepRefuses",
		old: `if wrong := chain.Check(); len(wrong) > 0 {`, new: `if wrong := chain.Check(); len(wrong) > 9 {`},
	{file: "storage/keep.go", rule: "nor if the newest file is not the one that workers go on with", tests: "TestKeepRefuses",
		old: `if err := CheckRegistered(k.FS, k.dir, k.typ, k.Registered); err != nil {`, new: `if err := CheckRegistered(k.FS, k.dir, k.typ, k.Registered); err == nil && false {`},
	{file: "storage/keep.go", rule: "the newest file is never removed", tests: "TestKeepOfASealedFile",
		old: `case i == len(chain)-1:`, new: `case i == len(chain):`, also: []edit{{"storage/keep.go", `chain[i+1].Created`, `chain[min(i+1, len(chain)-1)].Created`}, {"storage/keep.go", `return l.Generation < k.Registered.Generation`, `return true`}}},
	{file: "storage/keep.go", rule: "nor one that is not known to be sealed", tests: "TestKeepRefuses",
		old: `case l.Sealed == nil || l.Err != nil:`, new: `case false:`},
	{file: "storage/keep.go", rule: "nor one that the registry names, or a later one", tests: "TestKeep",
		old: `return l.Generation < k.Registered.Generation`, new: `return true`},
	{file: "storage/keep.go", rule: "the oldest first: what stays has no gaps", tests: "TestKeepWithTimesOutOfOrder",
		old: `case oldest && k.Age > 0 && age > k.Age:`, new: `case k.Age > 0 && age > k.Age:`},
	{file: "storage/keep.go", rule: "a file that was replaced is removed only when its messages were read elsewhere", tests: "TestKeepRefuses",
		old: `if !needed {`, new: `if true || !needed {`},

	{file: "storage/copy.go", rule: "what may still grow is not copied", tests: "TestSealAndCopy",
		old: `if link.Sealed == nil {`, new: `if false {`, also: []edit{{"storage/copy.go", `sealed: link.Sealed, size`, `sealed: &SealedError{}, size`}}},
	{file: "storage/copy.go", rule: "the registry knows how far the file came before it can go on elsewhere", tests: "TestSealAndCopy",
		old: `err := w.UpdateRegistry(ctx)`, new: `err := error(nil)`},
	{file: "worker/copy.go", rule: "nothing is appended here from now on", tests: "TestCopyStopsAtEveryRequest",
		old: `err = s.writer().Seal(ctx, s.ledger.State())`, new: `err = s.writer().Checkpoint(s.ledger.State())`},
	{file: "worker/copy.go", rule: "the registry names a place only when every message can be read there", tests: "TestCopyOfDamage",
		old: "err = rep.Err()", new: "_ = rep"},

	{file: "storage/slots/dirslots/dirslots.go", rule: "link(2), never rename: it fails when the name is taken", tests: "TestStore",
		old: `err := os.Link(temp, s.path(name))`, new: `err := os.Rename(temp, s.path(name))`},
	{file: "storage/slots/dirslots/dirslots.go", rule: "what counts is how many names the file has", untested: "it takes an NFS server that loses the answer to a link"},
	{file: "storage/slots/dirslots/dirslots.go", rule: "an error behind link(2) is not ErrFull or a refusal", untested: "it takes a file system whose fsync of a folder fails"},
	{file: "storage/slots/dirslots/dirslots.go", rule: "what is not there is looked for again after its folders were opened", untested: "it takes a directory mounted by NFS twice: TestSharedDirectories"},
	{file: "storage/slots/dirslots/dirslots.go", rule: "a value gets its name when it is durable", untested: "it takes a machine that loses its power under a shared directory"},
	{file: "storage/slots/dirslots/dirslots.go", rule: "the name is durable before anybody is told that it is taken", untested: "it takes a machine that loses its power under a shared directory"},
	{file: "storage/slots/dirslots/dirslots.go", rule: "names come before content: who made a folder", untested: "it takes a machine that loses its power under a shared directory"},

	{file: "storage/slots/s3slots/s3slots.go", rule: "an object is created only where there is none", tests: "TestStore/the first value stays & TestStore/racers",
		old: "\t\tIfNoneMatch: aws.String(\"*\"),", new: "\t\t"},
	{file: "storage/slots/s3slots/s3slots.go", rule: "one attempt at a request; who calls repeats it", tests: "TestErrors",
		old: `o.Retryer = aws.NopRetryer{}`, new: ``},
	{file: "storage/slots/s3slots/s3slots.go", rule: "a value is absent only if the store says so of its key", tests: "TestErrors",
		old: "if codeOf(err) == \"NoSuchKey\" {\n\t\treturn nil, s.absent", new: "if statusOf(err) == 404 {\n\t\treturn nil, s.absent"},
	{file: "storage/slots/s3slots/s3slots.go", rule: "without its bucket nothing is known of a value", tests: "TestErrors",
		old: `case statusOf(err) == 404:`, new: `case statusOf(err) == 404 && false:`, also: []edit{{"storage/slots/s3slots/s3slots.go", `case err != nil:
			return 0, s.explain(err)
		}
		return 0, s.absent("size", name)`, `}
		return 0, s.absent("size", name)`}}},
}
