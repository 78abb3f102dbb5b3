/*
 * The file of storage/FORMAT.md under writers that fence each other, a device that fails a write, and a power loss.
 *
 * Each step of a writer has the name of the function of package storage whose step it is. README.md has the table, and says
 * what is left out here and why nothing is lost by that. run.sh lets spin look at every state that can be reached.
 *
 * The file is a row of slots with one record each. A slot's number is the record's offset; slot 0 is the file header. Void
 * bytes take up no slot: all they do is that nobody's next record lands where it was meant to (appendVoid).
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef POWER_LOSSES
#define POWER_LOSSES 1
#endif
#ifndef FAILURES
#define FAILURES 1
#endif
#define ALL    ((1 << MESSAGES) - 1)               /* the set of all messages */
#define EPOCHS 3
#define HEADER 1                                   /* end of the file header */
#define SLOTS  (HEADER + EPOCHS * (2 + MESSAGES))  /* a fence, an open record and the batches of every epoch */

/* ---- The machine: page cache and device ---- */

/* kind of a record */
#define VOID  0   /* there was a record, and now there are zeros */
#define FENCE 1
#define OPEN  2
#define BATCH 3   /* of one message */

/* where it is */
#define CLEAN 0   /* in the page cache and on the device */
#define DIRTY 1   /* in the page cache, to be written */
#define LOST  2   /* in the page cache, not to be written any more: its writeback failed */

typedef Record {
	unsigned kind        : 2;
	unsigned where       : 2;
	unsigned epoch       : 2;
	unsigned base        : 2;   /* open record, batch: base_index */
	unsigned durableEnd  : 5;   /* open record, batch */
	unsigned acceptedEnd : 5;   /* open record */
	unsigned message     : 2    /* batch */
}
Record file[SLOTS];
byte size = HEADER;
byte powerLosses = POWER_LOSSES, failures = FAILURES; /* of the power and of a writeback, that are still to come */

/* ---- The writers ---- */

/* step: what a writer does next */
#define OPEN_FILE    0
#define STAT         1
#define APPEND_FENCE 2
#define SETTLE       3
#define SCAN         4
#define WRITE_OPEN   5
#define RUN          6   /* append, or begin a sync */
#define CHECK_SIZE   7   /* end the sync; append meanwhile */
#define DEAD         8   /* poisoned, refused, or without power; who is killed just takes no more steps */

typedef Writer {
	unsigned step        : 4;
	unsigned eio         : 1;   /* its descriptor has an error to report */
	unsigned end         : 5;   /* where the file must end; 0: somebody else has appended, so it never will again */
	unsigned fenceOff    : 5;
	unsigned next        : 2;   /* index of the next message */
	unsigned known       : 3;   /* set of the messages that are in the file as far as it knows */
	unsigned acceptedEnd : 5;   /* what the scan found */
	unsigned durableEnd  : 5;
	unsigned syncEnd     : 5;   /* end and known when the sync began */
	unsigned syncKnown   : 3
}
Writer w[EPOCHS + 1];           /* by epoch: one writer each, all of which may be alive at once; 0 is unused */

byte delivered;                 /* messages that the queue has delivered so far; the first one is called 0, the next one 1 */
byte acked;                     /* set of the messages that somebody may have acknowledged */

/* What the device's view was at the last look. The file determines it, so it adds no states. */
byte durableCount, durableEpoch;
short durableSeq;

/* ---- Invariants: a run that fails prints the name ---- */

hidden byte I1_acked_is_in_every_view, I2_no_message_twice, I3_views_are_prefixes, I4_indexes_are_contiguous,
	I5_epochs_increase, I6_open_records_are_accepted, I7_no_damage_is_reported, I8_durable_end_is_true;
#ifdef ONLY
#define MUST(n, name, condition) name = (condition) || ONLY != n; assert(name)
#else
#define MUST(n, name, condition) name = (condition); assert(name)
#endif

