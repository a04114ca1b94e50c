# SPDX-License-Identifier: Apache-2.0
"""The agent under the limits of its systemd unit, as systemd sets them.

hardened_agent.py has how.
"""

import functools
import json
import os
import pathlib
import shlex
import signal
import sys
import time

import libvirt
import pytest

from nova_vqos.calibration.probe import probe
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import hardened_agent
from nova_vqos.tests.host import unit_files
from nova_vqos_lab import ioguest
from nova_vqos_lab import process

UNIT = hardened_agent.UNIT
STATE_DIRECTORY = hardened_agent.STATE_DIRECTORY
LIMIT_S = guests.LIMIT_S
RELOADS = 'Reading everything again'

_CAP_SYS_NICE = 1 << 23


@pytest.fixture(scope='module')
def hardened(open_checkout, lab, bus):
    """The agent of the host fast, run by systemd."""
    hardened_agent.need()
    agents.store_profile(lab.fast, 1.0)
    foreign = pathlib.Path(lab.fast.path('etc/nova-vqos/foreign'))
    foreign.touch(mode=0o600)
    os.chown(foreign, 1, 1)
    # As if seen before on this boot: the machine may be busy.
    agents.store_proof(lab.fast)
    agent = hardened_agent.HardenedAgent(lab.fast, bus,
                                         metrics_address='127.0.0.1')
    try:
        agent.wait_ready()
        yield agent
    finally:
        try:
            agent.stop()
        finally:
            agent.print_log()
            foreign.unlink()


def test_the_agent_does_its_work_within_the_limits(lab, guest_on, server_on,
                                                   hardened, client):
    guest = server_on(lab.fast)
    client.wait_right(guest)

    lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                  'vcpu_quota=10000'])
    client.wait_tampering(guest, '10000')
    guest.wait_cap(guests.CAP)
    assert guest.libvirt_cap() == guests.CAP

    guest.meddle(45_000)
    # The kernel told of it, the agent did not just come by.
    tampering = client.wait_tampering(guest, '45000')
    assert 'cgroup' in tampering['channel'], tampering
    guest.wait_cap(guests.CAP)

    late = guest_on(lab.fast, specs=guests.server(60))
    late.wait_cap((30_000, 50_000))
    # Nothing that the fingerprint is made of is hidden from it.
    assert hardened.state()['alarms'] == []
    assert 'cannot be watched' not in hardened.log()


def test_systemd_sees_that_it_is_alive(hardened):
    """Type=notify: it is active because the agent said so."""
    assert hardened.control('is-active', UNIT.name) == 'active'
    assert hardened.control('show', '-P', 'NRestarts', UNIT.name) == '0'
    seen = hardened.control(
        'show', '-P', 'WatchdogTimestampMonotonic', UNIT.name)
    assert int(seen) > 0
    hardened.control('reload', UNIT.name)
    process.wait_until(
        lambda: RELOADS in hardened.log(), LIMIT_S,
        'the agent to read everything again')


def test_prometheus_is_told_all(lab, hardened):
    """It may listen, and read what it tells of itself."""
    page = lab.fast.run([sys.executable, '-c', (
        'import urllib.request as http\n'
        'print(http.urlopen("http://127.0.0.1:19177/metrics").read()'
        '.decode())')]).stdout
    assert '\nnova_vqos_agent_up 1.0\n' in page
    assert '\nnova_vqos_host_profile_valid 1.0\n' in page
    assert '\nprocess_open_fds ' in page


def test_the_limits_are_those_of_the_unit(lab, hardened):
    unit = unit_files.read(UNIT)
    status = hardened.status()
    assert unit['CapabilityBoundingSet'] == 'CAP_SYS_NICE'
    for name, held in {
            'CapBnd': _CAP_SYS_NICE, 'CapEff': _CAP_SYS_NICE,
            'CapPrm': _CAP_SYS_NICE, 'CapInh': _CAP_SYS_NICE,
            'CapAmb': _CAP_SYS_NICE}.items():
        assert int(status[name], 16) == held, name
    assert unit['NoNewPrivileges'] == 'yes'
    assert status['NoNewPrivs'] == '1'
    # 2: by a filter.
    assert status['Seccomp'] == '2'

    # What RuntimeDirectory names, and what only the agent can see: an empty
    # home and /tmp, a /dev without devices. /proc is as it always is.
    private = ('/proc', '/dev/pts', '/dev/shm', *unit_files.HIDDEN)
    assert {path for path, options in hardened.mounts().items()
            if 'rw' in options}.difference(private) == {
                f'/run/{unit["RuntimeDirectory"]}',
                f'/var/lib/{unit["StateDirectory"]}'}

    with open(lab.fast.path('run/nova-vqos/probe.json'),
              encoding='ascii') as file:
        assert json.load(file) == {**hardened_agent.REFUSED, 'slice': 0}


def test_it_sets_the_slices_of_a_guests_threads(lab, guest_on, hardened):
    process.wait_until(lambda: hardened.state().get('classes'), LIMIT_S,
                       'the classes that the host offers')
    if classes.CACHE not in hardened.state()['classes']:
        requirement.need('this kernel was just seen not to enforce long '
                         'slices')
    guest = guest_on(lab.fast, specs=guests.server(
        40, vqos_quantum_class='cache'), cap=guests.CAP)
    for tid in guest.thread(0), guest.emulator:
        process.wait_until(
            functools.partial(has_slice, tid,
                              classes.DEFAULT_SLICES_US[classes.CACHE]),
            LIMIT_S, f'the slice of thread {tid}')


def has_slice(tid, slice_us):
    return sched_attr.slice_us(tid) == slice_us


