# SPDX-License-Identifier: Apache-2.0
"""The policy of a flavor: its extra specs as a :class:`ServerPolicy`.

Used by the API's validators, the scheduler's filter, the compute driver,
libvirt's hook and the agent. Pure: standard library only.
"""

from collections.abc import Mapping

from nova_vqos import light_typing
from nova_vqos import units
from nova_vqos import work as works

if light_typing.TYPE_CHECKING:
    import typing as ty

RESOURCE_CLASS = 'CUSTOM_VQOS_CPU_UNIT'
UNITS_KEY = f'resources:{RESOURCE_CLASS}'
NAMESPACE = 'vqos:'
CAP_KEY = 'vqos:cap'
QUANTUM_CLASS_KEY = 'vqos:quantum_class'
DD_BILLING_KEY = 'vqos:dd_billing'
GUARANTEE_KEY = 'vqos:guarantee'
WORK_KEY = 'vqos:work'
PROJECT_CEILING_KEY = 'vqos:project_ceiling_cu'
BURST_KEY = 'vqos:burst_cu'
BURST_SECONDS_KEY = 'vqos:burst_seconds'

#: How long a full balance lasts, at the most.
MOST_BURST_SECONDS = 86_400

#: The values of each of our keys; the first is the default.
CHOICES: Mapping[str, tuple[str, ...]] = {
    CAP_KEY: ('hard', 'floor'),
    QUANTUM_CLASS_KEY: ('default', 'io', 'spin', 'cache', 'neutral', 'auto'),
    DD_BILLING_KEY: ('off', 'account', 'charge'),
    GUARANTEE_KEY: ('off', 'preferred', 'required'),
}
#: Our keys whose values are whole numbers from 1 on, and the largest.
NUMBERS: Mapping[str, int] = {
    UNITS_KEY: units.MAX_UNITS,
    PROJECT_CEILING_KEY: units.MAX_UNITS,
    BURST_KEY: units.MAX_UNITS,
    BURST_SECONDS_KEY: MOST_BURST_SECONDS,
}
KEYS: tuple[str, ...] = (UNITS_KEY, *CHOICES, WORK_KEY,
                         *list(NUMBERS)[1:])

#: Other extra specs that contradict units, of any value.
QUOTA_KEYS = ('quota:cpu_quota', 'quota:cpu_period', 'quota:cpu_shares')
DEDICATED_KEYS = ('resources:PCPU', 'hw:cpu_dedicated_mask')
# Allowed values of others.
_SHARED_CPU_ONLY = {
    'hw:cpu_policy': ('shared',),
}
#: Values of hw:cpu_policy that contradict units.
DEDICATED_POLICIES = ('dedicated', 'mixed')


class PolicyError(ValueError):
    """An invalid or contradictory extra spec.

    :ivar key: its name
    :ivar value: its value
    :ivar expected: allowed values, in words
    """

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        shown = repr(value)
        if len(shown) > 80:
            shown = f'{shown[:76]}...'
        super().__init__(f'{key} is {shown}, it must be {expected}')


