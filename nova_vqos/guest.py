# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Small guests that measure: a kernel, an initramfs and what they print.

In-guest calibration, the host tests and the lab boot the same guest: a
distribution's kernel and an initramfs of busybox, the benchmark and a short
init script. It works with ``-kernel`` and ``-initrd``, and as a Glance image
with kernel_id, ramdisk_id and os_command_line; it needs no disk and no
network, and with sysbench aboard :data:`MEMORY_MIB` of memory.

On its serial console the guest prints, for each round of work::

    vqos-start <kind> <uptime_s>
    vqos-stop <kind> <uptime_s>
    vqos <kind> <uptime_s> <events> <elapsed_s>

and ``vqos-done`` before it powers off, where the rounds are limited. The time
between the first two lines of a round is the work's alone: to start sysbench,
and to read what it says in the end, costs more under emulation than many
rounds of small work do.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import glob
import importlib.resources
import os
import re
import shutil
import stat
import subprocess
import tempfile

from nova_vqos import guest_modules

CACHE_DIR = '/var/cache/nova-vqos'

# Files that measuring guests find in /.
_WORKLOADS = ('text', 'nbody.lua', 'chase.lua')
_KIND = re.compile('[a-z0-9]{1,32}')

# sysbench links against two database clients: 20 MiB of libraries, which are
# in memory twice while the kernel unpacks them.
MEMORY_MIB = 128

#: Events in a round of each kind of work, by default: 0.5 to 1 s under TCG on
#: a CPU of 2021, uncapped. An event of sysbench is one search for the primes
#: up to :data:`SYSBENCH_MAX_PRIME`; of nbody and chase, that of the script; of
#: stream, one pass over 64 MiB; of the others, one over :data:`TEXT_BYTES` of
#: text. Work that is none of these is a script in the guest, /kinds/KIND,
#: which is called with the number of events.
EVENTS_PER_ROUND: Mapping[str, int] = {
    'sysbench': 200, 'nbody': 20, 'sha512': 16, 'gzip': 6, 'awk': 4,
    'stream': 1, 'chase': 60}

#: sysbench's own default. Scores of different limits cannot be compared.
SYSBENCH_MAX_PRIME = 10_000

#: What busybox works on, and how awk does.
TEXT_BYTES = 256 * 1024
AWK_PROGRAM = '{ n[$1 % 97] += length($2) } END { print n[7] }'

# What each distribution's smallest kernel for guests is called. Each is a
# meta package that depends on the real one.
_KERNEL_PACKAGES = {
    'debian': ('linux-image-cloud-{arch}', 'linux-image-{arch}'),
    'ubuntu': ('linux-image-virtual', 'linux-image-kvm',
               'linux-image-generic'),
}

_COMMAND_TIMEOUT_S = 300


class GuestError(Exception):
    """A guest that cannot be built; the message says what is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundStart:
    """The guest begins a round of work."""

    kind: str
    uptime_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class RoundStop:
    """The guest has done a round of work, and has yet to report it."""

    kind: str
    uptime_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A round of work that the guest has done.

    :ivar uptime_s: the guest's uptime when it was done
    :ivar events: units of work done
    :ivar elapsed_s: wall time that they took, by the guest's clock
    """

    kind: str
    uptime_s: float
    events: int
    elapsed_s: float


_MOMENT_LINE = re.compile(r'vqos-(start|stop) (\w+) (\d+(?:\.\d+)?)\s*$')
_MOMENTS = {'start': RoundStart, 'stop': RoundStop}
_ROUND_LINE = re.compile(
    r'vqos (\w+) (\d+(?:\.\d+)?) (\d+) (\d+(?:\.\d+)?)\s*$')


def parse_line(line: str) -> Round | RoundStart | RoundStop | None:
    """Read a line of the guest's serial console.

    :returns: None where the line is none of ours, or cut short
    """
    found = _ROUND_LINE.match(line)
    if found:
        return Round(found[1], float(found[2]), int(found[3]),
                     float(found[4]))
    found = _MOMENT_LINE.match(line)
    return _MOMENTS[found[1]](found[2], float(found[3])) if found else None


def rounds(lines: Iterable[str], kind: str = 'sysbench') -> list[Round]:
    """Rounds of work in what a guest printed.

    :returns: those that began and ended there: on the console of a guest
        that was migrated, one that spans the migration is of two hosts. Their
        time is that between the same two lines as in the calibration
    """
    found = []
    began_s = elapsed_s = 0.0
    for line in lines:
        seen = parse_line(line)
        if seen is None or seen.kind != kind:
            continue
        if isinstance(seen, RoundStart):
            began_s, elapsed_s = seen.uptime_s, 0.0
        elif isinstance(seen, RoundStop) and began_s:
            began_s, elapsed_s = 0.0, seen.uptime_s - began_s
        elif isinstance(seen, Round) and elapsed_s:
            found.append(dataclasses.replace(seen, elapsed_s=elapsed_s))
            elapsed_s = 0.0
    return found


