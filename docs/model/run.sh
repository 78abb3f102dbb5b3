#!/bin/sh
# Checks fencepost.pml and slots.pml with spin: that no state of a model violates an invariant, that its interesting places are
# reached, and that every safety rule is needed. Exits 0 if all is as expected, 1 if anything is not, 2 if a tool is missing.
#
#   run.sh           what CI runs
#   run.sh --full    larger bounds as well, and the rows of the README about what is not needed and what is assumed
#   run.sh --story MUTANT_NO_REREAD    tells a shortest way to a lost message; other options may follow: "ERROR_ONCE -DONLY=1"
set -u

case ${1-} in
'' | --full | --story) ;;
*)
	echo 'usage: run.sh [--full | --story MUTANT]' >&2
	exit 1
	;;
esac
for tool in spin gcc; do
	if ! command -v "$tool" >/dev/null; then
		echo "run.sh: $tool is missing. On Debian and Ubuntu: apt-get install spin gcc libc6-dev" >&2
		exit 2
	fi
done

dir=$(mktemp -d) || exit 1
checker=
trap 'rm -rf "$dir"' EXIT
trap '[ -z "$checker" ] || kill "$checker"; exit 1' HUP INT TERM
cp "$(dirname "$0")"/*.pml "$dir" && cd "$dir" || exit 1

model=fencepost.pml

# compile GCC_OPTIONS DEFINES makes the program that looks at the states of $model. What the tools say is in the file out then.
compile() {
	rm -f pan
	# MEMLIM: MB.
	{ spin -a $2 $model && gcc $1 -DSAFETY -DVECTORSZ=512 -DMEMLIM=3900 -o pan pan.c; } >out 2>&1
}

# look [PAN_OPTIONS] looks at every state, up to the first failure.
look() {
	# -m: longest path, which must suffice. -w: log2 of the hash table's size.
	timeout 600 ./pan ${1--m100000} -w24 >>out 2>&1 &
	checker=$!
	wait $checker
	checker=
}
all=-O2
# Where a failure is what is looked for: compiled quickly, and in the order that comes to power losses and errors early.
first='-O0 -DREVERSE -DT_REVERSE'

# result says what came out: the name of the invariant that failed, reached, exhausted, or what is wrong with the run.
result() {
	failed=$(sed -n 's/^pan:1: assertion violated \(.*\) (at depth.*/\1/p' out)
	case $failed in
	'') ;;
	I[0-9]_*) echo "$failed" && return ;;
	*'wanted == '*) echo reached && return ;;
	*) echo "failed: $failed" && return ;;
	esac
	if ! grep -q 'errors: 0$' out; then
		echo 'did not finish'
	elif grep -q 'Search not completed\|search depth too small\|out of memory' out; then
		echo 'not exhausted'
	else
		echo exhausted
	fi
}

code=0
row() { # row WHAT WANTED
	got=$(result)
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out)
	seconds=$(sed -n 's/^pan: elapsed time \([0-9.]*\) seconds.*/\1/p' out)
	case $got in
	$2) verdict=ok ;;
	*) verdict="WANTED $2" code=1 ;;
	esac
	printf '%-66s %9s %6s  %-26s %s\n' "$1" "${states:--}" "${seconds:--}" "$got" "$verdict"
	[ "$verdict" = ok ] || tail -n 40 out | sed 's/^/\t/'
}
holds() { compile "$all" "$2" && look; row "$1" exhausted; }
places() { compile "$first" "-DPLACES ${1-}"; } # for the rows that follow
reaches() { [ ! -x pan ] || { PLACE=$1 && export PLACE && look >out; }; row "$1 $2" reached; }
breaks() { compile "$first" "$2 -DONLY=$3" && look; row "$1" "I$3_*"; }
title() { printf '\n%-66s %9s %6s  %s\n' "$1" states s result; }

if [ "${1-}" = --story ]; then
	mutant=${2:?which one?}
	grep -q "^#ifn*def ${mutant%% *}\$" $model || model=slots.pml
	options="-D$mutant"
	case $options in *ONLY=*) ;; *) options="$options -DONLY=1" ;; esac
	# -i looks for the shortest way; it needs a checker that was built with -DREACH. -r tells what happens on that way.
	compile "-O1 -DREACH" "$options" && look "-i -m400"
	./pan -r $model.trail | sed -n 's/^ *\(epoch [1-9]: \|the \|slot \|merged \|[0-9]* is evicted\|[0-9]* did not survive\)/\1/p
		s/^pan.*violated \([^ ]*\).*/broken: \1/p'
	exit
fi

title 'fencepost.pml: INVARIANTS I1 to I8, in every state'
holds '2 messages, 3 epochs, 1 power loss, 1 failed writeback' ''

