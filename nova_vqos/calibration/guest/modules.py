# SPDX-License-Identifier: Apache-2.0
"""Modules of a guest's kernel, in the order to load them in.

A distribution's kernel has virtio as modules. What each depends on stands in
itself, so that neither depmod nor modprobe has to know that kernel.
"""

from collections.abc import Iterable, Mapping
import lzma
import os
import pathlib
import re

#: What a guest needs for an interface and a disk of virtio.
VIRTIO = ('virtio_pci', 'virtio_net', 'virtio_blk')

_SUFFIXES = ('.ko', '.ko.xz')
# In the section .modinfo: NAME=VALUE, each ended by a zero byte.
_DEPENDS = re.compile(rb'\0depends=([\w,-]*)\0')


class ModuleMissing(Exception):
    """A module is neither there nor built in; the message names it."""


def ordered(directory: str, names: Iterable[str] = VIRTIO
            ) -> Mapping[str, bytes]:
    """Read modules and all that they depend on.

    :param directory: of the kernel's modules, ``lib/modules/VERSION``
    :param names: of modules; those that are built in need nothing
    :returns: their content by name, each after what it depends on
    :raises ModuleMissing: when one is not there
    """
    paths = {_canonical(path.name.partition('.')[0]): path
             for path in pathlib.Path(directory).rglob('*.ko*')
             if path.name.endswith(_SUFFIXES)}
    built_in = _built_in(directory)
    found: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in found or name in built_in:
            return
        if name not in paths:
            raise ModuleMissing(f'{directory} has no module {name}')
        content = _read(paths[name])
        depends = _DEPENDS.search(content)
        for other in (depends[1].decode().split(',') if depends else ()):
            if other:
                add(_canonical(other))
        found[name] = content

    for name in names:
        add(_canonical(name))
    return found


def copy(source: str, target: str, names: Iterable[str] = VIRTIO) -> None:
    """Keep of a kernel's modules only some and what they depend on.

    :param source: of the kernel's modules, ``lib/modules/VERSION``
    :param target: directory that :func:`ordered` will read
    :raises ModuleMissing: when one is not there
    """
    modules = ordered(source, names)
    os.makedirs(target, exist_ok=True)
    built_in = pathlib.Path(source, 'modules.builtin')
    if built_in.exists():
        pathlib.Path(target, built_in.name).write_bytes(built_in.read_bytes())
    for name, content in modules.items():
        pathlib.Path(target, f'{name}.ko').write_bytes(content)


def _built_in(directory: str) -> frozenset[str]:
    try:
        lines = pathlib.Path(directory, 'modules.builtin').read_text()
    except FileNotFoundError:
        return frozenset()
    return frozenset(_canonical(os.path.basename(line).partition('.')[0])
                     for line in lines.splitlines())


def _canonical(name: str) -> str:
    # The kernel takes both for the same.
    return name.replace('-', '_')


def _read(path: pathlib.Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == '.xz' else content
