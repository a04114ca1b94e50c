# SPDX-License-Identifier: Apache-2.0
"""What a guest boots into: busybox, tools and an init script."""

from collections.abc import Iterable, Mapping
import os
import re
import stat
import subprocess

from nova_vqos import files as documents
from nova_vqos.calibration.guest import programs
from nova_vqos.calibration.guest import work

# Files that measuring guests find in /.
_WORKLOADS = ('text', 'text.gz', 'nbody.lua', 'html.lua', 'image.lua',
              'chase.lua')


class Cpio:
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
    busybox = programs.which('busybox')
    if _libraries(busybox):
        raise programs.GuestError(
            f'{busybox} is not static: install the package busybox-static')
    archive = Cpio()
    for directory in ('proc', 'sys', 'dev', 'tmp', 'root', 'run'):
        archive.add_directory(f'/{directory}')
    # The kernel opens it for init before there is a devtmpfs.
    archive.add_device('/dev/console', 5, 1)
    for applet in programs.run([busybox, '--list']).split():
        archive.add_link(f'/bin/{applet}', 'busybox')
    # After the links: busybox lists itself too.
    archive.add_file('/bin/busybox', busybox)
    for tool in tools:
        program = programs.which(tool)
        archive.add_file(f'/bin/{os.path.basename(program)}', program)
        for library in _libraries(program):
            archive.add_file(library, library)
    for guest_path, host_path in (files or {}).items():
        archive.add_file(guest_path, host_path)
    contents = dict(contents or {})
    if init is None:
        init = work.measuring_init()
        contents = {name: work.workload(name)
                    for name in _WORKLOADS} | contents
    for guest_path, content in contents.items():
        archive.add_bytes(guest_path, content, 0o644)
    archive.add_bytes('/init', init.encode(), 0o755)
    documents.write(archive.to_bytes(), path, durable=False)


def _libraries(program: str) -> list[str]:
    """The libraries and the loader that a program needs, as paths."""
    done = subprocess.run(['ldd', program], capture_output=True, text=True,
                          timeout=programs.TIMEOUT_S, check=False)
    if done.returncode:
        # What ldd says of a static program, in any language.
        return []
    missing = re.findall(r'(\S+) => not found', done.stdout)
    if missing:
        raise programs.GuestError(f'{program} lacks {", ".join(missing)}')
    return re.findall(r'(?:=> |^\s*)(/\S+)', done.stdout, re.MULTILINE)


def _pad(content: bytes) -> bytes:
    return content + b'\0' * (-len(content) % 4)