class ServerPolicy(light_typing.NamedTuple):
    """The policy of each server of a flavor.

    :ivar vcpus: vCPUs of the server
    :ivar units: CU of the whole server; None: no units, as in stock Nova
    :ivar cap: hard: never more CPU time than the units; floor: never less
    :ivar quantum_class: its scheduling class
    :ivar dd_billing: billing of the CPU time that its I/O costs the host
    :ivar guarantee: whether its units are reserved: only where a host can
        (preferred), or on no other host (required)
    :ivar work: the kinds of work that its units are of, as in the flavor; '':
        the mean of all kinds; auto: its own
    :ivar project_ceiling_cu: CU that the servers of its project with a ceiling
        share on each host; None: it has none
    :ivar burst_cu: CU of the whole server while it bursts; None: it does not
    :ivar burst_seconds: how long it can do so with all that it may save
    """

    vcpus: int
    units: int | None = None
    cap: str = 'hard'
    quantum_class: str = 'default'
    dd_billing: str = 'off'
    guarantee: str = 'off'
    work: str = ''
    project_ceiling_cu: int | None = None
    burst_cu: int | None = None
    burst_seconds: int | None = None

    @property
    def mix(self) -> works.Mix | None:
        """The kinds of work of its units; None: the mean of all."""
        return works.parse(self.work) if self.work else None

    @property
    def is_corrected(self) -> bool:
        """Whether its units follow its own measured speed."""
        return self.work == works.AUTO

    def to_dict(self) -> dict[str, int | str | None]:
        """Primitives only, fit for a message."""
        # NOTE: an older receiver refuses a field that it does not know.
        return {name: value for name, value in self._asdict().items()
                if name not in _LATER_FIELDS or value}

    @classmethod
    def from_dict(cls, data: object) -> 'ServerPolicy':
        """The inverse of :meth:`to_dict`, for untrusted input.

        :raises PolicyError: when the input is invalid
        """
        if not isinstance(data, Mapping):
            raise PolicyError('policy', data, 'a mapping')
        unknown = set(data) - set(cls._fields)
        if unknown:
            raise PolicyError('policy', sorted(map(str, unknown)),
                              'without unknown fields')
        specs = {UNITS_KEY: data.get('units'),
                 CAP_KEY: data.get('cap'),
                 QUANTUM_CLASS_KEY: data.get('quantum_class'),
                 DD_BILLING_KEY: data.get('dd_billing'),
                 GUARANTEE_KEY: data.get('guarantee'),
                 WORK_KEY: data.get('work') or None,
                 PROJECT_CEILING_KEY: data.get('project_ceiling_cu'),
                 BURST_KEY: data.get('burst_cu'),
                 BURST_SECONDS_KEY: data.get('burst_seconds')}
        for key in NUMBERS:
            if isinstance(specs[key], int):
                specs[key] = str(specs[key])
        # NOTE: without units a key must be absent, or have its default.
        given = {key: value for key, value in specs.items()
                 if value is not None and not (
                     isinstance(value, str)
                     and value == CHOICES.get(key, (None,))[0])}
        vcpus = data.get('vcpus')
        policy = parse(given, vcpus)  # type: ignore[arg-type]
        if policy is None:
            return cls(vcpus=_checked_vcpus(vcpus))
        return policy


# Fields that the first receivers of policies do not know.
_LATER_FIELDS = ('work', 'project_ceiling_cu', 'burst_cu', 'burst_seconds')


def check_value(key: str, value: object) -> None:
    """Check one extra spec by itself, as the API's validators do.

    :raises PolicyError: when it is our key, and invalid or unknown
    """
    if key in NUMBERS:
        _parse_number(key, value)
    elif key in CHOICES:
        _parse_choice(key, value)
    elif key == WORK_KEY:
        _parse_work(value)
    elif _is_suffixed(key, RESOURCE_CLASS):
        raise PolicyError(key, value, f'given as {UNITS_KEY}: units are '
                          'claimed from the host itself')
    elif key.startswith(NAMESPACE):
        raise PolicyError(
            key, value, f'one of the known keys: {", ".join(KEYS[1:])}')


def parse(extra_specs: Mapping[str, str], vcpus: int,
          numa_topology: 'ty.Any' = None) -> ServerPolicy | None:
    """The policy of a whole flavor, or of a server.

    :param extra_specs: all extra specs of the flavor
    :param vcpus: its vCPUs
    :param numa_topology: of the server, by flavor and image together: its
        cells have a cpu_policy; None: none, or not known
    :returns: None: it has none of our keys, its servers are stock Nova's
    :raises PolicyError: when a key of ours is invalid, or is contradicted by
        another, or by the image
    """
    ours = [key for key in extra_specs if _is_ours(key)]
    if not ours:
        return None
    for key in ours:
        check_value(key, extra_specs[key])
    vcpus = _checked_vcpus(vcpus)
    policy = ServerPolicy(
        vcpus=vcpus,
        units=_optional_number(extra_specs, UNITS_KEY),
        cap=_choice(extra_specs, CAP_KEY),
        quantum_class=_choice(extra_specs, QUANTUM_CLASS_KEY),
        dd_billing=_choice(extra_specs, DD_BILLING_KEY),
        guarantee=_choice(extra_specs, GUARANTEE_KEY),
        work=extra_specs.get(WORK_KEY, ''),
        project_ceiling_cu=_optional_number(extra_specs,
                                            PROJECT_CEILING_KEY),
        burst_cu=_optional_number(extra_specs, BURST_KEY),
        burst_seconds=_optional_number(extra_specs, BURST_SECONDS_KEY))
    if policy.units is None:
        _check_without_units(extra_specs, policy)
    else:
        _check_with_units(extra_specs, policy)
        _check_image(numa_topology)
    return policy


