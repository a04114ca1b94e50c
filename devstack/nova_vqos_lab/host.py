# SPDX-License-Identifier: Apache-2.0
"""A host of the lab: a libvirtd of its own, in namespaces, with own cgroups.

A host has its own network, processes, host name, mounts and cgroups, and of
its own besides: /run, /etc (a copy that vanishes with it, but for
/etc/libvirt, /etc/nova-vqos and /etc/ssh, which last), libvirt's directories,
nova-compute's state, and the UUID by which libvirt distinguishes it.
Everything is below ``ROOT/hosts/NAME``; what it prints, below ``ROOT/log``.

    network = netns.Network()
    network.create()
    fast = host.Host('fast', pcpus={0})
    fast.start()
    fast.run(['virsh', 'list'])
    fast.popen(['nova-compute'], env={'PATH': ...}, log='nova-compute-fast')
    fast.remove()

An object stands for a host, it does not own it: another program, or the same
one after a crash, makes an equal object and goes on, stops, or removes it.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import typing as ty
import uuid

from nova_vqos_lab import cgroups
from nova_vqos_lab import counting
from nova_vqos_lab import emulator
from nova_vqos_lab import netns
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import slowcpu

LIBVIRTD = '/usr/sbin/libvirtd'
_LIBVIRTD_LIMIT_S = 60
_INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'init.py')
_PROGRAMS = {
    LIBVIRTD: 'libvirt-daemon-system', emulator.QEMU: 'qemu-system-x86',
    '/usr/bin/qemu-img': 'qemu-utils', 'ip': 'iproute2',
}

# Of its own on each host, and lasting as long as the lab: where it is mounted
# and the directory below the host's own.
_OWN = {
    '/run': 'run',
    '/var/lib/libvirt': 'var/lib/libvirt',
    '/var/log/libvirt': 'var/log/libvirt',
    '/var/cache/libvirt': 'var/cache/libvirt',
    '/var/lib/nova-vqos': 'var/lib/nova-vqos',
    '/var/lib/nova-vqos-verify': 'var/lib/nova-vqos-verify',
    '/etc/libvirt': 'etc/libvirt',
    '/etc/nova-vqos': 'etc/nova-vqos',
    '/etc/ssh': 'etc/ssh',
    '/etc/hosts': 'etc/hosts',
    '/etc/hostname': 'etc/hostname',
    '/etc/resolv.conf': 'etc/resolv.conf',
}

_LIBVIRTD_CONF = """\
host_uuid = "{uuid}"
listen_tls = 0
listen_tcp = 1
listen_addr = "0.0.0.0"
auth_tcp = "none"
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
log_filters = "3:*"
log_outputs = "3:stderr"
"""
# Everything runs as root, in directories that no other user can enter, and the
# host's namespaces are the confinement.
_QEMU_CONF = """\
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
seccomp_sandbox = 0
namespaces = []
stdio_handler = "file"
migration_host = "{address}"
"""


def missing_requirements(slow: bool = True) -> list[str]:
    """Say what this machine lacks to carry a host, leaving no trace.

    :param slow: whether a slow host is wanted too
    :returns: plain sentences without a full stop; none: it lacks nothing
    """
    if os.geteuid() != 0:
        return ['root is needed to make namespaces and cgroups']
    found = []
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            found.append(f'{program} is missing: install the package '
                         f'{package}')
    if slow:
        found += slowcpu.missing_requirements()
    elif os.path.exists(emulator.QEMU) and emulator.mend():
        found += emulator.missing_requirements(plugins=False)
    if counting.is_wanted():
        found += [one for one in emulator.missing_requirements(plugins=True)
                  if one not in found]
    if shutil.which('ip'):
        probed = process.run(_init('probe'), check=False)
        found += (probed.stdout + probed.stderr).splitlines()
    try:
        hierarchy = cgroups.detect()
        # One of each process: tests ask in several.
        group = f'{paths.PREFIX}-probe{os.getpid()}/host'
        try:
            cgroups.create(hierarchy, group)
            cgroups.divide(hierarchy, group, _online_pcpus())
        finally:
            cgroups.remove(hierarchy, os.path.dirname(group))
    except (process.LabError, OSError) as exc:
        found.append(str(exc))
    return found


class Host:
    """A host of the lab.

    :ivar name: of the host: its host name, and part of those of its
        namespace and its cgroup
    :ivar pcpus: what its guests run on
    :ivar slow: whether its CPUs are made slower
    :ivar counts: whether its QEMUs count the instructions of their guests
    :ivar address: in the lab's network
    :ivar directory: of its own, on the machine
    :ivar cgroup: its group, relative to the mounted hierarchies
    :ivar hierarchy: the machine's cgroups
    """

    def __init__(self, name: str, pcpus: Iterable[int], slow: bool = False, *,
                 counts: bool | None = None, kvm: bool = False,
                 address: str | None = None,
                 root: str = paths.ROOT, prefix: str = paths.PREFIX) -> None:
        """:param name: at most 15 letters and digits
        :param pcpus: numbers of the machine's CPUs
        :param slow: make its CPUs slower, see slowcpu.py
        :param counts: see counting.py; None: where it is wanted
        :param kvm: whether its guests may have the machine's /dev/kvm; such a
            host is as fast as the machine
        :param address: None: as paths.HOST_ADDRESSES has it
        :param root: of the lab that the host is part of
        :param prefix: of that lab's names
        """
        self.name = name
        self.pcpus = frozenset(pcpus)
        self.slow = slow
        self.counts = counting.is_wanted() if counts is None else counts
        self._kvm = kvm
        self.address = address or paths.HOST_ADDRESSES[name]
        self.directory = os.path.join(root, 'hosts', name)
        self.cgroup = f'{prefix}/{name}'
        self.hierarchy = cgroups.detect()
        self._network = netns.Network(prefix)
        self._logs = os.path.join(root, 'log')
        self._compute_state = os.path.join(root, 'nova')
        self._settings = os.path.join(self.directory, 'init.json')
        self._pid_file = os.path.join(self.directory, 'init.pid')
        self._libvirtd_file = os.path.join(self.directory, 'libvirtd.pid')

    # What it is.

    @property
    def libvirt_uri(self) -> str:
        """libvirt's URI of this host, to be opened on the machine.

        Within the host it is ``qemu:///system``, and
        ``qemu+tcp://NAME/system`` within any host of the same lab.
        """
        path = os.path.join(self.path('run'), 'libvirt', 'libvirt-sock')
        return f'qemu+unix:///system?socket={path}'

    def path(self, name: str) -> str:
        """:returns: a path below the host's own directory, on the machine:
            ``etc/nova-vqos`` is the host's /etc/nova-vqos, ``nova`` its
            nova-compute's state, ``run`` its /run
        """
        return os.path.join(self.directory, name)

    def alive(self) -> bool:
        """:returns: whether the host is up, libvirtd or not."""
        return self._pid1() is not None

    @property
    def libvirtd(self) -> process.Process | None:
        """The host's libvirtd, None if it was never started."""
        return process.Process.load(self._libvirtd_file)

    # Its life.

    def start(self, peers: Mapping[str, str] | None = None) -> None:
        """Start the host and its libvirtd, unless they run.

        What a previous run left behind is removed before. The controller's
        network must be there.

        :param peers: names and addresses of the lab's other hosts, for
            /etc/hosts; None: paths.HOST_ADDRESSES
        :raises LabError: when it cannot be started; nothing is left then
        """
        if not self.alive():
            self.stop()
            try:
                self._boot(paths.HOST_ADDRESSES if peers is None else peers)
            except BaseException:
                self.stop()
                raise
        self.start_libvirtd()

    def stop(self) -> None:
        """End everything in the host and remove all but its directory.

        Also after a crash, and where nothing is there.

        :raises LabError: when something of it cannot be removed
        """
        init = process.Process.load(self._pid_file)
        if init is not None:
            init.stop(10)
        cgroups.remove(self.hierarchy, self.cgroup)
        cgroups.remove_if_empty(self.hierarchy, os.path.dirname(self.cgroup))
        self._network.leave(self.name)
        for path in (self._pid_file, self._libvirtd_file):
            if os.path.exists(path):
                os.unlink(path)

    def remove(self) -> None:
        """Stop the host and remove its directory too.

        :raises LabError: when something of it cannot be removed
        """
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start_libvirtd(self) -> None:
        """Start libvirtd, unless it runs, and wait until it answers.

        :raises LabError: when it does not within a minute
        """
        running = self.libvirtd
        if running is None or not running.alive():
            running = self.popen([LIBVIRTD, '--listen'],
                                 log=f'libvirtd-{self.name}')
            running.save(self._libvirtd_file)
        process.wait_until(
            self._libvirt_answers, _LIBVIRTD_LIMIT_S,
            f"host {self.name}'s libvirtd", log=running.log,
            alive=running.alive)

    def stop_libvirtd(self) -> None:
        """End libvirtd; its guests go on."""
        running = self.libvirtd
        if running is not None:
            running.stop()

    # What runs in it.

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None,
            limit_s: float = process.COMMAND_LIMIT_S, check: bool = True,
            text_input: str | None = None
            ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host to its end.

        :param argv: command and arguments
        :param env: variables on top of this process's own
        :param limit_s: seconds after which it is killed
        :param check: whether a failure is an error
        :param text_input: what it reads
        :returns: with its output as text
        :raises LabError: when the host is not up, the command takes too long,
            or fails and check is true
        """
        with subprocess.Popen(
                self._enter([], argv), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=_environment(env)) as running:
            try:
                stdout, stderr = running.communicate(text_input, limit_s)
            except BaseException as exc:
                running.terminate()
                try:
                    running.communicate(timeout=5)
                except subprocess.TimeoutExpired:
                    running.kill()
                if not isinstance(exc, subprocess.TimeoutExpired):
                    raise
                raise process.LabError(
                    f'{argv[0]} on host {self.name}: not done within '
                    f'{limit_s:g} s') from exc
        done = subprocess.CompletedProcess(argv, running.returncode, stdout,
                                           stderr)
        if check and done.returncode:
            raise process.LabError(
                f'{" ".join(argv)} on host {self.name} failed with '
                f'{done.returncode}: {(done.stderr or done.stdout).strip()}')
        return done

    def popen(self, argv: Sequence[str], env: Mapping[str, str] | None = None,
              log: str | None = None) -> process.Process:
        """Start a command in the host that outlives this program.

        It ends with the host at the latest.

        :param argv: command and arguments
        :param env: variables on top of this process's own
        :param log: name of the log, below ROOT/log and without .log, that
            its output is appended to; None: the command's own name and the
            host's
        :returns: the process, with its pid as the machine sees it
        :raises LabError: when the host is not up or it cannot be started
        """
        log = log or f'{os.path.basename(argv[0])}-{self.name}'
        os.makedirs(self._logs, exist_ok=True)
        log_path = os.path.join(self._logs, f'{log}.log')
        ours, theirs = socket.socketpair()
        with ours, theirs, open(log_path, 'ab') as output:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.settimeout(process.COMMAND_LIMIT_S)
            subprocess.run(
                self._enter(['--detach', str(theirs.fileno())], argv),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=(theirs.fileno(),), env=_environment(env),
                check=False, timeout=process.COMMAND_LIMIT_S)
            theirs.close()
            pid, failure = _receive_pid(ours)
        if not pid or failure:
            raise process.LabError(
                f'{argv[0]} cannot be started on host {self.name}: '
                f'{failure or f"see {log_path}"}')
        return process.Process(pid, log_path)

    def interactive(self, argv: Sequence[str]) -> int:
        """Run a command in the host on this program's terminal.

        :returns: its exit status
        """
        return subprocess.run(self._enter([], argv), check=False).returncode

    # What its guests are given, seen from the machine.

    def vcpu_cgroup(self, domain: str, vcpu: int = 0) -> str | None:
        """:returns: the group of a guest's vCPU, for the functions of
            cgroups.py; None while there is none
        """
        return cgroups.vcpu_group(self.hierarchy, self.cgroup, domain, vcpu)

    def vcpu_cap(self, domain: str, vcpu: int = 0) -> tuple[int, int] | None:
        """:returns: quota (-1: none) and period of a guest's vCPU, in
            microseconds, from its cgroup; None while it has none
        """
        group = self.vcpu_cgroup(domain, vcpu)
        try:
            return group and cgroups.read_cap(self.hierarchy, group)
        except OSError:
            return None

    # How.

    def _boot(self, peers: Mapping[str, str]) -> None:
        for target in _OWN:
            if self.directory.startswith(f'{target}/'):
                raise process.LabError(
                    f'the lab cannot be in {self.directory}: each host has '
                    f'{target} of its own')
        self._write_files(peers)
        binds = [(self.path(name), target) for target, name in _OWN.items()]
        binds.append((self.path('nova'), self._compute_state))
        binds += self._wrap_emulator(self.path('emulator'))
        cgroups.create(self.hierarchy, self.cgroup)
        self._network.join(self.name, self.address)
        roots = [os.path.join(mount.directory, self.cgroup)
                 for mount in self.hierarchy.roots()]
        with open(self._settings, 'w', encoding='utf-8') as stream:
            json.dump({
                'hostname': self.name,
                'network': self._network.path(
                    self._network.of_host(self.name)),
                'scratch': self.path('scratch'),
                'binds': binds,
                'kvm': self._kvm,
                'cgroups': {
                    'version': self.hierarchy.version,
                    'mounts': [{'directory': mount.directory,
                                'options': mount.options}
                               for mount in self.hierarchy.roots()],
                    'root': roots,
                    'services': [os.path.join(root, cgroups.SERVICES)
                                 for root in roots],
                },
            }, stream, indent=1)
        self._boot_init()
        cgroups.divide(self.hierarchy, self.cgroup, self.pcpus)

    def _wrap_emulator(self, directory: str) -> list[tuple[str, str]]:
        additions = []
        if self.slow:
            additions.append(slowcpu.build(directory))
        if self.counts:
            additions.append(counting.build(directory))
            os.makedirs(self.path(counting.DIRECTORY.lstrip('/')))
        additions += emulator.mend()
        return emulator.wrap(directory, additions) if additions else []

    def _boot_init(self) -> None:
        with subprocess.Popen(
                _init('boot', self._settings), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True) as booting:
            stdout = ty.cast(ty.TextIO, booting.stdout)
            pid = stdout.readline().strip()
            if pid.isdigit():
                process.Process(int(pid)).save(self._pid_file)
            # PID 1 closes it when it is ready, or dies.
            said = stdout.read().strip()
        if said != 'ready':
            raise process.LabError(
                f'host {self.name} cannot be started: {said or pid}')

    def _write_files(self, peers: Mapping[str, str]) -> None:
        # Of /run, everything is of a life that is over.
        shutil.rmtree(self.path('run'), ignore_errors=True)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        for target, name in _OWN.items():
            if not os.path.isfile(target):
                os.makedirs(self.path(name), exist_ok=True)
        for name in ('nova', 'scratch', 'run/lock'):
            os.makedirs(self.path(name), exist_ok=True)
        for directory in (*_state_directories(), self._compute_state):
            os.makedirs(directory, exist_ok=True)
        uuid_path = self.path('host_uuid')
        if not os.path.exists(uuid_path):
            _write(uuid_path, str(uuid.uuid4()))
        with open(uuid_path, encoding='ascii') as stream:
            host_uuid = stream.read()
        hosts = {'localhost': '127.0.0.1',
                 'controller': paths.CONTROLLER_ADDRESS, **peers,
                 self.name: self.address}
        _write(self.path('etc/hosts'), ''.join(
            f'{address} {name}\n' for name, address in hosts.items()))
        _write(self.path('etc/hostname'), f'{self.name}\n')
        # No name server: nothing in the lab has to be looked up elsewhere,
        # and what tries is to fail at once.
        _write(self.path('etc/resolv.conf'), '')
        _write(self.path('etc/libvirt/libvirtd.conf'),
               _LIBVIRTD_CONF.format(uuid=host_uuid))
        _write(self.path('etc/libvirt/qemu.conf'),
               _QEMU_CONF.format(address=self.address))

    def _pid1(self) -> process.Process | None:
        init = process.Process.load(self._pid_file)
        return init if init is not None and init.alive() else None

    def _enter(self, options: Sequence[str],
               argv: Sequence[str]) -> list[str]:
        init = self._pid1()
        if init is None:
            raise process.LabError(f'host {self.name} is not up')
        return _init('enter', self._settings, str(init.pid), *options, '--',
                     *argv)

    def _libvirt_answers(self) -> bool:
        return self.run(['virsh', '-c', 'qemu:///system', 'version'],
                        check=False, limit_s=20).returncode == 0


def _init(*arguments: str) -> list[str]:
    # Isolated and without site-packages: it starts in 15 ms.
    return [sys.executable, '-I', '-S', _INIT, *arguments]


def _receive_pid(answer: socket.socket) -> tuple[int, str]:
    """:returns: the pid of who answers, and what it says of a failure"""
    credentials = struct.Struct('3i')
    first, ancillary, _, _ = answer.recvmsg(
        1, socket.CMSG_SPACE(credentials.size))
    if not first:
        return 0, ''
    # The only one asked for.
    (_, _, content), = ancillary
    # Until the command is run, which closes the other end.
    failure = b''.join(iter(lambda: answer.recv(4096), b''))
    return credentials.unpack(content)[0], failure.decode()


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(env or {})}


def _state_directories() -> list[str]:
    return [target for target in _OWN if target.startswith('/var/')]


def _online_pcpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _write(path: str, text: str) -> None:
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text)
