# SPDX-License-Identifier: Apache-2.0
"""The agent under the limits of its systemd unit, as systemd sets them.

systemd.py has how.
"""

import configparser
import errno
import functools
import json
import os
import pathlib
import shlex
import shutil
import signal
import sys
import time

import pytest

from nova_vqos.calibration.probe import probe
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import systemd
from nova_vqos_lab import process

UNIT = systemd.ETC / 'nova-vqos-agent.service'
LIMIT_S = guests.LIMIT_S
# What systemd-analyze gives the unit, from 0 (confined) to 10; each release
# has its own idea of it.
MOST_EXPOSED = 2.5

# Where a report on the agent goes: among what it may write to, what lasts.
STATE_DIRECTORY = '/var/lib/nova-vqos'

_GROUP = 'vqos-hardened'

# Tried in the place of the agent, before it: each but the last is to be
# refused. That one sets the slice of a process that may more than it.
_PROBE = """
import ctypes, glob, json, mmap, os, socket
from nova_vqos.hypervisor.linux import sched_attr

libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)

def write(path):
    os.close(os.open(path, os.O_WRONLY))

def create(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))

own = '/run/nova-vqos/probe'
create(own)
groups = (glob.glob('/sys/fs/cgroup/cgroup.procs')
          + glob.glob('/sys/fs/cgroup/cpu*/cgroup.procs'))
found = {}
for name, work in {
    'cgroup': lambda: write(groups[0]),
    'tunable': lambda: write('/proc/sys/vm/swappiness'),
    'etc': lambda: create('/etc/nova-vqos/probe'),
    'run': lambda: create('/run/probe'),
    'foreign file': lambda: open('/etc/nova-vqos/foreign'),
    'give away': lambda: os.chown(own, 1, 1),
    'set-user-id': lambda: os.chmod(own, 0o4755),
    'other user': lambda: os.setuid(1),
    'real time': lambda: os.sched_setscheduler(
        0, os.SCHED_FIFO, os.sched_param(1)),
    'netlink': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    'packet': lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    'namespace': lambda: call('unshare', 0x20000),
    'user namespace': lambda: call('unshare', 0x10000000),
    'mount': lambda: call('mount', b'x', b'/mnt', b'tmpfs', 0, None),
    'trace': lambda: call('ptrace', 16, os.getppid(), None, None),
    'module': lambda: call('delete_module', b'vqos', 0),
    'personality': lambda: call('personality', 8),
    'code in memory': lambda: mmap.mmap(
        -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
    'device': lambda: write('/dev/kmsg'),
    'affinity': lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    'niceness': lambda: os.setpriority(os.PRIO_PROCESS, 0, 1),
    'slice': lambda: (sched_attr.set_slice(os.getppid(), 5000),
                      sched_attr.set_slice(os.getppid(), None)),
}.items():
    try:
        work()
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
os.unlink(own)
with open('/run/nova-vqos/probe.json', 'w') as file:
    json.dump(found, file)
"""
_REFUSED = {
    'cgroup': errno.EROFS, 'tunable': errno.EROFS, 'etc': errno.EROFS,
    'run': errno.EROFS, 'foreign file': errno.EACCES,
    'give away': errno.EPERM, 'set-user-id': errno.EPERM,
    'other user': errno.EPERM, 'real time': errno.EPERM,
    'netlink': errno.EAFNOSUPPORT, 'packet': errno.EAFNOSUPPORT,
    'namespace': errno.EPERM, 'user namespace': errno.EPERM,
    'mount': errno.EPERM, 'trace': errno.EPERM, 'module': errno.EPERM,
    'personality': errno.EPERM, 'code in memory': errno.EPERM,
    'device': errno.ENOENT, 'affinity': errno.EPERM,
    'niceness': errno.EPERM,
}
_CAP_SYS_NICE = 1 << 23


def read_unit():
    """:returns: the section [Service] of the unit; lists are joined."""
    class Options(dict):
        def __setitem__(self, name, value):
            # An option that is given twice adds to the first.
            if name in self and isinstance(value, list):
                value = self[name] + value
            super().__setitem__(name, value)
    parser = configparser.RawConfigParser(
        delimiters='=', strict=False, dict_type=Options)
    parser.optionxform = str
    parser.read(UNIT)
    return {name: value.replace('\n', ' ').strip()
            for name, value in parser['Service'].items()}