/* With -DPLACES a run must fail that gets PLACE=n in its environment: it shows that place n is reached. */
#ifdef PLACES
c_decl {
	static int wanted;
	__attribute__((constructor)) static void readWanted(void) { wanted = atoi(getenv("PLACE")); }
}
#define WANTED(n) c_expr { wanted == n }
byte story;                     /* what has happened, where the place alone says too little */
#define REACHED(n, condition) assert(!WANTED(n) || !(condition))
#define REMEMBER(n, events) story = (WANTED(n) -> story | (events) : story)
#else
#define REACHED(n, condition) skip
#define REMEMBER(n, events) skip
#endif

/* ---- What is accepted: FORMAT.md section 6 ---- */

/* phase of a view */
#define CLOSED 0
#define FENCED 1
#define OPENED 2

/* The result of view, valid within the d_step that it is used in. */
hidden byte vPhase, vEpoch, vNext, vEnd;
hidden byte vSet, vCount;       /* messages: their set, their number, */
hidden short vSeq;              /* and their sequence, two bits each */
hidden byte p, bad, hunting, whole;

#ifdef MUTANT_NO_EPOCH_RULE
#define above(epoch) true
#else
#define above(epoch) (epoch > vEpoch)
#endif

/* view computes what is accepted below limit: in the page cache, or on the device as it is without the cache. */
inline view(limit, onDevice) {
	vPhase = CLOSED; vEpoch = 0; vNext = 0; vEnd = HEADER; vSet = 0; vCount = 0; vSeq = 0;
	p = HEADER; hunting = false; bad = 0;
	do
	:: p >= limit -> break
	:: else ->
		whole = (file[p].kind != VOID && (!onDevice || file[p].where == CLEAN));
		if
		:: whole && file[p].kind == FENCE && above(file[p].epoch) ->
			MUST(5, I5_epochs_increase, file[p].epoch > vEpoch);
			vPhase = FENCED; vEpoch = file[p].epoch; hunting = false
		:: whole && !hunting && file[p].kind == OPEN && vPhase == FENCED && file[p].epoch == vEpoch ->
			/* compare: neither corruption nor retraction */
			MUST(7, I7_no_damage_is_reported, file[p].acceptedEnd == vEnd && file[p].base == vNext);
			vPhase = OPENED; vNext = file[p].base; vEnd = p + 1
		:: whole && !hunting && file[p].kind == BATCH && vPhase == OPENED && file[p].epoch == vEpoch && file[p].base == vNext ->
			MUST(2, I2_no_message_twice, !(vSet & (1 << file[p].message)));
			MUST(4, I4_indexes_are_contiguous, vNext == vCount);
			vSet = vSet | (1 << file[p].message); vSeq = vSeq * 4 + file[p].message + 1; vCount++;
			vNext++; vEnd = p + 1
		:: else ->
			if
			:: !hunting -> hunting = true; bad = p
			:: else
			fi;
			/* proves: a header that is no fence tells that bad was durable */
			MUST(7, I7_no_damage_is_reported, !(whole && file[p].kind != FENCE && p > bad && file[p].durableEnd > bad &&
				(file[p].epoch > vEpoch || file[p].epoch == vEpoch && vPhase != CLOSED)));
			MUST(6, I6_open_records_are_accepted, !(whole && file[p].kind == OPEN))
		fi;
		p++
	od
}

#define isPrefix(seq, count, ofSeq, ofCount) (count <= ofCount && (ofSeq >> (2 * (ofCount - count))) == seq)
hidden byte cacheSet, cacheCount, told;
hidden short cacheSeq;

