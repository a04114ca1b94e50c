# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
#
# What tools/demo.sh, tools/docs.sh and tools/test.sh need on the machine, from the
# distribution's packages and from PyPI: sourced, never run. Everything is
# idempotent: a second call costs a second.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${NOVA_VQOS_VENV:-$TOP/.venv}
NOVA_VERSION=${NOVA_VERSION:-34.0.0}
# The supported ones, in the version of theirs that is tested.
NOVA_VERSIONS=(33.0.2 34.0.0)

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# as_root COMMAND...: directly, or through sudo where there is one.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root, and there is no sudo"
    fi
}

# lab COMMAND...: devstack/lab as root, with the environment that it reads.
lab() {
    local name settings=("NOVA_VQOS_VENV=$VENV" PYTHONDONTWRITEBYTECODE=1)
    for name in $(compgen -e NOVA_VQOS_LAB_); do
        settings+=("$name=${!name}")
    done
    as_root env "${settings[@]}" "$TOP/devstack/lab" "$@"
}

# install_packages NAME...: from the distribution, only those not there yet.
install_packages() {
    local name missing=()
    command -v apt-get >/dev/null ||
        die "no apt-get here: Debian 12 or 13 is needed"
    for name in "$@"; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null |
            grep -q '^install ok installed' || missing+=("$name")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${#missing[@]} packages of the distribution:" \
        "${missing[*]}"
    (
        # Levels that run at once may lack packages at once.
        flock 9
        without_services as_root env DEBIAN_FRONTEND=noninteractive sh -ec '
            apt-get update -qq
            apt-get install -y -qq --no-install-recommends "$@" >/dev/null
        ' sh "${missing[@]}"
    ) 9<"$TOP/bindep.txt"
}

# without_services COMMAND...: under Debian's policy that no service starts.
# The lab runs its own in namespaces, and leaves the machine's alone.
without_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    if [ -e "$policy" ]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    "$@" || status=$?
    as_root rm -f "$policy"
    return "$status"
}

# packages_of PROFILE: those of bindep.txt, on this distribution.
packages_of() {
    local here
    # shellcheck source=/dev/null
    here=$(. /etc/os-release && echo "$ID-${VERSION_CODENAME:-}")
    awk -v profile="$1" -v not="!platform:$here" \
        '/^[^#]/ && $0 ~ "[[( ]" profile "[] )]" && !index($0, not) {
             print $1
         }' "$TOP/bindep.txt"
}

mapfile -t PYTHON_PACKAGES < <(packages_of python)
mapfile -t HOST_PACKAGES < <(packages_of host)
mapfile -t HOST_TEST_PACKAGES < <(packages_of host-test)
mapfile -t GUEST_PACKAGES < <(packages_of guest)
mapfile -t DOC_PACKAGES < <(packages_of docs)
mapfile -t CLOUD_PACKAGES < <(packages_of cloud)
mapfile -t BROWSER_PACKAGES < <(packages_of browser)

# placement_of NOVA-VERSION: the Placement of the same release.
placement_of() {
    echo "${PLACEMENT_VERSION:-$((${1%%.*} - 18)).0.0}"
}

# constraints_of NOVA-VERSION: constraints.txt, with what that Nova needs
# otherwise.
constraints_of() {
    local own=$TOP/constraints-nova${1%%.*}.txt
    if [ -e "$own" ]; then
        grep -v '^#' "$own"
        grep -vFf <(sed -n 's/==.*/==/p' "$own") "$TOP/constraints.txt"
    else
        cat "$TOP/constraints.txt"
    fi
}

# install_beside_nova PIP NOVA-VERSION REQUIREMENTS...: what our tests need.
install_beside_nova() {
    local pip=$1 version=$2
    shift 2
    install_locked "$pip" "$version"
    # NOTE: without constraints pip needs minutes to resolve this tree.
    "$pip" install -q -c <(constraints_of "$version") "nova==$version" \
        "openstack-placement==$(placement_of "$version")" \
        "libvirt-python==$(pkg-config --modversion libvirt)" pyOpenSSL \
        -r "$TOP/requirements.txt" -r "$TOP/test-requirements.txt" "$@"
}