title 'PLACES that are reached'
places
reaches 1 'two writers acknowledge messages of their own'
reaches 2 'a batch lands behind a fence that its writer has not seen'
reaches 3 'after a power loss a writer finds what was acknowledged before'
reaches 4 'a sync fails, and a writer is told'
reaches 5 'dropping the cache shows that a batch is not on the device'
reaches 6 'a fence is void: one with a higher epoch is before it'
reaches 7 'a writer finds messages that nobody acknowledged'
reaches 8 'a power loss keeps a record and not the one before it'
reaches 9 'a batch is appended while the one before it is synced'
reaches 10 'the sync of a fence fails'
reaches 11 'a lost record is written after all, with its neighbour'

title 'RULES without which an acknowledged message is lost'
breaks 'landing check' -DMUTANT_NO_LANDING_CHECK 1
breaks 'fdatasync before acknowledging' -DMUTANT_ACK_BEFORE_SYNC 1
breaks 'fdatasync of the fence before the scan' -DMUTANT_NO_FENCE_SYNC 1
breaks 'scan of the device, not of the page cache' -DMUTANT_NO_REREAD 1
breaks 'no second try of a failed fdatasync' -DMUTANT_RETRY_SYNC 1

if [ "${1-}" = --full ]; then
	title 'LARGER BOUND'
	holds '2 power losses, 2 failed writebacks' '-DPOWER_LOSSES=2 -DFAILURES=2'
	title 'OTHER RULES AND ASSUMPTIONS'
	breaks 'without: epochs of accepted fences increase' -DMUTANT_NO_EPOCH_RULE 5
	breaks 'without: a failed sync is reported to every descriptor' -DERROR_ONCE 1
	holds 'without: size check after a sync' -DMUTANT_NO_SIZE_CHECK
fi

model=slots.pml
title 'slots.pml: INVARIANTS I1 to I6, in every state'
holds '2 messages, 3 epochs, 1 fail-over, 1 seal' ''
holds '1 message, and no state is taken for another' '-DMESSAGES=1 -DNO_REDUCTION'

title 'PLACES that are reached'
places
reaches 1 'a message is acknowledged behind another one'
reaches 2 'where a batch should be there is the fence of another writer'
reaches 3 'a writer finds messages that nobody acknowledged'
reaches 4 'a batch or a seal is created after its writer is dead'
reaches 5 'a fence is where a batch was deleted'
reaches 6 'a fail-over takes a slot back'
reaches 7 'a slot that was deleted is created again'
reaches 9 'a writer that is still walking reads a fence of its own'
reaches 10 'a message is appended behind what was merged'
places -DFAILOVERS=0
reaches 8 'a writer comes too late: a higher epoch was merged'
reaches 11 'a writer begins behind what was merged, and knows its messages'

title 'RULES without which a message is lost (I1) or twice (I2)'
breaks 'reads are answered by a majority' -DMUTANT_LOCAL_READ 1
breaks '"exists" is believed when a majority has it' -DMUTANT_BELIEVES_MINORITY 1
breaks 'slots are walked; a listing is a hint' -DMUTANT_LISTING_DECIDES 1
breaks 'what comes before the fence is read' -DMUTANT_SCAN_BEFORE_FENCE 1
breaks 'create, not put' -DMUTANT_PLAIN_PUT 1
breaks '"exists" is followed by a comparison' -DMUTANT_EXISTS_IS_SUCCESS 1
breaks 'one create at a time' -DMUTANT_TWO_IN_FLIGHT 1
breaks 'the registry is read again behind the fence' -DMUTANT_NO_VALIDATION 2
breaks '  and must be as it was, wherever the fence is' -DMUTANT_VALIDATES_THE_FENCE_ALONE 2
breaks 'the registry tells the highest epoch that was merged' '-DMUTANT_FORGETS_THE_MERGED_EPOCH -DFAILOVERS=0' 1
breaks 'fences and seals are never deleted' -DMUTANT_DELETES_FENCES 1
breaks 'the registry is told before anything is deleted' -DMUTANT_DELETES_FIRST 2
title 'OTHER RULES'
breaks 'who begins again has a new epoch' -DMUTANT_SAME_EPOCH_AGAIN 5

if [ "${1-}" = --full ]; then
	title 'LARGER BOUNDS'
	holds '3 messages' -DMESSAGES=3
	holds '2 fail-overs, 2 seals' '-DFAILOVERS=2 -DSEALS=2'
	breaks 'without: the registry is read again; 3 messages' '-DMUTANT_NO_VALIDATION -DMESSAGES=3' 1
fi
exit $code