def _is_ours(key: str) -> bool:
    return (key == UNITS_KEY or key.startswith(NAMESPACE)
            or _is_suffixed(key, RESOURCE_CLASS))


def _is_suffixed(key: str, resource_class: str) -> bool:
    """Whether a key is resources1:CLASS, resources_SUFFIX:CLASS or so.

    Numbered request groups would claim from another provider, which nothing
    enforces.
    """
    start, end = 'resources', f':{resource_class}'
    return (key.startswith(start) and key.endswith(end)
            and len(key) > len(start) + len(end))


def _check_without_units(extra_specs: Mapping[str, str],
                         policy: ServerPolicy) -> None:
    if CAP_KEY in extra_specs:
        raise PolicyError(CAP_KEY, policy.cap,
                          f'left out of a flavor without {UNITS_KEY}')
    if policy.dd_billing == 'charge':
        raise PolicyError(
            DD_BILLING_KEY, policy.dd_billing,
            f'off or account in a flavor without {UNITS_KEY}, from which it '
            'would be paid')
    if policy.guarantee != 'off':
        raise PolicyError(
            GUARANTEE_KEY, policy.guarantee,
            f'off in a flavor without {UNITS_KEY}, which it guarantees')
    if policy.work:
        raise PolicyError(
            WORK_KEY, policy.work,
            f'left out of a flavor without {UNITS_KEY}, of which it says the '
            'kind of work')
    if policy.project_ceiling_cu is not None:
        raise PolicyError(
            PROJECT_CEILING_KEY, policy.project_ceiling_cu,
            f'left out of a flavor without {UNITS_KEY}, whose sum it bounds')
    for key in BURST_KEY, BURST_SECONDS_KEY:
        if key in extra_specs:
            raise PolicyError(
                key, extra_specs[key], f'left out of a flavor without '
                f'{UNITS_KEY}, which it saves')


def _check_with_units(extra_specs: Mapping[str, str],
                      policy: ServerPolicy) -> None:
    if policy.units is not None and policy.units < policy.vcpus:
        raise PolicyError(
            UNITS_KEY, policy.units,
            f'at least 1 for each of the {policy.vcpus} vCPUs')
    _check_ceiling(policy)
    _check_burst(policy)
    for key in QUOTA_KEYS:
        if key in extra_specs:
            raise PolicyError(key, extra_specs[key], 'left out of a flavor '
                              f'with {UNITS_KEY}, which sets it')
    for key, allowed in _SHARED_CPU_ONLY.items():
        if key in extra_specs and extra_specs[key] not in allowed:
            raise PolicyError(
                key, extra_specs[key],
                f'{" or ".join(allowed)} in a flavor with {UNITS_KEY}: '
                'dedicated CPUs are not sold in units')
    for key in extra_specs:
        if key in DEDICATED_KEYS or _is_suffixed(key, 'PCPU'):
            raise PolicyError(
                key, extra_specs[key], f'left out of a flavor with '
                f'{UNITS_KEY}: dedicated CPUs are not sold in units')


