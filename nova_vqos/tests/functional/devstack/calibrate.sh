#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Stands in for nova-vqos-calibrate, which takes minutes and the whole machine:
# keeps what it was called with, and puts a profile made before in its place.

set -euo pipefail

echo "nova-vqos-calibrate $*" >>"$RECORD"
if [ -n "${CALIBRATION_FAILS:-}" ]; then
    echo "too loud to be measured" >&2
    exit 1
fi
while [ "$1" != --output ]; do
    shift
done
install -m 0644 "$ROOT/harness/profile.yaml" "$2"
