/*
 * A log in slots (docs/decisions/0110) under writers that fence each other, a store that answers late or not at all and takes
 * back what no majority has, and a merger that deletes slots.
 *
 * The store has one operation that decides anything: create a slot unless it exists. A slot's number is its offset; slot 0, the
 * file header, is left out. README.md says what is left out besides, and why nothing is lost by that. run.sh lets spin look at
 * every state that can be reached.
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#ifndef SEALS
#define SEALS 1
#endif
#define ALL    ((1 << MESSAGES) - 1)     /* the set of all messages */
#define EPOCHS 3
#define SLOTS  (EPOCHS + MESSAGES + SEALS) /* a fence of every epoch, a batch of every message; at most 7 */

/*
 * What is in a slot, and in a request: ABSENT, or the epoch of the writer and the kind. A writer sends a message once, so equal
 * contents are equal bytes.
 */
#define ABSENT        0
#define FENCE         1                  /* with the open record: one create */
#define SEAL          2
#define BATCH(m)      (3 + (m))          /* of one message */
#define by(e, kind)   ((e) * 8 + (kind))
#define kindOf(c)     ((c) % 8)
#define epochOf(c)    ((c) / 8)
#define isBatch(c)    (kindOf(c) > SEAL)
#define messageOf(c)  (kindOf(c) - 3)

/* ---- The store ---- */

byte slot[SLOTS + 1];                    /* what the primary has, by offset from 1 on */
byte majority;                           /* the set of the slots that a fail-over leaves as they are */
byte failovers = FAILOVERS;              /* that are still to come */
#ifdef NO_REDUCTION
#define atOnce false
#else
#define atOnce (failovers == 0)          /* see create */
#endif
#define onMajority(s) (majority & (1 << (s)))

/* What the merger deletes: by the name of the slot, so whatever is there when its request is applied. */
#ifdef MUTANT_DELETES_FENCES
#define deletable(c) ((c) != ABSENT)
#else
#define deletable(c) isBatch(c)
#endif

/* The registry: all below deletedBelow is in one object, merged, and its slots may be deleted. 0: nothing was merged. */
byte deletedBelow;
byte merged[SLOTS + 1];

/* ---- The writers ---- */

/* step: what a writer does next */
#define READ_REGISTRY 0
#define WALK          1                  /* read slots up to the first that is absent */
#define AWAIT_FENCE   2                  /* the create of its fence is under way */
#define VALIDATE      3                  /* read the registry again */
#define RUN           4                  /* create a batch, or a seal */
#define AWAIT         5                  /* the create of a batch or a seal is under way */
#define DEAD          6                  /* poisoned or refused; who is killed just takes no more steps */

typedef Writer {
	unsigned step  : 3;
	unsigned end   : 4;              /* the slot to read or to create next */
	unsigned known : 3;              /* set of the messages in the slots before it */
	unsigned below : 4;              /* deletedBelow, when the writer read it first */
	byte asked[SLOTS + 1]            /* the requests that it has sent, by slot: each may be applied at any later time */
}
Writer w[EPOCHS + 1];                    /* by epoch: one writer each, all of which may be alive at once; 0 is unused */

byte delivered;                          /* messages that the queue has delivered so far; the first one is called 0, the next one 1 */
byte acked;                              /* set of the messages that somebody may have acknowledged */
byte seals = SEALS;                      /* that a writer may still ask for */

byte seenCount; short seenSeq;           /* the messages in the log at the last look */

/* ---- Invariants: a run that fails prints the name ---- */

hidden byte I1_acked_is_in_the_log, I2_no_message_twice, I3_the_log_only_grows, I4_no_slot_behind_a_hole, I5_epochs_increase,
	I6_every_slot_is_accepted;
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
#define REACHED(n, condition) assert(!WANTED(n) || !(condition))
#else
#define REACHED(n, condition) skip
#endif

/* ---- What is accepted: FORMAT.md section 6, over the slots that no fail-over takes back ---- */

#define content(s) (s < deletedBelow -> merged[s] : (onMajority(s) -> slot[s] : ABSENT))

