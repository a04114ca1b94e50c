# SPDX-License-Identifier: Apache-2.0
"""What a host says of itself to the scheduler and to Placement.

The compute driver encodes :class:`HostStats` into the stats of its compute
node and into traits. The scheduler's filter and weighers, and the operator's
checks, decode them. Any compute node may write anything into its own stats:
:func:`decode` gives values within bounds, or raises :class:`StatInvalid`.
Pure: standard library only.
"""

from collections.abc import Callable, Iterable, Mapping
import datetime
from decimal import Decimal
from fractions import Fraction
import functools
import operator
import re
import types
import typing as ty

from nova_vqos import units
from nova_vqos import work as works
from nova_vqos.quantum import classes
from nova_vqos.quantum import occupancy

TRAIT = 'CUSTOM_VQOS'
TRAIT_HOOK = 'CUSTOM_VQOS_HOOK'
#: The host can reserve the units of servers.
TRAIT_GUARANTEE = 'CUSTOM_VQOS_GUARANTEE'
#: The host can charge servers for the CPU time of their I/O.
TRAIT_DD_BILLING = 'CUSTOM_VQOS_DD_BILLING'
#: The host may be reserved for servers with units, also while its profile is
#: invalid.
TRAIT_SELLS_UNITS = 'CUSTOM_VQOS_SELLS_UNITS'
# Of each quantum class that the host treats in a way of its own.
_TRAIT_QUANTUM = 'CUSTOM_VQOS_QUANTUM_'
_TRAIT_SPEED = 'CUSTOM_VQOS_SPEED_'
#: A flavor that requires one of them makes Placement leave slower hosts out,
#: of which there may be more than [scheduler] max_placement_results.
SPEED_TIERS_CU = (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100, 125, 150,
                  175, 200, 250, 300, 350, 400, 500, 600, 800, 1000)
#: All that :func:`traits` gives and a request may ask Placement for.
ASKED_TRAITS: ty.Final = frozenset((
    TRAIT, TRAIT_GUARANTEE, TRAIT_DD_BILLING, TRAIT_SELLS_UNITS,
    *(f'{_TRAIT_QUANTUM}{name.upper()}' for name in classes.SPECIAL),
    *(f'{_TRAIT_SPEED}{tier}' for tier in SPEED_TIERS_CU)))
_OWN_TRAIT = re.compile(
    rf'{TRAIT}|{TRAIT_HOOK}|{TRAIT_DD_BILLING}|{TRAIT_GUARANTEE}|'
    rf'{TRAIT_SELLS_UNITS}|{_TRAIT_SPEED}[0-9]+|{_TRAIT_QUANTUM}(IO|SPIN|CACHE)')

#: The profile of a host that accepts new servers with units.
VALID = 'valid'
# Of any stat but one: Nova keeps them in a column of texts.
_MAX_STAT = 255
# Of the speeds of all kinds of work: eleven kinds on five core types.
_MAX_WORK = 2000
_POLLUTERS = 'polluters'

_CU = '[0-9]{1,6}(?:[.][0-9]{1,24})?'
_WHOLE_CU = '[0-9]{1,10}'
_CORE_TYPE = f'{_CU}:{_WHOLE_CU}:{_CU}'
_PIECE = '[0-9]{1,8}:[0-9]{1,6}'
_KIND = re.compile(works.KIND)
_WORK = f'{_CU}={works.KIND}:{_CU}(?:,{works.KIND}:{_CU})*'
_NAME = '[a-z_]{1,32}'
_NAMES_PATTERN = re.compile(f'{_NAME}(?:,{_NAME})*')
_POOL = f'{_NAME}(?::[0-9]{{1,6}}){{1,2}}'
_TIME_PATTERN = re.compile(
    '[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}'
    '(?:[.][0-9]{1,6})?[+]00:00')


class StatInvalid(ValueError):
    """A stat of a compute node that no host with nova_vqos reports.

    :ivar key: its name
    :ivar value: its value
    :ivar expected: what it may be, in words
    """

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        shown = (classes.quoted(value[:_MAX_STAT]) if isinstance(value, str)
                 else type(value).__name__)
        super().__init__(f'{key} is {shown}, it must be {expected}')


