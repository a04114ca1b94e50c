# SPDX-License-Identifier: Apache-2.0
"""Ways to move, stop and change a server that only a real libvirt has.

One server of two busy vCPUs is started for each test. For how long it ran
with a wrong cap is read from its cgroups. Its debt is exact: a server that is
billed, and not charged, keeps it.
"""

import os
import signal
import threading
import time

import libvirt
import pytest

from nova_vqos.agent import manager
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.profile import document
from nova_vqos.tests.gate import machine
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import cap_watch
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_billing
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SPECS = guests.server(36, vqos_quantum_class='cache',
                      vqos_dd_billing='account')
#: Of each of its two vCPUs, on a pCPU of 100 CU and on one of 50; and of each
#: of three.
CAP = (9_000, 50_000)
CAP_ON_SLOW = (18_000, 50_000)
CAP_OF_THREE = (8_000, 66_667)
CAP_OF_THREE_ON_SLOW = (12_000, 50_000)
SHARES = {1: 369, 2: 36}[cgroup.host_version('/')]
SLICE_US = 90_000
DEBT_CU_S = 500
# The agents' interval, as by default.
TICK_MS = 1000
# In MiB/s. It would take a minute, and the guest changes more than that.
SLOW_PACE = 1
ALL_SPEED = 8000

DISK = f"""
<disk type='file' device='disk'>
  <driver name='qemu' type='raw'/>
  <source file='{conftest.ROOT}/nova/disk'/>
  <target dev='vda' bus='virtio'/>
</disk>
"""

has_slices = sched_attr.slice_us(0) is not None


class Agents:
    """The agents of both hosts."""

    def __init__(self, lab, bus):
        self._bus = bus
        self._lab = lab
        self._agents = {}

    def start(self, *hosts):
        """Start those that do not run; with the interval of the default."""
        begun = [agents.Agent(
            host, self._bus, tick_interval_s=TICK_MS / 1000,
            quantum_interval_s=1, billing_interval_s=0.5)
            for host in hosts or self._lab.hosts
            if host.name not in self._agents]
        for agent in begun:
            self._agents[agent.host.name] = agent
            agent.wait_ready()

    def kill(self, host):
        agent = self._agents.pop(host.name)
        agent.process.kill()
        agent.print_log()

    def stop(self):
        for agent in self._agents.values():
            agent.stop()
            agent.print_log()


@pytest.fixture(scope='module')
def started(lab, bus, client, busy):
    """The agents of both hosts; the server owes something."""
    for host in lab.hosts:
        agents.store_proof(host)
        for suffix in ('', '-wal', '-shm'):
            path = test_billing.ledger_path(host) + suffix
            if os.path.exists(path):
                os.unlink(path)
    store_profiles(lab)
    made = Agents(lab, bus)
    try:
        made.start()
        guest = busy.start(lab.fast, SPECS)
        test_billing.wait_billed(client, lab.fast, guest)
        made.kill(lab.fast)
        test_billing.owe(lab.fast, guest, DEBT_CU_S / 40)
        guests.destroy_all(lab.fast)
        yield made
    finally:
        made.stop()


def store_profiles(lab):
    agents.store_profile(lab.fast, 1.0)
    agents.store_profile(lab.slow, 0.5)


def wait_profile(client, host):
    """Wait until the agent of a host uses the profile that is there."""
    stored = document.load(agents.profile_path(host)).id
    process.wait_until(
        lambda: client.get_host(host)['profile_id'] == stored, LIMIT_S,
        f'the agent of {host.name} to use profile {stored}')


@pytest.fixture
def start(lab, busy, started, client):
    """Starts the server on a host, with all that it is to have there."""
    started.start()
    for host in lab.hosts:
        wait_profile(client, host)

    def start(host, **options):
        guest = busy.start(host, SPECS, **options)
        assert_kept(client, guest)
        return guest
    yield start
    for host in lab.hosts:
        guests.destroy_all(host)
        agents.configure_hook(host)
    store_profiles(lab)


def assert_kept(client, guest, cap=None):
    """That a server has all that it is to have on its host."""
    cap = cap or (CAP if guest.host.name == 'fast' else CAP_ON_SLOW)
    client.wait_right(guest)
    vcpus = range(guest.domain().vcpusFlags())
    assert [guest.cap(vcpu=vcpu) for vcpu in vcpus] == [cap] * len(vcpus)
    assert guest.libvirt_cap() == cap
    assert guest.shares() == SHARES
    test_billing.wait_billed(client, guest.host, guest, debt_cu_s=DEBT_CU_S)
    if has_slices:
        process.wait_until(
            lambda: {sched_attr.slice_us(guest.thread(vcpu))
                     for vcpu in vcpus} == {SLICE_US}, LIMIT_S, 'its slices')


