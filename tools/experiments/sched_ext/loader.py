# SPDX-License-Identifier: Apache-2.0
"""Loads the scheduler of credit.bpf.c, for as long as this program lives.

    loader.py OBJECT

Then writes into its maps what comes as lines on stdin: the name of a map, its
key, and the numbers of the value. Answers each with "ok" on stdout. Whatever
ends this program, also SIGKILL, ends the scheduler: nothing but its
descriptors holds it.
"""

import ctypes
import os
import platform
import struct
import sys
from typing import NoReturn

#: The maps that may be written, and their values.
VALUES = {'terms': '=3Q', 'speeds': '=Q', 'taps': '=Q2I', 'settings': '=2Q'}

# From linux/bpf.h.
_BPF_LINK_CREATE, _BPF_STRUCT_OPS = 28, 44
_BPF_F_LINK, _BPF_F_SLEEPABLE = 1 << 13, 1 << 4
_BPF_CALLS = {'x86_64': 321, 'aarch64': 280}
_LINKS_SCHEDULERS = (1, 2)
# Only this one of its programs may sleep: it makes queues.
_INIT = b'credit_init'
_TRACER = b'credit_packet'
_SCHEDULER = b'credit'


class Scheduler:
    """The scheduler, loaded by libbpf.

    NOTE: libbpf before 1.2 knows no links of schedulers. It would register
    this one so that it stays when the loader is gone.

    :param path: of the object file
    """

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL('libbpf.so.1', use_errno=True)
        for name in ('bpf_object__open_file', 'bpf_program__attach',
                     'bpf_object__find_map_by_name',
                     'bpf_object__find_program_by_name',
                     'bpf_map__attach_struct_ops'):
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._object = _found(self._lib.bpf_object__open_file(
            path.encode(), None))
        scheduler = self._map(_SCHEDULER)
        _check(self._lib.bpf_map__set_map_flags(scheduler, _BPF_F_LINK))
        _check(self._lib.bpf_program__set_flags(self._program(_INIT),
                                                _BPF_F_SLEEPABLE))
        _check(self._lib.bpf_object__load(self._object))
        _found(self._lib.bpf_map__attach_struct_ops(scheduler))
        if (self._lib.libbpf_major_version(),
                self._lib.libbpf_minor_version()) < _LINKS_SCHEDULERS:
            # With that flag it was made ready, and not registered.
            self._link(self._lib.bpf_map__fd(scheduler))
        _found(self._lib.bpf_program__attach(self._program(_TRACER)))

    def write(self, name: str, key: int, *values: int) -> None:
        """Write one entry of a map."""
        _check(self._lib.bpf_map_update_elem(
            self._lib.bpf_map__fd(self._map(name.encode())),
            struct.pack('=I', key), struct.pack(VALUES[name], *values),
            ctypes.c_uint64(0)))

    def _link(self, map_fd: int) -> None:
        attributes = struct.pack('=IIII', map_fd, 0, _BPF_STRUCT_OPS, 0)
        # The kernel's union is longer; the rest is zero.
        buffer = ctypes.create_string_buffer(attributes, 64)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(ctypes.c_long(_BPF_CALLS[platform.machine()]),
                        _BPF_LINK_CREATE, buffer, len(buffer)) < 0:
            _fail(ctypes.get_errno())

    def _map(self, name: bytes) -> ctypes.c_void_p:
        return _found(self._lib.bpf_object__find_map_by_name(
            self._object, name))

    def _program(self, name: bytes) -> ctypes.c_void_p:
        return _found(self._lib.bpf_object__find_program_by_name(
            self._object, name))


def _found(pointer: int | None) -> ctypes.c_void_p:
    if not pointer:
        _fail(ctypes.get_errno())
    return ctypes.c_void_p(pointer)


def _check(status: int) -> None:
    if status < 0:
        _fail(-status)


def _fail(number: int) -> NoReturn:
    raise SystemExit(f'the scheduler cannot be loaded or set: '
                     f'{os.strerror(number)}; libbpf says why above')


def main() -> None:
    scheduler = Scheduler(sys.argv[1])
    print('ok', flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        scheduler.write(name, *map(int, numbers))
        print('ok', flush=True)


if __name__ == '__main__':
    main()
