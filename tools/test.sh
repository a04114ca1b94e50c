#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs levels of tests, all of those that are named whatever fails.
#
# A level's function is called by its name.
# shellcheck disable=SC2329

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
# Of these, quick is what a newcomer runs, and what a gate begins with.
QUICK=(unit functional-smoke host-smoke)
REST=(functional-rest lint docs host-rest package cloud-rest slices record)
# Each of level host's and level cloud's tests is in one of their parts.
MORE=(functional host host-nightly cloud cloud-nightly fuzz package-33 versions
    upstream upgrade pages rating watcher horizon rally deb containers host-v2)
NIGHTLY=(lint docs unit functional versions host host-nightly cloud
    cloud-nightly fuzz upstream upgrade pages rating watcher horizon rally deb
    containers host-v2 record)
SLICES_FILE=$TOP/nova_vqos/tests/gate/slices.toml
mapfile -t SLICES < <(sed -n 's/^\[\(.*\)\]$/slice-\1/p' "$SLICES_FILE")
# A level that computes runs beside one that waits for guests much of the time,
# and leaves the CPU to that.
declare -A BESIDE=([lint]=host-rest [docs]=host-rest [package]=cloud-rest)
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
       tools/test.sh --record | --budget

Installs what it needs (packages of the distribution, as root or by sudo, and
a virtual environment in .venv), runs the named levels, all of them whatever
fails, and prints a table of how they ended. Reports are in build/reports. The
default is quick. Minutes are those of one run on two CPUs (CONTRIBUTING.rst),
without installation.

  quick       unit, functional-smoke, host-smoke                   (6 min)
  rest        what a gate has besides: functional-rest, lint, docs, host-rest,
              package, cloud-rest, slices, record                  (30 min)
  gate        quick and rest: what a change has to pass            (40 min)
  nightly     all levels; what takes a name of its own in slices runs as part
              of host and cloud                                     (hours)

  lint        ruff, hacking, codespell, doc8, bandit, mypy, shellcheck (5 min)
  docs        the documentation, with warnings as errors, and links (5 min)
  unit        tests that touch nothing of the host                  (4 min)
  functional  real Nova and Placement with a fake libvirt           (9 min)
  package     sdist and wheel in a clean environment beside Nova 34 (4 min)
  host        two real libvirtd with real QEMU guests, in namespaces; three such
              labs at once, then alone what is measured (root)
  cloud       the story of tools/demo.sh on a real two-host OpenStack, and the
              project's tempest tests on it (root)
  slices      the slices that a gate runs: the one that has not run for
              longest, and two at most that are about what has changed (17 min)
  record      whether the levels that ran keep their budgets, and whether the
              record shows a slice, a test or a check that is in doubt

functional-smoke (1 min) and host-smoke (1 min) are the tests that show first
whether anything works at all; functional-rest (8 min), host-rest (6 min) and
cloud-rest (7 min) the others that measure nothing. Tests that measure, and
those that take minutes, are in slices, and run in turns:

$(printf '  %s\n' "${SLICES[@]}")

These run only if they are named:

  host-nightly   tests that measure a newer kernel under QEMU for minutes each
  cloud-nightly  what chance does to the lab's cloud, with another seed each
                 time, or NOVA_VQOS_SEED
  fuzz        damaged input for all that reads what others wrote, which level
              unit has a pass of; ten minutes for each reader, or as many as
              --fuzz-minutes says
  package-33  package beside Nova 33: with all unit tests, and some functional
              ones on eventlet and on threads
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
  host-v2     host on cgroup v2, whatever this machine has: on a newer kernel
              under QEMU (root). It takes hours: it goes on where it was, and
              takes names of files and options of its own (-- --help); what
              came out is in build/host-v2
  deb         the Debian packages, beside Debian's own Nova (root): tools/deb.sh
  containers  the images of containers, and the role that deploys them, on a
              host of the lab (root): tools/containers.sh

Arguments after -- go to pytest, where one level is named that runs it. A
level that this machine cannot run is skipped, and the reason printed; with
CI=true it fails; host-v2 always does.
NOVA_VERSION and PLACEMENT_VERSION choose the versions to test with, for example
NOVA_VERSION=33.0.2.

  --record    add the levels that ran last, by build/reports, to the record
              (nova_vqos/tests/gate/record.json): commit it
  --budget    let what they took be their budgets, budget.json beside it
