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

"""The part of a host's profile that says what I/O costs the kernel.

Apart from :mod:`nova_vqos.profile`, since libvirt's hook needs none of it:
imported, and looked at, when somebody asks for a profile's ``io_costs``.
"""

from collections.abc import Mapping
import dataclasses
import typing as ty

from nova_vqos import profile
from nova_vqos.billing import costs
from nova_vqos.billing import usage

#: Who moves packets between guest and interface: the kernel's part, which
#: ends at the tap, is the same for both.
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

    :ivar value: 0 where the interval, which is then of the estimate that
        this was, holds 0 or less
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What requests of one kind and direction were measured to cost.

    :ivar request: per request; billed
    :ivar byte: per byte, on top; billed
    :ivar means: in ns, by size in bytes: what the line was laid through
    :ivar backends: in ns, by size in bytes: what the thread that moved them
        was charged for, which is measured of each server, hence not billed
        by this
    :ivar unaccounted: per request, lost by others without being charged to
        anybody, on average over all sizes
    :ivar samples: how many there were in all
    :ivar outliers: how many of them were left out
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
        """By how much each size was dearer than the line says, in ns."""
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
    """All that was measured of a host's I/O.

    :ivar created_at: ISO 8601, UTC
    :ivar unmeasured: what was not, and why, for people to read
    :ivar provenance: what was seen while measuring, for people to read
    :ivar wake: per packet for a guest that wakes who takes it in, on top of
        what one of its size costs among others; billed
    """

    created_at: str
    interfaces: tuple[Interface, ...]
    disks: tuple[Disk, ...]
    unmeasured: Mapping[str, str]
    provenance: Mapping[str, str]
    wake: Part = Part(0.0, 0.0, 0.0)

    @property
    def costs(self) -> costs.IoCosts:
        """What is billed."""
        return costs.IoCosts(
            {usage.InterfaceKind(one.mode, backend): costs.InterfaceCost(
                one.rx.cost, one.tx.cost, self.wake.value)
             for one in self.interfaces for backend in BACKENDS},
            {usage.DiskKind(one.source, one.buffered): costs.DiskCost(
                one.read.cost, one.write.cost) for one in self.disks})


def from_document(document: object) -> IoProfile:
    """Read the field ``io`` of a profile.

    :raises ProfileInvalid: when it is none
    """
    fields = profile.Fields(document, 'io')
    found = IoProfile(
        created_at=fields.text('created_at'),
        interfaces=tuple(
            Interface(_one_of(child, 'mode', _MODES),
                      _measured(child.child('rx')),
                      _measured(child.child('tx')))
            for child in _children(fields, 'interfaces')),
        disks=tuple(
            Disk(_one_of(child, 'source', _SOURCES), child.truth('buffered'),
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
        raise profile.ProfileInvalid('io has the same kind twice')
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


def _children(fields: profile.Fields, key: str) -> list[profile.Fields]:
    """:returns: none, too: a host may have been measured without disks"""
    return fields.children(key, _MOST_KINDS) if fields.is_filled(key) else []


def _one_of(fields: profile.Fields, key: str, words: tuple[str, ...]) -> str:
    found = fields.text(key)
    if found not in words:
        raise fields.error(key, f'one of {", ".join(words)}')
    return found


def _measured(fields: profile.Fields) -> Measured:
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


def _part(fields: profile.Fields, name: str, most: float) -> Part:
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