/* check looks at two views: that of the page cache, and that of the device, which the worst power loss would leave. */
inline check() {
	d_step {
		view(size, false);
		cacheSet = vSet; cacheSeq = vSeq; cacheCount = vCount;
		view(size, true);
		MUST(1, I1_acked_is_in_every_view, (acked & ~cacheSet) == 0 && (acked & ~vSet) == 0);
		MUST(3, I3_views_are_prefixes, isPrefix(vSeq, vCount, cacheSeq, cacheCount));
		MUST(3, I3_views_are_prefixes, isPrefix(durableSeq, durableCount, vSeq, vCount)); /* the device's only grows */
		MUST(5, I5_epochs_increase, vEpoch >= durableEpoch);
		durableSeq = vSeq; durableCount = vCount; durableEpoch = vEpoch;

		told = 0;                       /* the highest durable end that a record tells */
		for (p : HEADER .. size - 1) {
			told = (file[p].durableEnd > told -> file[p].durableEnd : told)
		}
		for (p : HEADER .. size - 1) {
			MUST(8, I8_durable_end_is_true, p >= told || file[p].where == CLEAN)
		}
	}
}

/* ---- Files as the operating system does them: fs_linux.go ---- */

hidden byte i;

/* Whoever expected the file to end where it ended until now will be disappointed. */
inline overtake(me) {
	for (i : 1 .. EPOCHS) {
		if
		:: i != me && w[i].end == size -> w[i].end = 0
		:: else
		fi
	}
}

/* appendVoid appends void bytes: a record that was cut short, or is not where its offset says. */
inline appendVoid(me) {
	d_step { overtake(me); printf("epoch %d: appends void bytes behind %d\n", me, size - 1) }
}

/* appendRecord appends a whole record whose offset is its place. */
inline appendRecord(me, recordKind, itsMessage) {
	d_step {
		assert(size < SLOTS);
		overtake(me);
		file[size].kind = recordKind; file[size].where = DIRTY; file[size].epoch = me;
		if
		:: recordKind == FENCE
		:: else -> file[size].base = w[me].next; file[size].durableEnd = w[me].durableEnd
		fi;
		if
		:: recordKind == OPEN -> file[size].acceptedEnd = w[me].acceptedEnd
		:: recordKind == BATCH -> file[size].message = itsMessage
		:: else
		fi;
		size++; w[me].end = size
	}
	/* A block is written as a whole: lost records may be in the same block as the new one, and are dirty again then. */
	slot = size - 1;
	do
	:: slot > HEADER && file[slot - 1].where == LOST -> slot--; file[slot].where = DIRTY; REACHED(11, true)
	:: break
	od;
	slot = 0
}

/* fdatasync writes what is dirty and tells whether the descriptor had an error to report. */
inline fdatasync(me, failed) {
	d_step {
		for (i : HEADER .. size - 1) {
			file[i].where = (file[i].where == DIRTY -> CLEAN : file[i].where)
		}
		failed = w[me].eio;
		w[me].eio = 0
#ifdef ERROR_ONCE
		;
		if
		:: failed -> for (i : 1 .. EPOCHS) { w[i].eio = 0 }
		:: else
		fi
#endif
	}
}

inline forget(s) {
	file[s].kind = VOID; file[s].where = CLEAN; file[s].epoch = 0; file[s].base = 0; file[s].durableEnd = 0;
	file[s].acceptedEnd = 0; file[s].message = 0
}

/* dropCache makes the page cache what the device has, except for what is dirty. */
inline dropCache() {
	d_step {
		for (i : HEADER .. size - 1) {
			if
			:: file[i].where == LOST -> REACHED(5, file[i].kind == BATCH); forget(i)
			:: else
			fi
		}
	}
}

/* ---- A writer: open.go, writer.go ---- */

inline die(e) {
	d_step {
		w[e].step = DEAD; w[e].eio = 0; w[e].end = 0; w[e].fenceOff = 0; w[e].next = 0; w[e].known = 0;
		w[e].acceptedEnd = 0; w[e].durableEnd = 0; w[e].syncEnd = 0; w[e].syncKnown = 0
	}
}

inline openFile(me) {
	w[me].step = STAT;
	printf("epoch %d: opens the file\n", me)
}

