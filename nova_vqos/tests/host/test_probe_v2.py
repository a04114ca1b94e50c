# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""The probe on cgroup v2: on a newer kernel, emulated, see newer_machine."""

import os

import pytest

from nova_vqos.tests.host import newer_machine

TIMEOUT_S = 240

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def test_what_a_newer_kernel_enforces(tmp_path):
    try:
        newer_machine.check()
        kernel = newer_machine.fetch_kernel()
    except newer_machine.Lacking as error:
        if os.environ.get('CI') == 'true':
            raise
        pytest.skip(str(error))
    seen = newer_machine.run_module(
        'nova_vqos.tests.host.cgroup_v2_probe', tmp_path, kernel=kernel,
        timeout_s=TIMEOUT_S)
    assert 'failed' not in seen, seen['failed']
    assert 'cgroup.subtree_control' in seen['refused']
    assert seen['outcomes']['default']['enforced']
    assert seen['outcomes']['cache']['enforced'], seen['outcomes']
    assert seen['left'] == []