def _check_ceiling(policy: ServerPolicy) -> None:
    ceiling_cu = policy.project_ceiling_cu
    if ceiling_cu is None or policy.units is None:
        return
    if ceiling_cu < policy.units:
        raise PolicyError(
            PROJECT_CEILING_KEY, ceiling_cu,
            f'at least the {policy.units} CU of {UNITS_KEY}')
    if policy.cap != 'hard':
        raise PolicyError(
            CAP_KEY, policy.cap,
            f'hard in a flavor with {PROJECT_CEILING_KEY}')
    if policy.guarantee != 'off':
        raise PolicyError(
            GUARANTEE_KEY, policy.guarantee, f'off in a flavor with '
            f'{PROJECT_CEILING_KEY}: what is reserved is not limited')


def _check_burst(policy: ServerPolicy) -> None:
    burst_cu = policy.burst_cu
    if burst_cu is None or policy.burst_seconds is None:
        if burst_cu is not None or policy.burst_seconds is not None:
            missing, given, value = (
                (BURST_SECONDS_KEY, BURST_KEY, burst_cu)
                if policy.burst_seconds is None else
                (BURST_KEY, BURST_SECONDS_KEY, policy.burst_seconds))
            raise PolicyError(given, value,
                              f'left out of a flavor without {missing}')
        return
    if policy.units is None or burst_cu <= policy.units:
        raise PolicyError(
            BURST_KEY, burst_cu,
            f'more than the {policy.units} CU of {UNITS_KEY}')
    for key, choice, allowed, why in (
            (CAP_KEY, policy.cap, ('hard',),
             'a floor bounds nothing from above'),
            (GUARANTEE_KEY, policy.guarantee, ('off',),
             'what is reserved is not limited'),
            (DD_BILLING_KEY, policy.dd_billing, ('off', 'account'),
             'a charged server has less than its units, not more')):
        if choice not in allowed:
            raise PolicyError(key, choice, f'{" or ".join(allowed)} in a '
                              f'flavor with {BURST_KEY}: {why}')
    if policy.project_ceiling_cu is not None:
        raise PolicyError(
            PROJECT_CEILING_KEY, policy.project_ceiling_cu,
            f'left out of a flavor with {BURST_KEY}: none of its servers may '
            'use more than its units')


def _check_image(numa_topology: 'ty.Any') -> None:
    for cell in numa_topology.cells if numa_topology is not None else ():
        if cell.cpu_policy in DEDICATED_POLICIES:
            # The flavor alone was checked already.
            raise PolicyError(
                'hw_cpu_policy', cell.cpu_policy, 'shared or left out of an '
                f'image for a flavor with {UNITS_KEY}: dedicated CPUs are not '
                'sold in units')


def _optional_number(extra_specs: Mapping[str, str], key: str) -> int | None:
    return (_parse_number(key, extra_specs[key]) if key in extra_specs
            else None)


def _parse_number(key: str, value: object) -> int:
    most = NUMBERS[key]
    # NOTE: not int() alone: it accepts ' 60 ', '6_0', '+60' and other scripts'
    # digits, unlike Placement and other readers of the flavor.
    if (not isinstance(value, str) or not value.isascii()
            or not value.isdecimal() or value.startswith('0')
            or len(value) > len(str(most)) or int(value) > most):
        raise PolicyError(key, value, f'a whole number from 1 to {most}')
    return int(value)


def _choice(extra_specs: Mapping[str, str], key: str) -> str:
    return _parse_choice(key, extra_specs.get(key, CHOICES[key][0]))


def _parse_choice(key: str, value: object) -> str:
    choices = CHOICES[key]
    if not isinstance(value, str) or value not in choices:
        raise PolicyError(key, value, f'one of {", ".join(choices)}')
    return value


def _parse_work(value: object) -> None:
    try:
        if not isinstance(value, str):
            raise ValueError(works.EXPECTED)
        works.parse(value)
    except ValueError as error:
        raise PolicyError(WORK_KEY, value, str(error)) from error


def _checked_vcpus(vcpus: object) -> int:
    if isinstance(vcpus, bool) or not isinstance(vcpus, int) or vcpus < 1:
        raise PolicyError('vcpus', vcpus, 'a whole number of at least 1')
    return vcpus
