# SPDX-License-Identifier: Apache-2.0
"""What a host says of itself."""

import datetime
from decimal import Decimal
import json
import logging
import os

import pytest

from nova_vqos import agent_state
from nova_vqos import core_types
from nova_vqos import hooks
from nova_vqos import host_stats
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import validity
from nova_vqos.quantum import occupancy
from nova_vqos.tests.functional import host_files
from nova_vqos.virt import host_state

PCPUS = (0, 1)


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(fingerprint, 'of_host',
                        lambda emulator=None: dict(host_files.FINGERPRINT))
    monkeypatch.setattr(hooks, 'is_installed', lambda: False)


@pytest.fixture
def files(tmp_path):
    with host_files.HostFiles('compute1') as made:
        yield made


@pytest.fixture
def reporter(files):
    return make_reporter(files)


def make_reporter(files, **options):
    return host_state.HostReporter(
        files.profile_path, files.agent_state_path, 0.05,
        files.verification_path, **options)


def test_a_valid_profile(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6, '2': 9.0})
    report = reporter.report(PCPUS)
    assert report.valid
    assert report.present
    assert report.capacity_cu == 210
    stats = report.stats()
    assert stats.profile == host_stats.VALID
    assert stats.profile_id == document.load(files.profile_path).id
    assert stats.slowest_cu == 60
    assert stats.fastest_cu == 150
    # Two ticks of 4 ms in the longest period, 1 s.
    assert stats.least_cu == Decimal('0.48')


@pytest.mark.parametrize(('coefficient', 'slowest', 'least'), [
    (0.1 + 0.2, '30.000000000000004', '0.24000000000000002'),
    (1000.0, '100000', '800'),
    (0.001, '0.1', '0.0008')])
def test_speeds_are_exact_texts(files, reporter, coefficient, slowest, least):
    files.calibrate({'0-1': coefficient})
    stats = reporter.report(PCPUS).stats()
    texts = host_stats.encode(stats)
    assert (texts['vqos_slowest_cu'], texts['vqos_least_cu']) == (slowest,
                                                                  least)
    assert host_stats.decode(texts.values()) == stats


@pytest.mark.parametrize(('break_it', 'problem'), [
    (lambda files: files.lose_profile(), 'nova-vqos-calibrate'),
    (lambda files: files.truncate_profile(), 'profile.yaml'),
    (lambda files: files.open_profile_to_all(), '0666'),
    (lambda files: files.calibrate({'0-1': 1.0}, fingerprint={
        'cpu_model': 'another', 'tick_us': '4000'}), "was 'another'"),
    (lambda files: files.calibrate({'0-1': 1.0}, relative_width=0.2),
     'interval'),
    (lambda files: files.calibrate({'0': 1.0}), 'pCPU 1 is not in'),
])
def test_a_profile_that_breaks_is_seen(files, reporter, break_it, problem):
    files.calibrate({'0-1': 1.0})
    assert reporter.report(PCPUS).valid
    break_it(files)
    report = reporter.report(PCPUS)
    assert problem in report.problem
    # Stats that are no scalars, or lack a key, stop the resource tracker.
    texts = host_stats.encode(report.stats())
    assert tuple(texts) == host_stats.KEYS
    assert {type(text) for text in texts.values()} == {str}
    assert problem in host_stats.decode(texts.values()).profile
    assert report.traits() == (
        {'CUSTOM_VQOS_SELLS_UNITS'} if report.present else set())
    files.calibrate({'0-1': 1.0})
    assert reporter.report(PCPUS).valid


def test_a_profile_that_was_found_to_be_stale(files, reporter):
    """Until the host is calibrated again: a newer profile is another one."""
    files.calibrate({'0-1': 1.0})
    found = document.load(files.profile_path)
    for verdict in 'ok', 'drifted', 'unknown':
        validity.store(files.verification_path, found.id, verdict,
                       [{'pcpus': '0-1', 'drift': '+0.1%'}])
        assert reporter.report(PCPUS).valid
    validity.store(files.verification_path, found.id, 'stale',
                   [{'pcpus': '0-1', 'drift': '-40.0%'}])
    assert 'pCPUs 0-1 have drifted by -40.0%' in (
        reporter.report(PCPUS).problem)
    # That it is unknown is no reason to sell it again.
    validity.store(files.verification_path, found.id, 'unknown', [])
    assert not reporter.report(PCPUS).valid
    validity.store(files.verification_path, found.id, 'ok', [])
    assert reporter.report(PCPUS).valid
    files.calibrate({'0-1': 0.6})
    assert reporter.report(PCPUS).valid


