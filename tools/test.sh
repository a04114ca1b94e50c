#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs all levels of tests, or those that are named, fastest first.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
LEVELS=(lint docs unit functional package host cloud)
ON_REQUEST=(fuzz versions upstream upgrade pages rating watcher horizon rally
    host-long host-v2 deb containers)
# Level host waits for guests most of the time, and leaves the CPU to these.
# NOTE: with functional too, it all took no less, since both CPUs are then busy,
# and some of its tests came too late.
BESIDE_HOST=(package)
# What level rating runs.
CLOUDKITTY_VERSION=25.0.0
CEILOMETER_VERSION=27.0.0
# What level watcher runs. Its own fixtures need werkzeug.
WATCHER_VERSION=17.0.0
# What level horizon runs: the newest of those that Nova's release has.
HORIZON_VERSION=27.0.0
# What level rally runs.
RALLY_VERSION=4.1.0
# What names these environments to tests.
PYTHONS=CLOUDKITTY_PYTHON,CEILOMETER_PYTHON,HORIZON_PYTHON,RALLY_PYTHON

usage() {
    cat <<EOT
usage: tools/test.sh [LEVEL...] [-- PYTEST-ARGUMENT...]

Installs what it needs (packages of the distribution, as root or by sudo, and
a virtual environment in .venv), then runs the named levels. The default is:

  lint        ruff, hacking, codespell, doc8, bandit, mypy, shellcheck
  docs        the documentation, with warnings as errors, and its links
  unit        tests that touch nothing of the host, in two processes
  functional  real Nova and Placement with a fake libvirt, in two processes
  package     sdist and wheel in clean environments beside Nova 33 and 34: tests
              of the wheel, unit tests, and with 33 some functional ones; runs
              beside level host, at the lowest priority, where both are named
  host        two real libvirtd with real QEMU guests, in namespaces (root)
  cloud       the story of tools/demo.sh on a real two-host OpenStack, then
              the project's tempest tests on it (root)

More run only if they are named, since they take long. The second and third are
for changes of what Nova sees of nova_vqos:

  fuzz        damaged input for all that reads what others wrote, which level
              unit has a pass of; ten minutes for each reader, or as many as
              --fuzz-minutes says
  versions    package, with all functional tests, in each Nova's modes
  upstream    Nova's own functional tests of its libvirt driver, and tempest's
              own compute tests on the lab's cloud (root): with stock Nova and
              with nova_vqos, side by side; logs go to build/upstream. Then the
              phases of our plugin of grenade, on that cloud
  upgrade     the lab's cloud, with servers that run, from an earlier commit to
              this one and back (root)
  pages       docs, then its pages and reports of calibration in a browser:
              light, dark and narrow, by a Selenium of its own, build/pages;
              with PAGES_PICTURES=DIRECTORY a picture of each goes there
  rating      a real CloudKitty and a real Ceilometer, each in an environment of
              its own below build/rating, get what the agents bill (root)
  watcher     a real Watcher beside a real Nova and Placement in one process:
              audits, action plans and migrations by the strategy of nova_vqos;
              in an environment of its own, build/watcher; then the same once
              on the lab's cloud (root)
  horizon     a real Horizon of the lab's cloud, in an environment of its own,
              build/horizon, and its form of extra specs in a browser (root)
  rally       a real Rally, in an environment of its own, build/rally, with the
              task of rally-jobs on the lab's cloud (root)
  host-long   those of host's tests that measure a newer kernel under QEMU for
              minutes each (root)
  host-v2     host on cgroup v2, whatever this machine has: on a newer kernel
              under QEMU (root). It takes hours: it goes on where it was, and
              takes names of files and options of its own (-- --help); what
              came out is in build/host-v2
  deb         the Debian packages, beside Debian's own Nova (root): tools/deb.sh
  containers  the images of containers, and the role that deploys them, on a
              host of the lab (root): tools/containers.sh

unit, fuzz, functional, host, pages, rating, watcher, horizon, rally,
host-long, host-v2, containers and cloud take arguments of pytest. A level that
this machine cannot run is skipped, and the reason printed; with CI=true it
fails; host-v2 always does.
NOVA_VERSION and PLACEMENT_VERSION choose the versions to test with, for example
NOVA_VERSION=33.0.2.
EOT
}

is_level() {
    [[ " ${LEVELS[*]} ${ON_REQUEST[*]} " == *" $1 "* ]]
}

levels=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        *) is_level "$1" || {
               usage >&2
               printf "error: there is no level '%s', choose from: %s\n" \
                   "$1" "${LEVELS[*]} ${ON_REQUEST[*]}" >&2
               exit 2
           }
           levels+=("$1") ;;
    esac
    shift