def command_line(kinds: Iterable[str] = ('sysbench',), rounds: int = 0,
                 events: Mapping[str, int] | None = None) -> str:
    """The kernel command line of a measuring guest.

    :param kinds: kinds of work to cycle through, a round each
    :param rounds: how many rounds in all; 0: for ever
    :param events: events per round of a kind, where not the default, or of
        one that is a script
    :raises ValueError: when a kind is unknown or a number is out of range
    """
    kinds = tuple(kinds)
    events = dict(events or {})
    for kind in (*kinds, *events):
        if kind not in EVENTS_PER_ROUND and not (
                kind in events and _KIND.fullmatch(kind)):
            raise ValueError(
                f'kind of work is {kind!r}, it may be one of '
                f'{", ".join(EVENTS_PER_ROUND)}, or another one of a-z and '
                '0-9 with its number of events')
    if not kinds or rounds < 0 or any(n < 1 for n in events.values()):
        raise ValueError(
            'a guest needs a kind of work, rounds that are not negative and '
            f'events of at least 1: {kinds}, {rounds}, {events}')
    # NOTE: the TSC's speed is measured while the guest boots, and comes out
    # tens of times wrong where a cap stops the vCPU in the midst of it. That
    # of ACPI's timer is known. Reading it is dear under emulation, and the
    # tick does so each time it sets the next one: a periodic tick need not.
    # What ticks cost is paid per second of wall time, and so out of a capped
    # guest's work.
    # A guest that is starved while it boots, by its cap or by a busy host,
    # sees too few timer interrupts and would panic.
    words = ['console=ttyS0', 'quiet', 'panic=-1', 'no_timer_check',
             'tsc=reliable',
             'clocksource=acpi_pm', 'highres=off', 'nohz=off',
             f'vqos.kinds={",".join(kinds)}', f'vqos.rounds={rounds}']
    words += [f'vqos.events.{kind}={n}' for kind, n in events.items()]
    return ' '.join(words)


def measuring_init() -> str:
    """The init script of a measuring guest."""
    text = importlib.resources.files('nova_vqos').joinpath(
        'guest_init.sh').read_text()
    values = {'max_prime': SYSBENCH_MAX_PRIME, 'awk_program': AWK_PROGRAM,
              'defaults': ' '.join(f'{kind}={events}' for kind, events
                                   in EVENTS_PER_ROUND.items())}
    return re.sub('@([a-z0-9_]+)@', lambda name: str(values[name[1]]), text)


@functools.cache
def workload(name: str) -> bytes:
    """A file that benchmarks and measuring guests work with.

    :param name: text, or a script for sysbench
    """
    if name == 'text':
        return b''.join(_text_lines())[:TEXT_BYTES]
    return (importlib.resources.files('nova_vqos') / 'workload'
            / name).read_bytes()


