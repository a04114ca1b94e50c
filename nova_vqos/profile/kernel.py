# SPDX-License-Identifier: Apache-2.0
"""How this kernel schedules: what it was built with, booted with, and set to.

The preemption model says how soon a thread that is in the kernel makes room
for another one: at once (``full``, ``rt``), at the next tick (``lazy``), or
where the kernel offers it (``none``, ``voluntary``). HRTICK ends a slice by a
timer instead of at a tick, which makes slices below a tick possible.
"""

from collections.abc import Callable, Mapping
import functools
import gzip
import pathlib
import platform
import re
import types
import typing as ty

from nova_vqos import files

UNKNOWN = 'unknown'

# By the option that a kernel is built with, the strongest first.
_BUILT = {'CONFIG_PREEMPT_RT': 'rt', 'CONFIG_PREEMPT_LAZY': 'lazy',
          'CONFIG_PREEMPT': 'full', 'CONFIG_PREEMPT_VOLUNTARY': 'voluntary',
          'CONFIG_PREEMPT_NONE': 'none'}
_MODELS = frozenset(_BUILT.values())
# From this release on a kernel that can preempt lazily has no weaker model
# (Linux commit 7dadeaa6e851).
_NO_WEAK_MODELS = (7, 0)
# Only root reads what is below debugfs, and only where it is mounted.
_DEBUG = 'sys/kernel/debug/sched'
# A list of features has some hundreds.
_MOST_CHARACTERS = 100_000


class Scheduling(ty.NamedTuple):
    """How the kernel schedules now.

    :ivar preemption: ``none``, ``voluntary``, ``full``, ``lazy``, ``rt``, or
        ``unknown``
    :ivar hrtick: whether a timer ends a slice: ``y``, ``n``, or ``unknown``
    """

    preemption: str
    hrtick: str

    def __str__(self) -> str:
        hrtick = {'y': 'on', 'n': 'off'}.get(self.hrtick, self.hrtick)
        return f'preemption {self.preemption}, HRTICK {hrtick}'


def scheduling(root: str = '/', release: str | None = None) -> Scheduling:
    """See how the kernel schedules now.

    Where it can be changed while the kernel runs, only root sees it, and only
    where debugfs is mounted.

    :param root: of /proc, /sys and /boot, for tests
    :param release: of the kernel; None: this one
    :returns: as far as it can be seen
    """
    options = build_options(root, release)
    debug = pathlib.Path(root, _DEBUG)
    chosen = re.search(r'\((\w+)\)', _read(debug / 'preempt'))
    if chosen and chosen[1] in _MODELS and not _is_on(
            options, 'CONFIG_PREEMPT_RT'):
        preemption = chosen[1]
    elif _is_on(options, 'CONFIG_PREEMPT_DYNAMIC') and not _is_on(
            options, 'CONFIG_PREEMPT_RT'):
        preemption = UNKNOWN
    else:
        preemption = _built_model(options)
    features = _read(debug / 'features').split()
    # The feature can be set where the kernel has no code for it.
    if value(options, 'CONFIG_SCHED_HRTICK') == 'n':
        hrtick = 'n'
    else:
        hrtick = ('y' if 'HRTICK' in features else
                  'n' if 'NO_HRTICK' in features else UNKNOWN)
    return Scheduling(preemption, hrtick)


def preemption_at_boot(options: Mapping[str, str], root: str = '/',
                       release: str | None = None) -> str:
    """The preemption model with which the kernel booted.

    By what every user can read, so that nova-compute and root say the same.

    :param options: see :func:`build_options`
    :param root: see :func:`scheduling`
    :param release: see :func:`scheduling`
    :returns: see :class:`Scheduling`
    """
    built = _built_model(options)
    if built == 'rt' or not _is_on(options, 'CONFIG_PREEMPT_DYNAMIC'):
        return built
    accepted = {'full'}
    if _is_on(options, 'CONFIG_ARCH_HAS_PREEMPT_LAZY'):
        accepted.add('lazy')
    if 'lazy' not in accepted or _version(release) < _NO_WEAK_MODELS:
        accepted |= {'none', 'voluntary'}
    # What follows is for init.
    line, _, _ = _read(pathlib.Path(root, 'proc/cmdline')).partition(' -- ')
    given = [word.removeprefix('preempt=') for word in line.split()
             if word.startswith('preempt=')]
    return next((model for model in reversed(given) if model in accepted),
                built)


def build_options(root: str = '/', release: str | None = None
                  ) -> Mapping[str, str]:
    """What the kernel was built with.

    :param root: see :func:`scheduling`
    :param release: see :func:`scheduling`
    :returns: values by name, with CONFIG_; none where they cannot be read
    """
    release = release or platform.release()
    top = pathlib.Path(root)
    for path, read in ((top / 'proc/config.gz', gzip.open),
                       (top / f'boot/config-{release}', open),
                       (top / f'lib/modules/{release}/config', open)):
        try:
            return _parsed(path, read, files.identity(str(path)))
        except (OSError, ValueError, EOFError):
            continue
    return {}


@functools.lru_cache(maxsize=1)
def _parsed(path: pathlib.Path, read: Callable[..., ty.Any],
            _identity: tuple[int, ...] | None) -> Mapping[str, str]:
    """Read once: each report of nova-compute and each check asks for it."""
    with read(path, 'rt') as file:
        return types.MappingProxyType(dict(re.findall(
            r'^(CONFIG_\w+)=(\w+)$', file.read(), re.M)))


def value(options: Mapping[str, str], name: str) -> str:
    """The value of an option that the kernel was built with.

    :param options: see :func:`build_options`
    :param name: with CONFIG_
    :returns: such as ``y`` or ``m``; ``n``, or ``unknown``
    """
    return options.get(name, 'n') if options else UNKNOWN


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name) == 'y'


def _built_model(options: Mapping[str, str]) -> str:
    return next((model for name, model in _BUILT.items()
                 if _is_on(options, name)), UNKNOWN)


def _version(release: str | None) -> tuple[int, ...]:
    """:returns: two numbers, or fewer where there are none"""
    return tuple(map(int, re.findall(
        r'\d+', release or platform.release())[:2]))


def _read(path: pathlib.Path) -> str:
    """:returns: '' where it cannot be read"""
    try:
        with path.open(encoding='utf-8', errors='replace') as file:
            return file.read(_MOST_CHARACTERS)
    except OSError:
        return ''
