# SPDX-License-Identifier: Apache-2.0
"""The measured costs of I/O in a host's profile.

Imported and checked only when a profile's ``io_costs`` are read: libvirt's
hook does not need them.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import itertools
import math
import typing as ty

from nova_vqos import files
from nova_vqos.billing import costs
from nova_vqos.billing import usage

#: They move packets between guest and interface. The kernel's part, which ends
#: at the tap, is the same for both.
BACKENDS = ('qemu', 'vhost')

#: Of the field ``io``.
SCHEMA = 2

_MOST_KINDS = 100
_MOST_SIZES = 50
_MOST_BYTES = 1 << 30
# In ns: a second per request.
_MOST_REQUEST_NS = 1e9
_MOST_SAMPLES = 10_000_000
_NOT_IN_LINES = {'large packets': 'not by the version that measured this: '
                                  'measure it again'}
_MODES = ('bridge', 'routed', 'nat', 'openvswitch')
_SOURCES = ('file', 'block', 'network')


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A cost in ns, with its 95 % confidence interval.

    :ivar value: of a cost, as billed: see :func:`billed`
    :ivar low: of the estimate, as the next: may be below 0
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The measured cost of requests of one kind and direction.

    :ivar by_size: cost of a request, by its size in bytes, in ascending order;
        billed
    :ivar backends: in ns, by size in bytes: charged to the thread that moved
        the requests; each server's own is measured, so this is not billed
    :ivar unaccounted: per request, mean of all sizes: time that other threads
        lost and that no thread was charged
    :ivar samples: number of samples
    :ivar outliers: number of samples left out
    """

    by_size: Mapping[int, Part]
    backends: Mapping[int, float]
    unaccounted: Part
    samples: int
    outliers: int

    @property
    def cost(self) -> costs.RequestCost:
        return costs.RequestCost(tuple(
            (size, cost.value) for size, cost in self.by_size.items()))


def billed(estimates: Iterable[tuple[int, Part]]) -> dict[int, Part]:
    """The costs that requests are billed by.

    Where it is not certain that requests of a size cost anything, they cost as
    much as those of the next smaller size, which are no more work; the
    smallest ones nothing.

    :param estimates: by size, in ascending order; 0: not certain
    """
    found, value = {}, 0.0
    for size, estimate in estimates:
        if estimate.value > 0:
            value = estimate.value
        found[size] = dataclasses.replace(estimate, value=value)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """A kind of interface.

    :ivar mode: see :class:`usage.InterfaceKind`
    """

    mode: str
    rx: Measured
    tx: Measured


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """A kind of disk, see :class:`usage.DiskKind`."""

    source: str
    buffered: bool
    read: Measured
    write: Measured


@dataclasses.dataclass(frozen=True, slots=True)
class IoProfile:
    """The measured costs of a host's I/O.

    :ivar created_at: ISO 8601, UTC
    :ivar unmeasured: reasons by kind that was not measured, for people to read
    :ivar provenance: notes on the measurement, for people to read
    """

    created_at: str
    interfaces: tuple[Interface, ...]
    disks: tuple[Disk, ...]
    unmeasured: Mapping[str, str]
    provenance: Mapping[str, str]

    @property
    def costs(self) -> costs.IoCosts:
        """The costs that I/O is billed by."""
        return costs.IoCosts(
            {usage.InterfaceKind(one.mode, backend): costs.InterfaceCost(
                one.rx.cost, one.tx.cost)
             for one in self.interfaces for backend in BACKENDS},
            {usage.DiskKind(one.source, one.buffered): costs.DiskCost(
                one.read.cost, one.write.cost) for one in self.disks})