def assert_nothing_to_correct(client, guest):
    report = client.get_server(guest.host, guest)
    assert report['right_at_first_sight'] is True, report
    assert (report['writes'], report['wrong_ms']) == (0, 0), report


def assert_goes_on(guest):
    assert guest.state() == guests.RUNNING
    before_ns = guest.cpu_time_ns()
    process.wait_until(lambda: guest.cpu_time_ns() > before_ns, LIMIT_S,
                       f'{guest.name} to go on')


def assert_gone(client, guest, host):
    """That a host knows nothing of a guest any more."""
    process.wait_until(lambda: not guests.connect(host).listAllDomains(),
                       LIMIT_S, 'the guest to be gone')
    process.wait_until(
        lambda: guest.uuid not in client.get_host(host)['servers'], LIMIT_S,
        'its agent to forget it')


class Move:
    """A migration that does not end by itself.

    :ivar error: libvirt's; None: there is none, or not yet
    """

    def __init__(self, guest, target, flags=0, pace=SLOW_PACE):
        self.error = None
        self._guest = guest
        self._target = target
        self._thread = threading.Thread(
            target=self._run, args=(target, flags, pace), daemon=True)

    def __enter__(self):
        """Wait until it is in the middle."""
        self._thread.start()
        domain = self._guest.domain()
        process.wait_until(
            lambda: self.error or (
                domain.jobStats().get('memory_processed', 0)
                and self._guest.group(self._target)), LIMIT_S,
            'a migration in the middle')
        assert self.error is None, self.error
        return self

    def __exit__(self, *_exception):
        self.wait_end()

    def wait_end(self):
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def finish(self):
        """Let it end, at all speed."""
        self._guest.domain().migrateSetMaxSpeed(ALL_SPEED)
        self.wait_end()
        assert self.error is None, self.error
        self._guest.host = self._target

    def _run(self, target, flags, pace):
        try:
            self._guest.migrate(target, flags, bandwidth=pace)
        except libvirt.libvirtError as error:
            self.error = error


def test_one_that_pauses_and_goes_on(lab, start, client):
    guest = start(lab.fast)
    with (cap_watch.CapWatch(guest) as watch, guests.Writes(guest) as writes):
        guest.domain().suspend()
        assert_kept(client, guest)
        guest.domain().resume()
        assert_kept(client, guest)
        assert_goes_on(guest)
        assert writes.take() == 0
    assert watch.wrong_ms(CAP) == 0


def test_one_that_is_saved_and_restored(lab, start, client):
    """As Nova suspends a server, and as it makes a cold snapshot."""
    guest = start(lab.fast, persistent=True)
    definition = guest.domain().XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE
                                        | libvirt.VIR_DOMAIN_XML_SECURE)
    guest.domain().managedSave()
    # The host was calibrated anew meanwhile.
    agents.store_profile(lab.fast, 0.8)
    wait_profile(client, lab.fast)
    with cap_watch.CapWatch(guest) as watch:
        guests.connect(lab.fast).defineXML(definition).create()
        assert_kept(client, guest, (11_250, 50_000))
    assert watch.wrong_ms((11_250, 50_000)) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)
    assert client.get_server(lab.fast, guest)['origin'] == 'restored'


@pytest.mark.measured
def test_a_calibration_to_less_and_to_more(lab, start, client):
    guest = start(lab.fast)
    for coefficient, cap in (0.8, (11_250, 50_000)), (1.0, CAP):
        with cap_watch.CapWatch(guest) as watch:
            agents.store_profile(lab.fast, coefficient)
            stored_s = time.monotonic()
            guest.wait_cap(cap)
            assert_kept(client, guest, cap)
        # The profile is looked at in each tick.
        assert watch.late_ms(cap, stored_s) < 2 * TICK_MS, watch.caps()
        assert client.get_server(lab.fast, guest)['last_recap'][
            'reason'] == 'profile'
    # Of a vCPU it can give less than the server was promised.
    agents.store_profile(lab.fast, 0.1)
    process.wait_until(
        lambda: client.get_server(lab.fast, guest)['problem'], LIMIT_S,
        'the problem')
    assert guest.cap() == CAP


