# SPDX-License-Identifier: Apache-2.0
"""A guest of one vCPU in this process: KVM without QEMU.

It runs a few instructions in real mode, and ends with HLT.
"""

import ctypes
import fcntl
import mmap
import os
import struct

# Of include/uapi/linux/kvm.h, on x86.
_CREATE_VM, _CREATE_VCPU, _MMAP_SIZE, _RUN = 0xAE01, 0xAE41, 0xAE04, 0xAE80
_SET_MEMORY, _GET_SREGS = 0x4020AE46, 0x8138AE83
_SET_SREGS, _SET_REGS = 0x4138AE84, 0x4090AE82
_SREGS_BYTES = 0x138
# struct kvm_regs has 16 registers, then rip and rflags.
_REGS = struct.Struct('<18Q')
_EXIT_REASON = struct.Struct('<8xI')
_EXIT_IO, _EXIT_HLT = 2, 5
_RESERVED_FLAG = 2
_BEGIN, _MEMORY_BYTES = 0x1000, 0x10000

_HLT = b'\xf4'
#: What a guest does over and over: a step of a pause loop, a request to a
#: port, and a question about the CPU. Each is one exit of its own kind.
PAUSE, OUT, CPUID = b'\xf3\x90', b'\xe6\x80', b'\x0f\xa2'


def run(work, times):
    """Run a guest in the calling thread that does some work, then halts.

    :returns: how often it asked its emulator, which is this program
    """
    # mov esi, times; the work; dec esi; jnz to the work; hlt
    code = (b'\x66\xbe' + struct.pack('<I', times) + work + b'\x66\x4e\x75'
            + bytes((256 - len(work) - 4,)) + _HLT)
    device = os.open('/dev/kvm', os.O_RDWR | os.O_CLOEXEC)
    machine = fcntl.ioctl(device, _CREATE_VM, 0)
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    memory[:len(code)] = code
    shared = ctypes.c_char.from_buffer(memory)
    fcntl.ioctl(machine, _SET_MEMORY, struct.pack(
        '<IIQQQ', 0, 0, _BEGIN, _MEMORY_BYTES, ctypes.addressof(shared)))
    vcpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    state = mmap.mmap(vcpu, fcntl.ioctl(device, _MMAP_SIZE, 0))
    try:
        segments = bytearray(_SREGS_BYTES)
        fcntl.ioctl(vcpu, _GET_SREGS, segments)
        # The base and the selector of cs.
        segments[0:8], segments[12:14] = bytes(8), bytes(2)
        fcntl.ioctl(vcpu, _SET_SREGS, bytes(segments))
        fcntl.ioctl(vcpu, _SET_REGS,
                    _REGS.pack(*[0] * 16, _BEGIN, _RESERVED_FLAG))
        asked = 0
        while True:
            fcntl.ioctl(vcpu, _RUN, 0)
            (reason,) = _EXIT_REASON.unpack_from(state)
            if reason == _EXIT_HLT:
                return asked
            if reason != _EXIT_IO:
                raise RuntimeError(f'the guest ended for reason {reason}')
            asked += 1
    finally:
        state.close()
        for number in vcpu, machine, device:
            os.close(number)
        del shared
        memory.close()