hidden byte p, c, holes;
hidden byte vEpoch, vSet, vCount;        /* the last epoch; the messages: their set, their number, */
hidden short vSeq;                       /* and their sequence, two bits each */

inline check() {
	d_step {
		vEpoch = 0; vSet = 0; vCount = 0; vSeq = 0; holes = 0;
		for (p : 1 .. SLOTS) {
			c = content(p);
			if
			:: c == ABSENT -> holes = 1
			:: else ->
				MUST(4, I4_no_slot_behind_a_hole, !holes);
				if
				:: kindOf(c) == FENCE ->
					MUST(5, I5_epochs_increase, epochOf(c) > vEpoch);
					vEpoch = (epochOf(c) > vEpoch -> epochOf(c) : vEpoch)
				:: else ->
					MUST(6, I6_every_slot_is_accepted, epochOf(c) == vEpoch);
					if
					:: isBatch(c) && epochOf(c) == vEpoch && !holes ->
						MUST(2, I2_no_message_twice, !(vSet & (1 << messageOf(c))));
						vSet = vSet | (1 << messageOf(c)); vSeq = vSeq * 4 + messageOf(c) + 1; vCount++
					:: else
					fi
				fi
			fi
		}
		MUST(1, I1_acked_is_in_the_log, (acked & ~vSet) == 0);
		MUST(3, I3_the_log_only_grows, seenCount <= vCount && (vSeq >> (2 * (vCount - seenCount))) == seenSeq);
		seenSeq = vSeq; seenCount = vCount;
		forget();
		p = 0
	}
}

/*
 * forget makes states equal that differ only in what nobody can ever see. A request for a slot that stays as it is forever
 * changes nothing any more. Nor does anything in a slot below deletedBelow if all writers that are alive are past it, as later
 * ones begin behind it. With -DNO_REDUCTION states are kept apart, so that one can see that the invariants do not depend on this.
 */
#define looksAt(e, s) (w[e].step != READ_REGISTRY && w[e].step != DEAD && w[e].end <= s)
#define awaits(e, s)  ((w[e].step == AWAIT_FENCE || w[e].step == AWAIT) && w[e].end <= s)
#ifdef MUTANT_PLAIN_PUT
#define stays(s) false
#else
#define merges   (seals || sealAbove)
#define stays(s) (slot[s] != ABSENT && onMajority(s) && \
	(s < deletedBelow -> !deletable(merged[s]) : !deletable(slot[s]) || !merges))
#endif
hidden byte q, sealAbove;               /* sealAbove: a seal that is asked for or there, and not merged */

inline forget() {
#ifndef NO_REDUCTION
	sealAbove = 0;
	for (p : 1 .. SLOTS) {
		sealAbove = sealAbove || (p > deletedBelow && (kindOf(slot[p]) == SEAL || kindOf(w[1].asked[p]) == SEAL ||
			kindOf(w[2].asked[p]) == SEAL || kindOf(w[3].asked[p]) == SEAL))
	}
	for (p : 1 .. SLOTS) {
		if
		:: p < deletedBelow && !looksAt(1, p) && !looksAt(2, p) && !looksAt(3, p) ->
			slot[p] = ABSENT; majority = majority & ~(1 << p);
			for (q : 1 .. EPOCHS) { w[q].asked[p] = ABSENT }
		:: else ->
			if
			:: stays(p) -> for (q : 1 .. EPOCHS) { w[q].asked[p] = (awaits(q, p) -> w[q].asked[p] : ABSENT) }
			:: else
			fi
		fi
	}
#endif
	skip
}

/* ---- A writer ---- */

inline die(e) {
	d_step { w[e].step = DEAD; w[e].end = 0; w[e].known = 0; w[e].below = 0 }
}

/* ask sends a request to create a slot. From now on it may be applied at any time, also again. */
inline ask(me, kind) {
	w[me].asked[w[me].end] = by(me, kind)
}

/*
 * The registry tells where the slots begin that are not merged; what is merged is read there. That includes the highest epoch in
 * it: a writer with a lower one has come too late.
 */