/* fence appends a fence at the end it saw, until one lands whole and there. */
inline stat(me) {
	w[me].end = size;
	w[me].step = APPEND_FENCE
}
inline appendFence(me) {
	if
	:: size == w[me].end ->
		w[me].fenceOff = size;
		appendRecord(me, FENCE, 0);
		w[me].step = SETTLE;
		printf("epoch %d: fence at %d\n", me, w[me].fenceOff)
	:: appendVoid(me); w[me].end = 0; w[me].step = STAT
	fi
}

inline settle(me) {
#ifdef MUTANT_NO_FENCE_SYNC
	w[me].step = SCAN
#else
	fdatasync(me, failed);
	if
	:: failed -> printf("epoch %d: fence sync fails\n", me); REACHED(10, true); die(me)
	:: else -> printf("epoch %d: fence synced\n", me); w[me].step = SCAN
	fi;
	failed = false
#endif
}

/* scan reads the device up to the fence. checkView, its end, refuses when a fence with a higher epoch is before the own one. */
inline scan(me) {
#ifndef MUTANT_NO_REREAD
	if
	:: dropCache()
	:: w[me].end == 0       /* a page that somebody has appended to is dirty, and stays */
	fi;
#endif
	d_step {
		view(w[me].fenceOff, false);
		w[me].fenceOff = 0;
		w[me].next = vNext; w[me].known = vSet; w[me].acceptedEnd = vEnd; w[me].durableEnd = w[me].end;
		w[me].step = (above(me) -> WRITE_OPEN : DEAD);
		printf("epoch %d: scans, finds %d messages\n", me, vCount)
	}
	if
	:: w[me].step == DEAD -> printf("epoch %d: its fence is void\n", me); REACHED(6, true); die(me)
	:: else
	fi
}

/* land appends a record and, which is the landing check, ends the writer if it is not whole and where it should be. */
inline land(me, recordKind, itsMessage) {
	if
	:: size == w[me].end -> appendRecord(me, recordKind, itsMessage)
	:: appendVoid(me);
		REACHED(2, recordKind == BATCH && file[size - 1].kind == FENCE && file[size - 1].epoch != me);
#ifdef MUTANT_NO_LANDING_CHECK
		w[me].end = (w[me].end -> w[me].end + 1 : 0)   /* it believes that all of it is there */
#else
		die(me)
#endif
	fi
}

inline writeOpen(me) {
	land(me, OPEN, 0);
	if
	:: w[me].step == DEAD
	:: else ->
		REACHED(7, w[me].known & ~acked);
		REACHED(3, w[me].known & story);
		printf("epoch %d: open record at %d; acknowledges what the scan found\n", me, w[me].end - 1);
		acked = acked | w[me].known;            /* duplicates of what is in the file are acknowledged without a sync */
		w[me].acceptedEnd = 0;
		w[me].step = RUN
	fi
}

/* Append. The queue delivers any message at any time, acknowledged or not; what is known is a duplicate. */
inline Append(me) {
	if
	:: !(w[me].known & 1) -> message = 0
	:: MESSAGES > 1 && delivered >= 1 && !(w[me].known & 2) -> message = 1
	:: MESSAGES > 2 && delivered >= 2 && !(w[me].known & 4) -> message = 2
	fi;
	delivered = (delivered == message -> delivered + 1 : delivered);
	land(me, BATCH, message);
	if
	:: w[me].step == DEAD
	:: else ->
		printf("epoch %d: batch with message %d at %d\n", me, message + 1, w[me].end - 1);
		REACHED(9, w[me].step == CHECK_SIZE && w[me].end);
		w[me].next++;
		w[me].known = w[me].known | (1 << message);
#ifdef MUTANT_ACK_BEFORE_SYNC
		acked = acked | w[me].known
#endif
	fi;
	message = 0
}

/* Sync, until the fdatasync is back. The writer may append while it runs. */
inline Sync(me) {
	w[me].syncEnd = w[me].end; w[me].syncKnown = w[me].known;
	fdatasync(me, failed);
#ifdef MUTANT_RETRY_SYNC
	if
	:: failed -> fdatasync(me, failed)
	:: else
	fi;
#endif
	if
	:: failed -> printf("epoch %d: sync fails\n", me); REACHED(4, true); die(me)
	:: else -> printf("epoch %d: synced\n", me); w[me].step = CHECK_SIZE
	fi;
	failed = false
}

