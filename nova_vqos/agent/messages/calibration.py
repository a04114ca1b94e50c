# SPDX-License-Identifier: Apache-2.0
"""The calibration of a host: the profile in use, with its figures."""

import dataclasses

from nova_vqos import primitives


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profile in use.

    :ivar reference: name of the reference host
    :ivar age_s: None: ``measured_at`` is no time
    """

    id: str
    reference: str
    measured_at: str
    age_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Coefficient:
    """A coefficient, and its 95 % interval."""

    coefficient: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class CpuClass:
    """Equal pCPUs of a host, such as 0-3, and how fast they are."""

    pcpus: str
    alone: Coefficient
    busy: Coefficient


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedProfile(Profile):
    """The profile in use, with its figures.

    :ivar measured_on: the host that was measured
    """

    measured_on: str
    is_reference: bool
    cpu_classes: tuple[CpuClass, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The answer to ``get_profile``.

    :ivar alarms: what is wrong with the profile
    :ivar document: text of the profile, 4 MiB at the most; None: not asked
        for, or there is none
    """

    host: str
    alarms: tuple[str, ...]
    profile: CalibratedProfile | None
    document: primitives.Lines | None
