# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_calibrate_io, as root, on the newer kernel.

Runs ``nova-vqos-calibrate io`` with all modes, and prints one JSON object:
the profile's costs of the smallest and of full frames in ns, by mode and
direction.
"""

import json
import os
import pathlib
import socket
import subprocess
import traceback

from nova_vqos.calibration.io import traffic
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.host import calibration_run

SIZES = (64, 1514)
_PROFILE = pathlib.Path('/run/profile.yaml')


def main():
    try:
        found = {'costs': costs()}
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def costs():
    document.store(make_profiles.make_profile(
        socket.gethostname(),
        make_profiles.make_class(os.sched_getaffinity(0), 1.0),
        fingerprint=fingerprint.of_host()), str(_PROFILE))
    done = subprocess.run(
        [calibration_run.PROGRAM, 'io', str(_PROFILE), '--sweeps', '8',
         '--max-seconds', '600', '--beside-guests',
         *(word for mode in traffic.MODES for word in ('--mode', mode))],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = document.load(str(_PROFILE)).io_profile
    return {one.mode: {
        'rx': {size: one.rx.by_size[size].value for size in SIZES},
        'tx': {size: one.tx.by_size[size].value for size in SIZES}}
        for one in written.interfaces}


if __name__ == '__main__':
    main()
