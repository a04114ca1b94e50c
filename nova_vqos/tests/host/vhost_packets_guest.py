# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_vhost_packets, as root, on the newer kernel.

Prints one JSON object: what packets that a worker of vhost receives cost, and
are billed; and the bills of servers with vhost.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import traceback

from nova_vqos.calibration.io import measure
from nova_vqos.tests.host import vhost_tap

MODES = ('bridge', 'openvswitch')
CALIBRATED = (64, 256, 1024, 1514)
#: Some of them left out of the calibration.
SIZES = (64, 128, 600, 1280, 1514)
_SWEEPS = 4
_PAIRS = '4'


def main():
    try:
        found = {'costs': costs(),
                 'bills': {mode: bills(mode) for mode in MODES}}
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def costs():
    """:returns: in ns, billed and measured, by mode and size"""
    pcpus = sorted(os.sched_getaffinity(0))
    ways = [(way, 'rx') for mode in MODES
            for way in (mode, vhost_tap.with_vhost(mode))]
    with contextlib.closing(vhost_tap.Bench(
            MODES, (pcpus[0], pcpus[-1]), apart=False,
            sizes=sorted({*CALIBRATED, *SIZES}))) as bench:
        taken = measure.sweep('network', ways, bench.sweep, _SWEEPS,
                              float('inf'))
    found = {}
    for mode in MODES:
        cost = measure.summary({size: taken[mode, 'rx'][size]
                                for size in CALIBRATED}).cost
        found[mode] = {size: [
            float(cost.total_ns(1, size)), statistics.median(
                one.kernel for one in taken[
                    vhost_tap.with_vhost(mode), 'rx'][size])]
            for size in SIZES}
    return found


def bills(mode):
    """:returns: see tap_servers"""
    done = subprocess.run(
        ['unshare', '--net', '--mount', sys.executable, '-m',
         'nova_vqos.tests.host.tap_servers', mode, '1', 'vhost',
         '--sweeps', str(_SWEEPS), '--pairs', _PAIRS],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if __name__ == '__main__':
    main()
