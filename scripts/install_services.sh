#!/bin/sh
# Install what the tests start for themselves, where it is missing: PostgreSQL and SoftHSM2.
# On Debian and its kin, as root or with a sudo that asks nothing. Does nothing if all is there.
set -eu

complain() {
    echo "install_services: $*" >&2
    exit 3
}

has_postgresql() {
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1
}

has_softhsm() {
    command -v softhsm2-util >/dev/null 2>&1
}

missing=
has_postgresql || missing="$missing postgresql"
has_softhsm || missing="$missing softhsm2"
[ -n "$missing" ] || exit 0
missing=${missing# }

command -v apt-get >/dev/null 2>&1 || complain "install $missing by hand: there is no apt-get here"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
    $as_root true 2>/dev/null || complain "run as root: apt-get install $missing"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@" \
        >"$log" 2>&1 </dev/null
}

echo "installing $missing …"
# Lists that are old name packages that are gone; lists that can't be fetched may still do.
apt update || true
# shellcheck disable=SC2086 - one word a package
apt install --no-install-recommends $missing ||
    complain "apt-get install $missing failed: $(grep -v '^$' "$log" | tail -n 1)"

# Debian's package makes a cluster and starts it. The tests make their own, so this one, which was
# not here before, is not left running.
case $missing in
*postgresql*)
    if command -v pg_lsclusters >/dev/null 2>&1; then
        pg_lsclusters --no-header | while read -r version cluster _port status _rest; do
            case $status in
            online*) $as_root pg_ctlcluster "$version" "$cluster" stop >/dev/null 2>&1 || true ;;
            esac
        done
    fi
    ;;
esac

has_postgresql || complain "PostgreSQL was installed, but initdb is not in /usr/lib/postgresql"
has_softhsm || complain "SoftHSM2 was installed, but softhsm2-util is not in PATH"
