# SPDX-License-Identifier: Apache-2.0
"""The agent, run by a systemd within the limits of its unit."""

import errno
import pathlib
import shlex
import sys

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import systemd
from nova_vqos.tests.host import unit_files

UNIT = unit_files.AGENT
# Where a report on the agent goes: among what it may write to, what lasts.
STATE_DIRECTORY = '/var/lib/nova-vqos'

_GROUP = 'vqos-hardened'
# The first systemd that gives units of a user namespaces of users, if they are
# limited: systemd's pull request 25233.
_USER_NAMESPACES = 254

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
    'file of root': lambda: open('/etc/shadow'),
    'libvirt': lambda: socket.socket(socket.AF_UNIX).connect(
        '/run/libvirt/libvirt-sock'),
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
#: What the probe finds, but for the slice that it sets.
REFUSED = {
    'cgroup': errno.EACCES, 'tunable': errno.EACCES, 'etc': errno.EROFS,
    'run': errno.EROFS, 'foreign file': errno.EACCES,
    'file of root': errno.EACCES, 'libvirt': errno.EACCES,
    'give away': errno.EPERM, 'set-user-id': errno.EPERM,
    'other user': errno.EPERM, 'real time': errno.EPERM,
    'netlink': errno.EAFNOSUPPORT, 'packet': errno.EAFNOSUPPORT,
    'namespace': errno.EPERM, 'user namespace': errno.EPERM,
    'mount': errno.EPERM, 'trace': errno.EPERM, 'module': errno.EPERM,
    'personality': errno.EPERM, 'code in memory': errno.EPERM,
    'device': errno.ENOENT, 'affinity': errno.EPERM,
    'niceness': errno.EPERM,
}


def need():
    """Skip the test where systemd.Manager limits a unit otherwise."""
    systemd.need()
    # NOTE: nothing that one could install.
    if systemd.version() >= _USER_NAMESPACES:
        requirement.need(
            f"systemd {systemd.version()} runs what a user's manager limits "
            'in a user namespace, where CAP_SYS_NICE is of no use: '
            'test_agent_unit has the unit as the manager of a machine runs it')


def give_user(host):
    """Make the agent's user on a host, as the package does."""
    host.run(['systemd-sysusers', str(unit_files.ETC / 'nova-vqos.sysusers')])


def write_unit(host, unit, lines=()):
    """Give a host one of our services, run by this Python."""
    program, *arguments = shlex.split(unit_files.read(unit)['ExecStart'])
    module = program.removeprefix('/usr/bin/nova-vqos-')
    return systemd.write_unit(host, unit.name, [
        'ExecStart=',
        f'ExecStart={shlex.quote(sys.executable)} -m nova_vqos.cmd.{module} '
        f'{shlex.join(arguments)}', *lines])


class HardenedAgent(agents.Agent):
    """nova-vqos-agent, run by a systemd on a host, by the unit."""

    more = f'[oslo_reports]\nlog_dir = {STATE_DIRECTORY}\n'

    def __init__(self, host, bus, **options):
        super().__init__(host, bus, **options)
        self._manager = systemd.Manager(host, self.process)

    @property
    def argv(self):
        """What runs the manager; its units are written by the way."""
        log = pathlib.Path(self.host.directory).parents[1] / (
            f'log/agent-{self.host.name}.log')
        python = shlex.quote(sys.executable)
        give_user(self.host)
        write_unit(self.host, unit_files.HELPER, [
            f'StandardError=append:{log}'])
        write_unit(self.host, unit_files.PROBE)
        systemd.write_unit(self.host, unit_files.SOCKET.name)
        directory = write_unit(self.host, UNIT, [
            # What the manager of a machine does for other users, and that of
            # a user does not.
            'ExecStartPre=+chown -R nova-vqos:nova-vqos /run/nova-vqos '
            f'{STATE_DIRECTORY}',
            'ExecStartPre=+chmod 777 /run/systemd/notify',
            f'ExecStartPre={python} /{systemd.UNITS}/probe.py',
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
        # The agents of other tests are root, and trust root alone.
        self.host.run(['chown', '-R', 'root:root', '/run/nova-vqos',
                       STATE_DIRECTORY])

    def print_log(self):
        super().print_log()
        print(self.host.run(['sh', '-c', f'cat /{systemd.UNITS}/*/*.conf'],
                            check=False).stdout)
