#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Pins what a host of the cloud runs, with the hash of each file.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
# Of uv, which makes the files.
UV_VERSION=0.13.9
# Of libvirt, on Debian 12, Ubuntu 24.04 and Debian 13. libvirt-python must be
# of the same.
LIBVIRT_VERSIONS=(9.0.0 10.0.0 11.3.0)

usage() {
    cat <<EOT
usage: tools/lock.sh

Writes hashes-nova33.txt and hashes-nova34.txt: each Nova that is supported,
the Placement of its release, what nova_vqos needs, and all that these need, in
the versions of constraints.txt, with the hashes of their files on the package
index. They are for pip install --no-deps --require-hashes. libvirt-python,
which must be of the host's version of libvirt, is in hashes-libvirt.txt.

Run it after each change of constraints*.txt, requirements.txt or of the
versions in tools/lib/install.sh, and commit the files. It installs nothing but
uv, in build/lock.
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
ENVIRONMENT=$TOP/build/lock

case ${1:-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "tools/lock.sh takes no arguments ($*)" ;;
esac

# compile ARGUMENT...: pins and hashes, as requirements of pip. They name no
# package index: any that has these files will do.
compile() {
    "$ENVIRONMENT/bin/uv" pip compile -q --universal --python-version 3.11 \
        --generate-hashes --no-header --no-annotate "$@"
}

# lock FILE COMMAND...: writes what the command prints, whole or not at all.
lock() {
    local path=$TOP/$1
    shift
    { echo '# Written by tools/lock.sh; changes are lost.'; "$@"; } \
        >"$path.new"
    mv "$path.new" "$path"
    say "$path"
}

# lock_nova NOVA-VERSION
lock_nova() {
    constraints_of "$1" >"$ENVIRONMENT/constraints.txt"
    printf '%s\n' "nova==$1" "openstack-placement==$(placement_of "$1")" \
        >"$ENVIRONMENT/nova.txt"
    compile --no-emit-package libvirt-python \
        -c "$ENVIRONMENT/constraints.txt" "$ENVIRONMENT/nova.txt" \
        "$TOP/requirements.txt"
}

lock_libvirt() {
    local version
    for version in "${LIBVIRT_VERSIONS[@]}"; do
        echo "libvirt-python==$version" >"$ENVIRONMENT/libvirt.txt"
        compile --no-deps "$ENVIRONMENT/libvirt.txt"
    done
}

unset PLACEMENT_VERSION
"${PYTHON:-python3}" -m venv "$ENVIRONMENT"
"$ENVIRONMENT/bin/pip" install -q "uv==$UV_VERSION"
for version in "${NOVA_VERSIONS[@]}"; do
    lock "hashes-nova${version%%.*}.txt" lock_nova "$version"
done
lock hashes-libvirt.txt lock_libvirt