def from_document(document: object) -> IoProfile:
    """Read the field ``io`` of a profile.

    :raises files.FileInvalid: when it is invalid, or of a later schema
    """
    fields = files.Fields(document, 'io')
    # The version before had no number for it.
    is_line = not fields.has('schema')
    if not is_line and fields.number(
            'schema', -math.inf, math.inf) != SCHEMA:
        raise fields.error(
            'schema', f'{SCHEMA}: measure it again with this version')
    measured = _measured_as_line if is_line else _measured
    found = IoProfile(
        created_at=fields.text('created_at'),
        interfaces=tuple(
            Interface(child.choice('mode', _MODES),
                      measured(child.child('rx')),
                      measured(child.child('tx')))
            for child in _children(fields, 'interfaces')),
        disks=tuple(
            Disk(child.choice('source', _SOURCES), child.truth('buffered'),
                 measured(child.child('read')),
                 measured(child.child('write')))
            for child in _children(fields, 'disks')),
        unmeasured=fields.texts('unmeasured') | (
            _NOT_IN_LINES if is_line else {}),
        provenance=fields.texts('provenance'))
    if (len({one.mode for one in found.interfaces}) < len(found.interfaces)
            or len({(one.source, one.buffered) for one in found.disks})
            < len(found.disks)):
        raise files.FileInvalid('io has the same kind twice')
    return found


def document(held: IoProfile) -> dict[str, ty.Any]:
    """The inverse of :func:`from_document`."""
    return {
        'schema': SCHEMA,
        'created_at': held.created_at,
        'unmeasured': dict(held.unmeasured),
        'provenance': dict(held.provenance),
        'interfaces': [
            {'mode': one.mode, 'rx': _document(one.rx),
             'tx': _document(one.tx)} for one in held.interfaces],
        'disks': [
            {'source': one.source, 'buffered': one.buffered,
             'read': _document(one.read), 'write': _document(one.write)}
            for one in held.disks]}


def _children(fields: files.Fields, key: str) -> list[files.Fields]:
    """:returns: may be empty, as of a host measured without disks"""
    return fields.children(key, _MOST_KINDS) if fields.is_filled(key) else []


def _measured(fields: files.Fields) -> Measured:
    sizes = _sizes(fields)
    values = fields.signed_numbers('costs_ns', len(sizes), _MOST_REQUEST_NS)
    if min(values) < 0:
        raise fields.error('costs_ns', 'without a number below 0')
    lows, highs = (fields.signed_numbers(key, len(sizes), _MOST_REQUEST_NS)
                   for key in ('lows_ns', 'highs_ns'))
    return _with_others(fields, dict(zip(
        sizes, map(Part, values, lows, highs), strict=True)))


def _measured_as_line(fields: files.Fields) -> Measured:
    """What was billed as a line: its points are means of what was measured.

    The interval of each is taken to be as wide as that of the line's start.
    """
    sizes = _sizes(fields)
    low, high = fields.signed_numbers('request_interval_ns', 2,
                                      _MOST_REQUEST_NS)
    half = abs(high - low) / 2
    means = fields.signed_numbers('means_ns', len(sizes), _MOST_REQUEST_NS)
    return _with_others(fields, billed(
        (size, Part(mean if mean > half else 0.0, mean - half, mean + half))
        for size, mean in zip(sizes, means, strict=True)))


def _with_others(fields: files.Fields, found: dict[int, Part]) -> Measured:
    return Measured(
        found, dict(zip(found, fields.signed_numbers(
            'backends_ns', len(found), _MOST_REQUEST_NS), strict=True)),
        Part(*fields.signed_numbers('unaccounted_ns', 3, _MOST_REQUEST_NS)),
        int(fields.number('samples', 1, _MOST_SAMPLES)),
        int(fields.number('outliers', 0, _MOST_SAMPLES)))


def _sizes(fields: files.Fields) -> list[int]:
    found = fields.numbers('sizes', 1, _MOST_SIZES)
    if (found[-1] > _MOST_BYTES
            or not all(size.is_integer() for size in found)
            or any(size >= after
                   for size, after in itertools.pairwise(found))):
        raise fields.error('sizes', f'whole numbers up to {_MOST_BYTES}, each '
                           'larger than the one before')
    return list(map(int, found))


def _document(found: Measured) -> dict[str, ty.Any]:
    costs_ns = found.by_size.values()
    return {
        'sizes': list(map(float, found.by_size)),
        'costs_ns': [cost.value for cost in costs_ns],
        'lows_ns': [cost.low for cost in costs_ns],
        'highs_ns': [cost.high for cost in costs_ns],
        'backends_ns': [found.backends[size] for size in found.by_size],
        'unaccounted_ns': [found.unaccounted.value, found.unaccounted.low,
                           found.unaccounted.high],
        'samples': found.samples, 'outliers': found.outliers}