#ifdef MUTANT_FORGETS_THE_MERGED_EPOCH
#define newerMerged(s) false
#else
#define newerMerged(s) (kindOf(merged[s]) == FENCE && epochOf(merged[s]) > me)
#endif

inline readRegistry(me) {
	d_step {
		w[me].step = WALK;
		w[me].below = deletedBelow;
		w[me].end = (deletedBelow -> deletedBelow : 1);
		for (p : 1 .. SLOTS) {
			if
			:: p < deletedBelow && isBatch(merged[p]) -> w[me].known = w[me].known | (1 << messageOf(merged[p]))
			:: p < deletedBelow && newerMerged(p) -> w[me].step = DEAD
			:: else
			fi
		}
		printf("epoch %d: reads the registry, begins at %d\n", me, w[me].end)
	}
	if
	:: w[me].step == DEAD -> printf("epoch %d: a higher epoch was merged\n", me); REACHED(8, true); die(me)
	:: else
	fi
}

/* readable: a read is answered by a majority. */
#ifdef MUTANT_LOCAL_READ
#define readable(s) (slot[s] != ABSENT)
#else
#define readable(s) (slot[s] != ABSENT && onMajority(s))
#endif

/* walk reads slot after slot. The first that is absent is where the fence goes; it may be absent because it was deleted. */
inline walk(me) {
	if
	:: readable(w[me].end) -> learn(me)
#ifdef MUTANT_LISTING_DECIDES
	:: readable(w[me].end) -> w[me].end++   /* a stale listing does not show the slot */
#endif
	:: slot[w[me].end] == ABSENT ->
		ask(me, FENCE); w[me].step = AWAIT_FENCE;
		printf("epoch %d: asks for its fence at %d\n", me, w[me].end)
	fi
}

inline learn(me) {
	REACHED(9, slot[w[me].end] == by(me, FENCE));
	if
	:: kindOf(slot[w[me].end]) == FENCE && epochOf(slot[w[me].end]) > me ->
		printf("epoch %d: reads a higher epoch at %d\n", me, w[me].end); die(me)
	:: else ->
		printf("epoch %d: reads slot %d\n", me, w[me].end);
		if
		:: isBatch(slot[w[me].end]) -> w[me].known = w[me].known | (1 << messageOf(slot[w[me].end]))
		:: else
		fi;
		w[me].end++
	fi
}

/*
 * told: there is an answer. "Created", and "exists" with a look at what is there, come when a majority has the slot. A writer that
 * gets no answer repeats the same request, which is no step here: a request may be applied any number of times anyway.
 */
#ifdef MUTANT_BELIEVES_MINORITY
#define told(me) (slot[w[me].end] != ABSENT)
#else
#define told(me) (slot[w[me].end] != ABSENT && onMajority(w[me].end))
#endif

/* mine: the slot has the bytes that the writer has sent. It does not matter which of its requests was the one. */
#define mine(me) (slot[w[me].end] == w[me].asked[w[me].end])

inline awaitFence(me) {
	if
	:: mine(me) ->
		printf("epoch %d: fence at %d\n", me, w[me].end);
		w[me].end++; w[me].step = VALIDATE
	:: else ->                              /* read what is there, go on behind it */
#ifdef MUTANT_SCAN_BEFORE_FENCE
		if                              /* what came after the scan is not read */
		:: w[me].end < SLOTS -> w[me].end++; ask(me, FENCE)
		:: else -> die(me)
		fi
#else
		w[me].step = WALK
#endif
	fi
}

/*
 * outdated: slots were deleted since the writer began. Then its fence may be where a batch was. Or a fence that it read on its way
 * was there, a late copy: see README.md, MUTANT_VALIDATES_THE_FENCE_ALONE.
 */
#ifdef MUTANT_NO_VALIDATION
#define outdated(me) false
#else
#ifdef MUTANT_VALIDATES_THE_FENCE_ALONE
#define outdated(me) (w[me].end <= deletedBelow)
#else
#define outdated(me) (w[me].below != deletedBelow)
#endif
#endif