@pytest.mark.parametrize('text', [
    '{"schema": 1' + '0' * 400 + '}',
    '', '[]', '[' * 9999, '{"schema": 1}',
    '{"schema": 1, "profile_id": 5, "verdict": "stale"}'])
def test_a_verification_that_cannot_be_read(files, reporter, text):
    files.calibrate({'0-1': 1.0})
    with open(files.verification_path, 'w') as file:
        file.write(text)
    assert reporter.report(PCPUS).valid


def test_a_verification_that_others_may_write(files, reporter):
    files.calibrate({'0-1': 1.0})
    validity.store(files.verification_path,
                   document.load(files.profile_path).id, 'stale',
                   [{'pcpus': '0-1', 'drift': '-40.0%'}])
    os.chmod(files.verification_path, 0o666)
    assert reporter.report(PCPUS).valid


def test_presence_of_a_profile(files, reporter):
    assert not reporter.report(PCPUS).present
    files.calibrate({'0-1': 1.0})
    files.truncate_profile()
    assert reporter.report(PCPUS).present


def test_no_shared_pcpu(files, reporter):
    files.calibrate({'0-1': 1.0})
    assert 'no pCPU' in reporter.report(()).problem


def test_an_obstacle_goes_before_all_else(files, reporter):
    files.calibrate({'0-1': 1.0})
    report = reporter.report(PCPUS, 'no cgroups')
    assert not report.valid
    assert report.problem == 'no cgroups'


def test_an_unchanged_profile_is_parsed_once(files, reporter, monkeypatch):
    files.calibrate({'0-1': 1.0})
    parsed = []
    loads = document.loads
    monkeypatch.setattr(document, 'loads', lambda content: parsed.append(
        content) or loads(content))
    for _ in range(3):
        assert reporter.report(PCPUS).valid
    assert len(parsed) == 1
    files.calibrate({'0-1': 2.0})
    # The writer of a file reads it back.
    parsed.clear()
    for _ in range(3):
        assert reporter.report(PCPUS).capacity_cu == 400
    assert len(parsed) == 1


def test_a_failing_fingerprint_is_a_problem(files, reporter, monkeypatch):
    files.calibrate({'0-1': 1.0})

    def fail(emulator=None):
        raise ZeroDivisionError('no clock')

    monkeypatch.setattr(fingerprint, 'of_host', fail)
    assert reporter.report(PCPUS).problem == 'no clock'


def test_the_emulator_of_the_profile_is_asked(files, reporter, monkeypatch):
    measured = {**host_files.FINGERPRINT, 'emulator': '/opt/qemu',
                'emulator_sha256': 'aa'}
    files.calibrate({'0-1': 1.0}, fingerprint=measured)
    asked = []
    monkeypatch.setattr(fingerprint, 'of_host', lambda emulator=None: (
        asked.append(emulator) or {**measured, 'emulator_sha256': 'bb'}))
    assert 'emulator_sha256' in reporter.report(PCPUS).problem
    assert asked == ['/opt/qemu']


def test_changes_are_logged_once(files, reporter, caplog):
    caplog.set_level(logging.INFO)
    reporter.report(PCPUS)
    reporter.report(PCPUS)
    files.calibrate({'0-1': 1.0})
    reporter.report(PCPUS)
    reporter.report(PCPUS)
    assert [record.levelname for record in caplog.records
            if record.name == host_state.LOG.name] == ['WARNING', 'INFO']


def test_traits_of_unlike_pcpus_are_those_of_the_fastest(files, reporter):
    """A flavor that requires a tier must not be kept from them."""
    files.calibrate({'0': 2.0, '1': 0.6, '2': 9.0})
    traits = reporter.report(PCPUS).traits()
    assert 'CUSTOM_VQOS_SPEED_200' in traits
    assert 'CUSTOM_VQOS_SPEED_250' not in traits


