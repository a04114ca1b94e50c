# SPDX-License-Identifier: Apache-2.0
"""What servers of one host send each other, as this kernel counts it."""

import json
import subprocess
import sys

import pytest

from nova_vqos.tests.host import bridge_ports


@pytest.fixture(scope='module')
def shares():
    done = subprocess.run(
        ['unshare', '--net', '--mount', sys.executable, '-m',
         'nova_vqos.tests.host.bridge_ports'], capture_output=True, text=True,
        check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(('what', 'share'), [
    ('local', 1.0), ('outside', 0.0),
    ('both', bridge_ports.LOCAL / (bridge_ports.LOCAL
                                   + bridge_ports.OUTSIDE)),
    # The bridge sends nothing back to where it came from.
    ('dropped', 0.0)])
def test_the_part_that_is_local(shares, what, share):
    assert shares[what] == pytest.approx(share, abs=0.01)
