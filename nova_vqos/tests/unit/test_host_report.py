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

"""What a host says of itself."""

import json
import logging
import os

import pytest

from nova_vqos import cpu_classes
from nova_vqos import fingerprint
from nova_vqos import host_report
from nova_vqos import profile as profiles
from nova_vqos import verification
from nova_vqos.hooks import install
from nova_vqos.profile import document
from nova_vqos.quantum import occupancy
from nova_vqos.tests.functional import host_files

PCPUS = (0, 1)


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(fingerprint, 'of_host',
                        lambda emulator=None: dict(host_files.FINGERPRINT))
    monkeypatch.setattr(install, 'installed_path', lambda: None)


@pytest.fixture
def files(tmp_path):
    with host_files.HostFiles('compute1') as made:
        yield made


@pytest.fixture
def reporter(files):
    return host_report.HostReporter(files.profile_path,
                                    files.agent_state_path, 0.05,
                                    files.verification_path)


STATS = {'vqos_profile', 'vqos_profile_id', 'vqos_slowest_cu',
         'vqos_fastest_cu', 'vqos_least_cu', 'vqos_classes', 'vqos_room_cu',
         'vqos_agent_seen_at', 'vqos_quantum_classes', 'vqos_quantum_pools',
         'vqos_dd_billing'}


def test_a_valid_profile(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6, '2': 9.0})
    report = reporter.report(PCPUS)
    assert report.valid
    assert report.present
    assert report.capacity_cu == 210
    stats = report.stats()
    assert stats.keys() == STATS
    assert stats['vqos_profile'] == 'valid'
    assert stats['vqos_profile_id'] == profiles.load(files.profile_path).id
    assert stats['vqos_slowest_cu'] == '60'
    assert stats['vqos_fastest_cu'] == '150'
    # Two ticks of 4 ms in the longest period, 1 s.
    assert stats['vqos_least_cu'] == '0.48'


def test_speeds_are_exact_and_plain(files, reporter):
    files.calibrate({'0-1': 0.1 + 0.2})
    assert reporter.report(PCPUS).stats()['vqos_slowest_cu'] == (
        '30.000000000000004')
    files.calibrate({'0-1': 1000.0})
    assert reporter.report(PCPUS).stats()['vqos_slowest_cu'] == '100000'


def test_stats_are_texts_whatever_happens(files, reporter):
    """Stats that are no scalars stop the resource tracker."""
    for change in (lambda: None,
                   lambda: files.calibrate({'0-1': 1.0}),
                   lambda: files.calibrate({'0': 1.0}),
                   files.open_profile_to_all, files.truncate_profile):
        change()
        stats = reporter.report(PCPUS).stats()
        assert stats.keys() == STATS
        assert all(type(value) is str for value in stats.values())


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
def test_a_profile_that_breaks_later_is_seen(files, reporter, break_it,
                                             problem):
    files.calibrate({'0-1': 1.0})
    assert reporter.report(PCPUS).valid
    break_it(files)
    report = reporter.report(PCPUS)
    assert problem in report.problem
    assert report.stats()['vqos_profile'] == report.problem
    assert report.traits() == set()
    files.calibrate({'0-1': 1.0})
    assert reporter.report(PCPUS).valid


def test_a_profile_that_was_found_to_be_stale(files, reporter):
    """Until the host is calibrated again: a newer profile is another one."""
    files.calibrate({'0-1': 1.0})
    found = profiles.load(files.profile_path)
    for verdict in 'ok', 'drifted', 'unknown':
        verification.store(files.verification_path, found.id, verdict,
                           [{'pcpus': '0-1', 'drift': '+0.1%'}])
        assert reporter.report(PCPUS).valid
    verification.store(files.verification_path, found.id, 'stale',
                       [{'pcpus': '0-1', 'drift': '-40.0%'}])
    assert 'pCPUs 0-1 have drifted by -40.0%: calibrate this host again' in (
        reporter.report(PCPUS).problem)
    # That it could not be told is no reason to sell it again.
    verification.store(files.verification_path, found.id, 'unknown', [])
    assert not reporter.report(PCPUS).valid
    verification.store(files.verification_path, found.id, 'ok', [])
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
    verification.store(files.verification_path,
                       profiles.load(files.profile_path).id, 'stale',
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
    # Whoever writes one reads it back.
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


def test_the_emulator_of_the_profile_is_asked_for(files, reporter,
                                                  monkeypatch):
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
            if record.name == host_report.LOG.name] == ['WARNING', 'INFO']


