#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How often an emulated guest is broken by a live migration.

A guest that computes is migrated from one QEMU to the next, again and again,
with RAM that is a multiple of 256 KiB, and with 8 KiB more, by turns. It is
broken where its kernel says so, or it does not finish a piece of work within
half a minute. Then another one is booted::

    tools/bench/emulated_migrations.py --migrations 100

Needs no root. The lab gives guests 8 KiB more where QEMU is older than 9.0:
emulator.py has why.
"""

import argparse
import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import typing as ty

from nova_vqos.calibration import guest

_QEMU = 'qemu-system-x86_64'
_RAM_BYTES = 128 << 20
ARMS = {'multiple of 256 KiB': 0, '8 KiB more': 8192}
_BROKEN = ('Kernel panic', 'kernel BUG', 'invalid opcode', 'Oops:',
           'general protection')
_WORK = 'vqos sysbench'
# Pieces of work after which a guest is well: one may have been under way.
_ENOUGH = 2
_BOOT_S = 120
_LIMIT_S = 30
_LOOK_S = 0.1


class Qemu:
    """A QEMU, whose guest does not run yet."""

    def __init__(self, argv: list[str], directory: pathlib.Path) -> None:
        """:param directory: that exists, and is empty"""
        self._console = directory / 'console'
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [_QEMU, *argv, '-S', '-chardev', f'file,id=c,path='
                 f'{self._console}', '-serial', 'chardev:c', '-chardev',
                 f'socket,id=q,fd={theirs.fileno()}', '-mon',
                 'chardev=q,mode=control'], pass_fds=[theirs.fileno()])
        self._monitor = ours.makefile('rw')
        ours.close()
        # Its greeting.
        self._monitor.readline()
        self.call('qmp_capabilities')

    def call(self, command: str, **arguments: ty.Any) -> ty.Any:
        """:returns: what the monitor answers; events are not read"""
        print(json.dumps({'execute': command, 'arguments': arguments}),
              file=self._monitor, flush=True)
        for line in self._monitor:
            answer = json.loads(line)
            if 'error' in answer:
                raise RuntimeError(f'{command}: {answer["error"]["desc"]}')
            if 'return' in answer:
                return answer['return']
        raise RuntimeError(f'{command}: QEMU ended')

    def works(self, limit_s: float) -> bool:
        """Wait until its guest has done some work, or is broken."""
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            text = self._console.read_text(errors='replace')
            if any(one in text for one in _BROKEN):
                return False
            if text.count(_WORK) >= _ENOUGH:
                return True
            time.sleep(_LOOK_S)
        return False

    def end(self) -> None:
        self._monitor.close()
        self._process.kill()
        self._process.wait()


class Guest:
    """A guest that moves from QEMU to QEMU.

    :ivar migrations: so far
    :ivar broken: how many of them broke it
    """

    def __init__(self, argv: list[str], directory: pathlib.Path) -> None:
        self._argv, self._directory = argv, directory
        self._begun = 0
        self.migrations = self.broken = 0
        self._qemu = self._boot()

    def migrate(self) -> None:
        source = self._qemu
        address = f'unix:{self._directory / "migration"}'
        self._qemu = self._start('-incoming', address)
        try:
            source.call('migrate', uri=address)
            status = ''
            while status != 'completed':
                if status == 'failed':
                    raise RuntimeError('QEMU could not migrate the guest')
                time.sleep(_LOOK_S)
                status = source.call('query-migrate')['status']
        finally:
            source.end()
        self._qemu.call('cont')
        self.migrations += 1
        if not self._qemu.works(_LIMIT_S):
            self.broken += 1
            self._qemu.end()
            self._qemu = self._boot()

    def end(self) -> None:
        self._qemu.end()

    def _boot(self) -> Qemu:
        booted = self._start()
        booted.call('cont')
        if not booted.works(_BOOT_S):
            booted.end()
            raise RuntimeError('the guest does not boot')
        return booted

    def _start(self, *more: str) -> Qemu:
        self._begun += 1
        directory = self._directory / str(self._begun)
        directory.mkdir()
        return Qemu([*self._argv, *more], directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--migrations', type=int, default=100,
                        help='of each kind (default: %(default)d)')
    options = parser.parse_args()
    with (tempfile.TemporaryDirectory() as place,
          contextlib.ExitStack() as stack):
        initrd = pathlib.Path(place, 'initrd')
        guest.build_initramfs(str(initrd))
        guests = {}
        for number, (arm, more_bytes) in enumerate(ARMS.items()):
            directory = pathlib.Path(place, str(number))
            directory.mkdir()
            guests[arm] = Guest([
                '-accel', 'tcg', '-m', f'{_RAM_BYTES + more_bytes}B',
                '-nodefaults', '-no-user-config', '-display', 'none',
                '-kernel', guest.find_kernel(), '-initrd', str(initrd),
                '-append', guest.command_line()], directory)
            stack.callback(guests[arm].end)
        for _ in range(options.migrations):
            for one in guests.values():
                one.migrate()
            print(', '.join(f'{arm}: {one.broken} of {one.migrations} broken'
                            for arm, one in guests.items()), file=sys.stderr)
    print(subprocess.run([_QEMU, '--version'], check=True, text=True,
                         stdout=subprocess.PIPE).stdout.splitlines()[0])
    for arm, one in guests.items():
        print(f'RAM {arm}: {one.broken} of {one.migrations} migrations broke '
              'the guest')
    return 0


if __name__ == '__main__':
    sys.exit(main())