/* validate reads the registry again. The next try has a higher epoch, and is another writer. */
inline validate(me) {
	if
	:: outdated(me) ->
		printf("epoch %d: slots were deleted meanwhile\n", me);
		REACHED(5, w[me].end <= deletedBelow);
		die(me)
#ifdef MUTANT_SAME_EPOCH_AGAIN
		; w[me].step = READ_REGISTRY
#endif
	:: else ->
		printf("epoch %d: acknowledges what it has read\n", me);
		REACHED(11, w[me].below && w[me].known);
		REACHED(3, w[me].known & ~acked);
		acked = acked | w[me].known;    /* what is in the log is acknowledged as a duplicate */
		w[me].below = 0;
		w[me].step = RUN
	fi
}

/* append. The queue delivers any message at any time, acknowledged or not; what is known is a duplicate. */
inline append(me) {
	if
	:: !(w[me].known & 1) -> message = 0
	:: MESSAGES > 1 && delivered >= 1 && !(w[me].known & 2) -> message = 1
	:: MESSAGES > 2 && delivered >= 2 && !(w[me].known & 4) -> message = 2
	fi;
	ask(me, BATCH(message)); w[me].step = AWAIT;
	delivered = (delivered == message -> delivered + 1 : delivered);
	printf("epoch %d: asks for message %d at %d\n", me, message + 1, w[me].end);
#ifdef MUTANT_TWO_IN_FLIGHT
	if
	:: w[me].end < SLOTS && !(w[me].known & (1 << (1 - message))) ->
		delivered = 2;
		w[me].asked[w[me].end + 1] = by(me, BATCH(1 - message));
		printf("epoch %d: asks for message %d at %d\n", me, 2 - message, w[me].end + 1)
	:: true
	fi;
#endif
	message = 0
}

/* seal ends what may be merged. The model's writer goes on behind it in the same epoch; the code's has no need to. */
inline seal(me) {
	ask(me, SEAL); w[me].step = AWAIT; seals--;
	printf("epoch %d: asks for a seal at %d\n", me, w[me].end)
}

/* await: "exists" with other bytes means that somebody else is there, and the writer's end. */
inline await(me) {
	if
#ifdef MUTANT_EXISTS_IS_SUCCESS
	:: true ->
#else
	:: mine(me) ->
#endif
		if
		:: isBatch(w[me].asked[w[me].end]) -> acknowledge(me, messageOf(w[me].asked[w[me].end]), w[me].end)
		:: else -> printf("epoch %d: sealed at %d\n", me, w[me].end)
		fi;
		w[me].end++;
		w[me].step = RUN
	:: !mine(me) -> printf("epoch %d: somebody else is at %d\n", me, w[me].end); REACHED(2, kindOf(slot[w[me].end]) == FENCE); die(me)
	fi
}

inline acknowledge(me, itsMessage, s) {
	REACHED(1, acked & ~(1 << itsMessage));
	REACHED(10, deletedBelow && s > deletedBelow + 1);
	w[me].known = w[me].known | (1 << itsMessage);
	acked = acked | (1 << itsMessage);
	printf("epoch %d: acknowledges message %d at %d\n", me, itsMessage + 1, s)
}

#ifdef MUTANT_TWO_IN_FLIGHT
/* The second answer comes first: its message is acknowledged before anybody knows what became of the first. */
#define second(me)     (w[me].end + 1)
#define toldSecond(me) (w[me].end < SLOTS && w[me].asked[second(me)] != ABSENT && slot[second(me)] == w[me].asked[second(me)] && \
	onMajority(second(me)) && !(w[me].known & (1 << messageOf(slot[second(me)]))))
#endif

