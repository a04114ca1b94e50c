# SPDX-License-Identifier: Apache-2.0
"""What disturbs a calibration, or is in its way."""

import itertools
import pathlib

import pytest

from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError


def add_process(sysroot, pid, comm, ticks, *threads):
    """A process in /proc with threads on these pCPUs that used so much."""
    process = pathlib.Path(sysroot) / 'proc' / str(pid)
    for number, pcpus in enumerate(threads):
        task = process / 'task' / str(pid + number)
        task.mkdir(parents=True)
        (task / 'status').write_text(
            f'Name:\t{comm}\nCpus_allowed_list:\t{pcpus}\n')
        (task / 'stat').write_text(
            f'{pid} ({comm} 1) 2) S 1 1 1 0 -1 4 9 0 0 0 {ticks} 7 0 0 20 0')
    (process / 'comm').write_text(f'{comm}\n')


def test_guests_on_these_pcpus(sysroot):
    """Of each the threads that may run there, and no others."""
    add_process(sysroot, 100, 'qemu-system-x86', 50, '2-9', '0')
    add_process(sysroot, 200, 'qemu-kvm', 60, '0-15')
    add_process(sysroot, 300, 'qemu-system-x86', 70, '2-9', '9')
    add_process(sysroot, 400, 'sysbench', 80, '0-15')
    assert host_cpus.guest_ticks({0, 1}, sysroot) == {101: 57, 200: 67}


def test_a_process_that_ends_meanwhile(sysroot):
    (pathlib.Path(sysroot) / 'proc/100').mkdir()
    assert host_cpus.guest_ticks({0, 1}, sysroot) == {}
    add_process(sysroot, 200, 'qemu-kvm', 60, '0')
    (pathlib.Path(sysroot) / 'proc/200/task/200/stat').unlink()
    assert host_cpus.guest_ticks({0, 1}, sysroot) == {}


def test_what_guests_used():
    """A guest that starts meanwhile counts, and may not be missed."""
    assert host_cpus.guest_pcpus({1: 50, 2: 60}, {1: 80, 3: 90}, 200) == 0.6
    assert host_cpus.guest_pcpus({}, {}, 0) == 0


def test_no_thread_used_more_than_a_pcpu():
    """One that was seen late may have run for long before."""
    assert host_cpus.guest_pcpus({}, {3: 900}, 200) == 1


@pytest.fixture
def guests_at_work(monkeypatch):
    looks = itertools.count()
    monkeypatch.setattr(host_cpus, 'guest_ticks',
                        lambda pcpus, sysroot: {1: 60 * next(looks)})
    totals = itertools.count(0, 200)
    monkeypatch.setattr(host_cpus, 'cpu_times', lambda pcpus, sysroot:
                        host_cpus.CpuTimes(next(totals), 0, 0))


def test_guests_at_work_are_in_the_way(calibrate, guests_at_work):
    with pytest.raises(CalibrationError,
                       match='use 0.60 pCPUs of 0-1.*--beside-guests'):
        calibrate({0, 1})


def test_beside_guests_at_work(calibrate, guests_at_work):
    made = calibrate({0, 1}, beside_guests=True).measured
    assert made.provenance['guests_before_pcpus'] == '0.600'


def write_cpu_file(sysroot, pcpu, name, text):
    path = pathlib.Path(sysroot) / f'sys/devices/system/cpu/cpu{pcpu}' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text}\n')


def test_throttling_is_counted_where_the_cpu_reports_it(sysroot):
    assert host_cpus.throttle_count({0, 1}, sysroot) == 0
    for pcpu, core, package, of_package in (
            (0, 3, 0, 1000), (1, 4, 1, 50), (9, 100, 1, 50)):
        for name, number in (
                ('thermal_throttle/core_throttle_count', core),
                ('thermal_throttle/package_throttle_count', of_package),
                ('topology/physical_package_id', package)):
            write_cpu_file(sysroot, pcpu, name, number)
    assert host_cpus.throttle_count({0, 1}, sysroot) == 3 + 4 + 1000 + 50
    # Of a package once.
    assert host_cpus.throttle_count({1, 9}, sysroot) == 4 + 100 + 50


def test_heat_is_reported(calibrate, monkeypatch):
    # Before and after the measurements alone and busy.
    counts = iter((5, 5, 5, 8))
    monkeypatch.setattr(host_cpus, 'throttle_count',
                        lambda pcpus, sysroot: next(counts))
    result = calibrate({0, 1})
    assert result.measured.provenance['busy_throttled'] == '3'
    (warning,) = [one for one in result.warnings if 'heat' in one]
    assert 'slowed the CPUs 3 times while they were measured busy' in warning


@pytest.mark.parametrize(('governor', 'warned'), [
    ('performance', False), ('schedutil', True), ('powersave', True)])
def test_a_moving_governor_is_reported(calibrate, sysroot, governor, warned):
    policy = pathlib.Path(sysroot, 'sys/devices/system/cpu/cpufreq/policy0')
    policy.mkdir(parents=True)
    (policy / 'scaling_governor').write_text(f'{governor}\n')
    found = [one for one in calibrate({0, 1}).warnings if 'governor' in one]
    assert bool(found) is warned
    assert all(f'is {governor}' in one for one in found)
