# SPDX-License-Identifier: Apache-2.0
"""A host of the lab, for benches: made by the run, and gone after it.

Import it first: it chooses where the lab's other modules keep things.
"""

import argparse
import atexit
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import typing as ty

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Of everything that the bench makes, removed with the host.
DIRECTORY = tempfile.mkdtemp(prefix='vqos-bench-')


@atexit.register
def _remove_unused() -> None:
    with contextlib.suppress(OSError):
        os.rmdir(DIRECTORY)


os.environ['NOVA_VQOS_LAB_DIR'] = DIRECTORY
# Benches that run at the same time share no names.
os.environ['NOVA_VQOS_LAB_PREFIX'] = f'vqosb{os.getpid()}'
sys.path.insert(0, str(ROOT / 'devstack'))
sys.path.insert(0, str(ROOT))

from nova_vqos.profile import document  # noqa: E402
from nova_vqos.profile import fingerprint  # noqa: E402
from nova_vqos.tests.fixtures import make_profiles  # noqa: E402
from nova_vqos_lab import cgroups  # noqa: E402
from nova_vqos_lab import host as hosts  # noqa: E402
from nova_vqos_lab import netns  # noqa: E402
from nova_vqos_lab import process  # noqa: E402

NAME = 'bench'
# As its profile says.
_PCPU_CU = 100
_AGENT_LIMIT_S = 60
_BUS_LIMIT_S = 180


class BenchHost:
    """A host of the lab with libvirtd, and the real agent where wanted.

    :ivar host: of the lab
    :ivar network: of the lab
    :ivar agent: while it runs
    """

    def __init__(self, pcpus: set[int]) -> None:
        """:param pcpus: that its guests run on"""
        self.network = netns.Network()
        self.host = hosts.Host(NAME, pcpus, address='198.18.0.21')
        self.agent: process.Process | None = None
        # The port discard, without a listener: the bus is down.
        self._bus_url = 'rabbit://nobody:nothing@127.0.0.1:9/'

    def start(self, io: Mapping[str, ty.Any] | None = None) -> None:
        """Start it, with a profile made up but for what I/O costs.

        :param io: the profile's part that says it; None: it says nothing
        :raises LabError: when the machine does not let us
        """
        self.network.create()
        self.host.start(peers={})
        document.store(make_profiles.make_profile(
            NAME, make_profiles.make_class(self.host.pcpus, 1.0),
            fingerprint=fingerprint.of_host(), **({'io': io} if io else {})),
            self.host.path('etc/nova-vqos/profile.yaml'))

    def remove(self) -> None:
        """Remove it, and all that the bench made."""
        self.host.remove()
        self.network.remove()
        shutil.rmtree(DIRECTORY, ignore_errors=True)

    def start_bus(self) -> None:
        """Give agents that are started from now on a message bus."""
        bus = self.host.popen(
            [sys.executable, str(ROOT / 'tools/bench/bus.py')],
            env={'TMPDIR': DIRECTORY}, log='bus')
        log = pathlib.Path(bus.log)
        process.wait_until(
            lambda: log.read_text().startswith('rabbit://'), _BUS_LIMIT_S,
            'the message bus', log=str(log), alive=bus.alive)
        self._bus_url = log.read_text().split()[0]

    def start_agent(self, *, vqos: str = '', agent: str = '',
                    checkout: pathlib.Path = ROOT,
                    program: Sequence[str] = ('-m', 'nova_vqos.cmd.agent')
                    ) -> process.Process:
        """Start the agent as it is on any host.

        Without :meth:`start_bus` its bus is down.

        :param vqos: lines of this section of its configuration
        :param agent: of the section vqos_agent
        :param checkout: of the project, whose agent it is to be
        :param program: that is the agent, for Python
        """
        pathlib.Path(self.host.path('etc/nova-vqos/nova-vqos.conf')
                     ).write_text(
            f'[DEFAULT]\nhost = {NAME}\ntransport_url = {self._bus_url}\n'
            f'[vqos]\n{vqos}\n[vqos_agent]\n{agent}\n')
        path = [checkout]
        if checkout != ROOT:
            path.append(_entry_points(checkout))
        self.agent = self.host.popen(
            [sys.executable, *program, '--config-file',
             '/etc/nova-vqos/nova-vqos.conf'],
            env={'PYTHONPATH': ':'.join(map(str, path)),
                 'MALLOC_ARENA_MAX': '2'},
            log='agent')
        return self.agent

    def start_guaranteeing_agent(self) -> None:
        """Start it such that it guarantees speed.

        It measures what can be reserved, which nothing else is to do then:
        that is waited for.
        """
        state = pathlib.Path(self.host.path('run/nova-vqos/agent.json'))
        state.unlink(missing_ok=True)
        agent = self.start_agent(agent='guarantees_speed = true')
        process.wait_until(
            lambda: state.exists() and json.loads(state.read_text()).get(
                'guarantee_pcpus'), _AGENT_LIMIT_S, 'the agent',
            log=agent.log, alive=agent.alive)

    def quota_cu(self, domain: str) -> float | None:
        """What the quota of a guest's first vCPU is; None: it has none."""
        cap = self.host.vcpu_cap(domain)
        if cap is None or cap[0] <= 0:
            return None
        return _PCPU_CU * cap[0] / cap[1]

    def vcpu_thread(self, domain: str) -> int:
        """The id of the thread of a guest's first vCPU."""
        return cgroups.threads(self.host.hierarchy,
                               self.host.vcpu_cgroup(domain))[0]

    def stop_agent(self) -> None:
        """Stop it, if it was started.

        :raises LabError: when it had ended by itself
        """
        agent, self.agent = self.agent, None
        if agent is not None:
            if not agent.alive():
                log = pathlib.Path(agent.log).read_text()
                raise process.LabError(f'the agent died: {log[-2000:]}')
            agent.stop()


