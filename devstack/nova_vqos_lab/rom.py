# SPDX-License-Identifier: Apache-2.0
"""Firmware, or a boot sector, that is all that a guest runs.

It needs no operating system.
"""

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

#: Where COUNT and TICK count, in the guest's memory: 32 bits, which wrap.
COUNTER = 0x1000
_NO_SEGMENT = bytes((
    0xfa,               # cli
    0x31, 0xc0,         # xor ax, ax
    0x8e, 0xd8))        # mov ds, ax
_LOOP = bytes((
    0x66, 0xff, 0x06, 0x00, 0x10,   # inc dword [COUNTER]
    0xeb, 0xf9))        # jmp to the inc
#: Counts its rounds, and is never interrupted.
COUNT = _NO_SEGMENT + _LOOP

#: Interrupts of TICK in a second, as many as a Linux guest's clock makes.
TICK_HZ = 250
_DIVISOR = round(1193182 / TICK_HZ)
_TICK = 0xff80
_SET_CLOCK = bytes((
    # The vector of interrupt 8: HANDLER in this firmware.
    0xc7, 0x06, 0x22, 0x00, 0x00, 0xf0,     # mov word [0x22], 0xf000
    # The interrupt controller: vectors from 8 on, the clock alone.
    0xb0, 0x11, 0xe6, 0x20,     # mov al, 0x11; out 0x20, al
    0xb0, 0x08, 0xe6, 0x21,     # mov al, 8; out 0x21, al
    0xb0, 0x04, 0xe6, 0x21,     # mov al, 4; out 0x21, al
    0xb0, 0x01, 0xe6, 0x21,     # mov al, 1; out 0x21, al
    0xb0, 0xfe, 0xe6, 0x21,     # mov al, 0xfe; out 0x21, al
    # The clock: a rate generator.
    0xb0, 0x34, 0xe6, 0x43,     # mov al, 0x34; out 0x43, al
    0xb0, _DIVISOR & 0xff, 0xe6, 0x40,      # mov al, low; out 0x40, al
    0xb0, _DIVISOR >> 8, 0xe6, 0x40,        # mov al, high; out 0x40, al
    0xfb))              # sti
_HANDLER = bytes((
    0x50,               # push ax
    0xb0, 0x20, 0xe6, 0x20,     # mov al, 0x20; out 0x20, al
    0x58,               # pop ax
    0xcf))              # iret


# What a disk's first sector ends with, if a PC is to boot from it.
_BOOTS = b'\x55\xaa'
# How that of a FAT file system begins: a jump over what describes it, of which
# the number of tables and the medium are here. NOTE: Glance takes others for
# disks with partitions, and refuses one that has none.
_FAT = b'\xeb\x3c\x90'.ljust(0x10, b'\0') + b'\x02\0\0\0\0\xf8'
_CODE = 0x3e
_SECTOR_BYTES = 512
#: What a guest of boot_sector() prints first.
PRINTED = b'vqos spins\n'


def boot_sector() -> bytes:
    """:returns: of a disk: prints PRINTED on the first serial port, and spins

    The firmware has it at 0x7c00.
    """
    code = bytes((
        0xfa,               # cli
        0xfc,               # cld
        0x31, 0xc0,         # xor ax, ax
        0x8e, 0xd8,         # mov ds, ax
        0xba, 0xf8, 0x03,   # mov dx, 0x3f8
        0xbe, _CODE + 0x16, 0x7c,   # mov si, the text, behind this
        0xac,               # lodsb
        0x84, 0xc0,         # test al, al
        0x74, 0x03,         # jz to the last line
        0xee,               # out dx, al
        0xeb, 0xf8,         # jmp to the lodsb
        0xeb, 0xfe))        # jmp to itself
    code = _FAT.ljust(_CODE, b'\0') + code + PRINTED
    return code.ljust(_SECTOR_BYTES - len(_BOOTS), b'\0') + _BOOTS


def first(code: bytes) -> bytes:
    """:returns: a firmware that begins with this code"""
    return bytes(RESET) + code.ljust(SIZE_BYTES - RESET, b'\0')


def tick() -> bytes:
    """:returns: a firmware that counts as COUNT does, and whose clock
        interrupts it TICK_HZ times a second
    """
    # mov word [0x20], HANDLER: what it is long decides where HANDLER is.
    vector = bytes((0xc7, 0x06, 0x20, 0x00))
    handler = (_TICK + len(_NO_SEGMENT) + len(vector) + 2 + len(_SET_CLOCK)
               + len(_LOOP))
    code = (_NO_SEGMENT + vector + handler.to_bytes(2, 'little') + _SET_CLOCK
            + _LOOP + _HANDLER)
    jump = bytes((0xeb, _TICK - RESET - 2 & 0xff))
    return (bytes(_TICK) + code.ljust(RESET - _TICK, b'\0')
            + jump.ljust(SIZE_BYTES - RESET, b'\0'))
