# SPDX-License-Identifier: Apache-2.0
"""Kernels that guests boot."""

from collections.abc import Iterable, Mapping
import contextlib
import glob
import os
import re
import shutil
import subprocess
import tempfile

from nova_vqos.calibration.guest import modules
from nova_vqos.calibration.guest import programs

CACHE_DIR = '/var/cache/nova-vqos'

# What each distribution's smallest kernel for guests is called. Each is a
# meta package that depends on the real one.
_KERNEL_PACKAGES = {
    'debian': ('linux-image-cloud-{arch}', 'linux-image-{arch}'),
    'ubuntu': ('linux-image-virtual', 'linux-image-kvm',
               'linux-image-generic'),
}


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
            raise programs.GuestError(f'kernel {kernel} cannot be read')
        return kernel
    for directory in (boot_dir, os.path.join(cache_dir, 'kernel', 'boot')):
        found = _kernels(directory)
        if found:
            return found[0]
    return _fetch_kernel(cache_dir)


def find_kernel_with_modules(
        names: Iterable[str] = modules.VIRTIO, *, root: str = '/',
        cache_dir: str = CACHE_DIR) -> tuple[str, Mapping[str, bytes]]:
    """A kernel that guests can boot, and modules of it.

    :param names: of modules that the guest needs, see :mod:`modules`
    :param root: below which installed kernels and their modules are
    :param cache_dir: as in :func:`find_kernel`
    :returns: the kernel's path, and modules by name in the order to load
        them in
    :raises GuestError: when there is none and none can be fetched
    """
    names = tuple(names)
    for top in (root, os.path.join(cache_dir, 'kernel')):
        for kernel in _kernels(os.path.join(top, 'boot')):
            with contextlib.suppress(modules.ModuleMissing):
                return kernel, modules.ordered(
                    _modules_directory(top, kernel), names)
    kernel = _fetch_kernel(cache_dir)
    try:
        return kernel, modules.ordered(_modules_directory(
            os.path.join(cache_dir, 'kernel'), kernel), names)
    except modules.ModuleMissing as error:
        raise programs.GuestError(str(error)) from error


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


def _kernels(directory: str) -> list[str]:
    """Those that can be read, the newest first."""
    found = [path for path in glob.glob(f'{directory}/vmlinuz-*')
             if os.access(path, os.R_OK)]
    return sorted(found, reverse=True, key=lambda path: [
        int(number) for number in re.findall(r'\d+', path)])


def _modules_directory(top: str, kernel: str) -> str:
    version = os.path.basename(kernel).removeprefix('vmlinuz-')
    return os.path.join(top, 'lib', 'modules', version)


def _fetch_kernel(cache_dir: str) -> str:
    """Fetch and unpack the distribution's kernel for guests."""
    package = _kernel_package()
    target = os.path.join(cache_dir, 'kernel')
    os.makedirs(cache_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        programs.run(
            ['apt-get', 'download', '-o', 'APT::Sandbox::User=root', package],
            cwd=scratch)
        (archive,) = glob.glob(f'{scratch}/*.deb')
        programs.run(['dpkg', '-x', archive, f'{scratch}/unpacked'])
        os.makedirs(f'{target}/boot', exist_ok=True)
        (kernel,) = glob.glob(f'{scratch}/unpacked/boot/vmlinuz-*')
        # All modules are twenty times the kernel. Some distributions have
        # them in another package; most guests need none.
        for source in glob.glob(f'{scratch}/unpacked/**/lib/modules/*',
                                recursive=True):
            with contextlib.suppress(modules.ModuleMissing):
                modules.copy(source, _modules_directory(target, kernel))
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
        raise programs.GuestError(
            'no kernel in /boot, and only on Debian and Ubuntu can one be '
            'fetched: give --kernel')
    arch = programs.run(['dpkg', '--print-architecture']).strip()
    for meta in _KERNEL_PACKAGES[distribution]:
        name = meta.format(arch=arch)
        depends = subprocess.run(
            ['apt-cache', 'depends', '--important', name],
            capture_output=True, text=True, check=False,
            timeout=programs.TIMEOUT_S)
        found = re.search(r'Depends: (linux-image-\d\S*)', depends.stdout)
        if found:
            return found[1]
    raise programs.GuestError(
        'no kernel in /boot, and apt knows none: run apt-get update, or give '
        '--kernel')
