#!/bin/bash
# Runs the server without Docker: the tree that `build.sh --tree` made, in a chroot, in the foreground.
#
#   run-chroot.sh TREE DATA HOST:PORT
#
#   TREE        what `build.sh --tree` printed; shared by all servers, none of which changes it
#   DATA        a folder for this server's data; filled at the first start, found again at a later one
#   HOST:PORT   where to listen for the MongoDB protocol
#
# Needs root. It has no network of its own, as a container would; else it is as good as one:
#   - mounts are made in a mount namespace and go with it, so there is nothing to clean up, whatever happens here;
#   - all processes are in a PID namespace and end with its first one: killing the process that DATA/pid names
#     (or its child, which is that first one) kills the server as a whole. SIGTERM to the child stops it cleanly.
set -euo pipefail

die() { echo "run-chroot: $*" >&2; exit 1; }
[ $# = 3 ] || die "usage: run-chroot.sh TREE DATA HOST:PORT"
tree=$1 data=$2 listen=$3

[ "$(id -u)" = 0 ] || die "needs root, for the chroot and its mounts"
[ -x "$tree/usr/local/bin/entrypoint.sh" ] || die "$tree is no tree of build.sh --tree"

# The copy counts as made when it has its name: an interrupted one is made again.
mkdir -p "$data"
if [ ! -d "$data/postgresql" ]; then
  rm -rf "$data/postgresql.new"
  cp -a "$tree/var/lib/postgresql/data" "$data/postgresql.new"
  cp -a "$tree/var/lib/ferretdb" "$data/ferretdb"
  mv "$data/postgresql.new" "$data/postgresql"
fi

echo $$ >"$data/pid" # unshare keeps the number
exec unshare --mount --pid --ipc --fork --kill-child -- bash -euc '
  tree=$1 data=$2 listen=$3
  mount -t proc proc "$tree/proc"
  mount -t tmpfs tmpfs "$tree/run"
  mount -t tmpfs tmpfs "$tree/tmp"
  mount --bind "$data/postgresql" "$tree/var/lib/postgresql/data"
  mount --bind "$data/ferretdb" "$tree/var/lib/ferretdb"
  exec env --ignore-environment PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    FENCEPOST_LISTEN="$listen" chroot "$tree" /usr/local/bin/entrypoint.sh
' run-chroot "$tree" "$data" "$listen"
