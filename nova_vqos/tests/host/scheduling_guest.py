# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_scheduling, as root, on the newer kernel.

Lets the probe try slices with each preemption model that the kernel can be set
to, with and without HRTICK, and prints one JSON object with what it found.
"""

import ctypes
import json
import os
import pathlib
import re
import time
import traceback

from nova_vqos.calibration.probe import probe
from nova_vqos.profile import kernel
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

_DEBUG = pathlib.Path('/sys/kernel/debug')
# What the kernel gives each thread on eight pCPUs or more: this machine has
# one, where that is a quarter.
_SLICE_NS = 2_800_000
# For all tries together, of the guest's own time.
_LIMIT_S = 60


def main():
    # As systemd would, for the first unit that has a weight.
    pathlib.Path('/sys/fs/cgroup/cgroup.subtree_control').write_text('+cpu')
    try:
        found = observe()
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def observe():
    found = {'kernel': os.uname().release,
             'unmounted': kernel.scheduling()._asdict()}
    if ctypes.CDLL(None, use_errno=True).mount(
            b'debugfs', os.fsencode(_DEBUG), b'debugfs', 0, None):
        raise OSError(ctypes.get_errno(), 'mount of debugfs')
    (_DEBUG / 'sched/base_slice_ns').write_text(str(_SLICE_NS))
    models = _DEBUG / 'sched/preempt'
    features = _DEBUG / 'sched/features'
    found['at boot'] = kernel.scheduling()._asdict()
    found['models'] = re.findall(r'\w+', models.read_text())
    found['tried'] = []
    until_s = time.monotonic() + _LIMIT_S
    for model in found['models']:
        for hrtick in 'NO_HRTICK', 'HRTICK':
            models.write_text(model)
            features.write_text(hrtick)
            found['tried'].append(_try(until_s))
    return found


def _try(until_s):
    """Try slices, until a pCPU was idle enough."""
    while True:
        result = probe.measure(classes.DEFAULT_SLICES_US)
        if (all(one.enforced is not None for one in result.outcomes.values())
                or time.monotonic() > until_s):
            return {'preemption': result.preemption, 'hrtick': result.hrtick,
                    'tick_us': result.tick_us, 'outcomes': {
                        name: probe_result.document(one)
                        for name, one in result.outcomes.items()}}
        time.sleep(1)


if __name__ == '__main__':
    main()