done
[ ${#levels[@]} -gt 0 ] || levels=("${LEVELS[@]}")
if [ $# -gt 0 ]; then
    for level in "${levels[@]}"; do
        case $level in
            unit | fuzz | functional | host | host-long | host-v2 | pages \
                | containers | cloud | rating | watcher | horizon | rally) ;;
            *) printf 'error: level %s takes no arguments (%s)\n' \
                   "$level" "$*" >&2
               exit 2 ;;
        esac
    done
fi

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
cd "$TOP"

# run_pytest LEVEL ARGUMENT...: by sudo where the level needs root.
run_pytest() {
    local level=$1 as=()
    shift
    case $level in
        host | cloud)
            [ "$(id -u)" = 0 ] ||
                as=(sudo "--preserve-env=CI,$PYTHONS")
            ;;
    esac
    # shellcheck disable=SC2046  # none, or several words
    PYTHONDONTWRITEBYTECODE=1 "${as[@]}" "$VENV/bin/python" -m pytest \
        -q -p no:cacheprovider -W ignore --durations 5 -r fExXs \
        $(workers "$level" "$NOVA_VERSION") "nova_vqos/tests/$level" "$@"
}

# skip LEVEL REASON: fails where CI=true promised that all levels run.
skip() {
    if [ "${CI:-}" = true ]; then
        die "level $1 cannot run here: $2"
    fi
    say "level $1 is skipped: $2"
    skipped+=("$1")
}

run_lint() {
    "$VENV/bin/pre-commit" run --all-files --show-diff-on-failure --color never
}

run_docs() { "$TOP/tools/docs.sh"; }

run_unit() { run_pytest unit "$@"; }

run_fuzz() { run_pytest unit/fuzz --fuzz-minutes 10 "$@"; }

run_functional() { run_pytest functional "$@"; }

run_package() { "$TOP/tools/package.sh"; }

run_deb() { "$TOP/tools/deb.sh"; }

run_containers() {
    may_run_hosts containers || return 0
    "$TOP/tools/containers.sh" "$@"
}

# begin LEVEL: in the background. join_levels prints its output.
begin() {
    local level=$1
    mkdir -p "$TOP/build"
    # In a session of its own, so that all of it can be ended. Where the kernel
    # groups tasks by session, such a group has a nice value too, and without
    # it the one of its tasks counts among themselves alone.
    # shellcheck disable=SC2016  # the inner shell's
    setsid bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null
        exec nice -n 19 "$@"' bash "$TOP/tools/test.sh" "$level" \
        >"$TOP/build/$level.log" 2>&1 &
    begun[$level]=$!
}

# join_levels: waits for those that were begun; fails where one of them does.
join_levels() {
    local level status=0
    for level in "${!begun[@]}"; do
        wait "${begun[$level]}" || status=$?
        unset "begun[$level]"
        cat "$TOP/build/$level.log"
    done
    return "$status"
}

# end_levels: those that were begun.
end_levels() {
    local pid
    for pid in "${begun[@]}"; do
        kill -- "-$pid" 2>/dev/null || :
    done
}

run_versions() { "$TOP/tools/package.sh" --whole; }

run_upstream() {
    local results=$TOP/build/upstream status=0
    mkdir -p "$results"
    "$VENV/bin/python" -m nova_vqos.tests.upstream.functional \
        --output "$results" || status=$?
    if may_run_cloud upstream; then
        lab upstream --output "$results" || status=$?
        run_pytest cloud -m long || status=$?
    fi
    return "$status"
}

run_upgrade() {
    may_run_cloud upgrade || return 0
    local status=0
    lab upgrade --back || status=$?
    lab down
    return "$status"
}

run_pages() {
    run_docs
    install_packages "${BROWSER_PACKAGES[@]}"
    install_apart pages selenium
    PAGES_PYTHON=$TOP/build/pages/bin/python run_pytest pages "$@"
}

run_rating() {
    may_run_hosts rating || return 0
    install_apart rating/cloudkitty "cloudkitty==$CLOUDKITTY_VERSION" \
        'SQLAlchemy<2.1'
    install_apart rating/ceilometer "ceilometer==$CEILOMETER_VERSION"
    CLOUDKITTY_PYTHON=$TOP/build/rating/cloudkitty/bin/python \
        CEILOMETER_PYTHON=$TOP/build/rating/ceilometer/bin/python \
        run_pytest host -k 'test_rating or test_ceilometer' "$@"
}

