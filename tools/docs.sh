#!/usr/bin/env bash
#
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
#
# The documentation, where warnings are errors, and the links within it.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    cat <<EOT
usage: tools/docs.sh

Builds the documentation into doc/build/html, in an environment of its own
below build/, with warnings as errors; then looks whether each link of its
pages, and of README.rst, leads to a file and an anchor that are there. Links
to elsewhere are not followed.
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
    # What setuptools thinks of pbr's ways is for nobody here.
    "$ENVIRONMENT/bin/pip" install -q --no-deps -e "$TOP" \
        2>"$ENVIRONMENT/pip.log" ||
        { cat "$ENVIRONMENT/pip.log" >&2; die 'no editable install'; }
    printf '%s' "$wanted" >"$ENVIRONMENT/.wanted"
}

cd "$TOP"
install_packages "${PYTHON_PACKAGES[@]}" "${DOC_PACKAGES[@]}"
install_environment
# NOTE: what is left of pages that are gone would hide links to them.
rm -rf "$HTML"
"$ENVIRONMENT/bin/python" -W ignore -m sphinx -W --keep-going -n -q -E \
    -d "$TOP/doc/build/doctrees" -b html doc/source "$HTML"
"$ENVIRONMENT/bin/python" tools/lib/links.py "$HTML" README.rst
say "the documentation is in $HTML"