active [EPOCHS] proctype writer() {
	byte message;
#define me (_pid + 1)
end:	do
	:: atomic { w[me].step == READ_REGISTRY -> readRegistry(me) }
	:: atomic { w[me].step == WALK && w[me].end <= SLOTS -> walk(me); check() }
	:: atomic { w[me].step == AWAIT_FENCE && told(me) -> awaitFence(me); check() }
	:: atomic { w[me].step == VALIDATE -> validate(me); check() }
	:: atomic { w[me].step == RUN && w[me].known != ALL && w[me].end <= SLOTS -> append(me) }
	:: atomic { w[me].step == RUN && seals && w[me].end <= SLOTS -> seal(me) }
	:: atomic { w[me].step == AWAIT && told(me) -> await(me); check() }
#ifdef MUTANT_TWO_IN_FLIGHT
	:: atomic { w[me].step == AWAIT && toldSecond(me) -> acknowledge(me, messageOf(slot[second(me)]), second(me)); check() }
#endif
	od
#undef me
}

/* ---- What happens in the store ---- */

#ifdef MUTANT_PLAIN_PUT
#define creatable(e, s) (slot[s] != w[e].asked[s])
#else
#define creatable(e, s) (slot[s] == ABSENT)
#endif

/*
 * Any request that was ever sent is applied, for the first time or again. Whether anybody is told is another matter. After the last
 * fail-over a majority has a slot at once: one that only a minority has is as good as one that is created later.
 */
inline create(e, s) {
	REACHED(4, w[e].step == DEAD && kindOf(w[e].asked[s]) != FENCE);
	REACHED(7, s < deletedBelow);
	slot[s] = w[e].asked[s];
	majority = (atOnce -> majority | (1 << s) : majority);
	printf("slot %d is created by epoch %d\n", s, e)
}

/* A new primary has all that is on a majority, and any part of what is not. */
inline failOver() {
	failovers--;
	printf("the primary fails\n");
	for (s : 1 .. SLOTS) {
		if
		:: slot[s] != ABSENT && !onMajority(s) -> slot[s] = ABSENT; REACHED(6, true); printf("slot %d is taken back\n", s)
		:: true -> majority = (atOnce && slot[s] != ABSENT -> majority | (1 << s) : majority)
		fi
	}
}

active proctype store() {
	byte e, s;
end:	do
	:: atomic {
		e = 1; s = 1;
		do
		:: w[e].asked[s] != ABSENT && creatable(e, s) -> create(e, s); check(); break
		:: s < SLOTS -> s++
		:: s == SLOTS && e < EPOCHS -> e++; s = 1
		:: s == SLOTS && e == EPOCHS -> break
		od;
		e = 0; s = 0 }
	:: atomic { !atOnce ->
		s = 1;
		do
		:: slot[s] != ABSENT && !onMajority(s) -> majority = majority | (1 << s); printf("slot %d is on a majority\n", s); check(); break
		:: s < SLOTS -> s++
		:: s == SLOTS -> break
		od;
		s = 0 }
	:: atomic { failovers -> failOver(); s = 0; check() }
	od
}

/* ---- The merger: what is below a seal becomes one object, and its batches are deleted ---- */

inline merge() {
	d_step {
		for (s : 1 .. below - 1) { merged[s] = (s < deletedBelow -> merged[s] : slot[s]) }
#ifndef MUTANT_DELETES_FIRST
		deletedBelow = below;
#endif
		printf("merged below %d\n", below)
	}
	check()
}

active proctype merger() {
	byte s, below;                   /* below: what it deletes below */
end:	do
	:: atomic { below == deletedBelow ->
		s = deletedBelow + 1;
		do
		:: s <= SLOTS && kindOf(slot[s]) == SEAL && onMajority(s) -> below = s; break
		:: s <= SLOTS -> s++
		:: else -> break
		od;
		if
		:: below > deletedBelow -> merge()
		:: else
		fi;
		s = 0 }
	:: atomic { below ->
		s = 1;
		do
		:: s < below && slot[s] != ABSENT && deletable(merged[s]) ->
			slot[s] = ABSENT; majority = majority & ~(1 << s); printf("slot %d is deleted\n", s); check(); break
		:: s < below -> s++
		:: else -> break
		od;
		s = 0 }
#ifdef MUTANT_DELETES_FIRST
	:: atomic { below > deletedBelow -> deletedBelow = below; printf("the registry is told\n"); check() }
#endif
	od
}