def test_traits_are_tiers_up_to_the_speed(files, reporter):
    files.calibrate({'0-1': 0.6})
    traits = reporter.report(PCPUS).traits()
    assert 'CUSTOM_VQOS' in traits
    assert 'CUSTOM_VQOS_SPEED_60' in traits
    assert 'CUSTOM_VQOS_SPEED_70' not in traits
    assert 'CUSTOM_VQOS_HOOK' not in traits


def test_traits_of_unlike_pcpus_are_those_of_the_fastest(files, reporter):
    """A flavor that requires a tier must not be kept from them."""
    files.calibrate({'0': 2.0, '1': 0.6, '2': 9.0})
    traits = reporter.report(PCPUS).traits()
    assert 'CUSTOM_VQOS_SPEED_200' in traits
    assert 'CUSTOM_VQOS_SPEED_250' not in traits


def test_equal_pcpus_have_no_classes(files, reporter):
    assert reporter.report(PCPUS).classes == ()
    files.calibrate({'0-1': 1.5, '2': 0.6})
    report = reporter.report(PCPUS)
    assert report.classes == ()
    assert report.stats()['vqos_classes'] == ''


def test_classes_of_unlike_pcpus(files, reporter):
    files.calibrate({'0': 1.5, '1': 0.6})
    report = reporter.report(PCPUS)
    rooms = cpu_classes.with_servers(
        report.classes, [cpu_classes.Server(91, frozenset({0}))],
        allocation_ratio=1.001)
    stats = report.stats(rooms)
    assert stats['vqos_room_cu'] == '119'
    # Speed, whole room, and least CU of a vCPU, the slowest first.
    assert stats['vqos_classes'] == '60:60:0.48 150:59:1.2'
    assert stats['vqos_slowest_cu'] == '60'


def test_the_room_of_equal_pcpus(files, reporter):
    files.calibrate({'0-1': 1.5})
    report = reporter.report(PCPUS)
    assert report.stats()['vqos_room_cu'] == ''
    for units, left in ((0, '300'), (100, '200'), (400, '0')):
        stats = report.stats(cpu_classes.with_servers(
            report.all_classes, [cpu_classes.Server(units, None)]))
        assert stats['vqos_room_cu'] == left
        assert stats['vqos_classes'] == ''


def test_classes_have_room_in_a_stat(files, reporter):
    coefficients = {str(n): 1 + n * 0.0123456789012 for n in range(64)}
    files.calibrate(coefficients)
    report = reporter.report(range(64))
    text = report.stats(report.classes)['vqos_classes']
    assert 200 < len(text) <= 255
    # Whole ones, those with most room: here of the fastest pCPUs.
    classes = [tuple(map(float, one.split(':'))) for one in text.split(' ')]
    assert [speed_cu for speed_cu, _room_cu, _least_cu in classes] == [
        pytest.approx(100 * coefficients[str(64 - len(classes) + n)])
        for n in range(len(classes))]


def test_the_trait_of_the_hook(files, reporter, monkeypatch, tmp_path):
    files.calibrate({'0-1': 1.0})
    monkeypatch.setattr(install, 'installed_path', lambda: tmp_path)
    assert 'CUSTOM_VQOS_HOOK' in reporter.report(PCPUS).traits()


def test_the_trait_of_billing(files, reporter):
    files.calibrate({'0-1': 1.0})
    for offers, expected in ((['off', 'account'], False),
                             (['off', 'account', 'charge'], True)):
        with open(files.agent_state_path, 'w') as file:
            json.dump({'dd_billing': offers}, file)
        traits = reporter.report(PCPUS).traits()
        assert ('CUSTOM_VQOS_DD_BILLING' in traits) is expected
    assert host_report.own_traits(['CUSTOM_VQOS_DD_BILLING'])


