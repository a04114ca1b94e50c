# SPDX-License-Identifier: Apache-2.0
"""How guests of a calibration run."""

import pytest

from nova_vqos.calibration.cpu import in_guest


@pytest.fixture
def kvm(monkeypatch, tmp_path):
    path = tmp_path / 'kvm'
    monkeypatch.setattr(in_guest, 'KVM', str(path))
    return path


def test_kvm_where_the_kernel_offers_it(kvm):
    """Whatever the CPU's flags are: those of ARM, and software, have none."""
    assert in_guest.find_virt_type() == 'qemu'
    kvm.touch()
    assert in_guest.find_virt_type() == 'kvm'


@pytest.mark.parametrize('name', ['kvm', 'qemu'])
def test_the_operator_decides(kvm, name):
    assert in_guest.find_virt_type(name) == name
    kvm.touch()
    assert in_guest.find_virt_type(name) == name
