# SPDX-License-Identifier: Apache-2.0
import gzip
import platform

import pytest

from nova_vqos.profile import fingerprint

CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763
stepping\t: 1
microcode\t: 0xa0011d1

processor\t: 1
vendor_id\t: Other
"""


@pytest.fixture
def root(tmp_path):
    for name, text in {
            'proc/cpuinfo': CPUINFO,
            'sys/devices/system/cpu/smt/active': '1\n',
            'sys/devices/system/cpu/online': '0-7\n',
            'sys/devices/system/cpu/cpufreq/policy0/scaling_governor':
                'performance\n',
            f'boot/config-{platform.release()}':
                'CONFIG_HZ=250\nCONFIG_IRQ_TIME_ACCOUNTING=y\n'
                'CONFIG_PREEMPT_LAZY=y\n'}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_of_host(root):
    found = fingerprint.of_host(sysroot=str(root))
    assert found.items() >= {
        'cpu_model': 'AMD EPYC 7763', 'cpu_vendor': 'AuthenticAMD',
        'cpu_model_number': '1', 'microcode': '0xa0011d1', 'smt': '1',
        'online_pcpus': '0-7', 'governor': 'performance', 'boost': 'unknown',
        'irq_time_accounting': 'y', 'preemption': 'lazy'}.items()
    assert found['tick_us'] in ('1000', '2500', '3333', '4000', '10000')
    assert 'emulator' not in found


def test_a_host_without_any_facts(tmp_path):
    found = fingerprint.of_host(sysroot=str(tmp_path))
    assert {found[name] for name in (
        'cpu_model', 'irq_time_accounting', 'preemption')} == {'unknown'}
    assert all(isinstance(value, str) for value in found.values())


def test_the_running_kernels_own_options_win(root):
    with gzip.open(root / 'proc/config.gz', 'wt') as file:
        file.write('CONFIG_HZ=250\n'
                   '# CONFIG_IRQ_TIME_ACCOUNTING is not set\n')
    assert fingerprint.of_host(sysroot=str(root))['irq_time_accounting'] == 'n'


def test_another_emulator_at_the_same_path(root):
    emulator = root / 'qemu'
    emulator.write_text('one')
    one = fingerprint.of_host(str(emulator), str(root))
    assert one['emulator'] == str(emulator)
    emulator.write_text('other one')
    other = fingerprint.of_host(str(emulator), str(root))
    assert one['emulator_sha256'] != other['emulator_sha256']
    emulator.unlink()
    assert fingerprint.of_host(
        str(emulator), str(root))['emulator_sha256'] == 'unknown'