/* checkFile, and the end of Sync. */
inline checkFile(me) {
	if
#ifndef MUTANT_NO_SIZE_CHECK
	:: size != w[me].end -> printf("epoch %d: fenced\n", me); die(me)
#endif
	:: else ->
		REACHED(1, (w[me].syncKnown & ~acked) && (story & ~(1 << me)));
		REMEMBER(1, (w[me].syncKnown & ~acked -> 1 << me : 0));
		acked = acked | w[me].syncKnown;
		printf("epoch %d: acknowledges all up to %d\n", me, w[me].syncEnd - 1);
		w[me].durableEnd = w[me].syncEnd; w[me].syncEnd = 0; w[me].syncKnown = 0;
		w[me].step = RUN
	fi
}

active [EPOCHS] proctype writer() {
	byte slot, message;
	bit failed;
#define me (_pid + 1)
end:	do
	:: atomic { w[me].step == OPEN_FILE -> openFile(me) }
	:: atomic { w[me].step == STAT -> stat(me) }
	:: atomic { w[me].step == APPEND_FENCE -> appendFence(me); check() }
	:: atomic { w[me].step == SETTLE -> settle(me); check() }
	:: atomic { w[me].step == SCAN -> scan(me); check() }
	:: atomic { w[me].step == WRITE_OPEN -> writeOpen(me); check() }
	:: atomic { (w[me].step == RUN || w[me].step == CHECK_SIZE) && w[me].known != ALL -> Append(me); check() }
	:: atomic { w[me].step == RUN && w[me].end != w[me].durableEnd -> Sync(me); check() }
	:: atomic { w[me].step == CHECK_SIZE -> checkFile(me); check() }
	od
#undef me
}

/* ---- What happens to the machine ---- */

/* Some dirty records are not written, and are clean from now on. Every descriptor that is open has an error to report. */
inline failWriteback() {
	failures--;
	for (slot : HEADER .. size - 1) {
		if
		:: file[slot].where == DIRTY -> file[slot].where = LOST; printf("the device fails to write %d\n", slot)
		:: true
		fi
	}
	for (slot : 1 .. EPOCHS) {
		w[slot].eio = (w[slot].step != OPEN_FILE && w[slot].step != DEAD)
	}
	slot = 0
}

/* The kernel needs memory: some clean pages are forgotten. Only of those that were lost anything can be seen. */
inline evict() {
	for (slot : HEADER .. size - 1) {
		if
		:: file[slot].where == LOST -> d_step { forget(slot); printf("%d is evicted from the page cache\n", slot) }
		:: true
		fi
	}
	slot = 0
}

/* Any subset of what was not synced is on the device; all else is forgotten, and every writer is gone. */
inline losePower() {
	printf("the power fails\n");
	powerLosses--;
	REMEMBER(3, acked);
	for (slot : HEADER .. size - 1) {
		if
		:: file[slot].where != LOST -> file[slot].where = CLEAN
		:: file[slot].where != CLEAN -> d_step { forget(slot); printf("%d did not survive\n", slot) }
		fi
	}
	do
	:: size > HEADER && file[size - 1].kind == VOID -> size--
	:: else -> break
	od;
	for (slot : HEADER .. size - 1) {
		REACHED(8, file[slot].kind == VOID)
	}
	for (slot : 1 .. EPOCHS) {
		if
		:: w[slot].step != OPEN_FILE -> die(slot)
		:: else
		fi
	}
	slot = 0
}

active proctype machine() {
	byte slot;
end:	do
	:: atomic { failures > 0 && size > HEADER -> failWriteback(); check() }
	:: atomic { failures < FAILURES -> evict(); check() }
	:: atomic { powerLosses > 0 -> losePower(); check() }
	od
}
