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


"""The calibration of one host: what it holds, and what can be asked of it."""

import functools
import json
import types
import typing as ty

from nova_vqos.profile import errors
from nova_vqos.profile import measurement
from nova_vqos.profile import pcpus as lists
from nova_vqos.profile import reference as references

if ty.TYPE_CHECKING:
    from nova_vqos import io_profile
    from nova_vqos import quantum_profile
    from nova_vqos.billing import costs

SCHEMA = 2


class _ProfileFields(ty.NamedTuple):
    """The calibration of one host, see :class:`Profile`.

    :ivar created_at: ISO 8601, UTC
    :ivar host: name of the host that was measured
    :ivar measured_in: ``host``, or ``guest`` of the host's hypervisor
    :ivar fingerprint: what was measured, see :mod:`nova_vqos.fingerprint`
    :ivar is_reference: whether this host is the reference itself
    :ivar provenance: what was seen while measuring, for people to read
    :ivar io: what I/O costs the kernel, as in the document, not looked at
        yet: see :attr:`Profile.io_profile`; None: not measured
    :ivar quantum: which slices are best, likewise: see
        :attr:`Profile.quantum_profile`
    """

    created_at: str
    host: str
    reference: references.Reference
    measured_in: str
    fingerprint: ty.Mapping[str, str]
    cpu_classes: tuple[measurement.CpuClass, ...]
    is_reference: bool = False
    provenance: ty.Mapping[str, str] = types.MappingProxyType({})
    io: ty.Mapping[str, ty.Any] | None = None
    quantum: ty.Mapping[str, ty.Any] | None = None


class Profile(_ProfileFields):
    """The calibration of one host."""

    @functools.cached_property
    def id(self) -> str:
        """Names this content, and no other: 16 hexadecimal digits."""
        import hashlib
        canonical = json.dumps(self.document(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @functools.cached_property
    def pcpus(self) -> frozenset[int]:
        """The pCPUs that were measured."""
        return frozenset[int]().union(*(c.pcpus for c in self.cpu_classes))

    @property
    def tick_us(self) -> int:
        """Length of the scheduler's tick; the longest there is if unknown."""
        try:
            return int(self.fingerprint['tick_us'])
        except (KeyError, ValueError):
            return 10_000

    @functools.cached_property
    def io_profile(self) -> 'io_profile.IoProfile | None':
        """What I/O costs the kernel, with all that was measured of it.

        :returns: None: it was not measured
        :raises ProfileInvalid: when the field ``io`` is nonsense
        """
        from nova_vqos import io_profile
        return None if self.io is None else io_profile.from_document(self.io)

    @functools.cached_property
    def io_costs(self) -> 'costs.IoCosts | None':
        """What the kernel's part of I/O is billed by.

        :returns: None: it was not measured
        :raises ProfileInvalid: when the field ``io`` is nonsense
        """
        return None if self.io_profile is None else self.io_profile.costs

    @functools.cached_property
    def quantum_profile(self) -> 'quantum_profile.QuantumProfile | None':
        """Which slices are best here, with all that was measured of them.

        :returns: None: it was not measured
        :raises ProfileInvalid: when the field ``quantum`` is nonsense
        """
        from nova_vqos import quantum_profile
        return (None if self.quantum is None
                else quantum_profile.from_document(self.quantum))

    def coefficient(self, pcpu: int) -> float:
        """The coefficient of a pCPU while all pCPUs are busy.

        It is the busy one since the promise has to hold on a full host.

        :raises ProfileInvalid: when the pCPU was not measured
        """
        for cpu_class in self.cpu_classes:
            if pcpu in cpu_class.pcpus:
                return cpu_class.busy.coefficient
        raise errors.ProfileInvalid(
            f'pCPU {pcpu} is not in the profile, which has '
            f'{lists.format_pcpus(self.pcpus)}: calibrate it')

    def slowest(self, pcpus: ty.Iterable[int]) -> float:
        """The least coefficient among some pCPUs.

        :raises ProfileInvalid: when one was not measured, or none is given
        """
        return min(self._coefficients(pcpus))

    def fastest(self, pcpus: ty.Iterable[int]) -> float:
        """The greatest coefficient among some pCPUs.

        :raises ProfileInvalid: when one was not measured, or none is given
        """
        return max(self._coefficients(pcpus))

    def document(self) -> dict[str, ty.Any]:
        """As it is stored, but for the id."""
        return {
            'schema': SCHEMA,
            'created_at': self.created_at,
            'host': self.host,
            'measured_in': self.measured_in,
            'reference': references.reference_document(self.reference),
            'is_reference': self.is_reference,
            'fingerprint': dict(self.fingerprint),
            'provenance': dict(self.provenance),
            'cpu_classes': [measurement.class_document(cpu_class)
                            for cpu_class in self.cpu_classes],
            # One without these is named as it always was.
            **({} if self.io is None else {'io': dict(self.io)}),
            **({} if self.quantum is None
               else {'quantum': dict(self.quantum)}),
        }

    def _coefficients(self, pcpus: ty.Iterable[int]) -> list[float]:
        coefficients = [self.coefficient(pcpu) for pcpu in pcpus]
        if not coefficients:
            raise errors.ProfileInvalid('no pCPU is left for servers to share')
        return coefficients
