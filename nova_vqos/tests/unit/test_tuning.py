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

import pytest

from nova_vqos import policy
from nova_vqos import profile
from nova_vqos import tuning
from nova_vqos import units
from nova_vqos.tests.unit import test_profile


def tune(pcpus=(0,), cgroup_version=1, **changes):
    values = {'vcpus': 2, 'units': 100} | changes
    return tuning.tune(policy.ServerPolicy(**values),
                       test_profile.make_profile(), pcpus,
                       cgroup_version=cgroup_version)


def test_a_hard_cap_has_a_quota():
    assert tune() == tuning.Tune(units.CpuCap(20_000, 50_000), 1024)


def test_shares_are_those_of_the_cgroup_version():
    assert tune(cgroup_version=2).shares == 100


def test_the_slowest_pcpu_counts():
    assert tune(pcpus=(0, 4)).cap == units.CpuCap(50_000, 50_000)


def test_a_floor_has_no_quota():
    assert tune(cap='floor') == tuning.Tune(None, 1024)


def test_a_floor_that_is_too_fast_is_refused_too():
    with pytest.raises(units.HostTooSlow):
        tune(cap='floor', units=102, pcpus=(4,))


def test_no_units_no_tuning():
    assert tune(units=None, quantum_class='io') is None


def test_a_pcpu_that_was_not_measured():
    with pytest.raises(profile.ProfileInvalid, match='pCPU 77'):
        tune(pcpus=(77,))
