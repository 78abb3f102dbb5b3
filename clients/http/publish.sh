#!/bin/sh
# Publishes the JSON values on standard input, one on each line, with curl 7.76 or newer:
#
#   publish.sh http://127.0.0.1:9096 orders import-2026-01-31 <orders.ndjson
#
# The third argument is the idempotency key of the input: after any failure, run the same command again, and each line gets into the file
# once, within the window of the worker (an hour by default). Set FENCEPOST_TOKEN if the server requires a token.
set -eu
# The token is passed as a file: every user of the machine can read the arguments of a program.
exec curl --silent --show-error --fail-with-body --max-time 120 --retry 5 \
  --header 'Content-Type: application/x-ndjson' --header "Idempotency-Key: $3" \
  ${FENCEPOST_TOKEN:+--header @/dev/fd/3} \
  --data-binary @- "$1/v1/types/$2/messages" 3<<EOF
Authorization: Bearer ${FENCEPOST_TOKEN:-}
EOF