# install_locked PIP NOVA-VERSION: what hosts run, by the hashes of
# tools/lock.sh, where that knows this Nova and this machine's libvirt.
install_locked() {
    local pip=$1 version=$2 locks=$TOP/hashes-nova${2%%.*}.txt libvirt
    # NOTE: without --no-deps pip looks at the newest SQLAlchemy that
    # oslo.db's SQLAlchemy[asyncio] allows, and misses its hash.
    if grep -qs "^nova==$version " "$locks"; then
        "$pip" install -q --no-deps --require-hashes -r "$locks"
    else
        say "installing Nova $version without a check of hashes"
    fi
    libvirt=libvirt-python==$(pkg-config --modversion libvirt)
    if grep -q "^$libvirt " "$TOP/hashes-libvirt.txt"; then
        "$pip" install -q --no-deps --require-hashes -r <(locked "$libvirt")
    else
        say "installing $libvirt without a check of its hash"
    fi
}

# locked libvirt-python==VERSION: this requirement with its hashes.
locked() {
    awk -v wanted="$1" '/^[^ ]/ { found = $1 == wanted } found' \
        "$TOP/hashes-libvirt.txt"
}

# workers LEVEL NOVA-VERSION: pytest's arguments for a level's processes. On
# eventlet, the default of Nova 33, those of xdist hang: they have threads of
# their own.
workers() {
    case $1:${2%%.*}:${OS_NOVA_DISABLE_EVENTLET_PATCHING:-} in
        functional*:33: | functional*:*:false) ;;
        # What a module or class shares is made once. Two CPUs would idle a
        # third of the time with two: Nova waits for itself.
        functional*) echo '-n 3 --dist loadscope' ;;
        unit:* | fuzz:*) echo '-n 2' ;;
        # A lab each: they wait for guests most of the time. Not slices: some
        # of their emulated machines run on real time.
        host:* | host-rest:*) echo '-n 3 --dist loadfile' ;;
    esac
}

# install_venv: the virtual environment with Nova, Placement, what the lab
# runs, and this checkout (editable), its shim linked into Nova's tree.
install_venv() {
    local python=${PYTHON:-python3} libvirt wanted
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "Python 3.11 or newer is needed, $("$python" -V) was found"
    libvirt=$(pkg-config --modversion libvirt)
    wanted=$(cat "$TOP"/{,test-,lab-}requirements.txt \
        "$TOP"/{constraints*.txt,hashes*.txt,setup.cfg}
        echo "$NOVA_VERSION $(placement_of "$NOVA_VERSION") $libvirt" \
            "$("$python" -V) $TOP")
    if [ "$(cat "$VENV/.wanted" 2>/dev/null)" != "$wanted" ]; then
        say "filling the virtual environment $VENV with Nova $NOVA_VERSION" \
            "(one to three minutes)"
        "$python" -m venv --upgrade-deps "$VENV"
        install_beside_nova "$VENV/bin/pip" "$NOVA_VERSION" \
            -r "$TOP/lab-requirements.txt"
        # Twice: newer pips print all that setuptools warns of.
        "$VENV/bin/pip" install -q -q --no-deps -e "$TOP"
        printf '%s' "$wanted" >"$VENV/.wanted"
    fi
    link_shim
    # Tests and the lab start many programs of it, which write no byte code.
    (cd "$TOP" && "$VENV/bin/python" -m compileall -q nova_vqos devstack) ||
        say 'the checkout is not compiled: programs of it start more slowly'
}

# link_shim: nova.virt.vqos of this checkout into the environment's Nova,
# which an editable install alone does not do.
link_shim() {
    local nova
    nova=$(cd / && "$VENV/bin/python" -c \
        'import importlib.util as u; print(u.find_spec("nova").origin)')
    ln -sfn "$TOP/nova/virt/vqos" "$(dirname "$nova")/virt/vqos"
}

# missing_requirements: what this machine lacks for hosts in namespaces, in
# words; nothing where it can run them.
missing_requirements() {
    local as=()
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "root is needed, and sudo asks for a password or is missing"
            return
        fi
        as=(sudo)
    fi
    "${as[@]}" env PYTHONPATH="$TOP/devstack" PYTHONDONTWRITEBYTECODE=1 \
        "$VENV/bin/python" -c \
        'from nova_vqos_lab import host
print("; ".join(host.missing_requirements()))'
}
