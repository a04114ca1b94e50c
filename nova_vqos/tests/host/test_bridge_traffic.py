# SPDX-License-Identifier: Apache-2.0
"""What servers of one host send each other, as this kernel counts it."""

import json
import subprocess
import sys

import pytest

from nova_vqos.tests.host import bridge_ports

PART = bridge_ports.LOCAL / (bridge_ports.LOCAL + bridge_ports.OUTSIDE)


@pytest.fixture(scope='module', params=['bridge', 'routed'])
def mode(request):
    return request.param


@pytest.fixture(scope='module')
def shares(mode):
    done = subprocess.run(
        ['unshare', '--net', '--mount', sys.executable, '-m',
         'nova_vqos.tests.host.bridge_ports', mode],
        capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(('what', 'share'), [
    ('local', 1.0), ('outside', 0.0), ('both', PART)])
def test_the_part_that_is_local(shares, what, share):
    assert shares[what] == pytest.approx(share, abs=0.01)


def test_what_a_server_sends_itself(mode, shares):
    """A bridge sends nothing back to where it came from; a router does."""
    assert shares['to itself'] == pytest.approx(
        PART if mode == 'routed' else 0, abs=0.01)