class CoreTypeRoom(ty.NamedTuple):
    """What is left of one type of a host's unlike pCPUs.

    :ivar speed_cu: of each of its pCPUs
    :ivar room_cu: for new servers; None: not known
    :ivar least_cu: of a vCPU, that a cap can give there
    """

    speed_cu: Decimal
    room_cu: int | None
    least_cu: Decimal


class Piece(ty.NamedTuple):
    """Equal pieces of pCPUs that vCPUs leave.

    :ivar cu: that are left of each pCPU, rounded up
    :ivar pcpus: number of these
    """

    cu: int
    pcpus: int


class WorkSpeeds(ty.NamedTuple):
    """How fast equal pCPUs of a host are in each kind of work.

    :ivar speed_cu: of each of them, in the mean of all kinds
    :ivar kinds: the coefficient of each kind, by its name
    """

    speed_cu: Decimal
    kinds: Mapping[str, float]

    # NOTE: a Mapping has no hash; see fitness.terms.
    def __hash__(self) -> int:
        return hash((self.speed_cu, *self.kinds.items()))


class HostStats(ty.NamedTuple):
    """The stats of a compute node.

    :ivar profile: VALID, or why the host accepts no new servers with units;
        empty: it is stock Nova's
    :ivar profile_id: of the profile in use
    :ivar slowest_cu: speed of its slowest shared pCPU; None: not known
    :ivar fastest_cu: of its fastest
    :ivar least_cu: of a vCPU, that a cap can give on the slowest pCPU
    :ivar core_types: of unlike pCPUs, the slowest first; else empty
    :ivar room_cu: that its servers leave; None: not known
    :ivar agent_seen_at: time of the agent's last heartbeat; None: never
    :ivar quantum_classes: that it offers
    :ivar quantum_pools: what its pools hold
    :ivar dd_billing: that it offers
    :ivar guarantee_cu: that it can still reserve for servers; None: it
        reserves none
    :ivar largest_vcpu_cu: of the largest vCPU that still packs; None: vCPUs
        need not pack, or it is not known
    :ivar pieces: of pCPUs that its vCPUs leave, the largest first; empty:
        vCPUs need not pack, or it is not known
    :ivar stranded_cu: that are left, in pieces smaller than its largest vCPU;
        None: likewise
    :ivar sells_units: whether it may be reserved for servers with units
    :ivar work: of each of its core types, be it one alone, the slowest first;
        empty: not known
    :ivar servers: how many it had when its room was counted; None: not known
    :ivar keeps_ceilings: whether its agent keeps the ceilings of projects
    """

    profile: str = ''
    profile_id: str = ''
    slowest_cu: Decimal | None = None
    fastest_cu: Decimal | None = None
    least_cu: Decimal | None = None
    core_types: tuple[CoreTypeRoom, ...] = ()
    room_cu: int | None = None
    agent_seen_at: datetime.datetime | None = None
    quantum_classes: tuple[str, ...] = ()
    quantum_pools: occupancy.Occupancy = occupancy.UNKNOWN
    dd_billing: tuple[str, ...] = ()
    guarantee_cu: int | None = None
    largest_vcpu_cu: Decimal | None = None
    pieces: tuple[Piece, ...] = ()
    stranded_cu: int | None = None
    sells_units: bool = False
    work: tuple[WorkSpeeds, ...] = ()
    servers: int | None = None
    keeps_ceilings: bool = False

    def without_room(self) -> 'HostStats':
        """The same, without what its servers leave."""
        return self._replace(
            core_types=tuple(one._replace(room_cu=None)
                             for one in self.core_types),
            room_cu=None, largest_vcpu_cu=None, pieces=(), stranded_cu=None)


def _write_text(text: str) -> str:
    return ''.join(one if one.isprintable() else ' '
                   for one in text[:_MAX_STAT])


def _write_cu(value: Decimal | None) -> str:
    """A speed, exactly, without an exponent."""
    if value is None:
        return ''
    text = format(value, 'f')
    return text.rstrip('0').rstrip('.') if '.' in text else text


def _write_whole(value: int | None) -> str:
    return '' if value is None else str(value)


