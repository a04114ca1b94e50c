# SPDX-License-Identifier: Apache-2.0
"""Whether guests of type kvm can run on this machine."""

import fcntl
import os

_DEVICE = '/dev/kvm'
# _IO(KVMIO, 0x01).
_CREATE_VM = 0xAE01


def missing() -> str:
    """:returns: why none can, '' if one can"""
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.close(fcntl.ioctl(device, _CREATE_VM, 0))
        finally:
            os.close(device)
    except OSError as error:
        return f'no guest of type kvm can run here: {error}'
    return ''