EOT
}

is_level() {
    [[ " ${QUICK[*]} ${REST[*]} ${MORE[*]} ${SLICES[*]} " == *" $1 "* ]]
}

levels=() after=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --record | --budget) after=${1#--} ;;
        --) shift; break ;;
        quick) levels+=("${QUICK[@]}") ;;
        rest) levels+=("${REST[@]}") ;;
        gate) levels+=("${QUICK[@]}" "${REST[@]}") ;;
        nightly) levels+=("${NIGHTLY[@]}") ;;
        *) is_level "$1" || {
               usage >&2
               printf "error: there is no level '%s', choose from: %s\n" "$1" \
                   "quick rest gate nightly ${QUICK[*]} ${REST[*]} ${MORE[*]} ${SLICES[*]}" >&2
               exit 2
           }
           levels+=("$1") ;;
    esac
    shift
done
if [ -n "$after" ] && [ ${#levels[@]} -gt 0 ]; then
    printf 'error: --%s is about levels that have run, and runs none\n' \
        "$after" >&2
    exit 2
fi
[ ${#levels[@]} -gt 0 ] || levels=("${QUICK[@]}")
if [ $# -gt 0 ]; then
    for level in "${levels[@]}"; do
        case $level in
            lint | docs | *package* | versions | upstream | upgrade | deb \
                | slices | record)
                printf 'error: level %s takes no arguments (%s)\n' \
                    "$level" "$*" >&2
                exit 2 ;;
        esac
    done
fi

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
cd "$TOP"

# gate ARGUMENT...: what runs, judges and chooses; see its --help.
gate() {
    PYTHONDONTWRITEBYTECODE=1 "$VENV/bin/python" -W ignore \
        -m nova_vqos.tests.gate "$@"
}

# run_pytest DIRECTORY MARKERS ARGUMENT...: tests of a level, below
# nova_vqos/tests, in a report of the name of the level that runs; by sudo where
# that needs root.
run_pytest() {
    local tests=$1 markers=$2 as=() options=() status=0
    shift 2
    case $tests in
        host* | cloud*)
            [ "$(id -u)" = 0 ] ||
                as=(sudo "--preserve-env=CI,NOVA_VQOS_SEED,$PYTHONS")
            [[ $markers == *'not measured'* ]] || options=(--measured)
            ;;
    esac
    # shellcheck disable=SC2046,SC2086  # several files
    PYTHONDONTWRITEBYTECODE=1 "${as[@]}" "$VENV/bin/python" -W ignore \
        -m nova_vqos.tests.gate run --markers "$markers" "${options[@]}" \
        --workers "$(workers "$running" "$NOVA_VERSION")" \
        "$running" $(printf 'nova_vqos/tests/%s ' $tests) -- "$@" || status=$?
    # Other levels write there as this user.
    [ ${#as[@]} = 0 ] || sudo chown -R "$(id -u):$(id -g)" "$TOP/build/reports"
    return "$status"
}

# What a level returns that this machine cannot run.
SKIPPED=77

# skip LEVEL REASON: fails where CI=true promised that all levels run.
skip() {
    [ "${CI:-}" != true ] || die "level $1 cannot run here: $2"
    say "level $1 is skipped: $2"
    return "$SKIPPED"
}

run_lint() {
    "$VENV/bin/pre-commit" run --all-files --show-diff-on-failure --color never
}

run_docs() { "$TOP/tools/docs.sh"; }

run_unit() { run_pytest unit '' "$@"; }

run_fuzz() { run_pytest unit/fuzz '' --fuzz-minutes 10 "$@"; }

run_functional() { run_pytest functional '' "$@"; }

run_functional-smoke() { run_pytest functional smoke "$@"; }

run_functional-rest() { run_pytest functional 'not smoke' "$@"; }

run_package() { "$TOP/tools/package.sh" "${NOVA_VERSIONS[-1]}"; }

run_package-33() { "$TOP/tools/package.sh" "${NOVA_VERSIONS[0]}"; }

run_deb() { "$TOP/tools/deb.sh"; }

run_containers() {
    may_run_hosts containers || return
    "$TOP/tools/containers.sh" "$@"
}

# begin LEVEL: in the background. join_levels prints its output.
begin() {
    local level=$1
    rm -f "$TOP/build/reports/$level".{xml,json}
    # In a session of its own, so that all of it can be ended. Where the kernel
    # groups tasks by session, such a group has a nice value too, and without
    # it the one of its tasks counts among themselves alone.
    # shellcheck disable=SC2016  # the inner shell's
    setsid bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null
        exec nice -n 19 "$@"' bash "$TOP/tools/test.sh" "$level" \
        >"$TOP/build/$level.log" 2>&1 &
    begun[$level]=$!
}

# join_levels: waits for those that were begun.
join_levels() {
    local level
    for level in "${!begun[@]}"; do
        wait "${begun[$level]}" || failed=1
        unset "begun[$level]"
        cat "$TOP/build/$level.log"
    done
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
    local results=$TOP/build/upstream status=0 able=0
    mkdir -p "$results"
    "$VENV/bin/python" -m nova_vqos.tests.upstream.functional \
        --output "$results" || status=$?
    may_run_cloud upstream || able=$?
    if [ "$able" = 0 ]; then
        lab upstream --output "$results" || status=$?
        run_pytest cloud/test_grenade.py '' || status=$?
    fi
    return $((status ? status : able))
}

run_upgrade() {
    may_run_cloud upgrade || return
    local status=0
    lab upgrade --back || status=$?
    lab down
    return "$status"
}

run_pages() {
    run_docs
    install_packages "${BROWSER_PACKAGES[@]}"
    install_apart pages selenium
    PAGES_PYTHON=$TOP/build/pages/bin/python run_pytest pages '' "$@"
}

run_rating() {
    may_run_hosts rating || return
    install_apart rating/cloudkitty "cloudkitty==$CLOUDKITTY_VERSION" \
        'SQLAlchemy<2.1'
    install_apart rating/ceilometer "ceilometer==$CEILOMETER_VERSION"
    CLOUDKITTY_PYTHON=$TOP/build/rating/cloudkitty/bin/python \
        CEILOMETER_PYTHON=$TOP/build/rating/ceilometer/bin/python \
        run_pytest 'host/test_rating.py host/test_ceilometer.py' '' "$@"
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
    if [ $# = 0 ]; then
        may_run_cloud watcher || return $((status ? status : $?))
        lab down
        lab watcher || status=$?
        lab down
    fi
    return "$status"
}

run_horizon() {
    may_run_cloud horizon || return
    install_packages "${BROWSER_PACKAGES[@]}"
    install_apart horizon "horizon==$HORIZON_VERSION" selenium
    HORIZON_PYTHON=$TOP/build/horizon/bin/python \
        run_pytest cloud/test_horizon.py '' "$@"
}

run_rally() {
    may_run_cloud rally || return
    install_apart rally "rally-openstack==$RALLY_VERSION"
    RALLY_PYTHON=$TOP/build/rally/bin/python \
        run_pytest cloud/test_rally.py '' "$@"
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

run_host() { run_hosts host 'not nightly' "$@"; }

run_host-smoke() { run_hosts host smoke "$@"; }

run_host-rest() { run_hosts host "not smoke and $NO_SLICE" "$@"; }

run_host-nightly() { run_hosts host nightly "$@"; }

run_cloud() { run_on_cloud cloud 'not nightly' "$@"; }

run_cloud-rest() { run_on_cloud cloud "$NO_SLICE" "$@"; }

run_cloud-nightly() { run_on_cloud cloud/test_z_soak.py nightly "$@"; }

# What a gate has of levels host and cloud, besides its slices.
NO_SLICE='not measured and not rotation and not nightly'

run_hosts() {
    may_run_hosts "$running" || return
    run_pytest "$@"
}

run_on_cloud() {
    may_run_cloud "$running" || return
    run_pytest "$@"
}

# run_slice NAME ARGUMENT...
run_slice() {
    local level tests=()
    read -r -a tests < <(gate slice "$1")
    level=${tests[0]}
    tests=("${tests[@]:1}")
    shift
    case $level in
        host) run_hosts "${tests[*]/#/host/}" "$IN_SLICE" "$@" ;;
        cloud) run_on_cloud "${tests[*]/#/cloud/}" "$IN_SLICE" "$@" ;;
        *) "run_$level" "$@" ;;
    esac
}

IN_SLICE='(measured or rotation) and not nightly'

run_record() {
    local status=0
    gate budget "${QUICK[@]}" "${REST[@]}" "${SLICES[@]}" || status=$?
    gate check-record || status=$?
    return "$status"
}

run_host-v2() {
    local as=()
    install_packages "${HOST_PACKAGES[@]}" "${GUEST_PACKAGES[@]}" \
        "${HOST_TEST_PACKAGES[@]}"
    [ "$(id -u)" = 0 ] || as=(sudo "--preserve-env=CI,NOVA_VQOS_DEBIAN_MIRROR")
    "${as[@]}" env PYTHONPATH="$TOP/devstack" PYTHONDONTWRITEBYTECODE=1 \
        "$VENV/bin/python" -W ignore -m nova_vqos.tests.host.v2_level "$@"
}

# may_run_hosts LEVEL: installs what hosts in namespaces need; where they cannot
# be, it skips the level, by what it returns.
may_run_hosts() {
    local lacking
    install_packages "${HOST_PACKAGES[@]}" "${GUEST_PACKAGES[@]}" \
        "${HOST_TEST_PACKAGES[@]}" || die "no packages for level $1"
    # NOTE: called in a condition, where nothing else ends the script.
    lacking=$(missing_requirements) || die "cannot find out what level $1 lacks"
    [ -z "$lacking" ] || skip "$1" "$lacking"
}

# may_run_cloud LEVEL: the same for the lab's cloud.
may_run_cloud() {
    install_packages "${CLOUD_PACKAGES[@]}" || die "no packages for level $1"
    may_run_hosts "$1"
}

# cpu_s: CPU seconds of all that has ended, into the variable of that name.
cpu_s() {
    local path=$TOP/build/reports/.times
    times >"$path"
    cpu_s=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, k, /[ms]/)
        print 60 * (u[1] + k[1]) + u[2] + k[2] }' "$path")
}

# run LEVEL ARGUMENT...: to its end, whatever comes of it.
run() {
    local running=$1 began=$SECONDS status began_cpu_s part=()
    shift
    [ $# = 0 ] || part=(--part)
    say "level $running"
    rm -f "$TOP/build/reports/$running".{xml,json}
    cpu_s
    began_cpu_s=$cpu_s
    # In a shell of its own, which a failure ends.
    set +e
    (
        set -e
        case $running in
            slice-*) run_slice "${running#slice-}" "$@" ;;
            *) "run_$running" "$@" ;;
        esac
    )
    status=$?
    set -e
    cpu_s
    if [ "$status" = "$SKIPPED" ]; then
        skipped+=("$running")
    else
        [ "$status" = 0 ] || failed=1
        gate ended "$running" "$status" $((SECONDS - began)) \
            "$(awk "BEGIN { print $cpu_s - $began_cpu_s }")" "${part[@]}"
    fi
    say "level $running ended with $status after $((SECONDS - began)) s"
}

skipped=() failed=0 cpu_s=0
declare -A begun=()
trap end_levels EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$TOP/build/reports"
install_packages "${PYTHON_PACKAGES[@]}"
install_venv
case $after in
    record) gate record; exit ;;
    budget) gate budget --write "${QUICK[@]}" "${REST[@]}" "${SLICES[@]}"; exit ;;
esac

# Read to its end before it runs, so that the file may change meanwhile.
main() {
    local ran=() level chosen name beside
    for level in "${levels[@]}"; do
        if [ "$level" = slices ]; then
            chosen=$(gate choose) || failed=1
            for name in $chosen; do
                run "$name"
                ran+=("$name")
            done
            continue
        fi
        ran+=("$level")
        # With arguments some tests are wanted, soon.
        beside=${BESIDE[$level]:-}
        if [[ $# = 0 && -n $beside &&
                " ${levels[*]} " == *" $level "*"$beside "* ]]; then
            say "level $level starts, and runs beside level $beside"
            begin "$level"
            continue
        fi
        run "$level" "$@"
        # What comes after it may measure.
        [[ " ${BESIDE[*]} " != *" $level "* ]] || join_levels
    done
    join_levels
    say "how levels ended, reports are in build/reports"
    gate table "${ran[@]}"
    [ ${#skipped[@]} = 0 ] || say "skipped: ${skipped[*]}"
    if [ "${ran[*]}" = "${QUICK[*]}" ]; then
        say "not run: ${REST[*]}: tools/test.sh rest runs these, and" \
            "tools/test.sh --help names more"
    fi
    exit "$failed"
}

main "$@"