def _read_core_types(text: str) -> tuple[CoreTypeRoom, ...]:
    found = []
    for one in text.split(' '):
        speed_cu, room_cu, least_cu = one.split(':')
        found.append(CoreTypeRoom(Decimal(speed_cu), int(room_cu),
                                  Decimal(least_cu)))
    if sorted(found, key=operator.itemgetter(0)) != found:
        raise ValueError
    return tuple(found)


def _write_core_types(core_types: Iterable[CoreTypeRoom]) -> str:
    """Those with the least room are left out where there is no place.

    The host is refused for what they could serve, and never the other way
    round.
    """
    written: list[tuple[CoreTypeRoom, str]] = []
    left = _MAX_STAT + 1
    for one in sorted(core_types, key=lambda one: -(one.room_cu or 0)):
        text = (f'{_write_cu(one.speed_cu)}:{one.room_cu}:'
                f'{_write_cu(one.least_cu)}')
        left -= len(text) + 1
        if left < 0:
            break
        written.append((one, text))
    return ' '.join(text for _one, text in sorted(written))


def _read_pieces(text: str) -> tuple[Piece, ...]:
    found = tuple(Piece(*map(int, part.split(':')))
                  for part in text.split(' '))
    if sorted(set(found), reverse=True) != list(found):
        raise ValueError
    return found


def _write_pieces(pieces: Iterable[Piece]) -> str:
    """The smallest are left out where there is no place."""
    text = ' '.join(f'{one.cu}:{one.pcpus}' for one in pieces)
    return text if len(text) <= _MAX_STAT else (
        text[:_MAX_STAT + 1].rpartition(' ')[0])


@functools.lru_cache(maxsize=4096)
def _read_work(text: str) -> tuple[WorkSpeeds, ...]:
    """NOTE: cached by host: each is calibrated by itself, and reports it anew
    at each request.
    """
    found = []
    for one in text.split(' '):
        speed_cu, _, speeds = one.partition('=')
        kinds = {}
        for part in speeds.split(','):
            kind, _, cu = part.partition(':')
            coefficient = float(Decimal(cu) / units.CU_PER_REFERENCE_PCPU)
            if kind in kinds or not coefficient:
                raise ValueError
            kinds[kind] = coefficient
        found.append(WorkSpeeds(Decimal(speed_cu),
                                types.MappingProxyType(kinds)))
    speeds_cu = [one.speed_cu for one in found]
    if sorted(speeds_cu) != speeds_cu:
        raise ValueError
    return tuple(found)


def _write_work(speeds: Iterable[WorkSpeeds]) -> str:
    """Kinds that have no place are left out.

    The host is refused for servers of these, and never the other way round.
    """
    written = []
    left = _MAX_WORK
    for one in speeds:
        parts: list[str] = []
        text = f'{_write_cu(one.speed_cu)}='
        left -= len(text) + 1
        for kind, coefficient in one.kinds.items():
            part = f'{kind}:{_write_cu(speed_cu(coefficient))}'
            if not _KIND.fullmatch(kind) or len(part) > left:
                continue
            parts.append(part)
            left -= len(part) + 1
        if parts:
            written.append(text + ','.join(parts))
    return ' '.join(written)


def speed_cu(coefficient: float) -> Decimal:
    """The speed of a pCPU in CU, without an error of rounding."""
    return Decimal(_write_cu(
        Decimal(repr(float(coefficient))) * units.CU_PER_REFERENCE_PCPU))


@functools.lru_cache(maxsize=256)
def _read_names(text: str) -> tuple[str, ...]:
    """NOTE: cached, since all hosts of a cloud report one of a few."""
    if not _NAMES_PATTERN.fullmatch(text):
        raise ValueError
    return tuple(text.split(','))


def _read_pools(text: str) -> occupancy.Occupancy:
    """Names that this version does not know are left out."""
    pools: dict[str, occupancy.PoolSize] = {}
    polluters = None
    for part in text.split(' '):
        name, *numbers = part.split(':')
        if name in pools or name == _POLLUTERS and polluters is not None:
            raise ValueError
        if name == _POLLUTERS:
            (polluters,) = map(int, numbers)
        elif name in occupancy.NAMES:
            pcpus, vcpus = map(int, numbers)
            pools[name] = occupancy.PoolSize(pcpus, vcpus)
    return occupancy.Occupancy(pools, polluters)


