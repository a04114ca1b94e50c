# SPDX-License-Identifier: Apache-2.0
"""libvirt's answers about domains' work, as of versions 9.0 and later."""

import threading

import libvirt
import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import activity
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.quantum import recognition
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits

VCPUS = fake_daemon.VCPUS
GROUPS = (libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_BLOCK
          | libvirt.VIR_DOMAIN_STATS_VCPU)


def vcpu(number, **counters):
    return {f'vcpu.{number}.state': 1, f'vcpu.{number}.time': 5} | {
        f'vcpu.{number}.{name}.sum': count
        for name, count in counters.items()}


@pytest.fixture
def daemon():
    return fake_daemon.FakeDaemon()


@pytest.fixture
def session(daemon, monkeypatch):
    made = libvirt_session.Session('test:///default', '/none')
    monkeypatch.setattr(made, '_connection', daemon)
    return made


@pytest.fixture
def runs():
    return {fakes.UUID: {0: base.ThreadRun(900, 8, 70)}}


@pytest.fixture
def reader(session, runs):
    return activity.ActivityReader(lambda _uuids: runs,
                                   bulk.QemuReader(session))


def test_one_call_returns_all(reader, daemon):
    daemon.run(fakes.OTHER_UUID, 'b', 8, VCPUS)
    assert reader.read([fakes.UUID, fakes.OTHER_UUID]) == {
        fakes.UUID: recognition.Activity(
            7, {'interface tap0': 15, 'disk vda': 11}, {0: 70}, {}, {0: 900},
            {0: 908}),
        fakes.OTHER_UUID: recognition.Activity(8, {}, {}, {})}
    assert daemon.calls == [(GROUPS, {fakes.UUID, fakes.OTHER_UUID})]


def test_only_who_is_wanted_is_asked(reader, daemon):
    daemon.run(fakes.OTHER_UUID, 'b', 8, VCPUS)
    reader.read([fakes.UUID])
    reader.read([])
    assert daemon.calls == [(GROUPS, {fakes.UUID})]


def test_each_is_looked_up_once(reader, daemon, session, monkeypatch):
    for _ in range(3):
        reader.read([fakes.UUID])
    assert daemon.lookups == [fakes.UUID]
    reader._qemus.retain([fakes.UUID])
    reader.read([fakes.UUID])
    assert daemon.lookups == [fakes.UUID]
    reader._qemus.retain([])
    reader.read([fakes.UUID])
    assert daemon.lookups == [fakes.UUID] * 2
    again = fake_daemon.FakeDaemon()
    monkeypatch.setattr(session, '_connection', again)
    reader.read([fakes.UUID])
    assert again.lookups == [fakes.UUID]


def test_who_is_gone_is_left_out(reader, daemon):
    assert set(reader.read([fakes.UUID, fakes.OTHER_UUID])) == {fakes.UUID}
    daemon.run(fakes.UUID, 'a', -1)
    assert reader.read([fakes.UUID]) == {}
    daemon.domains = {}
    assert reader.read([fakes.UUID]) == {}


def test_one_that_is_not_found_hides_no_other(reader, daemon, monkeypatch):
    find = daemon.lookupByUUIDString

    def find_or_fail(uuid):
        if uuid == fakes.OTHER_UUID:
            raise fake_daemon.libvirt_error('something else')
        return find(uuid)
    monkeypatch.setattr(daemon, 'lookupByUUIDString', find_or_fail)
    assert set(reader.read([fakes.UUID, fakes.OTHER_UUID])) == {fakes.UUID}


def test_without_an_answer_it_is_unavailable(reader, daemon, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(reader._qemus, '_bulk', bulk.BulkReader(0.05))
    monkeypatch.setattr(daemon, 'domainListGetStats',
                        lambda *_arguments: go_on.wait(waits.LIMIT_S) and [])
    with pytest.raises(base.Unavailable, match='no statistics within'):
        reader.read([fakes.UUID])
    go_on.set()


def test_an_error_of_libvirts_is_unavailable(reader, daemon):
    daemon.error = fake_daemon.libvirt_error('unsupported')
    with pytest.raises(base.Unavailable, match='gives no statistics'):
        reader.read([fakes.UUID])


def test_without_a_connection_it_is_unavailable(reader, session, monkeypatch):
    monkeypatch.setattr(session, '_connection', None)
    with pytest.raises(base.Unavailable, match='not connected'):
        reader.read([fakes.UUID])


def test_a_domain_with_a_job_returns_no_disks():
    assert activity.requests({
        name: value for name, value in fake_daemon.BLOCK.items()
        if 'reqs' not in name}) is None


@pytest.mark.parametrize('name', [
    'directed_yield_attempted', 'wfe_exit_stat', 'instruction_diagnose_44',
    'diagnose_44', 'instruction_diagnose_9c', 'diagnose_9c'])
def test_waits_of_each_architecture(name):
    found = VCPUS | vcpu(0, exits=900, **{name: 5}) | vcpu(3, **{name: 0})
    assert activity.waits(found) == {0: 5, 3: 0}


def test_waits_of_one_kind_and_another_are_added():
    found = VCPUS | vcpu(1, instruction_diagnose_44=3,
                         instruction_diagnose_9c=4, halt_exits=9)
    assert activity.waits(found) == {1: 7}


def test_without_counters_there_are_no_waits():
    assert activity.waits(VCPUS | vcpu(0) | vcpu(1)) == {}
    assert activity.waits({}) == {}


def test_a_number_of_vcpus_without_bounds_ends():
    assert activity.waits({'vcpu.maximum': 2**32}) == {}
