# SPDX-License-Identifier: Apache-2.0
"""The measured costs of I/O in a host's profile.

Imported and checked only when a profile's ``io_costs`` are read: libvirt's
hook does not need them.
"""

from collections.abc import Mapping
import dataclasses
import typing as ty

from nova_vqos import files
from nova_vqos.billing import costs
from nova_vqos.billing import usage

#: They move packets between guest and interface. The kernel's part, which ends
#: at the tap, is the same for both.
BACKENDS = ('qemu', 'vhost')

_MOST_KINDS = 100
_MOST_SIZES = 50
# In ns: a second per request, and a microsecond per byte.
_MOST_REQUEST_NS = 1e9
_MOST_BYTE_NS = 1e3
_MOST_SAMPLES = 10_000_000
_MODES = ('bridge', 'routed', 'nat', 'openvswitch')
_SOURCES = ('file', 'block', 'network')


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a cost in ns, with its 95 % confidence interval.

    :ivar value: 0 where the interval of the estimate includes 0
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The measured cost of requests of one kind and direction.

    :ivar request: per request; billed
    :ivar byte: per byte, in addition; billed
    :ivar means: in ns, by size in bytes: the points of the fitted line
    :ivar backends: in ns, by size in bytes: charged to the thread that moved
        the requests; each server's own is measured, so this is not billed
    :ivar unaccounted: per request, mean of all sizes: time that other threads
        lost and that no thread was charged
    :ivar samples: number of samples
    :ivar outliers: number of samples left out
    """

    request: Part
    byte: Part
    means: Mapping[int, float]
    backends: Mapping[int, float]
    unaccounted: Part
    samples: int
    outliers: int

    @property
    def cost(self) -> costs.RequestCost:
        return costs.RequestCost(self.request.value, self.byte.value)

    @property
    def residuals(self) -> dict[int, float]:
        """The difference of each mean from the line, in ns."""
        return {size: mean - self.cost.total_ns(1, size)
                for size, mean in self.means.items()}


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
    :ivar wake: additional cost of a packet that wakes its receiving thread;
        billed
    """

    created_at: str
    interfaces: tuple[Interface, ...]
    disks: tuple[Disk, ...]
    unmeasured: Mapping[str, str]
    provenance: Mapping[str, str]
    wake: Part = Part(0.0, 0.0, 0.0)

    @property
    def costs(self) -> costs.IoCosts:
        """The costs that I/O is billed by."""
        return costs.IoCosts(
            {usage.InterfaceKind(one.mode, backend): costs.InterfaceCost(
                one.rx.cost, one.tx.cost, self.wake.value)
             for one in self.interfaces for backend in BACKENDS},
            {usage.DiskKind(one.source, one.buffered): costs.DiskCost(
                one.read.cost, one.write.cost) for one in self.disks})


def from_document(document: object) -> IoProfile:
    """Read the field ``io`` of a profile.

    :raises files.FileInvalid: when it is invalid
    """
    fields = files.Fields(document, 'io')
    found = IoProfile(
        created_at=fields.text('created_at'),
        interfaces=tuple(
            Interface(child.choice('mode', _MODES),
                      _measured(child.child('rx')),
                      _measured(child.child('tx')))
            for child in _children(fields, 'interfaces')),
        disks=tuple(
            Disk(child.choice('source', _SOURCES), child.truth('buffered'),
                 _measured(child.child('read')),
                 _measured(child.child('write')))
            for child in _children(fields, 'disks')),
        unmeasured=fields.texts('unmeasured'),
        provenance=fields.texts('provenance'),
        **({'wake': _part(fields, 'wake', _MOST_REQUEST_NS)}
           if fields.has('wake_ns') else {}))
    if (len({one.mode for one in found.interfaces}) < len(found.interfaces)
            or len({(one.source, one.buffered) for one in found.disks})
            < len(found.disks)):
        raise files.FileInvalid('io has the same kind twice')
    return found


def document(held: IoProfile) -> dict[str, ty.Any]:
    """The inverse of :func:`from_document`."""
    return {
        'created_at': held.created_at,
        'unmeasured': dict(held.unmeasured),
        'provenance': dict(held.provenance),
        'wake_ns': float(held.wake.value),
        'wake_interval_ns': [held.wake.low, held.wake.high],
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
    sizes = fields.numbers('sizes', 1, _MOST_SIZES)

    def by_size(key: str) -> dict[int, float]:
        return dict(zip(map(int, sizes), fields.signed_numbers(
            key, len(sizes), _MOST_REQUEST_NS), strict=True))

    return Measured(
        _part(fields, 'request', _MOST_REQUEST_NS),
        _part(fields, 'byte', _MOST_BYTE_NS),
        by_size('means_ns'), by_size('backends_ns'),
        Part(*fields.signed_numbers('unaccounted_ns', 3, _MOST_REQUEST_NS)),
        int(fields.number('samples', 1, _MOST_SAMPLES)),
        int(fields.number('outliers', 0, _MOST_SAMPLES)))


def _part(fields: files.Fields, name: str, most: float) -> Part:
    return Part(fields.number(f'{name}_ns', 0, most),
                *fields.signed_numbers(f'{name}_interval_ns', 2, most))


def _document(found: Measured) -> dict[str, ty.Any]:
    return {
        'request_ns': float(found.request.value),
        'request_interval_ns': [found.request.low, found.request.high],
        'byte_ns': float(found.byte.value),
        'byte_interval_ns': [found.byte.low, found.byte.high],
        'sizes': list(map(float, found.means)),
        'means_ns': list(found.means.values()),
        'backends_ns': [found.backends[size] for size in found.means],
        'unaccounted_ns': [found.unaccounted.value, found.unaccounted.low,
                           found.unaccounted.high],
        'samples': found.samples, 'outliers': found.outliers}