class HardenedAgent(agents.Agent):
    """nova-vqos-agent, run by a systemd on a host, by the unit."""

    more = f'[oslo_reports]\nlog_dir = {STATE_DIRECTORY}\n'

    def __init__(self, host, bus):
        super().__init__(host, bus)
        self._manager = systemd.Manager(host, self.process)

    @property
    def argv(self):
        """What runs the manager; its units are written by the way."""
        log = pathlib.Path(self.host.directory).parents[1] / (
            f'log/agent-{self.host.name}.log')
        _program, *arguments = shlex.split(read_unit()['ExecStart'])
        python = shlex.quote(sys.executable)
        before = read_unit()['ExecStartPre']
        assert before.startswith('+-/usr/bin/nova-vqos-probe ')
        directory = systemd.write_unit(self.host, UNIT.name, [
            'ExecStartPre=',
            before.replace('+-/usr/bin/nova-vqos-probe',
                           f'ExecStartPre=+-{python} -m nova_vqos.cmd.probe'),
            f'ExecStartPre={python} /{systemd.UNITS}/probe.py', 'ExecStart=',
            f'ExecStart={python} -m nova_vqos.cmd.agent '
            f'{shlex.join(arguments)}',
            f'StandardOutput=append:{log}', 'StandardError=inherit'])
        (directory / 'probe.py').write_text(_PROBE, encoding='ascii')
        return systemd.argv(_GROUP, UNIT.name)

    def control(self, *arguments, check=True):
        """:returns: what systemctl prints."""
        return self._manager.control(*arguments, check=check)

    def enter(self, *argv):
        """Run a command as root among the mounts of the agent."""
        return self._manager.enter(*argv, pid=self.pid)

    @property
    def pid(self):
        """The agent's own process, as its host sees it."""
        return self.control('show', '-P', 'MainPID', UNIT.name)

    def status(self):
        """:returns: the kernel's word of the agent's process."""
        lines = self.host.run(
            ['cat', f'/proc/{self.pid}/status']).stdout.splitlines()
        return {name: value.strip() for name, _, value in
                (line.partition(':') for line in lines)}

    def mounts(self):
        """:returns: the options of what the agent has mounted, by path."""
        lines = self.host.run(
            ['cat', f'/proc/{self.pid}/mountinfo']).stdout.splitlines()
        # Of two in one place, the last is the one that is seen.
        return {line.split()[4]: line.split()[5].split(',') for line in lines}

    def stop(self):
        """End the agent, and then systemd."""
        self._manager.stop(UNIT.name)

    def print_log(self):
        super().print_log()
        print(self.host.run(['sh', '-c', f'cat /{systemd.UNITS}/*/*.conf'],
                            check=False).stdout)


@pytest.fixture(scope='module')
def hardened(lab, bus):
    """The agent of the host fast, run by systemd."""
    systemd.need()
    agents.store_profile(lab.fast, 1.0)
    foreign = pathlib.Path(lab.fast.path('etc/nova-vqos/foreign'))
    foreign.touch(mode=0o600)
    os.chown(foreign, 1, 1)
    # As if seen before on this boot: the machine may be busy.
    agents.store_proof(lab.fast)
    agent = HardenedAgent(lab.fast, bus)
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
        lambda: 'Reading everything again' in hardened.log(), LIMIT_S,
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
    unit = read_unit()
    status = hardened.status()
    assert unit['CapabilityBoundingSet'] == 'CAP_SYS_NICE'
    for name, held in {
            'CapBnd': _CAP_SYS_NICE, 'CapEff': _CAP_SYS_NICE,
            'CapPrm': _CAP_SYS_NICE, 'CapInh': 0, 'CapAmb': 0}.items():
        assert int(status[name], 16) == held, name
    assert unit['NoNewPrivileges'] == 'yes'
    assert status['NoNewPrivs'] == '1'
    # 2: by a filter.
    assert status['Seccomp'] == '2'

    # What RuntimeDirectory names, and what only the agent can see: an empty
    # home and /tmp, a /dev without devices. /proc is as it always is.
    private = ('/proc', '/dev/pts', '/dev/shm', *systemd.HIDDEN)
    assert {path for path, options in hardened.mounts().items()
            if 'rw' in options}.difference(private) == {
                f'/run/{unit["RuntimeDirectory"]}',
                f'/var/lib/{unit["StateDirectory"]}'}

    with open(lab.fast.path('run/nova-vqos/probe.json'),
              encoding='ascii') as file:
        assert json.load(file) == {**_REFUSED, 'slice': 0}


def test_it_sets_the_slices_of_a_guests_threads(lab, guest_on, hardened):
    process.wait_until(lambda: hardened.state().get('classes'), LIMIT_S,
                       'the classes that the host offers')
    if classes.CACHE not in hardened.state()['classes']:
        pytest.skip('this kernel was just seen not to enforce long slices')
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
    seen = probe_result.load(lab.fast.path('run/nova-vqos/quantum.json'))
    assert set(seen.outcomes) == {'default', *classes.DEFAULT_SLICES_US}
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


def test_it_reports_while_its_loop_hangs(lab, hardened):
    """A daemon of libvirt that does not answer holds the loop up."""
    daemon = lab.fast.libvirtd
    daemon.signal(signal.SIGSTOP)
    try:
        # The call of the next tick does not come back.
        time.sleep(2 * agents.TICK_S)
        began_s = time.monotonic()
        state = pathlib.Path(lab.fast.path(STATE_DIRECTORY.lstrip('/')))
        report = ask_report(hardened, new_files(state))
        assert time.monotonic() - began_s < 15
    finally:
        daemon.signal(signal.SIGCONT)
    assert 'The loop did not answer within 2 s' in report
    assert 'in running' in report


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


def test_systemd_finds_little_exposed():
    if shutil.which('systemd-analyze') is None:
        pytest.skip('the package systemd is missing')
    done = process.run(
        ['systemd-analyze', 'security', '--offline=true', '--no-pager',
         f'--threshold={int(MOST_EXPOSED * 10)}', str(UNIT)], check=False)
    assert done.returncode == 0, done.stdout
