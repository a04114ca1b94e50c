# SPDX-License-Identifier: Apache-2.0
"""Running a benchmark inside guests of this host's own emulator.

Where the hypervisor makes the difference, only a guest shows the speed that
guests get. Each pCPU gets a guest with one vCPU, whose thread is pinned to it
before its first instruction; a round's CPU time is that thread's, from the
kernel's scheduler statistics, read as the guest's lines arrive.

The guests are plain processes of the emulator that Nova's guests use, not
domains of libvirt: no agent or hook sees them, they need no daemon, and
libvirt adds nothing to a vCPU's speed. They end by themselves if the
calibration is killed.
"""

from collections.abc import Callable, Collection
import contextlib
import json
import logging
import os
import pathlib
import select
import socket
import subprocess
import tempfile
import threading
import time
import typing as ty

from nova_vqos.calibration import guest
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import Benchmark
from nova_vqos.calibration.benchmark import CalibrationError

LOG = logging.getLogger(__name__)

#: Where distributions have the emulator that libvirt starts guests with.
EMULATORS = ('/usr/bin/qemu-system-x86_64', '/usr/libexec/qemu-kvm')

# Less than the runner's. A guest is silent while it boots, which takes long on
# a host that is busy, or with a slow emulator.
_SILENCE_TIMEOUT_S = 170
_POLL_INTERVAL_MS = 200
#: The kernel's interface to KVM.
KVM = '/dev/kvm'


def find_emulator(path: str | None = None) -> str:
    """The emulator to measure.

    :raises CalibrationError: when there is none
    """
    for candidate in (path,) if path else EMULATORS:
        if os.access(candidate, os.X_OK):
            return candidate
    raise CalibrationError(
        f'{path or " and ".join(EMULATORS)} cannot be run: install the '
        'package qemu-system-x86, or give --emulator')


def find_virt_type(name: str | None = None) -> str:
    """How guests run here, as in Nova's option ``[libvirt] virt_type``.

    :param name: ``kvm`` or ``qemu``; None: kvm where the kernel offers it, as
        Nova finds it too, whatever the flags of the CPU are
    """
    if name is not None:
        return name
    return 'kvm' if os.access(KVM, os.R_OK | os.W_OK) else 'qemu'