def _write_pools(pools: occupancy.Occupancy) -> str:
    written = [f'{name}:{size.pcpus}:{size.vcpus}'
               for name, size in sorted(pools.pools.items())]
    if pools.polluters is not None:
        written.append(f'{_POLLUTERS}:{pools.polluters}')
    return ' '.join(written)


def read_time(text: ty.Any) -> datetime.datetime:
    """The time in a text such as ``2026-11-22T10:00:00+00:00``.

    :raises TypeError, ValueError: when it is something else
    """
    if not _TIME_PATTERN.fullmatch(text):
        raise ValueError(f'{text[:40]!r} is no time with a zone')
    return datetime.datetime.fromisoformat(text)


class _Codec(ty.NamedTuple):
    """How a field of HostStats becomes a stat; its default is an empty one.

    :ivar matches: whether a text has the form of the stat
    :ivar read: raises ValueError
    :ivar most: characters
    """

    key: str
    matches: Callable[[str], object]
    read: Callable[[str], object]
    write: Callable[[ty.Any], str]
    expected: str
    most: int = _MAX_STAT


def _form(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).fullmatch


_STOCK: ty.Final = HostStats()
_SELLS_UNITS = 'vqos_sells_units'
_CU_EXPECTED = 'CU such as 60 or 33.4, below 1000000'
_WHOLE_EXPECTED = 'a whole number of at most 10 digits'
_NAMES_EXPECTED = 'names such as default,io'

# In the order of the fields.
_CODECS: ty.Final = (
    _Codec('vqos_profile', str.isprintable, str, _write_text,
           f'{VALID}, or a printable text of at most {_MAX_STAT} characters'),
    _Codec('vqos_profile_id', _form('[0-9a-f]{1,64}'), str, str,
           'hexadecimal digits'),
    _Codec('vqos_slowest_cu', _form(_CU), Decimal, _write_cu, _CU_EXPECTED),
    _Codec('vqos_fastest_cu', _form(_CU), Decimal, _write_cu, _CU_EXPECTED),
    _Codec('vqos_least_cu', _form(_CU), Decimal, _write_cu, _CU_EXPECTED),
    _Codec('vqos_classes', _form(f'{_CORE_TYPE}(?: {_CORE_TYPE})*'),
           _read_core_types, _write_core_types,
           'SPEED:ROOM:LEAST of each core type in CU, the slowest first, such '
           'as 80:320:0.64 200:400:1.6'),
    _Codec('vqos_room_cu', _form(_WHOLE_CU), int, _write_whole,
           _WHOLE_EXPECTED),
    _Codec('vqos_agent_seen_at', _TIME_PATTERN.fullmatch,
           datetime.datetime.fromisoformat,
           lambda time: '' if time is None else time.isoformat(),
           'a time such as 2026-11-22T10:00:00+00:00'),
    _Codec('vqos_quantum_classes', bool, _read_names, ','.join,
           _NAMES_EXPECTED),
    _Codec('vqos_quantum_pools', _form(f'{_POOL}(?: {_POOL})*'), _read_pools,
           _write_pools, 'CLASS:PCPUS:VCPUS of each pool, such as cache:2:3 '
           'io:1:4 polluters:5'),
    _Codec('vqos_dd_billing', bool, _read_names, ','.join, _NAMES_EXPECTED),
    _Codec('vqos_guarantee_cu', _form(_WHOLE_CU), int, _write_whole,
           _WHOLE_EXPECTED),
    _Codec('vqos_largest_vcpu_cu', _form(_CU), Decimal, _write_cu,
           _CU_EXPECTED),
    _Codec('vqos_pieces', _form(f'{_PIECE}(?: {_PIECE})*'), _read_pieces,
           _write_pieces, 'CU:PCPUS of each size of a free piece, the largest '
           'first, such as 100:3 40:12'),
    _Codec('vqos_stranded_cu', _form(_WHOLE_CU), int, _write_whole,
           _WHOLE_EXPECTED),
    _Codec(_SELLS_UNITS, _form('True|False'), 'True'.__eq__, str,
           'True or False'),
    _Codec('vqos_work', _form(f'{_WORK}(?: {_WORK})*'), _read_work,
           _write_work, 'SPEED=KIND:SPEED of each core type in CU, the '
           'slowest first, such as 80=integer:82,hash:71 200=integer:190',
           _MAX_WORK),
    _Codec('vqos_servers', _form(_WHOLE_CU), int, _write_whole,
           _WHOLE_EXPECTED),
    _Codec('vqos_keeps_ceilings', _form('True|False'), 'True'.__eq__, str,
           'True or False'),
)
KEYS: ty.Final = tuple(codec.key for codec in _CODECS)
_texts_of: Callable[[Mapping[str, ty.Any]], tuple[ty.Any, ...]] = (
    operator.itemgetter(*KEYS))