run_watcher() {
    local venv=$TOP/build/watcher status=0 wanted packages=(
        "python-watcher==$WATCHER_VERSION" werkzeug
        # With which it runs on the lab's cloud.
        pymysql pyuwsgi python-openstackclient python-watcherclient)
    wanted="${packages[*]} nova==$NOVA_VERSION $TOP"
    if [ "$(cat "$venv/.complete" 2>/dev/null)" != "$wanted" ]; then
        say "filling the environment $venv"
        python3 -m venv --upgrade-deps "$venv"
        install_beside_nova "$venv/bin/pip" "$NOVA_VERSION" "${packages[@]}"
        # Its entry points are how Watcher finds the strategy.
        "$venv/bin/pip" install -q -q --no-deps -e "$TOP"
        echo "$wanted" >"$venv/.complete"
    fi
    VENV=$venv link_shim
    PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -q \
        -p no:cacheprovider -W ignore --durations 5 -r fExXs \
        nova_vqos/tests/functional/test_watcher.py "$@" || status=$?
    # With arguments some of these tests are wanted.
    if [ $# = 0 ] && may_run_cloud watcher; then
        lab down
        lab watcher || status=$?
        lab down
    fi
    return "$status"
}

run_horizon() {
    may_run_cloud horizon || return 0
    install_packages "${BROWSER_PACKAGES[@]}"
    install_apart horizon "horizon==$HORIZON_VERSION" selenium
    HORIZON_PYTHON=$TOP/build/horizon/bin/python \
        run_pytest cloud -k test_horizon "$@"
}

run_rally() {
    may_run_cloud rally || return 0
    install_apart rally "rally-openstack==$RALLY_VERSION"
    RALLY_PYTHON=$TOP/build/rally/bin/python \
        run_pytest cloud -k test_rally "$@"
}

# install_apart NAME REQUIREMENT...: an environment of its own below build,
# since what it needs contradicts Nova's.
install_apart() {
    local venv=$TOP/build/$1
    shift
    [ "$(cat "$venv/.complete" 2>/dev/null)" != "$*" ] || return 0
    say "filling the environment $venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q "$@"
    echo "$*" >"$venv/.complete"
}

run_host() {
    may_run_hosts host || return 0
    if [ ${#begun[@]} -gt 0 ]; then
        local status=0
        run_pytest host -m 'not quiet and not long' || status=$?
        join_levels || status=$?
        [ "$status" = 0 ] || return "$status"
        run_pytest host -m 'quiet and not long'
    else
        run_pytest host -m 'not long' "$@"
    fi
}

run_host-long() {
    may_run_hosts host-long || return 0
    run_pytest host -m long "$@"
}

run_cloud() {
    if may_run_cloud cloud; then
        run_pytest cloud -m 'not long' "$@"
    fi
}

run_host-v2() {
    local as=()
    install_packages "${HOST_PACKAGES[@]}" "${GUEST_PACKAGES[@]}" \
        "${HOST_TEST_PACKAGES[@]}"
    [ "$(id -u)" = 0 ] || as=(sudo "--preserve-env=CI,NOVA_VQOS_DEBIAN_MIRROR")
    "${as[@]}" env PYTHONPATH="$TOP/devstack" PYTHONDONTWRITEBYTECODE=1 \
        "$VENV/bin/python" -W ignore -m nova_vqos.tests.host.v2_level "$@"
}

# may_run_hosts LEVEL: installs what hosts in namespaces need; skips the level
# where they cannot be.
may_run_hosts() {
    local lacking
    install_packages "${HOST_PACKAGES[@]}" "${GUEST_PACKAGES[@]}" \
        "${HOST_TEST_PACKAGES[@]}" || die "no packages for level $1"
    # NOTE: called in a condition, where nothing else ends the script.
    lacking=$(missing_requirements) || die "cannot find out what level $1 lacks"
    if [ -n "$lacking" ]; then
        skip "$1" "$lacking"
        return 1
    fi
}

# may_run_cloud LEVEL: the same for the lab's cloud.
may_run_cloud() {
    install_packages "${CLOUD_PACKAGES[@]}" || die "no packages for level $1"
    may_run_hosts "$1"
}

# run LEVEL FUNCTION ARGUMENT...
run() {
    local level=$1 started=$SECONDS
    shift
    say "level $level"
    "$@"
    say "level $level ended after $((SECONDS - started)) s"
}

skipped=()
declare -A begun=()
trap end_levels EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
install_packages "${PYTHON_PACKAGES[@]}"
install_venv
for level in "${levels[@]}"; do
    # With arguments some tests are wanted, soon.
    if [[ $# = 0 && " ${BESIDE_HOST[*]} " == *" $level "* &&
            " ${levels[*]} " == *" $level "*'host '* ]]; then
        say "level $level starts, and runs beside level host"
        begin "$level"
        continue
    fi
    run "$level" "run_$level" "$@"
done
# Without hosts, level host did not wait for them.
join_levels
say "done${skipped[*]:+, skipped: ${skipped[*]}}"
