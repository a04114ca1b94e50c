# SPDX-License-Identifier: Apache-2.0
"""Real guests whose speed is guaranteed by a real agent and this kernel."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
import uuid

import libvirt
import pytest

from nova_vqos import units
from nova_vqos.calibration import guest as images
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.gate import machine
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import hardened_agent
from nova_vqos.tests.host import test_push
from nova_vqos_lab import cgroups
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
WINDOW_S = 4.0
SPINNERS = 6
# Of 40 CU on one vCPU, on pCPUs of 100 CU.
VCPU = units.CpuCap(20_000, 50_000)
IO_US = 1_000
ADDRESSES = {'whole': '198.18.0.13', 'target': '198.18.0.14'}
# Of its CPU time, before all of it is reserved at the target.
MOST_UNRESERVED_NS = 20_000_000
_NOISE = f"""
import os
parent = os.getpid()
for _ in range({SPINNERS}):
    if not os.fork():
        while os.getppid() == parent:
            pass
        os._exit(0)
os.wait()
"""

pytestmark = pytest.mark.measured


def free_pcpus():
    return deadline.free_bandwidth(len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def host_of_all(name, **options):
    """Another host, of all pCPUs of this machine: the kernel reserves time
    for threads only that may run on all.

    :param options: of Host, by name
    """
    made = hosts.Host(name, os.sched_getaffinity(0), address=ADDRESSES[name],
                      root=conftest.ROOT, prefix=conftest.PREFIX, **options)
    made.remove()
    try:
        made.start(peers=ADDRESSES)
        # Otherwise the lab's guests go before all else.
        cgroups.weigh_equally(made.hierarchy, made.cgroup)
        agents.store_profile(made, 1.0)
        yield made
    finally:
        made.remove()


def need_bandwidth():
    """Skip the test where the kernel reserves next to nothing."""
    try:
        if free_pcpus() < 1:
            requirement.need('this kernel reserves less than a pCPU')
    except base.ReservationRefused as error:
        requirement.need(str(error))


@pytest.fixture(scope='module')
def empty(lab):
    need_bandwidth()
    with host_of_all('whole') as made:
        yield made


@pytest.fixture
def whole(empty):
    yield empty
    guests.destroy_all(empty)


@pytest.fixture
def agent(whole, bus):
    with started(whole, bus) as made:
        yield made


@contextlib.contextmanager
def started(host, bus, **options):
    made = agents.Agent(host, bus, guarantees_speed=True, **options)
    try:
        made.wait_ready()
        process.wait_until(
            lambda: made.state().get('guarantee_pcpus') is not None, LIMIT_S,
            'what can be reserved', log=made.process.log)
        yield made
    finally:
        made.stop()
        made.print_log()


def boot(host, cu=40, cap_kind='hard', **options):
    return guests.Guest(host, specs=guests.server(
        cu, vqos_guarantee='required', vqos_cap=cap_kind), **options)


def reservations(guest):
    """:returns: of its first vCPU and its main thread, None: it has none"""
    return tuple(deadline.reservation(tid)
                 for tid in (guest.thread(0), guest.emulator))


def wait_reserved(guest):
    process.wait_until(lambda: reservations(guest)[0] == VCPU, LIMIT_S,
                       f'the reservation of {guest.name}')


@contextlib.contextmanager
def noise(host):
    """Processes of a host that spin, beside the group of all its guests.

    Started as one: beside each other that would take long.
    """
    spinners = host.popen([sys.executable, '-c', _NOISE], log='noise')
    try:
        yield
    finally:
        spinners.stop()


def test_a_guest_gets_its_speed_beside_any_noise(agent, whole):
    guest = boot(whole)
    wait_reserved(guest)
    assert reservations(guest)[1].quota_us == IO_US
    guest.wait_cap(guests.CAP)
    with noise(whole):
        share = guest.delivered_share(WINDOW_S)
    assert share == pytest.approx(0.4, rel=0.05)


def test_the_limits_of_its_unit_let_the_agent_reserve(open_checkout, whole,
                                                      bus):
    hardened_agent.need()
    agent = hardened_agent.HardenedAgent(whole, bus, guarantees_speed=True)
    try:
        agent.wait_ready()
        wait_reserved(boot(whole))
        assert agent.status()['Seccomp'] == '2'
    finally:
        try:
            agent.stop()
        finally:
            agent.print_log()


def test_a_floor_uses_what_others_leave(agent, whole):
    guest = boot(whole, cap_kind='floor')
    wait_reserved(guest)
    assert guest.cap()[0] == -1
    assert guest.delivered_share(WINDOW_S) > 0.6
    # Nearly all that is left is reserved for others, and used.
    others = [boot(whole, 50) for _ in whole.pcpus]
    half = units.CpuCap(25_000, 50_000)
    for other in others:
        process.wait_until(lambda other=other: reservations(other)[0] == half,
                           LIMIT_S, f'the reservation of {other.name}')
    with noise(whole):
        share = guest.delivered_share(WINDOW_S)
        shares = [other.delivered_share(WINDOW_S) for other in others]
    assert share > 0.4 * 0.95
    assert shares == pytest.approx([0.5] * len(others), rel=0.05)
    # No one has given up what was reserved.
    assert reservations(guest)[0] == VCPU


def test_one_that_is_reset_or_paused_keeps_it(agent, whole):
    guest = boot(whole)
    wait_reserved(guest)
    guest.domain().reset()
    guest.domain().suspend()
    assert reservations(guest)[0] == VCPU
    guest.domain().resume()
    assert reservations(guest)[0] == VCPU


def test_io_has_what_its_vcpu_leaves(agent, whole):
    guest = boot(whole)
    wait_reserved(guest)
    before = reservations(guest)

    def is_raised():
        # Work for its main thread.
        for _ in range(50):
            guest.domain().memoryPeek(0, 4096, libvirt.VIR_MEMORY_PHYSICAL)
        vcpu, io = reservations(guest)
        return vcpu.share < before[0].share and io.share > before[1].share
    guest.domain().suspend()
    process.wait_until(is_raised, LIMIT_S, 'more for its I/O')
    vcpu, io = reservations(guest)
    assert io.quota_us == IO_US
    # It has two threads of I/O, and as a whole what it had.
    assert float(vcpu.share + 2 * io.share) == pytest.approx(
        float(before[0].share + 2 * before[1].share), rel=0.01)
    # It spins.
    guest.domain().resume()
    process.wait_until(lambda: reservations(guest) == before, LIMIT_S,
                       'all for its vCPU again')


def test_one_that_its_guest_reboots_keeps_it(agent, whole):
    initrd = whole.path('nova/reboots')
    images.build_initramfs(initrd, tools=(), init='#!/bin/sh\nreboot -f\n')
    guest = boot(whole, initrd=initrd, memory_mib=96)
    wait_reserved(guest)
    thread = guest.thread(0)
    whole.run(['virsh', 'event', '--event', 'reboot', '--domain', guest.name,
               '--timeout', str(LIMIT_S)], limit_s=LIMIT_S + 10)
    assert reservations(guest)[0] == VCPU
    assert guest.thread(0) == thread


@pytest.mark.smoke
def test_one_that_is_started_anew_is_guaranteed_anew(agent, whole):
    """As Nova reboots a server by force, and as it is restored."""
    guest = boot(whole)
    image = whole.path('nova/saved')
    connection = guests.connect(whole)

    def reboot():
        description = guest.domain().XMLDesc()
        guest.domain().destroy()
        connection.createXML(description)

    def restore():
        guest.domain().save(image)
        connection.restore(image)

    for begin_anew in reboot, restore:
        wait_reserved(guest)
        thread = guest.thread(0)
        begin_anew()
        assert guest.thread(0) != thread
        wait_reserved(guest)
        assert reservations(guest)[1].quota_us == IO_US


def plug_in(guest):
    """Plug in its second vCPU, and wait until both have their half."""
    guest.domain().setVcpusFlags(2, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    half = units.CpuCap(10_000, 50_000)
    process.wait_until(
        lambda: [deadline.reservation(guest.thread(vcpu))
                 for vcpu in (0, 1)] == [half, half],
        LIMIT_S, 'the reservations of both vCPUs')


def test_a_vcpu_that_is_plugged_in_gets_its_part(agent, whole):
    guest = boot(whole, spare_vcpus=1)
    wait_reserved(guest)
    plug_in(guest)


def test_what_does_not_fit_keeps_its_cap(agent, whole):
    """Sold to all who booted at once: each saw room for one."""
    made = [boot(whole, 80) for _ in range(len(whole.pcpus) + 1)]
    wanted = units.CpuCap(40_000, 50_000)

    def counts():
        has = [reservations(guest)[0] for guest in made]
        return has.count(wanted), has.count(None)
    process.wait_until(lambda: counts() == (len(whole.pcpus), 1), LIMIT_S,
                       'all but one reservation')
    without, = (guest for guest in made if reservations(guest)[0] is None)
    without.wait_cap((40_000, 50_000))
    process.wait_until(
        lambda: any(without.uuid in alarm
                    for alarm in agent.state()['alarms']),
        LIMIT_S, 'the alarm')
    # As soon as another goes, it is its turn.
    next(guest for guest in made if guest is not without).domain().destroy()
    process.wait_until(lambda: reservations(without)[0] == wanted, LIMIT_S,
                       'the last reservation')


def test_no_more_than_the_operator_lets_be_reserved(whole, bus):
    share, needs = 0.3, 0.4 * (1 + 2 / 12)
    with started(whole, bus, guaranteed_share=share) as agent:
        total = share * len(whole.pcpus)
        assert agent.state()['guarantee_total_pcpus'] == pytest.approx(total)
        made = [boot(whole) for _ in whole.pcpus]

        def without():
            return [guest for guest in made
                    if reservations(guest)[0] is None]
        # A guest needs less once a worker of its emulator has ended.
        most = int(total / (needs - 0.4 / 12))
        process.wait_until(
            lambda: int(total / needs) <= len(made) - len(without()) <= most
            and any('guaranteed_share' in alarm
                    for alarm in agent.state()['alarms']),
            LIMIT_S, 'the reservations and the alarm')
        for guest in without():
            guest.wait_cap(guests.CAP)
        guests.destroy_all(whole)


def test_a_pinned_guest_is_not_guaranteed(agent, whole):
    guest = boot(whole, pinned_to=min(whole.pcpus))
    process.wait_until(
        lambda: any(guest.uuid in alarm and 'all pCPUs' in alarm
                    for alarm in agent.state()['alarms']),
        LIMIT_S, 'the alarm')
    assert reservations(guest)[0] is None


def test_half_of_a_refused_pin_is_undone(agent, whole):
    guest = boot(whole, spare_vcpus=1)
    wait_reserved(guest)
    # One to a pCPU that is none of its host's would be refused as a whole.
    pin = tuple(pcpu == min(whole.pcpus)
                for pcpu in range(max(whole.pcpus) + 1))
    with pytest.raises(libvirt.libvirtError):
        guest.domain().pinVcpu(0, pin)
    process.wait_until(lambda: 'refused a pin' in agent.log(), LIMIT_S,
                       'the agent to see what libvirt left of it')
    process.wait_until(
        lambda: os.sched_getaffinity(guest.thread(0)) == set(whole.pcpus),
        LIMIT_S, 'its vCPU to run on all pCPUs')
    # What is reserved can be changed again.
    plug_in(guest)


def start_again(guest):
    """Stop a guest, and start it as the same server."""
    connection = guests.connect(guest.host)
    xml = guest.domain().XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    guest.domain().destroy()
    connection.createXML(xml)


def test_a_push_reserves_at_once_and_frees_at_the_next_start(agent, whole,
                                                             client):
    flavor_id = str(uuid.uuid4())
    guest = guests.Guest(whole, specs=guests.server(40), flavor_id=flavor_id,
                         spare_vcpus=1)
    guest.wait_cap(guests.CAP)
    assert reservations(guest) == (None, None)
    tid = guest.thread(0)
    test_push.push(client, whole, flavor_id, guarantee='required')
    wait_reserved(guest)
    assert guest.thread(0) == tid

    answer = test_push.push(client, whole, flavor_id)
    assert answer['keep_reservation'] == 1
    assert client.get_server(whole, guest)['guarantee']['ends']
    process.wait_until(lambda: 'until it stops' in agent.log(), LIMIT_S,
                       'a line of the log')
    assert reservations(guest)[0] == VCPU
    # It is never more than the server has.
    guest.domain().setVcpusFlags(2, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    half = units.CpuCap(10_000, 50_000)
    process.wait_until(lambda: reservations(guest)[0] == half, LIMIT_S,
                       'less for its first vCPU')
    assert deadline.reservation(guest.thread(1)) is None
    process.wait_until(lambda: guest.cap(vcpu=1) == half, LIMIT_S,
                       'the cap of its second vCPU')

    start_again(guest)
    guest.wait_cap(half)
    assert reservations(guest) == (None, None)
    process.wait_until(
        lambda: agent.state()['guarantee_pcpus']
        == agent.state()['guarantee_total_pcpus'], LIMIT_S,
        'all to be free again')
    assert client.get_server(whole, guest)['guarantee'] is None


def test_a_new_agent_finds_what_was_taken_away(whole, bus, client):
    flavor_id = str(uuid.uuid4())
    with started(whole, bus) as agent:
        total = agent.state()['guarantee_total_pcpus']
        guest = boot(whole, flavor_id=flavor_id)
        wait_reserved(guest)
        test_push.push(client, whole, flavor_id)
        agent.process.signal(signal.SIGKILL)
        agent.process.wait(10)
    with started(whole, bus) as agent:
        found = client.get_server(whole, guest)['guarantee']
        assert (found['ends'], found['vcpus']) == (True, 1)
        assert agent.state()['guarantee_total_pcpus'] == pytest.approx(
            total, abs=0.01)
        assert reservations(guest)[0] == VCPU


@test_push.needs_slices
def test_a_push_takes_a_server_out_of_its_pool(whole, bus, client):
    flavor_id = str(uuid.uuid4())
    agents.store_proof(whole)
    with started(whole, bus, quantum_interval_s=1, pool_interval_s=1):
        made = [guests.Guest(whole, specs=guests.server(
            40, vqos_quantum_class=name), flavor_id=flavor, vcpus=2)
            for name, flavor in (('cache', flavor_id), ('default', None))]
        process.wait_until(
            lambda: set.isdisjoint(*(os.sched_getaffinity(guest.thread(0))
                                     for guest in made)),
            LIMIT_S, 'two pools')
        test_push.push(client, whole, flavor_id, quantum_class='cache',
                       guarantee='required', vcpus=2)
        half = units.CpuCap(10_000, 50_000)
        process.wait_until(
            lambda: [deadline.reservation(made[0].thread(vcpu))
                     for vcpu in (0, 1)] == [half, half],
            LIMIT_S, 'the reservations of both vCPUs')


class Arrival:
    """Looks at a guest's vCPU until its time is reserved on a host.

    :ivar run_ns: what it ran there until then; None: it is not yet
    """

    def __init__(self, guest, host):
        self.run_ns = None
        self._guest, self._host = guest, host
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        self._stop.set()
        self._thread.join()

    def _look(self):
        run_ns = 0
        while self.run_ns is None and not self._stop.wait(0.001):
            with contextlib.suppress(OSError, IndexError):
                tid = self._guest.thread(0, self._host)
                if tid and deadline.reservation(tid):
                    # What it has run since the last look it may have had
                    # reserved.
                    self.run_ns = run_ns
                elif tid:
                    run_ns = procfs.read_run(tid).run_ns


def test_one_that_migrates_is_guaranteed_when_it_arrives(agent, whole, bus):
    guest = boot(whole)
    wait_reserved(guest)
    with host_of_all('target') as target, contextlib.ExitStack() as stack:
        # It restarts libvirtd, which the agent would have to find again.
        agents.install_hook(target)
        target_agent = stack.enter_context(started(target, bus))
        with (machine.Standstill() as still,
              Arrival(guest, target) as arrival):
            began_s = time.monotonic()
            guest.migrate(target)
            process.wait_until(lambda: arrival.run_ns is not None, LIMIT_S,
                               'the reservation at the target')
            lost_s = still.lost_s(began_s, time.monotonic())
        assert arrival.run_ns < MOST_UNRESERVED_NS + lost_s * 1e9
        process.wait_until(
            lambda: re.search(rf'{guest.uuid} .* is guaranteed, (before its '
                              r'guest runs|\d+ ms after)', target_agent.log()),
            LIMIT_S, 'the log of the window')
        guest.host = target
        share = guest.delivered_share(WINDOW_S)
        guests.destroy_all(target)
    assert share == pytest.approx(0.4, rel=0.05)


def test_nothing_is_lost(whole, bus):
    """The kernel loses the time of a thread that leaves the policy."""
    before = free_pcpus()
    with started(whole, bus) as agent:
        for _ in range(5):
            guest = boot(whole)
            wait_reserved(guest)
            os.kill(guest.emulator, signal.SIGKILL)
            process.wait_until(
                lambda: not guests.connect(whole).listAllDomains(), LIMIT_S,
                'the end of the guest')
        guest = boot(whole)
        wait_reserved(guest)
        agent.process.signal(signal.SIGKILL)
        agent.process.wait(10)
    assert reservations(guest)[0] == VCPU
    with started(whole, bus) as agent:
        # A new agent takes it over.
        process.wait_until(
            lambda: 'is guaranteed' in agent.log(), LIMIT_S,
            'the new agent to find the reservation')
        assert reservations(guest)[0] == VCPU
    # An agent that is stopped leaves it, too.
    assert reservations(guest)[0] == VCPU
    guests.destroy_all(whole)
    process.wait_until(
        lambda: before - free_pcpus() < 0.01, LIMIT_S,
        f'the kernel to reserve {float(before):.3f} pCPUs again')