def _text_lines() -> Iterator[bytes]:
    """Numbered lines of pseudo-random words, the same ones always."""
    seed = 1
    for number in range(1, TEXT_BYTES // 16):
        # The C standard's own example of rand().
        seed = (seed * 1_103_515_245 + 12_345) % 2**31
        yield b'%d %x word%d\n' % (number, seed, seed % 997)


def find_kernel(kernel: str | None = None, *, boot_dir: str = '/boot',
                cache_dir: str = CACHE_DIR) -> str:
    """The path of a kernel that guests can boot.

    :param kernel: one that the caller has; only checked
    :param boot_dir: where installed kernels are, the newest is taken
    :param cache_dir: where the distribution's kernel for guests is unpacked
        to when none is installed (it is fetched once, and not installed)
    :raises GuestError: when there is none and none can be fetched
    """
    if kernel is not None:
        if not os.access(kernel, os.R_OK):
            raise GuestError(f'kernel {kernel} cannot be read')
        return kernel
    for directory in (boot_dir, os.path.join(cache_dir, 'kernel', 'boot')):
        found = _kernels(directory)
        if found:
            return found[0]
    return _fetch_kernel(cache_dir)


def find_kernel_with_modules(
        names: Iterable[str] = guest_modules.VIRTIO, *, root: str = '/',
        cache_dir: str = CACHE_DIR) -> tuple[str, Mapping[str, bytes]]:
    """A kernel that guests can boot, and modules of it.

    :param names: of modules that the guest needs, see guest_modules
    :param root: below which installed kernels and their modules are
    :param cache_dir: as in :func:`find_kernel`
    :returns: the kernel's path, and modules by name in the order to load
        them in
    :raises GuestError: when there is none and none can be fetched
    """
    names = tuple(names)
    for top in (root, os.path.join(cache_dir, 'kernel')):
        for kernel in _kernels(os.path.join(top, 'boot')):
            with contextlib.suppress(guest_modules.ModuleMissing):
                return kernel, guest_modules.ordered(
                    _modules_directory(top, kernel), names)
    kernel = _fetch_kernel(cache_dir)
    try:
        return kernel, guest_modules.ordered(_modules_directory(
            os.path.join(cache_dir, 'kernel'), kernel), names)
    except guest_modules.ModuleMissing as error:
        raise GuestError(str(error)) from error


def kernel_release(kernel: str) -> str:
    """What a kernel that guests boot calls itself, such as ``6.1.0-9-amd64``.

    :returns: ``unknown`` where the file does not say so in x86's way
    """
    # NOTE: Documentation/arch/x86/boot.rst: at 0x202 a magic number, at 0x20e
    # where the text is, counted from 0x200.
    with contextlib.suppress(OSError), open(kernel, 'rb') as file:
        header = file.read(0x210)
        if header[0x202:0x206] == b'HdrS':
            file.seek(0x200 + int.from_bytes(header[0x20e:0x210], 'little'))
            found = re.match(rb'[\w.+~-]{1,64}', file.read(64))
            if found:
                return found[0].decode()
    return 'unknown'


def build_initramfs(path: str, tools: Iterable[str] = ('sysbench',),
                    init: str | None = None,
                    files: Mapping[str, str] | None = None,
                    contents: Mapping[str, bytes] | None = None) -> None:
    """Write an initramfs of busybox, tools and an init script.

    Always the same bytes for the same content, and whole or not at all.

    :param path: where to
    :param tools: programs of this host, by name or path; the libraries that
        they need are added
    :param init: text of the script that is PID 1; None: the measuring one
    :param files: further files, path in the guest to path on this host
    :param contents: and others, path in the guest to content
    :raises GuestError: when a program or library is missing
    """
    busybox = _which('busybox')
    if _libraries(busybox):
        raise GuestError(f'{busybox} is not static: install the package '
                         'busybox-static')
    archive = _Cpio()
    for directory in ('proc', 'sys', 'dev', 'tmp', 'root', 'run'):
        archive.add_directory(f'/{directory}')
    # The kernel opens it for init before there is a devtmpfs.
    archive.add_device('/dev/console', 5, 1)
    for applet in _run([busybox, '--list']).split():
        archive.add_link(f'/bin/{applet}', 'busybox')
    # After the links: busybox lists itself too.
    archive.add_file('/bin/busybox', busybox)
    for tool in tools:
        program = _which(tool)
        archive.add_file(f'/bin/{os.path.basename(program)}', program)
        for library in _libraries(program):
            archive.add_file(library, library)
    for guest_path, host_path in (files or {}).items():
        archive.add_file(guest_path, host_path)
    contents = dict(contents or {})
    if init is None:
        init = measuring_init()
        contents = {name: workload(name) for name in _WORKLOADS} | contents
    for guest_path, content in contents.items():
        archive.add_bytes(guest_path, content, 0o644)
    archive.add_bytes('/init', init.encode(), 0o755)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        dir=os.path.dirname(os.path.abspath(path)))
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(archive.to_bytes())
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class _Cpio:
    """An archive in the kernel's initramfs format, "newc".

    See driver-api/early-userspace/buffer-format of its documentation.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, bytes, tuple[int, int]]] = {}

    def add_directory(self, path: str) -> None:
        self._add(path, stat.S_IFDIR | 0o755, b'')

    def add_device(self, path: str, major: int, minor: int) -> None:
        self._add(path, stat.S_IFCHR | 0o600, b'', (major, minor))

    def add_link(self, path: str, target: str) -> None:
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def add_bytes(self, path: str, content: bytes, mode: int) -> None:
        self._add(path, stat.S_IFREG | mode, content)

    def add_file(self, path: str, source: str) -> None:
        mode = os.stat(source).st_mode
        with open(source, 'rb') as file:
            self.add_bytes(path, file.read(), 0o755 if mode & 0o111 else 0o644)

    def _add(self, path: str, mode: int, content: bytes,
             device: tuple[int, int] = (0, 0)) -> None:
        name = path.strip('/')
        parent = os.path.dirname(name)
        if parent and parent not in self._entries:
            self.add_directory(parent)
        self._entries[name] = (mode, content, device)

    def to_bytes(self) -> bytes:
        parts: list[bytes] = []
        entries = [*self._entries.items(), ('TRAILER!!!', (0, b'', (0, 0)))]
        for inode, (name, (mode, content, device)) in enumerate(entries, 1):
            encoded = name.encode() + b'\0'
            fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device,
                      len(encoded), 0)
            header = b'070701' + b''.join(b'%08X' % field for field in fields)
            parts += [_pad(header + encoded), _pad(content)]
        return b''.join(parts)


def _pad(content: bytes) -> bytes:
    return content + b'\0' * (-len(content) % 4)


def _which(program: str) -> str:
    found = shutil.which(program, path=os.environ.get('PATH', '')
                         + ':/usr/sbin:/sbin')
    if found is None:
        package = {'busybox': 'busybox-static'}.get(program, program)
        raise GuestError(f'{program} is not installed: install the package '
                         f'{package}')
    return found


def _libraries(program: str) -> list[str]:
    """The libraries and the loader that a program needs, as paths."""
    done = subprocess.run(['ldd', program], capture_output=True, text=True,
                          timeout=_COMMAND_TIMEOUT_S, check=False)
    if done.returncode:
        # What ldd says of a static program, in any language.
        return []
    missing = re.findall(r'(\S+) => not found', done.stdout)
    if missing:
        raise GuestError(f'{program} lacks {", ".join(missing)}')
    return re.findall(r'(?:=> |^\s*)(/\S+)', done.stdout, re.MULTILINE)


def _kernels(directory: str) -> list[str]:
    """Those that can be read, the newest first."""
    found = [path for path in glob.glob(f'{directory}/vmlinuz-*')
             if os.access(path, os.R_OK)]
    return sorted(found, key=_version_key, reverse=True)


def _modules_directory(top: str, kernel: str) -> str:
    version = os.path.basename(kernel).removeprefix('vmlinuz-')
    return os.path.join(top, 'lib', 'modules', version)


def _version_key(path: str) -> list[int]:
    return [int(number) for number in re.findall(r'\d+', path)]


def _fetch_kernel(cache_dir: str) -> str:
    """Fetch and unpack the distribution's kernel for guests."""
    package = _kernel_package()
    target = os.path.join(cache_dir, 'kernel')
    os.makedirs(cache_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        _run(['apt-get', 'download', '-o', 'APT::Sandbox::User=root',
              package], cwd=scratch)
        (archive,) = glob.glob(f'{scratch}/*.deb')
        _run(['dpkg', '-x', archive, f'{scratch}/unpacked'])
        os.makedirs(f'{target}/boot', exist_ok=True)
        (kernel,) = glob.glob(f'{scratch}/unpacked/boot/vmlinuz-*')
        # All modules are twenty times the kernel. Some distributions have
        # them in another package; most guests need none.
        for modules in glob.glob(f'{scratch}/unpacked/**/lib/modules/*',
                                 recursive=True):
            with contextlib.suppress(guest_modules.ModuleMissing):
                guest_modules.copy(
                    modules, _modules_directory(target, kernel))
        found = f'{target}/boot/{os.path.basename(kernel)}'
        os.replace(kernel, found)
    return found


def _kernel_package() -> str:
    """The real package behind the distribution's kernel for guests."""
    try:
        with open('/etc/os-release', encoding='utf-8') as file:
            release = dict(re.findall(r'^(\w+)="?([^"\n]*)', file.read(),
                                      re.MULTILINE))
    except OSError:
        release = {}
    names = [release.get('ID', ''), *release.get('ID_LIKE', '').split()]
    distribution = next((n for n in names if n in _KERNEL_PACKAGES), None)
    if distribution is None or not shutil.which('apt-get'):
        raise GuestError(
            'no kernel in /boot, and only on Debian and Ubuntu can one be '
            'fetched: give --kernel')
    arch = _run(['dpkg', '--print-architecture']).strip()
    for meta in _KERNEL_PACKAGES[distribution]:
        name = meta.format(arch=arch)
        depends = subprocess.run(
            ['apt-cache', 'depends', '--important', name],
            capture_output=True, text=True, check=False,
            timeout=_COMMAND_TIMEOUT_S)
        found = re.search(r'Depends: (linux-image-\d\S*)', depends.stdout)
        if found:
            return found[1]
    raise GuestError(
        'no kernel in /boot, and apt knows none: run apt-get update, or give '
        '--kernel')


def _run(argv: list[str], cwd: str | None = None) -> str:
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True,
                              check=True, timeout=_COMMAND_TIMEOUT_S).stdout
    except subprocess.CalledProcessError as error:
        raise GuestError(f'{" ".join(argv)} failed: {error.stderr.strip()}') \
            from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GuestError(f'{argv[0]} cannot be run: {error}') from error
