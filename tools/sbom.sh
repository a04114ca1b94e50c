#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the bill of materials of the wheel.

set -euo pipefail

TOP=$(cd "$(dirname "$0")/.." && pwd)
CYCLONEDX_VERSION=7.5.0

usage() {
    cat <<EOT
usage: tools/sbom.sh [WHEEL]

Writes build/sbom/nova_vqos-VERSION.cdx.json, a software bill of materials in
JSON of CycloneDX 1.6: nova_vqos, the packages that it needs, and those that
these need, with their versions, licences and dependencies. Without WHEEL it
builds one of what is committed.

The versions are those of constraints.txt, and libvirt-python's is that of this
machine's libvirt. Nova, beside which nova_vqos is installed, is no part of it,
nor is the extra "report". cyclonedx-py makes the file, checks it by the schema
of CycloneDX, and makes the same one of the same packages.
EOT
}

# shellcheck source=tools/lib/install.sh
. "$TOP/tools/lib/install.sh"
WORK=$TOP/build/sbom
PYTHON=${PYTHON:-python3}

case ${1:-} in
    '') wheel= ;;
    -h | --help) usage; exit 0 ;;
    *.whl) wheel=$1 ;;
    *) usage >&2; die "'$1' is no wheel" ;;
esac

# build_wheel: prints its path. From a copy, since pbr leaves files where it
# builds.
build_wheel() {
    git clone -q --shared "$TOP" "$WORK/source"
    "$WORK/tools/bin/pip" wheel -q --no-deps --wheel-dir "$WORK/dist" \
        "$WORK/source" >&2
    echo "$WORK"/dist/*.whl
}

# describe: the main component, in the only form that cyclonedx-py reads. JSON
# of texts and of lists of them is TOML, too.
describe() {
    "$WORK/environment/bin/python" - <<'EOT'
import importlib.metadata
import json

found = importlib.metadata.metadata('nova_vqos')
needed = [one for one in found.get_all('Requires-Dist')
          if 'extra ==' not in one]
print('[project]', *(f'{key} = {json.dumps(value)}' for key, value in (
    ('name', found['Name']), ('version', found['Version']),
    ('description', found['Summary']), ('dependencies', needed),
    ('license', found['License-Expression'] or found['License']))), sep='\n')
EOT
}

rm -rf "$WORK"
mkdir -p "$WORK"
install_packages "${PYTHON_PACKAGES[@]}"
"$PYTHON" -m venv "$WORK/tools"
"$WORK/tools/bin/pip" install -q "cyclonedx-bom==$CYCLONEDX_VERSION"
[ -n "$wheel" ] || wheel=$(build_wheel)
# Without pip, which would be a component.
"$PYTHON" -m venv --without-pip "$WORK/environment"
"$WORK/tools/bin/pip" --python "$WORK/environment" install -q \
    -c "$TOP/constraints.txt" \
    "libvirt-python==$(pkg-config --modversion libvirt)" "$wheel"
describe >"$WORK/pyproject.toml"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$WORK/pyproject.toml")
sbom=$WORK/nova_vqos-$version.cdx.json
"$WORK/tools/bin/cyclonedx-py" environment --spec-version 1.6 \
    --output-format JSON --output-reproducible --validate \
    --pyproject "$WORK/pyproject.toml" --output-file "$sbom" \
    "$WORK/environment"
rm -rf "$WORK/environment" "$WORK/tools" "$WORK/source"
say "the bill of materials is $sbom"
