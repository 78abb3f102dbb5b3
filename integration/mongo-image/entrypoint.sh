#!/bin/bash
# Runs PostgreSQL (with DocumentDB) and FerretDB as one server, in the foreground, for tests.
#
# It is the first process of its own PID namespace, in a container as well as in run-chroot.sh, so when it is killed
# the kernel kills both servers with it: exactly the crash that the fault tests want.
#
#   FENCEPOST_LISTEN   address of the MongoDB protocol, default 0.0.0.0:27017
set -euo pipefail
stopping=''
trap 'stopping=1' TERM INT # early: the first process of a PID namespace does not get signals that it does not handle

listen=${FENCEPOST_LISTEN:-0.0.0.0:27017}
data=/var/lib/postgresql/data
run=/run/postgresql
bin=/usr/lib/postgresql/18/bin

log() { printf '%s entrypoint: %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

# Neither server runs as root: PostgreSQL refuses to.
as_postgres() { exec setpriv --reuid=postgres --regid=postgres --init-groups --no-new-privs -- "$@"; }

mkdir -p "$run"
chown postgres:postgres "$run"

# A killed server leaves its lock files. In this fresh PID namespace the process they name cannot be an older
# PostgreSQL; but by chance it can be this script, and then PostgreSQL would refuse to start.
rm -f "$data/postmaster.pid" "$run"/.s.PGSQL.*

postgres_pid='' ferretdb_pid=''

stop() { # the clean stop: FerretDB first, then PostgreSQL's "fast" shutdown, which cuts off whoever is left
  stopping=1
  [ -z "$ferretdb_pid" ] || kill -TERM "$ferretdb_pid" 2>/dev/null || true
  [ -z "$postgres_pid" ] || kill -INT "$postgres_pid" 2>/dev/null || true
}
trap stop TERM INT

(as_postgres "$bin/postgres" -D "$data") &
postgres_pid=$!

# FerretDB connects when the first client does; yet a listening port should mean a working server, so wait here.
for ((i = 0; ; i++)); do
  [ -z "$stopping" ] || break
  if "$bin/pg_isready" -q -h "$run" -U postgres; then break; fi
  if ! kill -0 "$postgres_pid" 2>/dev/null; then log "PostgreSQL ended before it was ready"; exit 1; fi
  if ((i >= 1200)); then log "PostgreSQL is not ready after 60 s"; stop; exit 1; fi # recovery after a kill takes seconds
  sleep 0.05
done

if [ -z "$stopping" ]; then
  # Between the two a Unix socket with trust authentication: nothing of PostgreSQL is reachable over the network, and
  # several servers in chroots on one host do not fight for its port. Every request occupies one of FerretDB's
  # connections while it runs, so 100 of them: with the default 50 a crowd of waiting clients could queue up.
  (cd /var/lib/ferretdb && as_postgres /usr/local/bin/ferretdb --no-auth --listen-addr="$listen" \
    --postgresql-url="postgres://postgres@/postgres?host=$run&pool_max_conns=100" \
    --state-dir=/var/lib/ferretdb --debug-addr=- --telemetry=disable --log-level="${FENCEPOST_LOG_LEVEL:-WARN}") &
  ferretdb_pid=$!
fi

# Either one ending ends the server, so that nobody talks to half of it. `wait` also returns when a signal came.
code=0
if [ -z "$stopping" ]; then
  wait -n "$postgres_pid" "$ferretdb_pid" || code=$?
  if [ -n "$stopping" ]; then
    code=0 # a clean stop
  else
    log "one of the two servers ended with code $code: stopping the other"
    [ "$code" -ne 0 ] || code=1 # neither may end by itself
    stop
  fi
fi
# Again until it works: bash starts background commands with SIGINT ignored, so before PostgreSQL has set up its own
# handling the signal is lost.
while kill -INT "$postgres_pid" 2>/dev/null; do sleep 0.1; done
[ -z "$ferretdb_pid" ] || wait "$ferretdb_pid" 2>/dev/null || true
exit "$code"