def test_the_traits_of_quantum_classes(files, reporter):
    quantum = ['CUSTOM_VQOS_QUANTUM_IO', 'CUSTOM_VQOS_QUANTUM_SPIN',
               'CUSTOM_VQOS_QUANTUM_CACHE']
    for classes, expected in (
            ([], set()), (['neutral', 'auto', 'gold'], set()),
            (['cache'], set(quantum[2:])),
            (['auto', 'cache', 'spin', 'io', 'neutral'], set(quantum))):
        files.agent_lives(classes=classes)
        # Servers without units have classes too: no profile is needed.
        if os.path.exists(files.profile_path):
            files.lose_profile()
        assert reporter.report(PCPUS).traits() == expected
        files.calibrate({'0-1': 1.0})
        traits = reporter.report(PCPUS).traits()
        assert expected == {trait for trait in traits if 'QUANTUM' in trait}
        assert 'CUSTOM_VQOS' in traits
    # Nobody else's are taken away.
    assert host_report.own_traits([
        *quantum, 'CUSTOM_VQOS_QUANTUM_GOLD', 'CUSTOM_VQOS_QUANTUM_']) == set(
            quantum)


def test_what_the_pools_hold(files, reporter):
    assert reporter.report(PCPUS).stats()['vqos_quantum_pools'] == ''
    files.agent_lives(quantum=occupancy.Occupancy(
        {'io': occupancy.PoolSize(1, 4), 'cache': occupancy.PoolSize(2, 3)},
        polluters=5))
    assert reporter.report(PCPUS).stats()['vqos_quantum_pools'] == (
        'cache:2:3 io:1:4 polluters:5')


def test_a_hook_that_may_not_be_seen(files, reporter, monkeypatch):
    def fail():
        raise PermissionError('hooks')

    monkeypatch.setattr(install, 'installed_path', fail)
    assert not reporter.report(PCPUS).hook


def test_own_traits():
    assert host_report.own_traits([
        'CUSTOM_VQOS', 'CUSTOM_VQOS_HOOK', 'CUSTOM_VQOS_SPEED_100',
        'CUSTOM_VQOS_SPEED_FAST', 'CUSTOM_VQOS_MINE', 'HW_CPU_X86_AVX']) == {
            'CUSTOM_VQOS', 'CUSTOM_VQOS_HOOK', 'CUSTOM_VQOS_SPEED_100'}


def test_the_sign_of_life(files):
    files.agent_lives()
    with open(files.agent_state_path) as file:
        seen_at = json.load(file)['seen_at']
    assert host_report.read_agent_state(files.agent_state_path) == (
        host_report.AgentState(seen_at))


@pytest.mark.parametrize('content', [
    '', 'no json', '[]', 'null', '{"seen_at": 5, "classes": 7}',
    '{"seen_at": "' + 'x' * 100 + '"}', '[' * 50_000, '\0' * 100,
    '{"classes": [["default"], null, "root"], "dd_billing": {"off": 1}}',
    '{"quantum": [1, {"pools": 5}]}', '{"quantum": {"pools": {"io": 1e400}}}',
    '"' + 'x' * 100_000 + '"'])
def test_a_sign_of_life_that_is_garbage(files, content):
    with open(files.agent_state_path, 'w') as file:
        file.write(content)
    assert host_report.read_agent_state(files.agent_state_path) == (
        host_report.AgentState())


def test_no_sign_of_life(files):
    assert host_report.read_agent_state(files.agent_state_path) == (
        host_report.AgentState())
    os.mkdir(files.agent_state_path)
    assert host_report.read_agent_state(files.agent_state_path) == (
        host_report.AgentState())


def test_classes_and_billings_that_are_known(files, reporter):
    with open(files.agent_state_path, 'w') as file:
        json.dump({'seen_at': 'now', 'classes': ['io', 'root', 'cache'],
                   'dd_billing': ['account']}, file)
    stats = reporter.report(PCPUS).stats()
    assert stats['vqos_quantum_classes'] == 'default,io,cache'
    assert stats['vqos_dd_billing'] == 'off,account'
