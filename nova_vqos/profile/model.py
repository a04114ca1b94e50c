# SPDX-License-Identifier: Apache-2.0
"""The profile of one host, and its figures by pCPU."""

import functools
import json
import types
import typing as ty

from nova_vqos.profile import coefficients
from nova_vqos.profile import cpu

if ty.TYPE_CHECKING:
    from nova_vqos import work
    from nova_vqos.billing import costs
    from nova_vqos.profile import io as io_profile
    from nova_vqos.profile import quantum as quantum_profile

SCHEMA = 2


class _ProfileFields(ty.NamedTuple):
    """The calibration of one host, see :class:`Profile`.

    :ivar created_at: ISO 8601, UTC
    :ivar host: name of the measured host
    :ivar measured_in: ``host``, or ``guest`` of the host's hypervisor
    :ivar fingerprint: of the host when it was measured, see
        :mod:`nova_vqos.profile.fingerprint`
    :ivar is_reference: whether this host is the reference itself
    :ivar provenance: notes on the measurement, for people to read
    :ivar io: costs of I/O as in the document, not checked yet: see
        :attr:`Profile.io_profile`; None: not measured
    :ivar quantum: measured slices, likewise: see
        :attr:`Profile.quantum_profile`
    """

    created_at: str
    host: str
    reference: cpu.Reference
    measured_in: str
    fingerprint: ty.Mapping[str, str]
    cpu_classes: tuple[cpu.CpuClass, ...]
    is_reference: bool = False
    provenance: ty.Mapping[str, str] = types.MappingProxyType({})
    io: ty.Mapping[str, ty.Any] | None = None
    quantum: ty.Mapping[str, ty.Any] | None = None


class Profile(_ProfileFields):
    """The calibration of one host."""

    @functools.cached_property
    def id(self) -> str:
        """A hash of the content: 16 hexadecimal digits."""
        import hashlib
        canonical = json.dumps(self.document(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @functools.cached_property
    def pcpus(self) -> frozenset[int]:
        """The measured pCPUs."""
        return frozenset[int]().union(*(c.pcpus for c in self.cpu_classes))

    @functools.cached_property
    def tick_us(self) -> int:
        """Length of the scheduler's tick; the longest possible if unknown."""
        try:
            return int(self.fingerprint['tick_us'])
        except (KeyError, ValueError):
            return 10_000

    @functools.cached_property
    def io_profile(self) -> 'io_profile.IoProfile | None':
        """The measured costs of I/O; None: they were not measured.

        :raises files.FileInvalid: when the field ``io`` is invalid
        """
        from nova_vqos.profile import io as io_profile
        return None if self.io is None else io_profile.from_document(self.io)

    @functools.cached_property
    def io_costs(self) -> 'costs.IoCosts | None':
        """The costs that I/O is billed by; None: they were not measured.

        :raises files.FileInvalid: when the field ``io`` is invalid
        """
        return None if self.io_profile is None else self.io_profile.costs

    @functools.cached_property
    def quantum_profile(self) -> 'quantum_profile.QuantumProfile | None':
        """The measured slices; None: they were not measured.

        :raises files.FileInvalid: when the field ``quantum`` is invalid
        """
        from nova_vqos.profile import quantum as quantum_profile
        return (None if self.quantum is None
                else quantum_profile.from_document(self.quantum))

    @functools.cached_property
    def coefficients(self) -> coefficients.Coefficients:
        """Of its pCPUs, while all are busy."""
        return coefficients.Coefficients(
            tuple(coefficients.ClassCoefficients(
                cpu_class.pcpus, cpu_class.busy.coefficient,
                cpu_class.busy.kinds) for cpu_class in self.cpu_classes),
            self.tick_us)

    def coefficient(self, pcpu: int,
                    mix: 'work.Mix | None' = None) -> float:
        """See :meth:`coefficients.Coefficients.of`."""
        return self.coefficients.of(pcpu, mix)

    def clock_mhz(self, pcpus: ty.AbstractSet[int]) -> float | None:
        """The clock of some pCPUs in the calibration, all pCPUs being busy.

        :returns: of the class that had the lowest; None: not known of all
        """
        found = [cpu_class.clock_mhz for cpu_class in self.cpu_classes
                 if not cpu_class.pcpus.isdisjoint(pcpus)]
        known = [mhz for mhz in found if mhz is not None]
        return min(known) if known and len(known) == len(found) else None

    def slowest(self, pcpus: ty.Iterable[int],
                mix: 'work.Mix | None' = None) -> float:
        """See :meth:`coefficients.Coefficients.slowest`."""
        return self.coefficients.slowest(pcpus, mix)

    def wide_kinds(self, pcpus: ty.AbstractSet[int],
                   max_interval: float) -> dict[str, float]:
        """Kinds of work of which too little is known on some pCPUs.

        :param max_interval: widest confidence interval of a coefficient,
            relative to it
        :returns: by its name, the widest interval of each, likewise
        """
        found: dict[str, float] = {}
        for cpu_class in self.cpu_classes:
            if not cpu_class.pcpus & pcpus:
                continue
            for score in cpu_class.busy.scores:
                width = score.interval_width
                if width > max_interval:
                    found[score.benchmark] = max(
                        width, found.get(score.benchmark, width))
        return found

    def fastest(self, pcpus: ty.Iterable[int]) -> float:
        """See :meth:`coefficients.Coefficients.fastest`."""
        return self.coefficients.fastest(pcpus)

    def document(self) -> dict[str, ty.Any]:
        """The document of the profile, without the id."""
        return {
            'schema': SCHEMA,
            'created_at': self.created_at,
            'host': self.host,
            'measured_in': self.measured_in,
            'reference': cpu.reference_document(self.reference),
            'is_reference': self.is_reference,
            'fingerprint': dict(self.fingerprint),
            'provenance': dict(self.provenance),
            'cpu_classes': [cpu.class_document(cpu_class)
                            for cpu_class in self.cpu_classes],
            # A missing part does not change the id.
            **({} if self.io is None else {'io': dict(self.io)}),
            **({} if self.quantum is None
               else {'quantum': dict(self.quantum)}),
        }