@functools.cache
def _entry_points(checkout: pathlib.Path) -> pathlib.Path:
    """Where Python finds the entry points of another checkout.

    Without them its agent would load drivers by the entry points of the
    installed project, which may name modules that the checkout lacks.

    :raises LabError: when they cannot be made
    """
    made = pathlib.Path(tempfile.mkdtemp(dir=DIRECTORY))
    process.run(
        ['env', '-C', str(checkout), sys.executable, 'setup.py', '-q',
         'egg_info', '--egg-base', str(made)],
        # Two files that pbr would write into the checkout.
        env={'SKIP_GENERATE_AUTHORS': '1', 'SKIP_WRITE_GIT_CHANGELOG': '1'})
    return made


@contextlib.contextmanager
def started(pcpus: set[int] | None = None, *,
            io: Mapping[str, ty.Any] | None = None) -> Iterator[BenchHost]:
    """A host, removed afterwards.

    :param pcpus: None: all of the machine
    :param io: see :meth:`BenchHost.start`
    """
    bench = BenchHost(pcpus or os.sched_getaffinity(0))
    try:
        bench.start(io)
        yield bench
    finally:
        bench.remove()


def parser(about: str, *, guests: int,
           vcpus: int) -> argparse.ArgumentParser:
    """Options of any bench with many guests, and their defaults.

    :param about: of which the first line is the description
    """
    made = argparse.ArgumentParser(description=about.split('\n', 1)[0])
    made.add_argument('--guests', type=int, default=guests)
    made.add_argument('--vcpus', type=int, default=vcpus,
                      help='of each guest (default %(default)s)')
    made.add_argument('--start-limit-s', type=int, default=240,
                      help='start no more guests after this many seconds')
    made.add_argument('--json', metavar='FILE')
    return made


def save(report: Mapping[str, ty.Any], path: str | None) -> None:
    """Write a report as JSON, where that is asked for."""
    if path:
        pathlib.Path(path).write_text(json.dumps(report, indent=1))


def prepare() -> None:
    """Be ready to make a host.

    :raises SystemExit: when this is not root
    """
    if os.geteuid() != 0:
        print('namespaces and cgroups can be made by root only')
        raise SystemExit(2)
    # Ended by `timeout`, a bench is to clean up all the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(text, file=sys.stderr, flush=True)


def cpu_us(pid: int) -> float:
    """CPU time of a process so far, threads that ended included."""
    # NOTE: the clock of a process by its id, see clock_getcpuclockid(3),
    # which Python has for threads of its own only.
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e3


def available_mib() -> float:
    """Available memory of the machine."""
    return _field_kib('/proc/meminfo', 'MemAvailable') / 1024


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    return _field_kib(f'/proc/{pid}/status', 'VmRSS') / 1024


def _field_kib(path: str, name: str) -> int:
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(f'{name}:'):
            return int(line.split()[1])
    raise ValueError(f'{path} has no {name}')


def measured_us(seconds: float, *pids: int) -> tuple[float, list[float]]:
    """What processes use in a while.

    :returns: for how long, in seconds, and CPU time of each
    """
    before_us, began_s = [cpu_us(pid) for pid in pids], time.monotonic()
    # Not a wait for anything: the length of the measurement.
    time.sleep(seconds)
    return time.monotonic() - began_s, [
        cpu_us(pid) - before
        for pid, before in zip(pids, before_us, strict=True)]


def libvirtd_pid(bench: BenchHost) -> int:
    """As the machine sees it."""
    return ty.cast(process.Process, bench.host.libvirtd).pid