def test_equal_pcpus_have_one_core_type(files, reporter):
    assert reporter.report(PCPUS).all_core_types == ()
    files.calibrate({'0-1': 1.5, '2': 0.6})
    report = reporter.report(PCPUS)
    assert len(report.all_core_types) == 1
    assert report.unlike_core_types == ()
    assert (report.stats().core_types, report.stats().room_cu) == ((), None)
    for units, left in ((0, 300), (100, 200), (400, 0)):
        stats = report.stats(core_types.with_servers(
            report.all_core_types, [core_types.Server(units, None, 1)]))
        assert (stats.core_types, stats.room_cu) == ((), left)


@pytest.mark.parametrize(('servers', 'largest_cu'), [
    ((), Decimal(150)), (((200, None, 2),), Decimal(50)),
    # It is rounded up.
    (((200, None, 3),), Decimal('83.333334')), (((450, None, 1),), 0)])
def test_the_largest_vcpu_that_packs(reporter, files, servers, largest_cu):
    files.calibrate({'0-1': 1.5})
    report = reporter.report(PCPUS)
    servers = [core_types.Server(*server) for server in servers]
    assert report.stats(core_types.with_servers(
        report.all_core_types, servers)).largest_vcpu_cu is None
    assert report.stats(core_types.with_servers(
        report.all_core_types, servers, exact=True)
        ).largest_vcpu_cu == largest_cu


def test_the_largest_vcpu_of_several_core_types(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6})
    types = reporter.report(PCPUS).all_core_types
    for cu, largest_cu in ((50, 100), (100, 60)):
        left = core_types.with_servers(types, [
            core_types.Server(cu, frozenset({0}), 1)], exact=True)
        assert reporter.report(PCPUS).stats(
            left).largest_vcpu_cu == largest_cu


def test_the_pieces_of_several_core_types(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6})
    report = reporter.report(PCPUS)
    types = report.all_core_types
    servers = [core_types.Server(200, frozenset({0}), 3)]
    stats = report.stats(core_types.with_servers(types, servers))
    assert (stats.pieces, stats.stranded_cu) == ((), None)
    # They are rounded up, and what is stranded down.
    stats = report.stats(core_types.with_servers(
        types, [servers[0]._replace(units=100)], exact=True))
    assert stats.pieces == (
        host_stats.Piece(60, 1), host_stats.Piece(50, 1))
    assert stats.stranded_cu == 0
    stats = report.stats(core_types.with_servers(
        types, [servers[0]._replace(vcpus=1, units=95)], exact=True))
    assert stats.pieces == (
        host_stats.Piece(60, 1), host_stats.Piece(55, 1))
    assert stats.stranded_cu == 55
    stats = report.stats(core_types.with_servers(
        types, [servers[0]._replace(vcpus=3, units=301)], exact=True))
    assert stats.pieces[1:] == (host_stats.Piece(0, 1),)


def test_core_types_of_unlike_pcpus(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6})
    report = reporter.report(PCPUS)
    rooms = core_types.with_servers(
        report.unlike_core_types, [core_types.Server(91, frozenset({0}), 1)],
        allocation_ratio=1.001)
    texts = host_stats.encode(report.stats(rooms))
    # Speed, whole room, and least CU of a vCPU, the slowest first.
    assert texts['vqos_classes'] == '60:60:0.48 150:59:1.2'
    assert (texts['vqos_room_cu'], texts['vqos_slowest_cu']) == ('119', '60')


def test_the_trait_of_the_hook(files, reporter, monkeypatch):
    files.calibrate({'0-1': 1.0})
    report = reporter.report(PCPUS)
    assert 'CUSTOM_VQOS_HOOK' not in report.traits()
    monkeypatch.setattr(hooks, 'is_installed', lambda: True)
    assert 'CUSTOM_VQOS_HOOK' in report.traits()


def test_what_the_agent_offers(files, reporter):
    pools = occupancy.Occupancy({'io': occupancy.PoolSize(1, 4)}, 5)
    files.agent_lives(classes=['io', 'root', 'cache'],
                      dd_billing=['account', 'charge'], quantum=pools)
    report = reporter.report(PCPUS)
    stats = report.stats()
    assert stats.quantum_pools == pools
    assert stats.quantum_classes == ('default', 'io', 'cache')
    assert stats.dd_billing == ('off', 'account', 'charge')
    quantum = {'CUSTOM_VQOS_QUANTUM_IO', 'CUSTOM_VQOS_QUANTUM_CACHE'}
    # Servers without units have classes too: no profile is needed.
    assert report.traits() == quantum
    files.calibrate({'0-1': 1.0})
    assert reporter.report(PCPUS).traits() >= quantum | {
        'CUSTOM_VQOS', 'CUSTOM_VQOS_DD_BILLING'}


