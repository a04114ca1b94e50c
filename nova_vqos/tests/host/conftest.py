# SPDX-License-Identifier: Apache-2.0
"""Two hosts for the tests: a lab of their own, which no running one sees."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import pytest

# The lab is no part of the installed package.
sys.path.append(str(pathlib.Path(__file__).parents[3] / 'devstack'))

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import busy_guest
from nova_vqos.tests.host import guests
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns

# Each process of pytest has a lab of its own. No dash: see netns.Network.
_WORKER = os.environ.get('PYTEST_XDIST_WORKER', '')
ROOT = f'/var/lib/nova-vqos-host-tests{_WORKER}'
PREFIX = f'vqostest{_WORKER}'


class Lab:
    """Two hosts, and what their guests boot.

    :ivar fast: a host
    :ivar slow: another, whose QEMU is slowed down
    :ivar network: that they are in
    """

    def __init__(self) -> None:
        self.network = netns.Network(PREFIX)
        pcpus = sorted(os.sched_getaffinity(0))
        self.fast = hosts.Host('fast', {pcpus[0]}, root=ROOT, prefix=PREFIX)
        self.slow = hosts.Host('slow', {pcpus[-1]}, slow=True, root=ROOT,
                               prefix=PREFIX)

    @property
    def hosts(self) -> tuple[hosts.Host, hosts.Host]:
        return self.fast, self.slow

    def start(self) -> None:
        self.network.create()
        for host in self.hosts:
            host.start()

    def remove(self) -> None:
        for host in self.hosts:
            host.remove()
        self.network.remove()
        shutil.rmtree(ROOT, ignore_errors=True)


@pytest.fixture(scope='session')
def lab():
    """The two hosts, up; with the hook installed and no profile."""
    requirement.need('; '.join(hosts.missing_requirements()))
    with _alone():
        # Ended by `timeout` or a CI system, it is to clean up all the same.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        made = Lab()
        # What a run that was killed left.
        made.remove()
        try:
            made.start()
            for host in made.hosts:
                agents.install_hook(host)
            guests.build_image(ROOT)
            yield made
        finally:
            made.remove()


@contextlib.contextmanager
def _alone():
    """One run at a time on a machine: the names of things are fixed."""
    path = os.path.join(tempfile.gettempdir(), f'{PREFIX}.lock')
    with open(path, 'w', encoding='ascii') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail('the host tests are running already on this machine')
        yield


@pytest.fixture(scope='session')
def open_checkout():
    """That the agent's user may run what is tested."""
    requirement.need_open_checkout()


@pytest.fixture(scope='session')
def bus(lab):
    """A RabbitMQ on the host fast; its URL, from within the lab."""
    requirement.need_programs('rabbitmq-server')
    return agents.start_bus(lab.fast)


@pytest.fixture(scope='session')
def client(lab, bus):
    """RPC to the agents, from the controller's network."""
    with agents.Client(bus, lab.network.controller) as made:
        yield made


@pytest.fixture(scope='session')
def busy(lab):
    """A guest of two busy vCPUs, without units; see BusyGuest.start()."""
    return busy_guest.BusyGuest(lab.fast, ROOT)


@pytest.fixture
def profiles(lab):
    """Both hosts calibrated, the slow one to half the speed."""
    agents.store_profile(lab.fast, 1.0)
    agents.store_profile(lab.slow, 0.5)


@pytest.fixture
def agent_of(lab, bus, profiles):
    """Starts the agent of a host; all are stopped after the test."""
    with contextlib.ExitStack() as started:
        def start(host, **options):
            agent = agents.Agent(host, bus, **options)
            # Last of all, for pytest to show with a test that failed.
            started.callback(agent.print_log)
            started.callback(agent.stop)
            agent.wait_ready()
            return agent
        yield start


@pytest.fixture
def guest_on(lab, profiles):
    """Starts guests; what is left of them is removed after the test."""
    def start(host, **options):
        return guests.Guest(host, **options)
    yield start
    for host in lab.hosts:
        guests.destroy_all(host)
        agents.configure_hook(host)


@pytest.fixture
def server_on(guest_on):
    """Starts servers of 40 CU as the driver does on the host fast."""
    def start(host, **options):
        specs = guests.server(40, **options)
        return guest_on(host, specs=specs, cap=guests.CAP,
                        shares=guests.SHARES)
    return start
