# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What tools/package.sh and tools/deb.sh build from: sourced after install.sh,
# never run.

# build DIRECTORY: sdist and wheel of what git tracks here, as it is now, into
# DIRECTORY/dist, and the sdist's files into DIRECTORY/sdist. From a copy,
# DIRECTORY/source, since pbr leaves its own files where it builds.
build() {
    local work=$1 python=${PYTHON:-python3}
    say "sdist, and the wheel from it"
    git clone -q --shared --no-checkout "$TOP" "$work/source"
    (cd "$TOP" && git ls-files -z | while IFS= read -r -d '' name; do
        # What is deleted but not committed yet is no part of it.
        if [ -e "$name" ] || [ -L "$name" ]; then printf '%s\0' "$name"; fi
    done | tar -c --null -T -) | tar -C "$work/source" -x
    git -C "$work/source" add -A
    "$python" -m venv --upgrade-deps "$work/build"
    "$work/build/bin/pip" install -q -c "$TOP/constraints.txt" build
    "$work/build/bin/python" -m build -o "$work/dist" "$work/source" \
        >"$work/build.log" 2>&1 || {
            cat "$work/build.log"
            die 'the build failed'
        }
    mkdir "$work/sdist"
    tar -xzf "$work"/dist/*.tar.gz -C "$work/sdist" --strip-components 1
}
