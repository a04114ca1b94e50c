#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the documentation, with warnings as errors, and checks its links.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    cat <<EOT
usage: tools/docs.sh

Builds the documentation into doc/build/html, in an environment of its own
below build/, with warnings as errors. Then checks that each link of its pages
and of README.rst leads to a file and an anchor that exist. It follows no links
to other sites.
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
ENVIRONMENT=$TOP/build/docs
HTML=$TOP/doc/build/html

case ${1:-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "tools/docs.sh takes no arguments ($*)" ;;
esac

# install_environment: Sphinx, and what the modules import that it reads.
install_environment() {
    local python=${PYTHON:-python3} libvirt wanted
    libvirt=$(pkg-config --modversion libvirt)
    wanted=$(cat "$TOP"/{,doc/}requirements.txt \
        "$TOP"/{constraints.txt,setup.cfg}
        echo "$libvirt $("$python" -V) $TOP")
    if [ "$(cat "$ENVIRONMENT/.wanted" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    say "filling the virtual environment $ENVIRONMENT (a minute)"
    "$python" -m venv --upgrade-deps "$ENVIRONMENT"
    "$ENVIRONMENT/bin/pip" install -q -c "$TOP/constraints.txt" \
        "libvirt-python==$libvirt" -r "$TOP/requirements.txt" \
        -r "$TOP/doc/requirements.txt"
    # setuptools warns at length of what pbr does.
    "$ENVIRONMENT/bin/pip" install -q --no-deps -e "$TOP" \
        2>"$ENVIRONMENT/pip.log" ||
        { cat "$ENVIRONMENT/pip.log" >&2; die 'the editable install failed'; }
    printf '%s' "$wanted" >"$ENVIRONMENT/.wanted"
}

cd "$TOP"
install_packages "${PYTHON_PACKAGES[@]}" "${DOC_PACKAGES[@]}"
install_environment
# NOTE: a page that was removed since would hide broken links to it.
rm -rf "$HTML"
"$ENVIRONMENT/bin/python" -W ignore -m sphinx -W --keep-going -n -q -E \
    -d "$TOP/doc/build/doctrees" -b html doc/source "$HTML"
"$ENVIRONMENT/bin/python" tools/lib/links.py "$HTML" README.rst
say "the documentation is in $HTML"
