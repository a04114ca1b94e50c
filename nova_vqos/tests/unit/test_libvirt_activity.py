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

"""What libvirt tells of domains' work, as versions 9.0 and later answer."""

import threading

import libvirt
import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import iostats
from nova_vqos.hypervisor import libvirt_activity
from nova_vqos.hypervisor import libvirt_session
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import activity
from nova_vqos.tests.unit import fake_hypervisor as fakes

LIMIT_S = 20
DEVICES = {
    'net.count': 1, 'net.0.name': 'tap0', 'net.0.rx.bytes': 1000,
    'net.0.rx.pkts': 10, 'net.0.rx.errs': 0, 'net.0.rx.drop': 3,
    'net.0.tx.bytes': 500, 'net.0.tx.pkts': 5, 'net.0.tx.errs': 0,
    'net.0.tx.drop': 0, 'block.count': 1, 'block.0.name': 'vda',
    'block.0.path': '/disk', 'block.0.backingIndex': 1, 'block.0.rd.reqs': 7,
    'block.0.rd.bytes': 7000, 'block.0.wr.reqs': 4, 'block.0.wr.bytes': 4000}
VCPUS = {'vcpu.current': 2, 'vcpu.maximum': 4}


def vcpu(number, **counters):
    return {f'vcpu.{number}.state': 1, f'vcpu.{number}.time': 5} | {
        f'vcpu.{number}.{name}.sum': count
        for name, count in counters.items()}


class Domain:
    def __init__(self, uuid, number):
        self.uuid = uuid
        self.number = number

    def UUIDString(self):
        return self.uuid

    def ID(self):
        return self.number


class Daemon:
    """A daemon that answers with what its domains did, and no more.

    :ivar domains: number and statistics, by UUID
    """

    def __init__(self):
        self.domains = {fakes.UUID: (7, DEVICES | VCPUS)}
        self.lookups = []
        self.asked = []
        self.error = None

    def lookupByUUIDString(self, uuid):
        self.lookups.append(uuid)
        if uuid not in self.domains:
            error = libvirt.libvirtError('no domain')
            error.err = (libvirt.VIR_ERR_NO_DOMAIN, 10, 'no domain', 2, '',
                         None, None, 0, 0)
            raise error
        return Domain(uuid, self.domains[uuid][0])

    def isAlive(self):
        return True

    def domainListGetStats(self, domains, groups, flags):
        if self.error is not None:
            raise self.error
        assert groups == (
            libvirt.VIR_DOMAIN_STATS_INTERFACE
            | libvirt.VIR_DOMAIN_STATS_BLOCK | libvirt.VIR_DOMAIN_STATS_VCPU)
        assert flags == libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        self.asked.append({domain.uuid for domain in domains})
        return [(Domain(domain.uuid, self.domains[domain.uuid][0]),
                 self.domains[domain.uuid][1]) for domain in domains
                if domain.uuid in self.domains]


@pytest.fixture
def daemon():
    return Daemon()


@pytest.fixture
def session(daemon, monkeypatch):
    made = libvirt_session.Session('test:///default', '/none')
    monkeypatch.setattr(made, '_connection', daemon)
    return made


@pytest.fixture
def runs():
    return {fakes.UUID: {0: schedstat.ThreadRun(900, 8, 70)}}


@pytest.fixture
def reader(session, runs):
    return libvirt_activity.ActivityReader(session, lambda _uuids: runs)


def test_one_call_tells_of_all(reader, daemon):
    daemon.domains[fakes.OTHER_UUID] = (8, VCPUS)
    assert reader.read([fakes.UUID, fakes.OTHER_UUID]) == {
        fakes.UUID: activity.Activity(
            7, {'interface tap0': 15, 'disk vda': 11}, {0: 70}, {}),
        fakes.OTHER_UUID: activity.Activity(8, {}, {}, {})}
    assert daemon.asked == [{fakes.UUID, fakes.OTHER_UUID}]


def test_only_who_is_wanted_is_asked(reader, daemon):
    daemon.domains[fakes.OTHER_UUID] = (8, VCPUS)
    reader.read([fakes.UUID])
    reader.read([])
    assert daemon.asked == [{fakes.UUID}]


def test_each_is_looked_up_once_in_each_connection(reader, daemon, session,
                                                   monkeypatch):
    for _ in range(3):
        reader.read([fakes.UUID])
    assert daemon.lookups == [fakes.UUID]
    again = Daemon()
    monkeypatch.setattr(session, '_connection', again)
    reader.read([fakes.UUID])
    assert again.lookups == [fakes.UUID]


def test_who_is_gone_is_left_out(reader, daemon):
    assert set(reader.read([fakes.UUID, fakes.OTHER_UUID])) == {fakes.UUID}
    daemon.domains = {fakes.UUID: (-1, VCPUS)}
    assert reader.read([fakes.UUID]) == {}
    daemon.domains = {}
    assert reader.read([fakes.UUID]) == {}


def test_one_that_cannot_be_found_does_not_hide_others(reader, daemon,
                                                      monkeypatch):
    find = daemon.lookupByUUIDString

    def find_or_fail(uuid):
        if uuid == fakes.OTHER_UUID:
            raise libvirt.libvirtError('something else')
        return find(uuid)
    monkeypatch.setattr(daemon, 'lookupByUUIDString', find_or_fail)
    assert set(reader.read([fakes.UUID, fakes.OTHER_UUID])) == {fakes.UUID}


def test_without_an_answer_it_is_unavailable(reader, daemon, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(reader, '_bulk', iostats.BulkReader(0.05))
    monkeypatch.setattr(daemon, 'domainListGetStats',
                        lambda *_arguments: go_on.wait(LIMIT_S) and [])
    with pytest.raises(base.Unavailable, match='no statistics within'):
        reader.read([fakes.UUID])
    go_on.set()


def test_an_error_of_libvirts_is_unavailable(reader, daemon):
    daemon.error = libvirt.libvirtError('unsupported')
    with pytest.raises(base.Unavailable, match='gives no statistics'):
        reader.read([fakes.UUID])


def test_without_a_connection_it_is_unavailable(reader, session, monkeypatch):
    monkeypatch.setattr(session, '_connection', None)
    with pytest.raises(base.Unavailable, match='not connected'):
        reader.read([fakes.UUID])


def test_a_domain_with_a_job_does_not_tell_of_its_disks():
    assert libvirt_activity.requests({
        name: value for name, value in DEVICES.items()
        if 'reqs' not in name}) is None


@pytest.mark.parametrize('name', [
    'directed_yield_attempted', 'wfe_exit_stat', 'instruction_diagnose_44',
    'diagnose_44', 'instruction_diagnose_9c', 'diagnose_9c'])
def test_waits_of_each_architecture(name):
    found = VCPUS | vcpu(0, exits=900, **{name: 5}) | vcpu(3, **{name: 0})
    assert libvirt_activity.waits(found) == {0: 5, 3: 0}


def test_waits_of_one_kind_and_another_are_added():
    found = VCPUS | vcpu(1, instruction_diagnose_44=3,
                         instruction_diagnose_9c=4, halt_exits=9)
    assert libvirt_activity.waits(found) == {1: 7}


def test_without_counters_there_are_no_waits():
    assert libvirt_activity.waits(VCPUS | vcpu(0) | vcpu(1)) == {}
    assert libvirt_activity.waits({}) == {}


def test_a_number_of_vcpus_without_bounds_ends():
    assert libvirt_activity.waits({'vcpu.maximum': 2**32}) == {}
