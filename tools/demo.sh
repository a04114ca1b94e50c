#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The story of CPU units, on a real two-host cloud made for it.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    cat <<EOT
usage: tools/demo.sh [--whole] [--json FILE] [--plot FILE] [--keep] [--cloud]
                     [--embedded]

Installs what it needs (packages of the distribution, as root or by sudo, and
a virtual environment in .venv), makes an OpenStack with two hosts of unlike
speed on this machine, demonstrates CPU units on it, prints a table of the
promised and delivered figures, and removes the cloud again.

  --whole      with the chapters for those who want to know everything: kinds
               of work that flavors declare, servers of several vCPUs, full
               hosts, migrations that are refused, bad flavors
  --json FILE  also write measurements and checks to FILE
  --plot FILE  also draw promised and delivered speed to FILE, an .svg
  --keep       leave the cloud running, with the commands to use it
  --cloud      no demonstration: make the cloud, calibrate its hosts,
               deploy nova_vqos, and leave it running
  --embedded   demonstrate without hosts: Nova's services with a fake
               libvirt, and Placement, in one process; no speed is measured.
               The default where root, namespaces or cgroups are missing

Ends with status 1 when a check of the story fails.
EOT
}

json=()
plot=()
whole=()
keep=
cloud=
embedded=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --json)
            [ $# -ge 2 ] || { usage >&2; exit 2; }
            # The story may run as another user, and elsewhere.
            json=(--json "$(realpath -m -- "$2")")
            shift ;;
        --plot)
            [ $# -ge 2 ] || { usage >&2; exit 2; }
            plot=(--plot "$(realpath -m -- "$2")")
            shift ;;
        --whole) whole=(--whole) ;;
        --keep) keep=1 ;;
        --cloud) cloud=1 ;;
        --embedded) embedded=1 ;;
        *) usage >&2
           printf "error: there is no option '%s'\n" "$1" >&2
           exit 2 ;;
    esac
    shift
done

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"

# run_embedded: the story in one process, as this user.
run_embedded() {
    cd "$TOP"
    [ ${#plot[@]} = 0 ] || say 'no plot: no speed is measured'
    exec "$VENV/bin/python" -m nova_vqos.tests.functional.embedded \
        ${json[@]+"${json[@]}"}
}

# shellcheck disable=SC2317  # called by a trap
clean_up() {
    local status=$?
    # Nothing may stop this half-way.
    trap '' INT TERM HUP
    trap - EXIT
    # A check that failed leaves the cloud for a look; an interrupt does not.
    if [ -n "$keep" ] && [ "$status" -lt 128 ]; then
        lab status || status=1
    else
        if [ "$status" != 0 ]; then
            logs=$(mktemp -d "${TMPDIR:-/tmp}/nova-vqos-demo-XXXXXX")
            if as_root cp -r "${NOVA_VQOS_LAB_DIR:-/var/lib/nova-vqos-lab}/log" \
                "$logs" 2>/dev/null
            then
                say "the logs are kept in $logs/log"
            else
                rmdir "$logs"
            fi
        fi
        lab down || status=1
    fi
    exit "$status"
}

install_packages "${PYTHON_PACKAGES[@]}"
install_venv
if [ -n "$embedded" ]; then
    run_embedded
fi
lacking=
if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
    install_packages "${HOST_PACKAGES[@]}" "${GUEST_PACKAGES[@]}" \
        "${CLOUD_PACKAGES[@]}"
fi
lacking=$(missing_requirements)
if [ -n "$lacking" ]; then
    [ -z "$cloud" ] || die "no two-host cloud can be made here: $lacking"
    say "no two-host cloud can be made here ($lacking):" \
        "running the embedded demo, which measures no speed"
    run_embedded
fi
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ -n "$cloud" ]; then
    lab up
    trap - EXIT
    exit
fi
passing=()
[ -n "$keep" ] || passing=(--removed-next)
lab demo ${whole[@]+"${whole[@]}"} ${json[@]+"${json[@]}"} \
    ${plot[@]+"${plot[@]}"} ${passing[@]+"${passing[@]}"}
