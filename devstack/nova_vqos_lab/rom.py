# SPDX-License-Identifier: Apache-2.0
"""Firmware that is all that a guest runs: it needs no operating system."""

SIZE_BYTES = 64 * 1024
#: Where an x86 begins: the last 16 bytes of its firmware.
RESET = 0xfff0

#: Sleeps for good.
HALT = bytes((
    0xfa,               # cli
    0xf4,               # hlt
    0xeb, 0xfd))        # jmp to the hlt
#: Does nothing but jump.
SPIN = bytes((
    0xfa,               # cli
    0xeb, 0xfe))        # jmp to itself


def first(code: bytes) -> bytes:
    """:returns: a firmware that begins with this code"""
    return bytes(RESET) + code.ljust(SIZE_BYTES - RESET, b'\0')
