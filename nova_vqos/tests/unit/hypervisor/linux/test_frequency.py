# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel counts reserved time by the clock, as its files say."""

import pytest

from nova_vqos.hypervisor.linux import frequency

CPUINFO = 'processor\t: 0\nmodel name\t: A\nflags\t\t: fpu {} sse\n\n'
NO_TURBO = 'sys/devices/system/cpu/intel_pstate/no_turbo'


@pytest.mark.parametrize(('files', 'expected'), [
    ({}, False),
    ({'proc/cpuinfo': CPUINFO.format('mmx')}, False),
    ({'proc/cpuinfo': CPUINFO.format('aperfmperf')}, True),
    ({'proc/cpuinfo': CPUINFO.format('aperfmperf'), NO_TURBO: '0\n'}, True),
    ({'proc/cpuinfo': CPUINFO.format('aperfmperf'), NO_TURBO: '1\n'}, False),
    # The clock is steady, and not the one that the kernel takes as full.
    ({'proc/cpuinfo': CPUINFO.format('aperfmperf'),
      'sys/devices/system/cpu/cpufreq/boost': '0\n'}, True),
    ({'proc/cpuinfo': 'processor: 0\nFeatures: aperfmperf\n'}, False),
    ({'proc/cpuinfo': '\xff' * 100}, False)])
def test_files_of_the_kernel(tmp_path, files, expected):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding='latin-1')
    assert frequency.is_counted(str(tmp_path)) is expected