@pytest.fixture
def calibrate(files, monkeypatch):
    """Calibrates a host of two pCPUs, of which some are online."""
    def calibrate(online='0-1'):
        found = {**host_files.FINGERPRINT, 'online_pcpus': online}
        monkeypatch.setattr(fingerprint, 'of_host',
                            lambda emulator=None: found)
        files.calibrate({'0-1': 0.5}, fingerprint=found)
    return calibrate


@pytest.mark.parametrize(('pcpus', 'cu'), [
    (1.5, 75), (0, 0), (None, None), (-1, None), ('1', None), (True, None),
    (1e9, None), (float('nan'), None)])
def test_what_the_agent_can_reserve(files, reporter, calibrate, pcpus, cu):
    calibrate()
    files.agent_lives(guarantee_pcpus=pcpus)
    report = reporter.report(PCPUS)
    assert report.stats().guarantee_cu == cu
    assert ('CUSTOM_VQOS_GUARANTEE' in report.traits()) == (cu is not None)


@pytest.mark.parametrize(('total_pcpus', 'unsold_cu'), [
    (1.5, 25), (2, 0), (0, 0), (None, None), (-1, None), ('1', None),
    (True, None), (1e9, None), (float('nan'), None), ([1], None)])
def test_what_it_can_never_reserve(files, reporter, calibrate, total_pcpus,
                                   unsold_cu):
    calibrate()
    files.agent_lives(guarantee_total_pcpus=total_pcpus)
    assert reporter.report(PCPUS).unsold_cu == unsold_cu


@pytest.mark.parametrize('online', ['0-2', 'unknown'])
def test_pcpus_that_are_not_all_can_reserve_nothing(files, reporter,
                                                    calibrate, online):
    calibrate(online)
    files.agent_lives(guarantee_pcpus=1.5, guarantee_total_pcpus=1.75)
    report = reporter.report(PCPUS)
    assert report.valid
    assert report.stats().guarantee_cu is None
    # Placement sells all of them.
    assert report.unsold_cu == 0


@pytest.mark.parametrize(('partition', 'cu'), [
    ({0, 1}, 75), ({0, 1, 2}, None), ({1}, None)])
def test_only_the_pcpus_of_a_partition_can_reserve(files, calibrate,
                                                   partition, cu):
    calibrate('0-7')
    files.agent_lives(guarantee_pcpus=1.5)
    report = make_reporter(files, guaranteed_pcpus=partition).report(PCPUS)
    assert report.valid
    assert report.stats().guarantee_cu == cu


def test_the_heartbeat(files):
    files.agent_lives()
    with open(files.agent_state_path) as file:
        seen_at = json.load(file)['seen_at']
    found = agent_state.read(files.agent_state_path)
    assert found == agent_state.AgentState(
        profile_id='', keeps_ceilings=True,
        seen_at=datetime.datetime.fromisoformat(seen_at))


@pytest.mark.parametrize('content', [
    '', 'no json', '[]', 'null', '{"seen_at": 5, "classes": 7}',
    '{"seen_at": "' + 'x' * 100 + '"}',
    '{"seen_at": "now"}', '{"seen_at": "2026-11-21T07:10:00"}',
    '[' * 50_000, '\0' * 100,
    '{"classes": [["default"], null, "root"], "dd_billing": {"off": 1}}',
    '{"quantum": [1, {"pools": 5}]}', '{"quantum": {"pools": {"io": 1e400}}}',
    '"' + 'x' * 100_000 + '"'])
def test_a_heartbeat_that_is_garbage(files, content):
    with open(files.agent_state_path, 'w') as file:
        file.write(content)
    assert agent_state.read(files.agent_state_path) == (
        agent_state.AgentState())


def test_no_heartbeat(files):
    for make in (lambda: None, lambda: os.mkdir(files.agent_state_path)):
        make()
        assert agent_state.read(files.agent_state_path) == (
            agent_state.AgentState())