@pytest.mark.measured
def test_virsh_schedinfo(lab, start, client):
    guest = start(lab.fast, persistent=True)
    process.wait_until(lambda: guest.next_start() == (*CAP, SHARES), LIMIT_S,
                       'its definition to be corrected')
    with cap_watch.CapWatch(guest) as watch:
        lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                      'vcpu_quota=100000'])
        client.wait_tampering(guest, '100000')
        assert_kept(client, guest)
    assert watch.late_ms(CAP) < TICK_MS, watch.caps()

    # libvirt reports no change of a definition: it is corrected when its
    # guest has started again.
    lab.fast.run(['virsh', 'schedinfo', guest.name, '--config',
                  'vcpu_quota=100000'])
    with cap_watch.CapWatch(guest) as watch:
        guest.soft_reboot()
        assert_kept(client, guest)
    assert watch.late_ms(CAP) < TICK_MS, watch.caps()
    process.wait_until(lambda: guest.next_start() == (*CAP, SHARES), LIMIT_S,
                       'its definition to be corrected')


def test_a_libvirtd_that_is_restarted(lab, start, client):
    guest = start(lab.fast)
    with cap_watch.CapWatch(guest) as watch:
        restart_libvirtd(lab.fast)
        assert_kept(client, guest)
    assert watch.wrong_ms(CAP) == 0


def restart_libvirtd(host):
    host.libvirtd.kill()
    host.start_libvirtd()


def end_job(lab, _started, guest):
    guest.domain().abortJob()


def kill_target(lab, _started, guest):
    group = f'{os.path.dirname(guest.group(lab.slow))}/emulator'
    os.kill(next(iter(cgroups.members(lab.slow.hierarchy, group))),
            signal.SIGKILL)


def restart_source_libvirtd(lab, _started, _guest):
    restart_libvirtd(lab.fast)


def restart_target_libvirtd(lab, _started, _guest):
    restart_libvirtd(lab.slow)


@pytest.mark.parametrize('fail', [
    end_job, kill_target, restart_source_libvirtd, restart_target_libvirtd])
def test_a_migration_that_fails(lab, started, start, client, fail):
    guest = start(lab.fast)
    with cap_watch.CapWatch(guest) as watch:
        with Move(guest, lab.slow) as move:
            fail(lab, started, guest)
            move.wait_end()
        assert move.error is not None
        assert_gone(client, guest, lab.slow)
        assert_kept(client, guest)
    assert watch.wrong_ms(CAP) == 0
    assert_nothing_to_correct(client, guest)
    assert_goes_on(guest)


@pytest.mark.measured
def test_a_limit_on_io_after_a_migration_that_fails(
        lab, started, guest_on, client):
    guest = guest_on(lab.fast, specs=guests.server(
        40, vqos_dd_billing='charge'), cap=guests.CAP, shares=guests.SHARES)
    started.start()
    test_billing.wait_domain_limit(guest, guests.CAP)
    client.lift_limits(guest)
    alone_until_s = time.monotonic() + manager.LIFT_S + TICK_MS / 1000
    with Move(guest, lab.slow) as move:
        process.wait_until(
            lambda: time.monotonic() > alone_until_s, LIMIT_S,
            'the time that a limit is lifted for without a migration')
        # So the agent has seen the migration.
        assert test_billing.domain_limit(guest)[0] == -1
        with machine.Standstill() as still:
            guest.domain().abortJob()
            move.wait_end()
            ended_s = time.monotonic()
            test_billing.wait_domain_limit(guest, guests.CAP)
            limited_s = time.monotonic()
    assert (limited_s - ended_s - still.lost_s(ended_s, limited_s)
            < 2 * TICK_MS / 1000)
    assert test_billing.account(lab.fast, guest).handed_to == ''


def test_post_copy_and_back_with_auto_converge(lab, start, client):
    guest = start(lab.fast)
    with (cap_watch.CapWatch(guest) as source,
          cap_watch.CapWatch(guest, lab.slow) as watch,
          Move(guest, lab.slow, libvirt.VIR_MIGRATE_POSTCOPY) as move):
        guest.domain().migrateStartPostCopy()
        move.wait_end()
        assert move.error is None
        guest.host = lab.slow
        assert_kept(client, guest)
    assert source.wrong_ms(CAP) == 0
    assert watch.wrong_ms(CAP_ON_SLOW) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)
    assert_goes_on(guest)

    # QEMU may slow the guest down on its source, without its cap.
    with (cap_watch.CapWatch(guest) as source,
          cap_watch.CapWatch(guest, lab.fast) as watch):
        guest.migrate(lab.fast, libvirt.VIR_MIGRATE_AUTO_CONVERGE,
                      bandwidth=16)
        guest.host = lab.fast
        assert_kept(client, guest)
    assert source.wrong_ms(CAP_ON_SLOW) == 0
    assert watch.wrong_ms(CAP) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)