def check_memory(guests: int, memory_mib: int) -> None:
    """Check that so many guests fit into memory.

    :param memory_mib: for the work of each, beside that of any guest
    :raises CalibrationError: when they do not
    """
    available_mib = host_cpus.available_bytes() >> 20
    # The emulator itself takes about as much as half of such a guest.
    needed_mib = guests * (guest.MEMORY_MIB * 3 // 2 + memory_mib)
    if available_mib < needed_mib:
        raise CalibrationError(
            f'{guests} guests need {needed_mib} MiB of memory, '
            f'{available_mib} MiB are available: give fewer --pcpus')


class GuestRunner(runner.Runner):
    """Runs the benchmark in a guest for each pCPU."""

    def __init__(self, benchmark: Benchmark, *, emulator: str, virt_type: str,
                 kernel: str, max_rounds: int,
                 round_events: int | None = None) -> None:
        """Prepare; no guest is built or started yet.

        :param max_rounds: after many times as many, a guest that was left
            behind ends by itself
        :param round_events: of a round; None: as many as take about as long
            as a round shall. Each round starts a program: its first events
            are dearer, under emulation by far, so that scores can only be
            compared where rounds are the same work
        """
        super().__init__(benchmark)
        self._emulator = emulator
        self._virt_type = virt_type
        self._kernel = kernel
        self._max_rounds = max_rounds
        self.round_events = round_events
        self._append = ''
        self._directory = tempfile.TemporaryDirectory(prefix='vqos-')
        self._initramfs = os.path.join(self._directory.name, 'initramfs')

    def close(self) -> None:
        """Remove what the guests booted."""
        self._directory.cleanup()

    def measure(self, pcpus: Collection[int],
                enough: Callable[[runner.Samples], bool],
                progress: Callable[[runner.Samples], str]) -> runner.Samples:
        """See :meth:`nova_vqos.calibration.runner.Runner.measure`.

        :raises GuestError: when a guest cannot be built
        """
        if not self._append:
            self._build(min(pcpus))
        return super().measure(pcpus, enough, progress)

    def _build(self, pcpu: int) -> None:
        """Build what the guests boot.

        :param pcpu: where to see how fast the host is, where that counts
        """
        LOG.info('  building a guest for %s (%s)', self._emulator,
                 self._virt_type)
        guest.build_initramfs(self._initramfs,
                              tools=[self._benchmark.program],
                              contents=self._benchmark.files)
        self.round_events = self.round_events or self._choose_events(pcpu)
        self._append = guest.command_line(
            [self._benchmark.guest_kind], self._max_rounds * 10,
            {self._benchmark.guest_kind: self.round_events})
        if self._virt_type == 'kvm':
            # Read without leaving the guest, and never calibrated; the ACPI
            # timer costs an exit for each reading, two for each event.
            self._append += ' clocksource=kvm-clock'

    def _choose_events(self, pcpu: int) -> int:
        native_runner = runner.NativeRunner(self._benchmark)
        with contextlib.closing(native_runner):
            (score,) = native_runner.measure(
                {pcpu}, lambda seen: bool(seen[pcpu]),
                lambda seen: 'running the benchmark on the host')[pcpu]
        slowdown = (1 if self._virt_type == 'kvm'
                    else self._benchmark.emulated_slowdown)
        return max(1, round(score * runner.ROUND_S / slowdown))

    def work(self, pcpu: int, report: Callable[[float], None],
             stop: threading.Event) -> None:
        with self._started(pcpu) as (process, vcpu_thread_id):
            # The kernel brings a thread's CPU time up to date at ticks, and
            # when it leaves the CPU: a reader that preempts it there at each
            # line reads what is true at that moment, on a busy machine too.
            runner.pin(0, pcpu)
            runner.go_first()
            began_ns: int | None = None
            round_ns = 0
            warm = False
            for line in _lines(process, f'the guest on pCPU {pcpu}', stop):
                (run,) = host_cpus.thread_runs([vcpu_thread_id])
                spent_ns = run.run_ns
                heard = guest.parse_line(line)
                if isinstance(heard, guest.RoundStart):
                    began_ns, round_ns = spent_ns, 0
                elif (isinstance(heard, guest.RoundStop)
                      and began_ns is not None):
                    round_ns = spent_ns - began_ns
                    began_ns = None
                elif isinstance(heard, guest.Round) and round_ns > 0:
                    # The first round translates code and fills caches.
                    if warm:
                        report(heard.events * 1e9 / round_ns)
                    warm, round_ns = True, 0

    @contextlib.contextmanager
    def _started(self, pcpu: int
                 ) -> ty.Iterator[tuple['subprocess.Popen[bytes]', int]]:
        """A guest that runs on a pCPU, and the id of its vCPU's thread."""
        ours, theirs = socket.socketpair()
        errors_path = os.path.join(self._directory.name, f'errors-{pcpu}')
        with (ours, theirs, open(errors_path, 'wb') as errors,
              subprocess.Popen(
                  self._argv(pcpu, theirs.fileno()), stdin=subprocess.DEVNULL,
                  stdout=subprocess.PIPE, stderr=errors,
                  pass_fds=[theirs.fileno()]) as process):
            try:
                theirs.close()
                try:
                    vcpu_thread_id = _start_on(pcpu, ours)
                except (OSError, ValueError) as error:
                    said = pathlib.Path(errors_path).read_text(
                        errors='replace').strip()
                    raise CalibrationError(
                        f'{self._emulator} does not start: '
                        f'{said[-300:] or error}') from error
                yield process, vcpu_thread_id
            finally:
                process.kill()

    def _argv(self, pcpu: int, monitor_fd: int) -> list[str]:
        accelerator, cpu_model = {
            'kvm': ('kvm', 'host'), 'qemu': ('tcg', 'qemu64')}[self._virt_type]
        return [
            self._emulator, '-name', f'vqos-calibrate-{pcpu}', '-S',
            '-accel', accelerator, '-cpu', cpu_model, '-smp', '1',
            '-m', str(guest.MEMORY_MIB + self._benchmark.memory_mib),
            '-nodefaults', '-no-user-config',
            '-display', 'none', '-serial', 'stdio', '-no-reboot',
            '-chardev', f'socket,id=monitor,fd={monitor_fd}',
            '-mon', 'chardev=monitor,mode=control',
            '-kernel', self._kernel, '-initrd', self._initramfs,
            '-append', self._append]


def _start_on(pcpu: int, monitor: socket.socket) -> int:
    """Pin the vCPU of a guest that has not started yet, and let it start.

    :param monitor: connected to the emulator's QMP
    :returns: the id of the vCPU's thread
    :raises OSError, ValueError: when the emulator does not do it
    """
    with monitor.makefile('r') as answers:
        _answer(answers)
        for command in ('qmp_capabilities', 'query-cpus-fast'):
            monitor.sendall(json.dumps({'execute': command}).encode())
            answer = _answer(answers)
        thread_id = int(answer[0]['thread-id'])
        runner.pin(thread_id, pcpu)
        monitor.sendall(json.dumps({'execute': 'cont'}).encode())
        _answer(answers)
    return thread_id


def _answer(answers: ty.IO[str]) -> ty.Any:
    """The next answer of the emulator, other than events.

    :raises ValueError: when there is none, or an error
    """
    for line in answers:
        answer = json.loads(line)
        if 'error' in answer:
            raise ValueError(answer['error'].get('desc', line))
        if 'event' not in answer:
            return answer.get('return', answer)
    raise ValueError('it has ended')


def _lines(process: 'subprocess.Popen[bytes]', name: str,
           stop: threading.Event) -> ty.Iterator[str]:
    """The lines of a guest's console, as they come, until ``stop`` is set.

    :raises CalibrationError: when the guest ends or is silent
    """
    if process.stdout is None:
        raise ValueError('the process has no pipe to read from')
    console = process.stdout.fileno()
    poll = select.poll()
    poll.register(console, select.POLLIN)
    rest, last = b'', ''
    deadline = time.monotonic() + _SILENCE_TIMEOUT_S
    while not stop.is_set():
        if poll.poll(_POLL_INTERVAL_MS):
            received = os.read(console, 4096)
            if not received:
                raise CalibrationError(
                    f'{name} has ended, its last line was {last!r}')
            *lines, rest = (rest + received).split(b'\n')
            for line in lines:
                last = line.decode(errors='replace').strip()
                yield last
            deadline = time.monotonic() + _SILENCE_TIMEOUT_S
        elif time.monotonic() > deadline:
            raise CalibrationError(
                f'{name} was silent for {_SILENCE_TIMEOUT_S} s, its last line '
                f'was {last!r}')
