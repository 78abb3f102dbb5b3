#!/bin/bash
# Builds a MongoDB-compatible server for tests: FerretDB in front of PostgreSQL with the DocumentDB extension.
#
#   build.sh           makes the Docker image if there is none for these inputs, and prints its tag
#   build.sh --tree    makes the same tree of files without Docker, for run-chroot.sh, and prints its path
#   build.sh --tag     prints the tag and makes nothing
#   build.sh --tree-if-built   prints the tree's path if it is there, else nothing, and makes nothing
#   build.sh --clean   removes what the other calls made: images and cache folder
#
# Why it exists: where images can be pulled the tests use mongo:8; this is for machines that reach only Debian's
# packages and the Go module proxy. Nothing else is downloaded. The tag contains a hash of everything that goes in
# (this script, the files beside it, the versions below), so a second call returns at once and an edit rebuilds.
#
# Needs: root on Debian (or a derivative with debootstrap), Go, and for the image a Docker daemon. About 90 s on two
# cores; 450 MB in Docker. Only the result goes to stdout, everything else to stderr.
#
# Environment (all optional)
#   FENCEPOST_DEBIAN_MIRROR   a Debian mirror; default: the one that apt on this machine uses
#   FENCEPOST_DEBIAN_SUITE    default sid, at the time of writing the only one with the DocumentDB package
#   FENCEPOST_DEBIAN_KEYRING  default: the keyring of package debian-archive-keyring
#   XDG_CACHE_HOME            where the work folder is; default ~/.cache
#
# Trust: the suite's Release file is verified against Debian's archive keyring (--force-check-gpg: no keyring or no
# valid signature is an error, never a warning), packages by the hashes in it, FerretDB by Go's checksum database. Sid
# is signed with the keys of several releases, so a keyring of the previous release normally does; when one is too old
# it is upgraded through apt, whose own chain of trust vouches for it.
set -euo pipefail

suite=${FENCEPOST_DEBIAN_SUITE:-sid}
ferretdb_version=v2.7.0
postgres_major=18
package=postgresql-$postgres_major-documentdb
repository=fencepost-test-mongo

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fencepost/mongo-image

exec 3>&1 1>&2 # from here on stdout is stderr; the result goes to descriptor 3
say() { printf 'mongo-image: %s\n' "$*"; }
die() { say "$*"; exit 1; }

hash=$(
  {
    echo "$suite $ferretdb_version $(uname -m)"
    cat "$here/build.sh" "$here/entrypoint.sh" "$here/postgresql.conf"
  } | sha256sum | cut -c1-12
)
image=$repository:ferretdb-${ferretdb_version#v}-$hash
tree=$cache/tree-$hash

# --- what is wanted, and is it there already? -----------------------------------------------------------------------

want=image
case "${1:-}" in
  '') ;;
  --tree) want=tree ;;
  --tag) echo "$image" >&3; exit 0 ;;
  --tree-if-built) [ ! -e "$tree.ok" ] || echo "$tree" >&3; exit 0 ;;
  --clean)
    rm -rf --one-file-system "$cache"
    if command -v docker >/dev/null; then
      docker images --quiet "$repository" | sort -u | xargs --no-run-if-empty docker rmi --force
    fi
    exit 0
    ;;
  *) die "unknown argument $1; see the head of build.sh" ;;
esac

image_exists() { docker image inspect "$image" >/dev/null 2>&1; }
tree_exists() { [ -e "$tree.ok" ]; }
finish() {
  if [ $want = image ]; then echo "$image" >&3; else echo "$tree" >&3; fi
  exit 0
}

if [ $want = image ]; then
  command -v docker >/dev/null || die "there is no docker command (without Docker use --tree and run-chroot.sh)"
  docker version >/dev/null 2>&1 || die "the Docker daemon does not answer; is it running, and may this user use it?"
  ! image_exists || finish
else
  ! tree_exists || finish
fi

[ "$(id -u)" = 0 ] || die "building needs root, for debootstrap: run 'sudo $here/build.sh' once, then the image is there"
command -v go >/dev/null || die "building needs Go, which is not in PATH"
command -v apt-get >/dev/null || die "building needs Debian (or a derivative): there is no apt-get here"

# One build at a time: 'go test ./...' starts several test processes, and each may want the image.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock --nonblock 9 || { say "waiting for another build"; flock --timeout 900 9 || die "another build takes over 15 minutes"; }
if [ $want = image ] && image_exists; then finish; fi
if [ $want = tree ] && tree_exists; then finish; fi

# --- tools ----------------------------------------------------------------------------------------------------------

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null; } ||
    die "apt-get could not install: $*"
}