def test_a_block_migration_and_back_without_agents(lab, started, start,
                                                   client):
    guest = start(lab.fast)
    # On no storage that both hosts have.
    for host in lab.hosts:
        with open(host.path('nova/disk'), 'wb') as disk:
            disk.truncate(4 << 20)
    guest.domain().attachDevice(DISK)
    with cap_watch.CapWatch(guest, lab.slow) as watch:
        guest.migrate(lab.slow, libvirt.VIR_MIGRATE_NON_SHARED_DISK)
        guest.host = lab.slow
        assert_kept(client, guest)
    assert watch.wrong_ms(CAP_ON_SLOW) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)

    for host in lab.hosts:
        started.kill(host)
    with cap_watch.CapWatch(guest, lab.fast) as watch:
        guest.migrate(lab.fast, libvirt.VIR_MIGRATE_NON_SHARED_DISK)
        guest.host = lab.fast
        assert_goes_on(guest)
        started.start()
        assert_kept(client, guest)
    assert watch.wrong_ms(CAP) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)


def test_agents_that_are_restarted_meanwhile(lab, started, start, client):
    guest = start(lab.fast)
    with (cap_watch.CapWatch(guest) as source,
          cap_watch.CapWatch(guest, lab.slow) as watch,
          Move(guest, lab.slow) as move):
        for host in lab.hosts:
            started.kill(host)
        started.start()
        move.finish()
        assert_kept(client, guest)
    assert source.wrong_ms(CAP) == 0
    assert watch.wrong_ms(CAP_ON_SLOW) == 0, watch.caps()
    assert_nothing_to_correct(client, guest)


def test_a_source_that_dies(lab, start, busy, client):
    guest = start(lab.slow)
    with Move(guest, lab.fast) as move:
        os.kill(guest.emulator, signal.SIGKILL)
        move.wait_end()
    assert move.error is not None
    for host in lab.hosts:
        assert_gone(client, guest, host)
    # It is started anew, and its account comes.
    with cap_watch.CapWatch(guest, lab.fast) as watch:
        busy.start(lab.fast, SPECS)
        assert_kept(client, guest)
    assert watch.wrong_ms(CAP) == 0


@pytest.mark.measured
def test_what_no_hook_does_the_agent_does(lab, start, client, missing_hook):
    guest = start(lab.fast)
    missing_hook(lab.slow)
    assert_corrected(client, guest, lab.slow, CAP_ON_SLOW)
    # And one that fails.
    agents.configure_hook(lab.fast, profile='/nonesuch')
    assert_corrected(client, guest, lab.fast, CAP)


def assert_corrected(client, guest, target, cap):
    """That a server that moves is soon right by the agent there."""
    with cap_watch.CapWatch(guest, target) as watch:
        guest.migrate(target)
        guest.host = target
        assert_kept(client, guest)
    assert watch.late_ms(cap) < TICK_MS, watch.caps()
    report = client.get_server(target, guest)
    assert report['right_at_first_sight'] is False
    assert 0 < report['wrong_ms'] < TICK_MS + watch.lost_ms()
    print(f"{report['wrong_ms']:.1f} ms by the agent of {target.name}")


@pytest.fixture
def missing_hook(lab):
    """Takes the hook of a host away; it is there again after the test."""
    moved = []

    def take_away(host):
        path = host.path('etc/libvirt/hooks/qemu.d')
        os.rename(path, f'{path}-away')
        moved.append(path)
    yield take_away
    for path in moved:
        os.rename(f'{path}-away', path)


@pytest.mark.measured
def test_a_vcpu_that_is_plugged_in_and_migrates(lab, start, client):
    guest = start(lab.fast)
    with cap_watch.CapWatch(guest) as watch:
        began_s = time.monotonic()
        lab.fast.run(['virsh', 'setvcpus', guest.name, '3', '--live'])
        assert_kept(client, guest, CAP_OF_THREE)
        process.wait_until(
            lambda: guest.cpu_time_ns(vcpu=2) > 100_000_000, LIMIT_S,
            'its third vCPU to work')
    assert watch.late_ms(CAP_OF_THREE, began_s) < TICK_MS, watch.caps()
    assert client.get_server(lab.fast, guest)['tampering_count'] == 0

    for target, cap in ((lab.slow, CAP_OF_THREE_ON_SLOW),
                        (lab.fast, CAP_OF_THREE)):
        with cap_watch.CapWatch(guest, target) as watch:
            guest.migrate(target)
            guest.host = target
            assert_kept(client, guest, cap)
        assert watch.wrong_ms(cap) == 0, watch.caps()