def encode(stats: HostStats) -> dict[str, str]:
    """The stats of a compute node, as texts.

    All keys, always: Nova keeps the last value of one that is left out.
    """
    return {codec.key: codec.write(value)
            for codec, value in zip(_CODECS, stats, strict=True)}


def texts_of(stats: Mapping[str, ty.Any]) -> tuple[ty.Any, ...]:
    """All that :func:`decode` reads, to be compared with what it was."""
    try:
        return _texts_of(stats)
    except KeyError:
        return tuple(stats.get(key, '') for key in KEYS)


def decode(texts: Iterable[ty.Any]) -> HostStats:
    """The inverse of :func:`encode`, of input that is not trusted.

    A host of stock Nova has none of these stats: all of it is the default.

    :param texts: see :func:`texts_of`
    :raises StatInvalid: when a stat is not what it may be
    """
    values: list[ty.Any] = []
    for text, default, (key, matches, read, _write, expected, most) in zip(
            texts, _STOCK, _CODECS, strict=True):
        if text == '':
            values.append(default)
            continue
        try:
            if len(text) > most or not matches(text):
                raise ValueError
            values.append(read(text))
        except (TypeError, ValueError):
            raise StatInvalid(key, text, expected) from None
    return HostStats._make(values)


def sells_units(stats: Mapping[str, object]) -> bool:
    """Whether a host may be reserved for servers with units.

    :param stats: of its compute node: a request without units needs no more
        of them
    """
    return stats.get(_SELLS_UNITS) == 'True'


def traits(stats: HostStats, *, hook: bool) -> set[str]:
    """The traits of ours that a host has.

    The speed is that of its fastest pCPUs: a server that requires it must
    not be kept from them. Quantum classes need no profile: servers without
    units have them too.

    :param hook: whether our hook is installed in libvirt
    """
    found = {trait for name in stats.quantum_classes
             if (trait := quantum_trait(name))}
    if stats.sells_units:
        found.add(TRAIT_SELLS_UNITS)
    if stats.profile != VALID or stats.fastest_cu is None:
        return found
    found |= {TRAIT} | {f'{_TRAIT_SPEED}{tier}' for tier in SPEED_TIERS_CU
                        if tier <= stats.fastest_cu}
    if hook:
        found.add(TRAIT_HOOK)
    if 'charge' in stats.dd_billing:
        found.add(TRAIT_DD_BILLING)
    if stats.guarantee_cu is not None:
        found.add(TRAIT_GUARANTEE)
    return found


def quantum_trait(name: str) -> str | None:
    """The trait of a host that offers a quantum class; None: it has none."""
    return (f'{_TRAIT_QUANTUM}{name.upper()}'
            if name in classes.SPECIAL else None)


def speed_trait(cu: Fraction) -> str | None:
    """The trait of the largest tier that each host of a speed reaches.

    :param cu: of a pCPU
    :returns: None: no tier is as small
    """
    tier = max((tier for tier in SPEED_TIERS_CU if tier <= cu), default=None)
    return None if tier is None else f'{_TRAIT_SPEED}{tier}'


def own_traits(given: Iterable[str]) -> set[str]:
    """Those among some traits that no one but :func:`traits` gives."""
    return {trait for trait in given if _OWN_TRAIT.fullmatch(trait)}
