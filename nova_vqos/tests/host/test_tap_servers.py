# SPDX-License-Identifier: Apache-2.0
"""The sum of servers' bills for packets, against the CPU time that these took.

Of servers without a guest, see tap_servers.py: all that they do is for
packets, so that each part of a bill shows.
"""

import json
import statistics
import subprocess
import sys

import pytest

ROUNDS = 3
# On a quiet machine it is within 0.05; billed twice, it is above by 0.11.
TOLERANCE = 0.08
LIMIT_S = 400

pytestmark = [pytest.mark.timeout(LIMIT_S + 60), pytest.mark.measured]


@pytest.fixture(scope='module', params=[
    'bridge', pytest.param('routed', marks=pytest.mark.nightly)])
def ratios(request):
    """:returns: of the bills to what packets took, in each round, by way"""
    done = subprocess.run(
        ['unshare', '--net', '--mount', sys.executable, '-m',
         'nova_vqos.tests.host.tap_servers', request.param, str(ROUNDS)],
        capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    return {way: [one[way]['ratio'] for one in rounds] for way in rounds[0]}


def median(way, ratios):
    print(f'{way}: billed {statistics.median(ratios):.3f} of what packets '
          f'took, in {len(ratios)} rounds {min(ratios):.3f} to '
          f'{max(ratios):.3f}')
    return statistics.median(ratios)


@pytest.mark.parametrize('way', ['from outside', 'to outside', 'local'])
def test_each_cpu_second_is_billed_once(ratios, way):
    assert median(way, ratios[way]) == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize('way', ['from outside, bursts',
                                 'from outside, singly'])
def test_waking_who_reads_packets_is_not_billed(ratios, way):
    # How dear that is depends on the machine: 0.68 was seen.
    assert 0.6 < median(way, ratios[way]) < 1 + TOLERANCE
