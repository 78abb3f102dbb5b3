#!/bin/sh
# Publishes the JSON values on standard input, one on each line, with curl 7.76 or newer:
#
#   publish.sh http://127.0.0.1:9096 orders import-2026-01-31 <orders.ndjson
#
# It prints the answers. If the server stores only a part, for example because the backlog is full, it continues behind that part, as long as each
# attempt stores something; it gives up after eight attempts that store nothing.
#
# The third argument is the idempotency key of the input: after any failure, run the same command again, and each line gets into the file
# once, within the window of the worker (an hour by default). Set FENCEPOST_TOKEN if the server requires a token.
set -eu
url="$1/v1/types/$2/messages" key=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' HUP INT TERM
cat >"$dir/lines"

# The token is passed as a file: every user of the machine can read the arguments of a program.
post() {
  curl --silent --show-error --fail-with-body --max-time 120 \
    --header 'Content-Type: application/x-ndjson' --header "Idempotency-Key: $key" --header "Fencepost-Skip-Lines: $skip" \
    ${FENCEPOST_TOKEN:+--header @/dev/fd/3} \
    --data-binary @"$dir/lines" "$url" 3<<EOF
Authorization: Bearer ${FENCEPOST_TOKEN:-}
EOF
}

skip=0 attempts=0
while :; do
  code=0
  post >"$dir/answer" || code=$?
  cat "$dir/answer"
  case $code in
  22 | 7 | 18 | 28 | 52 | 55 | 56) ;; # refused; or no answer, or none that is complete
  *) exit "$code" ;;
  esac
  # The lines before the first one with a problem are stored.
  first=$(sed -n '/^{"line":.*"problem":/{s/^{"line":\([0-9]*\).*/\1/p;q;}' "$dir/answer")
  if [ "${first:-0}" -gt $((skip + 1)) ]; then
    skip=$((first - 1)) attempts=0
  # A problem without a time to wait is none that another attempt may solve.
  elif [ "$code" -eq 22 ] && grep -q '"remedy":' "$dir/answer" && ! grep -q '"retry_after_seconds":' "$dir/answer"; then
    exit "$code"
  fi
  attempts=$((attempts + 1))
  [ "$attempts" -le 8 ] || exit "$code"
  sleep $((attempts + 1))
done
