# SPDX-License-Identifier: Apache-2.0
"""A machine of its own with a newer kernel, for tests of cgroup v2.

The kernel is that of Debian's backports of the next release, fetched with a
private configuration of apt into a cache: nothing is installed, and what the
machine itself has of apt is not touched. QEMU emulates it (TCG), and its root
is this machine's own, shared read-only with virtiofs, so that the same
libvirt, QEMU and Python run in it. Its systemd does, too, where a test asks
for it.
"""

import contextlib
import dataclasses
import fcntl
import glob
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

from nova_vqos.calibration import guest
from nova_vqos.calibration.guest import modules
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import systemd
from nova_vqos.tests.host import unit_files

KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
SUITE = 'trixie-backports'
META_PACKAGE = 'linux-image-cloud-amd64'
EMULATOR = 'qemu-system-x86_64'
MEMORY_MIB = 1024
#: Of its kernel, what hosts of the lab need besides: links, bridges and their
#: queues, taps, a /etc of their own, and what calibrates I/O. And vhost and
#: Open vSwitch.
MODULES = ('veth', 'bridge', 'sch_tbf', 'tun', 'vhost_net', 'overlay', 'loop',
           'nft_chain_nat', 'nft_nat', 'openvswitch')
#: Fetched with these, for tests that load it.
KVM = 'kvm_amd'
#: Its clock goes by the instructions that its pCPUs execute, together one a
#: nanosecond, or slower than the real one where they are idle. So no time
#: limit in it is reached because it is emulated on a busy machine, and what it
#: measures of CPU time is as on a machine of its own. numpy wants x86-64-v2.
BY_INSTRUCTIONS = ('-icount', 'shift=0', '-cpu', 'Nehalem')
_VIRTIOFSD = ('/usr/lib/qemu/virtiofsd', '/usr/libexec/virtiofsd',
              '/usr/lib/virtiofsd')
_FETCH_TIMEOUT_S = 300
_SOCKET_TIMEOUT_S = 60
_PANIC = 'Kernel panic'

# What the guest's root needs to be writable for libvirtd and QEMU. Not /tmp:
# the checkout may be below it.
_TMPFS = ('run', 'var/lib/libvirt', 'var/log', 'var/cache', 'etc/libvirt')
_BOOT = """\
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir /new
for module in /modules/*; do
    [ ! -e $module ] || insmod $module
done
"""
_READ_ONLY = """\
mount -t virtiofs -o ro root /new || poweroff -f
"""
# What is written is in memory, and vanishes with the machine.
_WRITABLE = """\
mkdir /shared /written
mount -t virtiofs -o ro root /shared || poweroff -f
mount -t tmpfs -o size=75% written /written
mkdir /written/upper /written/work
mount -t overlay -o \
lowerdir=/shared,upperdir=/written/upper,workdir=/written/work \
    overlay /new || poweroff -f
"""
_INIT = """\
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount --move /dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
for directory in {tmpfs}; do
    mount -t tmpfs tmpfs /new/$directory
done
ip link set lo up
hostname vqos-newer
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run PYTHONPATH={pythonpath}
"""
# As systemd does.
_DELEGATE = """\
echo '+cpuset +cpu +io +memory +pids' \
    >/new/sys/fs/cgroup/cgroup.subtree_control
"""
_NOTHING_WRITTEN = """\
export TMPDIR=/run PYTHONDONTWRITEBYTECODE=1
"""
_RUN = """\
chroot /new {command} >/new/dev/ttyS1 \
    2>/new/dev/console </new/dev/null
poweroff -f
"""
# Of /tmp, which units may want to write to, only what the tests need is seen.
# The units that this machine has in /etc are none of the other's. What
# `systemctl set-property --runtime` writes is in system.control.
_RUN_BY_SYSTEMD = """\
mkdir /old
for directory in tmp var/tmp; do
    mount --bind /new/$directory /old
    mount -t tmpfs -o mode=1777 tmpfs /new/$directory
    for path in {shown}; do
        case $path in /$directory/*)
            mkdir -p /new$path
            mount --bind /old${{path#/$directory}} /new$path ;;
        esac
    done
    umount /old
done
mkdir -p /new/run/systemd/system
cat >/new/run/systemd/system/vqos-observe.service <<end
[Unit]
DefaultDependencies=no
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate
[Service]
Type=oneshot
Environment=HOME=/run PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={pythonpath}
ExecStart={command}
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/console
end
export SYSTEMD_UNIT_PATH=/run/systemd/system.control:/run/systemd/transient:\
/run/systemd/system:{units}
export SYSTEMD_GENERATOR_PATH=/run/none
exec switch_root /new {systemd} --show-status=no \
    --unit=vqos-observe.service
"""