def test_what_the_kernel_enforces_is_seen_before_it_starts(lab, hardened):
    """Outside of its limits: within them, it could make no group."""
    seen = probe_result.load(lab.fast.path('run/nova-vqos-probe/quantum.json'))
    assert set(seen.outcomes) == {'default', *classes.SLICED}
    # Measured, or why not: the machine may be busy.
    for outcome in seen.outcomes.values():
        assert outcome.enforced or outcome.reason
    assert not os.path.exists(lab.fast.hierarchy.directory('cpu', probe.NAME))


def test_it_reports_on_a_signal(lab, server_on, hardened, bus):
    """Into a file; where it cannot, into the journal."""
    guest = server_on(lab.fast)
    guest.wait_cap(guests.CAP)
    state = pathlib.Path(lab.fast.path(STATE_DIRECTORY.lstrip('/')))
    report = ask_report(hardened, new_files(state))
    assert '"connected": true' in report
    assert guest.uuid in report
    assert '"entitled_cu": 40' in report
    # Where its threads are, and what it was told; but no password.
    assert 'nova_vqos/agent/loop.py' in report
    assert 'transport_url = ***' in report
    assert bus not in report

    # It has no right to what its directory does not let it do.
    mode = state.stat().st_mode
    state.chmod(0o555)
    try:
        report = ask_report(hardened, lambda: [
            part for part in [hardened.log()] if '"connected"' in part])
    finally:
        state.chmod(mode)
    assert 'goes to stderr' in report
    assert guest.uuid in report
    assert bus not in report


@pytest.mark.measured
def test_it_reports_while_its_loop_hangs(lab, hardened):
    """A daemon of libvirt that does not answer holds the loop up."""
    daemon = lab.fast.libvirtd
    daemon.signal(signal.SIGSTOP)
    try:
        reloads = hardened.log().count(RELOADS)
        hardened.control('kill', '--kill-who=main', '-s', 'HUP', UNIT.name)
        process.wait_until(lambda: hardened.log().count(RELOADS) > reloads,
                           LIMIT_S, 'the reload')
        # It lists servers in its next tick: the call does not come back, and
        # there are no more heartbeats, of two a second.
        process.wait_until(lambda: hardened.silent_s() > 2, LIMIT_S,
                           'the end of heartbeats')
        began_s = time.monotonic()
        state = pathlib.Path(lab.fast.path(STATE_DIRECTORY.lstrip('/')))
        report = ask_report(hardened, new_files(state))
        assert time.monotonic() - began_s < 15
    finally:
        daemon.signal(signal.SIGCONT)
    assert 'The loop did not answer within 2 s' in report
    assert 'in running' in report


def test_a_burst_of_others_does_not_keep_a_cap_high(lab, server_on, hardened):
    """The helper clears it: with it the kernel refuses a lower quota."""
    guest = server_on(lab.fast)
    guest.wait_cap(guests.CAP)
    domain = os.path.dirname(guest.group())
    bursts = [burst_file(lab.fast, f'{domain}/{name}')
              for name in ('vcpu0', 'emulator')]
    others = server_on(lab.fast)
    kept = burst_file(lab.fast, others.group())
    lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                  'emulator_quota=30000'])
    for path in *bursts, kept:
        path.write_text('15000')
    refused = lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                            'vcpu_quota=10000'], check=False)
    assert 'Invalid argument' in refused.stderr

    guest.domain().setMetadata(
        libvirt.VIR_DOMAIN_METADATA_ELEMENT,
        ioguest.instance(guests.server(20)), 'nova', ioguest.NOVA,
        libvirt.VIR_DOMAIN_AFFECT_LIVE)
    guest.wait_cap((10_000, 50_000))
    assert guest.libvirt_cap() == (10_000, 50_000)
    assert [int(path.read_text()) for path in bursts] == [0, 0]
    warnings = [line for line in hardened.log().splitlines()
                if line.startswith('WARNING nova_vqos.hypervisor')
                and guest.uuid in line]
    assert len(warnings) == 1
    for path in bursts:
        assert f'{path.parent.name}/{path.name}: 15000' in warnings[0]
    # That of another domain is none of this request's.
    assert int(kept.read_text()) == 15_000


def burst_file(host, group):
    return pathlib.Path(host.hierarchy.directory('cpu', group), (
        'cpu.cfs_burst_us' if host.hierarchy.version == 1
        else 'cpu.max.burst'))


def new_files(directory):
    """:returns: what reads the reports that were not there yet"""
    pattern = 'nova-vqos-agent_gurumeditation_*'
    there = set(directory.glob(pattern))
    return lambda: [path.read_text()
                    for path in set(directory.glob(pattern)) - there]


def ask_report(hardened, find):
    """:returns: what is found once it is whole"""
    hardened.control('kill', '--kill-who=main', '-s', 'USR2', UNIT.name)
    found = process.wait_until(
        lambda: [one for one in find() if one.rstrip().endswith((']', '.'))],
        LIMIT_S, 'a report on the agent')
    return found[0]


def test_the_limits_are_about_the_agents_mounts(lab, hardened, guest_on):
    """Not even with root's capabilities could it write to a cgroup."""
    guest = guest_on(lab.fast, specs=guests.server(40), cap=guests.CAP)
    path = lab.fast.hierarchy.directory(
        'cpu', os.path.relpath(guest.group(), lab.fast.cgroup))
    path += ('/cpu.cfs_quota_us' if lab.fast.hierarchy.version == 1
             else '/cpu.max')
    done = hardened.enter('sh', '-c', f'echo 45000 >{shlex.quote(path)}')
    assert done.returncode != 0
    assert 'Read-only file system' in done.stderr
    assert guest.cap() == guests.CAP
