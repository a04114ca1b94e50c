#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Debian packages, and tests them in clean systems beside Debian's
# own packages of Nova.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
SUITES=(forky sid)

usage() {
    cat <<EOT
usage: tools/deb.sh [--keep] [SUITE...]

For each suite of Debian (by default ${SUITES[*]}): makes a clean system with
debootstrap, builds the packages of deploy/debian there, and has lintian
look at them. In another clean system with the suite's nova-compute,
nova-scheduler and nova-api it installs them, tests what is installed, purges
them, and compares the files with those of before. The packages are in
build/deb/SUITE. It needs root, or sudo.

The suite must have Nova 33 or 34, as the packages do. Its index may have
expired: what is tested is what the mirror has.

  --keep   keep the systems, in build/deb
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
# shellcheck source=tools/lib/build.sh
. "$TOP/tools/lib/build.sh"
WORK=$TOP/build/deb
MIRROR=${NOVA_VQOS_DEBIAN_MIRROR:-http://deb.debian.org/debian}

keep='' suites=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --keep) keep=yes ;;
        -*) usage >&2; die "there is no option '$1'" ;;
        *) suites+=("$1") ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || suites=("${SUITES[@]}")

# within ROOT COMMAND...: in a system below a directory, which ends with the
# command whatever it has started.
within() {
    # shellcheck disable=SC2016  # the inner shell's
    as_root unshare --mount --pid --fork --kill-child sh -euc '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount -t tmpfs tmpfs "$1/run"
        mount --bind /dev/null "$1/dev/null"
        root=$1
        shift
        exec chroot "$root" env -i HOME=/root LC_ALL=C.UTF-8 \
            PATH=/usr/sbin:/usr/bin DEBIAN_FRONTEND=noninteractive "$@"
    ' sh "$@"
}

# install_in ROOT PACKAGE...
install_in() {
    local root=$1
    shift
    say "installing $*"
    within "$root" apt-get install -y -qq --no-install-recommends "$@" \
        >"$root.log" 2>&1 || { tail -n 40 "$root.log"; die 'it failed'; }
}

# make_base SUITE: a clean system.
make_base() {
    say "a clean system of $1"
    # An older debootstrap does not know the newest suites: they are like sid.
    as_root debootstrap --variant=minbase "$1" "$WORK/$1/base" "$MIRROR" \
        /usr/share/debootstrap/scripts/sid \
        >"$WORK/$1/base.log" || { tail "$WORK/$1/base.log"; return 1; }
    # No service starts, and a mirror may be late.
    # shellcheck disable=SC2016
    as_root sh -euc '
        printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"
        chmod 755 "$1/usr/sbin/policy-rc.d"
        echo "Acquire::Check-Valid-Until \"false\";" \
            >"$1/etc/apt/apt.conf.d/90late"
    ' sh "$WORK/$1/base"
    within "$WORK/$1/base" apt-get update -qq
}

# build_packages SUITE: into $WORK/SUITE, by lintian.
build_packages() {
    local root=$WORK/$1/builder version
    as_root cp -a "$WORK/$1/base" "$root"
    install_in "$root" build-essential lintian
    as_root cp -r "$WORK/sdist" "$root/root/nova-vqos"
    # A version of pbr as one of Debian's, older than the one that is next.
    version=$(basename "$WORK"/dist/*.tar.gz .tar.gz)
    version=${version#nova_vqos-}
    version=${version/.dev/\~dev}
    as_root cp "$WORK"/dist/*.tar.gz \
        "$root/root/nova-vqos_$version.orig.tar.gz"
    as_root cp -r "$TOP/deploy/debian" "$root/root/nova-vqos/debian"
    as_root sed -i "1s/(.*)/($version-1)/" \
        "$root/root/nova-vqos/debian/changelog"
    say "building $version-1"
    # shellcheck disable=SC2016
    within "$root" sh -euc '
        cd /root/nova-vqos
        apt-get build-dep -y -qq --no-install-recommends . >../log 2>&1 &&
            dpkg-buildpackage -us -uc >>../log 2>&1 || {
            tail -n 40 ../log
            exit 1
        }
        lintian --allow-root --fail-on error ../*.changes
    '
    cp "$root"/root/*.deb "$WORK/$1"
}

# check SUITE: what was built, in a clean system beside Nova.
check() {
    local root=$WORK/$1/clean ours=() needed
    as_root cp -a "$WORK/$1/base" "$root"
    install_in "$root" nova-compute nova-scheduler nova-api \
        libvirt-daemon-system systemd
    within "$root" dpkg-query -W python3-nova libvirt-daemon
    as_root mkdir "$root/root/debs" "$root/root/wanted"
    as_root cp "$WORK/$1"/*.deb "$root/root/debs"
    as_root cp -r "$WORK/sdist/nova_vqos" "$root/root/wanted"
    as_root cp "$TOP"/tools/lib/{deb_checks.sh,nova_loads.py} "$root/root"
    mapfile -t ours < <(cd "$WORK/$1" && printf '/root/debs/%s\n' ./*.deb)
    # What they need, before the files are listed.
    needed=$(within "$root" apt-get install -s -qq --no-install-recommends \
        "${ours[@]}" | awk '$1 == "Inst" && $2 !~ /nova-vqos/ { print $2 }')
    # shellcheck disable=SC2086  # several words
    [ -z "$needed" ] || install_in "$root" $needed
    files_of "$root" >"$WORK/$1/before"
    install_in "$root" "${ours[@]}"
    within "$root" sh -eu /root/deb_checks.sh
    within "$root" dpkg --purge nova-vqos-agent nova-vqos-common \
        python3-nova-vqos >>"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
    files_of "$root" >"$WORK/$1/after"
    diff "$WORK/$1/before" "$WORK/$1/after" ||
        die "the packages left these files"
    say "purged, the packages leave no file in $1"
}

# files_of ROOT: names of all but logs, caches, and what dpkg itself changes.
files_of() {
    as_root find "$1" -mindepth 1 \( -path "$1/proc" -o -path "$1/root" \
        -o -path "$1/var/cache" -o -path "$1/var/log" -o -path "$1/tmp" \
        -o -name __pycache__ \) -prune -o -printf '%P\n' | sort
}

as_root rm -rf "$WORK"
mkdir -p "$WORK"
trap '[ -n "$keep" ] || as_root rm -rf "$WORK"/*/{base,builder,clean}' EXIT
install_packages debootstrap "${PYTHON_PACKAGES[@]}"
build "$WORK"
for suite in "${suites[@]}"; do
    mkdir "$WORK/$suite"
    make_base "$suite"
    build_packages "$suite"
    check "$suite"
    [ -n "$keep" ] || as_root rm -rf "$WORK/$suite"/{base,builder,clean}
done
say "the packages are in $WORK"
