# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_vqos import cputune
from nova_vqos import files
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.tests.unit.profile import test_document


def tune(pcpus=(0,), cgroup_version=1, periods=cputune.DEFAULT_PERIODS,
         correction=1.0, **changes):
    values = {'vcpus': 2, 'units': 100} | changes
    return cputune.compute(policy.ServerPolicy(**values),
                           test_document.make_profile(), pcpus,
                           cgroup_version=cgroup_version, periods=periods,
                           correction=correction)


def test_a_hard_cap_has_a_quota():
    assert tune() == cputune.CpuTune(units.CpuCap(20_000, 50_000), 1024)


def test_shares_are_those_of_the_cgroup_version():
    assert tune(cgroup_version=2).shares == 100


def test_the_slowest_pcpu_counts():
    assert tune(pcpus=(0, 4)).cap == units.CpuCap(50_000, 50_000)


def test_a_correction_changes_quota_and_weight():
    """pCPUs of 125 CU are of 100 for it."""
    assert tune(correction=0.8) == cputune.CpuTune(
        units.CpuCap(25_000, 50_000), 1280)


def test_a_floor_has_no_quota():
    assert tune(cap='floor') == cputune.CpuTune(None, 1024)


def test_a_floor_that_is_too_fast_is_refused_too():
    with pytest.raises(units.HostTooSlow):
        tune(cap='floor', units=102, pcpus=(4,))


@pytest.mark.parametrize('cu, cap', [
    # On pCPUs of 125 CU; 48 %: its quota in 200 ms is longer than 90 ms.
    (120, (96_000, 200_000)), (150, (90_000, 150_000)),
    # 88 %: 100 ms do not hold it.
    (220, (132_000, 150_000)), (250, (50_000, 50_000)),
    # 40 %: 200 ms do not hold it.
    (100, (20_000, 50_000))])
def test_the_period_of_class_cache(cu, cap):
    assert tune(units=cu, quantum_class='cache').cap == cap


@pytest.mark.parametrize('quantum_class', [
    'default', 'io', 'spin', 'neutral', 'auto'])
def test_all_other_classes_have_the_plain_period(quantum_class):
    assert tune(units=150, quantum_class=quantum_class).cap == (30_000, 50_000)


def test_periods_are_configured():
    found = tune(units=150, quantum_class='cache', periods=cputune.Periods(
        plain_us=20_000, cache_longest_us=1_000_000, cache_slice_us=25_000))
    assert found.cap == (36_000, 60_000)


def test_a_floor_of_class_cache_has_no_quota_either():
    assert tune(units=150, quantum_class='cache', cap='floor').cap is None


def test_no_units_no_tuning():
    assert tune(units=None, quantum_class='io') is None


def test_a_pcpu_that_was_not_measured():
    with pytest.raises(files.FileInvalid, match='pCPU 77'):
        tune(pcpus=(77,))


@pytest.mark.parametrize('files_of_host, weight', [
    ((), 1024), (('cpu/cgroup.procs',), 1024), (('cgroup.controllers',), 100),
    # Hybrid: of version 2 there are names alone.
    (('cpu/cgroup.procs', 'unified/cgroup.controllers'), 1024)],
    ids=['none', 'v1', 'v2', 'hybrid'])
def test_weights_are_those_of_the_cgroups_of_the_host(
        files_of_host, weight, tmp_path, monkeypatch):
    for name in files_of_host:
        path = tmp_path / 'sys/fs/cgroup' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('')
    monkeypatch.setattr(cputune, '_ROOT', str(tmp_path))
    version = cputune.host_cgroup_version()
    assert tune(cgroup_version=version).shares == weight
    # The agent's.
    assert cgroup.host_version(str(tmp_path)) == version