class Lacking(Exception):
    """This machine cannot run the other one; the message says why."""


def check():
    """See that this machine can run the other one.

    :raises Lacking: when it cannot
    """
    if os.geteuid() != 0:
        raise Lacking('only root can share the root file system read-only')
    for program in (EMULATOR, 'busybox', 'libvirtd', 'unshare'):
        if shutil.which(program) is None:
            raise Lacking(f'{program} is not installed')
    find_virtiofsd()


def fetch_kernel(cache_dir=guest.CACHE_DIR):
    """The path of the newer kernel, fetched once with some of its modules.

    :raises Lacking: when it is not cached and cannot be fetched
    """
    target = pathlib.Path(cache_dir, 'newer-kernel')
    target.mkdir(parents=True, exist_ok=True)
    # Tests of several processes may want it at once.
    with (target / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [path for path in sorted(target.glob('vmlinuz-*'))
                 if _has_modules(path)]
        return str(found[-1] if found else _fetch_kernel(target))


def _fetch_kernel(target):
    if platform.machine() != 'x86_64':
        raise Lacking(f'the newer kernel is for x86_64, not for '
                      f'{platform.machine()}')
    if not os.path.exists(KEYRING):
        raise Lacking(f'{KEYRING} is missing: install the package '
                      'debian-archive-keyring')
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        run_apt = _private_apt(pathlib.Path(scratch))
        run_apt('apt-get', 'update')
        depends = run_apt('apt-cache', 'depends', '--important', META_PACKAGE)
        version = re.search(r'linux-image-(\d\S*)', depends)
        if not version:
            raise Lacking(f'{SUITE} of {mirror()} has no {META_PACKAGE}')
        # NOTE: since 7.2 kernel and modules are in packages of their own.
        for name in (f'linux-binary-{version[1]}',
                     f'linux-modules-{version[1]}'):
            run_apt('apt-get', 'download', name)
            (archive,) = glob.glob(f'{scratch}/{name}_*.deb')
            subprocess.run(['dpkg', '-x', archive, f'{scratch}/unpacked'],
                           check=True, timeout=_FETCH_TIMEOUT_S)
        (unpacked,) = glob.glob(f'{scratch}/unpacked/**/lib/modules/*',
                                recursive=True)
        path = target / f'vmlinuz-{version[1]}'
        try:
            modules.copy(unpacked, modules_directory(path), (*MODULES, KVM))
            pathlib.Path(unpacked, 'vmlinuz').replace(path)
        except (modules.ModuleMissing, OSError) as error:
            raise Lacking(f'the packages of Linux {version[1]} are not as '
                          f'those of 7.3 were: {error}') from error
    return path


def _has_modules(kernel):
    """Whether it was fetched with all that are wanted now."""
    try:
        modules.ordered(modules_directory(kernel), (*MODULES, KVM))
    except modules.ModuleMissing:
        return False
    return True


def modules_directory(kernel):
    """Where modules of a kernel are that was fetched."""
    version = os.path.basename(kernel).removeprefix('vmlinuz-')
    return pathlib.Path(kernel).parent / 'modules' / version


def mirror():
    """Where this machine has Debian's packages from.

    :raises Lacking: when it has none, and the environment names none either
    """
    given = os.environ.get('NOVA_VQOS_DEBIAN_MIRROR')
    if given:
        return given
    listed = subprocess.run(
        ['apt-get', 'indextargets', '--format', '$(ORIGIN) $(REPO_URI)'],
        capture_output=True, text=True, check=False,
        timeout=_FETCH_TIMEOUT_S).stdout
    for line in sorted(listed.splitlines()):
        origin, _, uri = line.partition(' ')
        if origin == 'Debian' and uri.rstrip('/').endswith('/debian'):
            return uri
    raise Lacking('this machine knows no mirror of Debian: name one in '
                  'NOVA_VQOS_DEBIAN_MIRROR')


def _private_apt(directory):
    """A function that runs apt's programs without the machine's state."""
    for name in ('state/lists/partial', 'cache/archives/partial', 'parts'):
        (directory / name).mkdir(parents=True)
    (directory / 'status').touch()
    (directory / 'sources.list').write_text(
        f'deb [signed-by={KEYRING}] {mirror()} {SUITE} main\n')
    config = directory / 'apt.conf'
    config.write_text(''.join(f'{name} "{value}";\n' for name, value in {
        'Dir::State': directory / 'state',
        'Dir::State::status': directory / 'status',
        'Dir::Cache': directory / 'cache',
        'Dir::Etc::sourcelist': directory / 'sources.list',
        'Dir::Etc::sourceparts': directory / 'parts',
        'Dir::Etc::parts': directory / 'parts',
        'APT::Architecture': 'amd64',
        'APT::Sandbox::User': 'root',
        'Acquire::Languages': 'none',
    }.items()))

    def run(*argv):
        try:
            return subprocess.run(
                argv, cwd=directory, env=os.environ | {
                    'APT_CONFIG': str(config), 'LC_ALL': 'C'},
                capture_output=True, text=True, check=True,
                timeout=_FETCH_TIMEOUT_S).stdout
        except subprocess.CalledProcessError as error:
            raise Lacking(f'{" ".join(argv)} failed: '
                          f'{error.stderr.strip()[-500:]}') from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Lacking(f'{argv[0]} cannot be run: {error}') from error
    return run


def find_virtiofsd():
    """The path of the daemon that shares a directory with a guest.

    :raises Lacking: when there is none
    """
    for path in _VIRTIOFSD:
        if os.access(path, os.X_OK):
            return path
    raise Lacking('virtiofsd is not installed: install the package virtiofsd')


def observe(module, directory, *, timeout_s, pcpus=2, by_systemd=False,
            load=(), options=BY_INSTRUCTIONS):
    """What a module saw on the other machine; skips where there is none.

    :param module: see :func:`run_module`, as of the other parameters
    :raises AssertionError: when it failed there
    """
    try:
        check()
        kernel = fetch_kernel()
    except Lacking as error:
        requirement.need(str(error))
    found = run_module(module, directory, kernel=kernel, timeout_s=timeout_s,
                       pcpus=pcpus, by_systemd=by_systemd, load=load,
                       options=options)
    assert 'failed' not in found, f'{found["failed"]}{found.get("log", "")}'
    return found


def run_module(module, directory, *, kernel, timeout_s, pcpus=2,
               by_systemd=False, load=(), options=BY_INSTRUCTIONS):
    """Run a module of nova_vqos as root of the other machine.

    :param directory: for what the run leaves behind, such as the console
    :param kernel: path of the kernel
    :param pcpus: how many the other machine has
    :param by_systemd: whether its PID 1 is systemd
    :param load: names of modules that its kernel loads, of MODULES, or KVM
    :param options: of QEMU; without -icount its clock is the real one
    :returns: the JSON object that it printed
    :raises AssertionError: when it printed none in time
    """
    for attempt in range(2):
        place = pathlib.Path(directory) / f'attempt-{attempt}'
        place.mkdir()
        printed, console, timed_out = _run_once(
            module, place, kernel, timeout_s, pcpus,
            _RUN_BY_SYSTEMD if by_systemd else _RUN, load, options)
        if printed is not None or _PANIC not in console:
            break
        # Seen once, on a busy machine, in the scheduler of 7.2 under
        # emulation. No program may make a kernel do so: it is the kernel's.
        warnings.warn('the kernel of the newer machine panicked: once more',
                      stacklevel=2)
    assert printed is not None, (
        f'{module} printed nothing{timed_out}: {console[-4000:]}')
    return printed


def _run_once(module, directory, kernel, timeout_s, pcpus, run, load,
              options):
    """:returns: what it printed, or None; the console; how it timed out"""
    done = boot(
        [sys.executable, '-m', module], directory, kernel=kernel,
        timeout_s=timeout_s, pcpus=pcpus,
        init=_BOOT + _READ_ONLY + _INIT + _NOTHING_WRITTEN + run,
        contents=_modules(kernel, load), options=options)
    lines = [line for line in done.output.splitlines()
             if line.startswith('{')]
    return (json.loads(lines[-1]) if lines else None, done.console,
            f' within {timeout_s} s' if done.timed_out else '')


def run_writable(command, directory, *, kernel, timeout_s, memory_mib):
    """Run a command as root of the other machine, which may write anywhere.

    Its clock goes by instructions, see BY_INSTRUCTIONS.

    :param directory: for what the run leaves behind
    :param kernel: path of the kernel, see :func:`fetch_kernel`
    :param timeout_s: of real time
    :returns: Run
    """
    return boot(
        command, directory, kernel=kernel, timeout_s=timeout_s, pcpus=2,
        memory_mib=memory_mib,
        init=_BOOT + _WRITABLE + _INIT + _DELEGATE + _RUN,
        contents=_modules(kernel, MODULES),
        options=BY_INSTRUCTIONS, tmpfs=('run',))


def run_read_only(command, directory, *, kernel, timeout_s, pcpus=1,
                  options=BY_INSTRUCTIONS, load=MODULES):
    """Run a command as root of the other machine.

    With BY_INSTRUCTIONS and one pCPU, CPU time there is the number of
    instructions, whatever else this machine does.

    :param directory: for what the run leaves behind
    :param kernel: path of the kernel, see :func:`fetch_kernel`
    :param timeout_s: of real time
    :param pcpus: how many the other machine has
    :param options: of QEMU
    :param load: names of modules that its kernel loads
    :returns: Run
    """
    return boot(
        command, directory, kernel=kernel, timeout_s=timeout_s, pcpus=pcpus,
        init=_BOOT + _READ_ONLY + _INIT + _NOTHING_WRITTEN + _RUN,
        contents=_modules(kernel, load), options=options)


def _modules(kernel, names):
    """:returns: modules and what they need, as files of an initramfs"""
    # The number gives the order in which the machine loads them.
    return {f'/modules/{number:02}-{name}.ko': content
            for number, (name, content) in enumerate(modules.ordered(
                modules_directory(kernel), names).items())}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a machine left.

    :ivar output: of the command
    :ivar console: of the kernel, and what the command said of failures
    :ivar timed_out: whether it was ended for that
    """

    output: str
    console: str
    timed_out: bool


def boot(command, directory, *, kernel, init, timeout_s, pcpus,
         memory_mib=MEMORY_MIB, contents=None, options=(), tmpfs=_TMPFS):
    """Boot the other machine and have it run one command.

    :param init: what its PID 1 does, with places for what is known here
    :param contents: of further files of its initramfs, by path
    :param options: further ones of QEMU
    :param tmpfs: directories of its root that are empty and writable
    :returns: Run
    """
    top = pathlib.Path(guest.__file__).parents[3]
    initrd = str(directory / 'initrd')
    guest.build_initramfs(initrd, [], init.format(
        shown=shlex.join(unit_files.shown()), systemd=systemd.PROGRAM,
        units=systemd.MACHINE_UNITS,
        tmpfs=' '.join(name for name in tmpfs if os.path.isdir(f'/{name}')),
        pythonpath=shlex.quote(str(top)),
        command=shlex.join(command)), contents=contents)
    output, console = directory / 'output', directory / 'console'
    with _shared_root(directory) as socket:
        argv = [
            EMULATOR, '-accel',
            'tcg' if '-icount' in options else 'tcg,thread=multi',
            '-smp', str(pcpus), *options,
            '-m', str(memory_mib), '-nodefaults', '-no-user-config',
            '-display', 'none', '-no-reboot',
            '-object', 'memory-backend-memfd,id=memory,share=on,'
            f'size={memory_mib}M', '-numa', 'node,memdev=memory',
            '-chardev', f'socket,id=root,path={socket}',
            '-device', 'vhost-user-fs-pci,chardev=root,tag=root',
            '-device', 'virtio-rng-pci',
            '-chardev', f'file,id=console,path={console}',
            '-serial', 'chardev:console',
            '-chardev', f'file,id=output,path={output}',
            '-serial', 'chardev:output',
            '-kernel', kernel, '-initrd', initrd,
            '-append', 'console=ttyS0 quiet panic=-1 tsc=reliable']
        timed_out = False
        try:
            subprocess.run(argv, stdin=subprocess.DEVNULL, check=True,
                           timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
    return Run(output.read_text() if output.exists() else '',
               console.read_text(errors='replace'), timed_out)


@contextlib.contextmanager
def _shared_root(directory):
    """Share / read-only: not even root of the guest can write to it."""
    virtiofsd = find_virtiofsd()
    root, socket = directory / 'root', directory / 'socket'
    root.mkdir()
    options = (['-f', '-o', f'sandbox=chroot,source={root},cache=always']
               if virtiofsd == _VIRTIOFSD[0]
               else ['--sandbox=chroot', f'--shared-dir={root}',
                     '--cache=always'])
    # In a mount namespace of its own, which ends with it.
    script = """
set -e
mount --rbind / "$1"
while read -r _ _ _ _ where _; do
    case $where in
    "$1" | "$1"/*) mount -o remount,bind,ro "$where" 2>/dev/null || : ;;
    esac
done </proc/self/mountinfo
if touch "$1/tmp/vqos-is-writable" 2>/dev/null; then
    rm "$1/tmp/vqos-is-writable"
    echo 'the share is writable' >&2
    exit 1
fi
shift
exec "$@"
"""
    log_path = directory / 'virtiofsd.log'
    with log_path.open('w') as log:
        process = subprocess.Popen(
            ['unshare', '--mount', '--propagation', 'private', 'sh', '-c',
             script, 'sh', str(root), virtiofsd, *options,
             f'--socket-path={socket}'],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _SOCKET_TIMEOUT_S
        while not socket.exists():
            assert process.poll() is None and time.monotonic() < deadline, (
                f'virtiofsd: {log_path.read_text()}')
            time.sleep(0.05)
        yield socket
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        root.rmdir()
