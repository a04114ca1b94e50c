#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests the package in clean environments, beside each supported Nova.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
# Of the functional tests: what hosts report, and how servers come and move.
SOME=(test_live_migration.py test_report.py)
# Of the unit tests: what Nova loads, and the files that come with it.
SOME_UNIT=(hooks scheduler virt test_nova_imports.py test_sample_config.py
    test_validators.py)

usage() {
    cat <<EOT
usage: tools/package.sh [--whole] [--keep] [NOVA-VERSION...]

Builds the sdist and, from it, the wheel. Then, for each Nova (by default the
supported ones: ${NOVA_VERSIONS[*]}), in a new environment with that Nova and
the Placement of its release: installs the wheel, puts the tests of the sdist
beside it, and runs the tests of the wheel. With Nova 33 it also runs the unit
tests and some of the functional ones, on eventlet and on threads; with Nova 34,
which tools/test.sh runs all tests with, the unit tests that have to do with
Nova. Then it uninstalls the wheel, and compares the environment with what it
was before. It also makes the wheel's bill of materials.

  --whole  run all of both with each Nova
  --keep   keep the environments, in build/package
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
# shellcheck source=tools/lib/build.sh
. "$TOP/tools/lib/build.sh"
WORK=$TOP/build/package
PYTHON=${PYTHON:-python3}
# Of one run of tests.
LIMIT_S=3600
# Beside each Nova the Placement of its release, whatever other levels use.
unset PLACEMENT_VERSION

whole='' keep='' versions=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --whole) whole=yes ;;
        --keep) keep=yes ;;
        3[34].*) versions+=("$1") ;;
        *) usage >&2
           die "there is no support for Nova '$1' (33 or 34, as in 33.0.2)" ;;
    esac
    shift
done
[ ${#versions[@]} -gt 0 ] || versions=("${NOVA_VERSIONS[@]}")

# files_of ENVIRONMENT: directories, and files with their sums, but what Python
# caches.
files_of() {
    (cd "$1" && {
        find . -name __pycache__ -prune -o -type d -print | sort
        find . -name __pycache__ -prune -o -type f -print0 |
            xargs -0 sha256sum | sort -k2
    })
}

# run_tests NOVA-VERSION NAME TEST...: tests of one level, by their paths below
# nova_vqos/tests.
run_tests() {
    local version=$1 environment=$WORK/nova-$1 name=$2 tests
    shift 2
    tests=$(tests_of "$environment")
    say "$name"
    # Elsewhere: Python must not find the checkout.
    # shellcheck disable=SC2046  # none, or several words
    (cd "$WORK" && NOVA_VQOS_SOURCE=$WORK/source NOVA_VQOS_SBOM=$sbom \
        PYTHONDONTWRITEBYTECODE=1 \
        timeout --foreground "$LIMIT_S" "$environment/bin/python" -m \
        pytest -q -p no:cacheprovider -W ignore -r fE \
        $(workers "${1%%/*}" "$version") "${@/#/$tests/}")
}

# tests_of ENVIRONMENT: where tests are looked for in the installed package.
tests_of() {
    local package
    package=$(echo "$1"/lib/python3*/site-packages/nova_vqos)
    echo "$package/tests"
}

# check NOVA-VERSION
check() {
    local version=$1 environment=$WORK/nova-$1
    local unit=(unit) functional=(functional)
    say "a clean environment with Nova $version"
    "$PYTHON" -m venv --upgrade-deps "$environment"
    install_beside_nova "$environment/bin/pip" "$version"
    files_of "$environment" >"$environment.before"
    "$environment/bin/pip" install -q --no-deps "$WORK"/dist/*.whl
    "$environment/bin/pip" check
    cp -r "$WORK/sdist/nova_vqos/tests" "$(tests_of "$environment")"
    run_tests "$version" "the wheel beside Nova $version" package
    if [ -z "$whole" ]; then
        functional=("${SOME[@]/#/functional/}")
        if [ "${version%%.*}" = 34 ]; then
            # The levels unit and functional run with it, from a checkout.
            unit=("${SOME_UNIT[@]/#/unit/}")
            functional=()
        fi
    fi
    run_tests "$version" "unit tests beside Nova $version" "${unit[@]}"
    if [ "${version%%.*}" = 33 ]; then
        OS_NOVA_DISABLE_EVENTLET_PATCHING=false run_tests "$version" \
            "functional tests with Nova $version on eventlet" \
            "${functional[@]}"
    fi
    if [ ${#functional[@]} -gt 0 ]; then
        OS_NOVA_DISABLE_EVENTLET_PATCHING=true run_tests "$version" \
            "functional tests with Nova $version on threads" \
            "${functional[@]}"
    fi
    rm -r "$(tests_of "$environment")"
    "$environment/bin/pip" uninstall -q --yes nova_vqos
    files_of "$environment" >"$environment.after"
    diff "$environment.before" "$environment.after" ||
        die "nova_vqos left these files beside Nova $version"
    say "nova_vqos left nothing beside Nova $version"
    [ -n "$keep" ] || rm -rf "$environment"
}

rm -rf "$WORK"
mkdir -p "$WORK"
trap '[ -n "$keep" ] || rm -rf "$WORK"' EXIT
build "$WORK"
"$TOP/tools/sbom.sh" "$WORK"/dist/*.whl
sbom=$(echo "$TOP"/build/sbom/*.cdx.json)
for version in "${versions[@]}"; do
    check "$version"
done
