#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds images of nova_vqos, and tests the agent in its container.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
ANSIBLE=(ansible-core==2.19.14 ansible-lint==26.10.1)
# The machine's own release: its Python gets the wheels for the images.
# shellcheck source=/dev/null
DEBIAN=$(. /etc/os-release && echo "$VERSION_CODENAME")

usage() {
    cat <<EOT
usage: tools/containers.sh [PYTEST-ARGUMENT...]

Makes a wheel, a system of Debian, and an environment with Ansible in
build/containers, checks the role with ansible-lint, and runs the tests of
nova_vqos/tests/containers: they build the images of deploy/containers with
podman, on stand-ins for those of Kolla, and run them on a host of the lab. It
needs root, and podman, which it installs; tools/test.sh containers installs
the rest, and calls this.
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
# shellcheck source=tools/lib/build.sh
. "$TOP/tools/lib/build.sh"
WORK=$TOP/build/containers
MIRROR=${NOVA_VQOS_DEBIAN_MIRROR:-http://deb.debian.org/debian}

case ${1:-} in
    -h | --help) usage; exit 0 ;;
esac

install_packages debootstrap podman runc
mkdir -p "$WORK"
rm -rf "$WORK"/{build,dist,sdist,source} "$WORK"/nova_vqos-*.whl
build "$WORK"
cp "$WORK"/dist/*.whl "$WORK"
constraints_of "$NOVA_VERSION" >"$WORK/upper-constraints.txt"
# What the images are made of: containers may not reach the package index as
# this machine does. Debian has libvirt's library.
say "wheels for the images"
/usr/bin/python3 -m venv "$WORK/debian-python"
"$WORK/debian-python/bin/pip" wheel -q --wheel-dir "$WORK/wheels" \
    -c "$WORK/upper-constraints.txt" "nova==$NOVA_VERSION" \
    -r <(grep -v '^libvirt' "$TOP/requirements.txt")
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$WORK/pip.conf"
if [ ! -e "$WORK/debian.tar" ]; then
    say "a system of Debian $DEBIAN"
    as_root debootstrap --variant=minbase "$DEBIAN" "$WORK/debian" "$MIRROR" \
        >"$WORK/debian.log"
    as_root tar -C "$WORK/debian" -cf "$WORK/debian.tar.part" .
    as_root mv "$WORK/debian.tar.part" "$WORK/debian.tar"
    as_root rm -rf "$WORK/debian"
fi
if [ "$(cat "$WORK/ansible/.complete" 2>/dev/null)" != "${ANSIBLE[*]}" ]; then
    say "an environment with ${ANSIBLE[*]}"
    python3 -m venv "$WORK/ansible"
    "$WORK/ansible/bin/pip" install -q "${ANSIBLE[@]}"
    echo "${ANSIBLE[*]}" >"$WORK/ansible/.complete"
fi
say "ansible-lint"
(cd "$TOP/deploy/ansible" &&
    PATH=$WORK/ansible/bin:$PATH ansible-lint --offline --profile production)
as_root env PYTHONDONTWRITEBYTECODE=1 NOVA_VERSION="$NOVA_VERSION" \
    NOVA_VQOS_CONTAINERS="$WORK" "$VENV/bin/python" -m pytest -q \
    -p no:cacheprovider -W ignore -r fExXs --durations 5 \
    "$TOP/nova_vqos/tests/containers" "$@"
