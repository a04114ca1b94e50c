# SPDX-License-Identifier: Apache-2.0
"""A profile that is verified beside a guest that wants most of the pCPU."""

import json
import os
import sys
import threading

import pytest

from nova_vqos.tests.host import calibration_run
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

PROGRAM = calibration_run.PROGRAM
PROFILE = '/etc/nova-vqos/measured.yaml'
RECORD = '/run/verification.json'
# Most of a pCPU.
CAP = (40_000, 50_000)
LIMIT_S = 240


def calibrate(host, *arguments):
    return host.run(
        [PROGRAM, *arguments], limit_s=LIMIT_S, check=False,
        env={'PYTHONPATH': os.pathsep.join(sys.path)})


@pytest.fixture
def alike(lab):
    """The host's services weigh as much as its guests.

    So that one which is not idle would take half of the pCPU.
    """
    hierarchy = lab.fast.hierarchy
    services, machine = (f'{lab.fast.cgroup}/{name}' for name in (
        cgroups.SERVICES, cgroups.MACHINE))
    before = cgroups.read_shares(hierarchy, services)
    cgroups.set_shares(hierarchy, services,
                       cgroups.read_shares(hierarchy, machine))
    yield
    cgroups.set_shares(hierarchy, services, before)


@pytest.mark.measured
def test_the_guest_is_not_disturbed(lab, guest_on, alike):
    pcpus = ','.join(map(str, sorted(lab.fast.pcpus)))
    done = calibrate(lab.fast, 'cpu', '--reference', 'gold', '--benchmark',
                     'integer', '--rounds', '4', '--widest-interval', '10',
                     '--pcpus', pcpus, '--output', PROFILE)
    assert done.returncode == 0, done.stderr
    guest = guest_on(lab.fast, cap=CAP)
    process.wait_until(lambda: guest.delivered_share(1) > 0.7, LIMIT_S,
                       'a guest that uses its cap')
    alone = guest.delivered_share(5)
    seen = []
    ended = threading.Event()

    def watch():
        while not ended.is_set():
            seen.append(guest.delivered_share(1))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = calibrate(lab.fast, 'verify', PROFILE, '--idle', '--rounds',
                         '4', '--tolerance', '0.9', '--record', RECORD,
                         '-f', 'json')
    finally:
        ended.set()
        watcher.join()
    alone = min(alone, guest.delivered_share(5))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]['verdict'] in ('ok', 'drifted')
    with open(lab.fast.path(RECORD.lstrip('/')), encoding='ascii') as file:
        assert json.load(file)['verdict'] in ('ok', 'drifted')
    assert sum(seen) / len(seen) > 0.97 * alone