keyring=${FENCEPOST_DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
command -v debootstrap >/dev/null || { say "installing debootstrap"; apt_install debootstrap; }
command -v gpgv >/dev/null || apt_install gpgv
[ -e "$keyring" ] || apt_install debian-archive-keyring

# The mirror that apt uses for Debian itself, not for security updates or other publishers. apt knows publishers only
# after an update. Empty, as on a derivative, means debootstrap's own default.
apt_mirror() {
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 2>/dev/null |
    awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}
mirror=${FENCEPOST_DEBIAN_MIRROR:-$(apt_mirror)}
[ -n "$mirror" ] || { apt-get update -qq || true; mirror=$(apt_mirror); }

# debootstrap downloads with wget, which does not read apt's settings.
proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
if [ -n "$proxy" ] && [ -z "${http_proxy:-}" ]; then export http_proxy=$proxy; fi

# --- the tree -------------------------------------------------------------------------------------------------------

build_tree() {
  local started=$SECONDS log=$cache/debootstrap.log go_log=$cache/go.log go_pid
  # An interrupted build, or one of older inputs. debootstrap may have left its /proc mounted in the first.
  local mounted
  awk -v tree="$cache/tree-" 'index($2, tree) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mounted; do umount -- "$mounted"; done
  rm -rf --one-file-system "$cache"/tree-*
  mkdir -p "$cache/debs" "$cache/bin"

  # FerretDB compiles while the packages are unpacked. Static, so that Debian's libc does not matter. Without -trimpath, as
  # everything else here, so that the standard library is compiled once.
  say "compiling FerretDB $ferretdb_version"
  (cd / && env -u GOOS -u GOARCH CGO_ENABLED=0 GOFLAGS= GOBIN="$cache/bin" \
    go install -ldflags='-s -w' "github.com/FerretDB/FerretDB/v2/cmd/ferretdb@$ferretdb_version") >"$go_log" 2>&1 9>&- &
  go_pid=$!
  # shellcheck disable=SC2064 # the values of now are meant
  trap "kill $go_pid 2>/dev/null || true; rm -rf --one-file-system '$tree'" EXIT

  say "unpacking Debian $suite with $package"
  if ! run_debootstrap "$log"; then
    if grep -qiE 'unknown key|invalid release signature|not signed' "$log" && [ -z "${FENCEPOST_DEBIAN_KEYRING:-}" ]; then
      say "the archive keyring does not know the key of $suite: upgrading it"
      apt-get update -qq
      apt_install debian-archive-keyring
      run_debootstrap "$log" || { tail -n 20 "$log"; die "debootstrap failed again; is $keyring too old? See FENCEPOST_DEBIAN_KEYRING"; }
    else
      tail -n 20 "$log"
      die "debootstrap failed; the end of its log is above, all of it in $log"
    fi
  fi

  wait "$go_pid" || { tail -n 20 "$go_log"; die "go install failed"; }
  install -D -m 755 "$cache/bin/ferretdb" "$tree/usr/local/bin/ferretdb"
  install -D -m 755 "$here/entrypoint.sh" "$tree/usr/local/bin/entrypoint.sh"

  say "making the database"
  strip_tree
  make_database
  trap - EXIT
  touch "$tree.ok"
  say "the tree is ready after $((SECONDS - started)) s: $(du -sh "$tree" | cut -f1)"
}

run_debootstrap() {
  rm -rf --one-file-system "$tree"
  debootstrap --variant=minbase --include="$package" --force-check-gpg --keyring="$keyring" \
    --cache-dir="$cache/debs" "$suite" "$tree" ${mirror:+"$mirror"} </dev/null >"$1" 2>&1 9>&-
}

# What no server needs at run time: about half of the tree.
strip_tree() {
  rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/*.log "$tree"/var/log/apt \
    "$tree"/usr/share/{doc,man,info,locale,i18n,lintian,proj} "$tree"/usr/share/postgresql/*/man \
    "$tree"/var/lib/postgresql/"$postgres_major" "$tree"/etc/postgresql/"$postgres_major"
}

# initdb and CREATE EXTENSION take seconds, so they happen here and a server starts from the result. The mounts and
# processes live in namespaces of their own and end with them, whatever goes wrong.
make_database() {
  cp "$here/postgresql.conf" "$tree/tmp/postgresql.conf"
  cat >"$tree/tmp/make-database" <<'SCRIPT'
set -euo pipefail
export PATH=/usr/lib/postgresql/18/bin:$PATH LC_ALL=C.UTF-8
data=/var/lib/postgresql/data
install -d -m 755 -o postgres -g postgres /run/postgresql /var/lib/ferretdb
install -d -m 700 -o postgres -g postgres "$data"
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"; }
cd /
as_postgres initdb -D "$data" -U postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync --no-instructions
cat /tmp/postgresql.conf >>"$data/postgresql.conf"
as_postgres pg_ctl -D "$data" -w -t 60 -l /tmp/postgres.log start || { cat /tmp/postgres.log; exit 1; }
as_postgres psql -h /run/postgresql -U postgres -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION documentdb CASCADE' ||
  { cat /tmp/postgres.log; exit 1; }
as_postgres pg_ctl -D "$data" -w -t 60 -m fast stop
SCRIPT
  unshare --mount --pid --ipc --fork --kill-child -- bash -euc '
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/run"
    exec chroot "$1" /bin/bash /tmp/make-database
  ' make-database "$tree" 9>&- </dev/null ||
    die "the database could not be made; see above (unshare and mount need a full root, not that of a container)"
  rm -rf "$tree"/tmp/* "$tree"/run/*
}

tree_exists || build_tree
[ $want = image ] || finish

# --- the image ------------------------------------------------------------------------------------------------------

# The volume: a database on an overlay, in particular on fuse-overlayfs, needs more processor time for its files than for its work.
say "importing into Docker"
tar --create --numeric-owner --one-file-system --exclude='./dev/*' --directory "$tree" . |
  docker import \
    --change 'ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]' \
    --change 'EXPOSE 27017' \
    --change 'VOLUME /var/lib/postgresql/data' \
    --change 'LABEL org.opencontainers.image.title="MongoDB-compatible server for Fencepost tests"' \
    --message "Debian $suite, $package, FerretDB $ferretdb_version" \
    - "$image" >/dev/null
rm -rf --one-file-system "$tree" "$tree.ok" # Docker has it now
finish
