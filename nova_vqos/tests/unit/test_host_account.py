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

"""CPU time of a whole host, of either cgroup version, from a test's tree."""

import shutil

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import host_account
from nova_vqos.tests.unit import fake_host

MS_NS = 1_000_000
# With a number of its own, as another guest of the machine may take time.
ROOT_STAT = 'usage_usec 990000\nuser_usec 500000\nsystem_usec 400000\n'


@pytest.fixture(params=[(1, False), (1, True), (2, False)],
                ids=['v1', 'v1-apart', 'v2'])
def host(request, tmp_path):
    version, apart = request.param
    made = fake_host.FakeHost(tmp_path, version, 'machine/a', apart=apart)
    made.time_of(made.mount, 900)
    if version == 2:
        (made.mount / 'cpu.stat').write_text(ROOT_STAT)
    for name, used_ms in (('machine', 300), ('machine.slice', 50),
                          ('system.slice', 200), ('user.slice', 100)):
        made.time_of(made.mount / name, used_ms)
    return made


@pytest.fixture
def account(host):
    return host_account.HostAccount(str(host.root))


def read(account, tops=()):
    found = account.read(tops)
    return tuple(value / MS_NS for value in (
        found.total_ns, found.domains_ns, found.own_ns))


def test_what_domains_used_is_told_from_the_rest(account):
    assert read(account) == (900, 350, 300)


def test_domains_may_be_elsewhere(host, account):
    host.time_of(host.mount / 'servers.slice', 40)
    assert read(account) == (900, 350, 340)
    assert read(host_account.HostAccount(str(host.root)),
                ['servers.slice']) == (900, 390, 300)


def test_what_a_cgroup_used_that_went_is_kept(host, account):
    read(account)
    shutil.rmtree(host.mount / 'user.slice')
    host.time_of(host.mount / 'system.slice', 210)
    assert read(account) == (900, 350, 310)
    host.time_of(host.mount / 'user.slice', 5)
    assert read(account) == (900, 350, 315)


def test_a_cgroup_that_is_just_going_is_left_out(host, account):
    (host.mount / 'going.slice').mkdir()
    assert read(account) == (900, 350, 300)


@pytest.mark.parametrize('text', ['', 'x', 'usage_usec 5\n'])
def test_a_host_that_does_not_count_is_an_error(host, account, text):
    name = 'cpuacct.usage' if host.version == 1 else 'cpu.stat'
    (host.mount / name).write_text(text)
    with pytest.raises(base.HypervisorError):
        read(account)
    (host.mount / name).unlink()
    with pytest.raises(base.HypervisorError):
        read(account)


def test_a_host_without_cgroups_is_an_error(tmp_path):
    with pytest.raises(base.HypervisorError):
        host_account.HostAccount(str(tmp_path)).read([])
