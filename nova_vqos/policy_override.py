# SPDX-License-Identifier: Apache-2.0
"""Policy overrides: what a policy push changes for running servers.

An :class:`Override` has the keys of a flavor that running servers follow, and
the generation of its push. Of two overrides of a flavor the newer one holds,
and :mod:`nova_vqos.policy_push` says which flavors have one. Pure: standard
library only.
"""

from collections.abc import Mapping
import hashlib
import json
import typing as ty
import unicodedata

from nova_vqos import policy as policies
from nova_vqos import units as cpu_units

#: Keeps a file or a message of overrides below 4 MiB, whatever the names.
MOST_FLAVORS = 1500
#: JSON represents it exactly; as microseconds since 1970 it is in 2255.
MOST_GENERATION = 2**53 - 1
#: How far a generation may lie ahead of the clock of its receiver.
MOST_AHEAD_US = 300 * 10**6

#: The keys of a flavor that servers follow without a resize, by field.
FOLLOWED: ty.Final[Mapping[str, str]] = {
    'quantum_class': policies.QUANTUM_CLASS_KEY,
    'dd_billing': policies.DD_BILLING_KEY,
    'guarantee': policies.GUARANTEE_KEY,
}

_MOST_CHARACTERS = 255
_MOST_VCPUS = 4096
_FIELDS = ('name', 'vcpus', 'units', *FOLLOWED)


class PushInvalid(ValueError):
    """Input that is no valid push."""


class Override(ty.NamedTuple):
    """The last push of a flavor.

    :ivar generation: of the push, a larger one is newer
    :ivar name: of the flavor
    :ivar vcpus: of the flavor
    :ivar units: of the flavor when it was pushed, None where it had none; for
        information, a push changes no server's units
    :ivar quantum_class: of its servers from now on
    :ivar dd_billing: likewise
    :ivar guarantee: likewise
    """

    generation: int
    name: str
    vcpus: int
    units: int | None
    quantum_class: str
    dd_billing: str
    guarantee: str

    def to_dict(self) -> dict[str, ty.Any]:
        """Primitives only, fit for a message."""
        return self._asdict()


#: By the flavor's id.
Overrides = Mapping[str, Override]

NOTHING: Overrides = {}


def of_flavor(name: str, vcpus: int, extra_specs: Mapping[str, str],
              generation: int = 0) -> Override:
    """The override that makes servers follow a flavor.

    :param extra_specs: all of the flavor; without keys of ours: the defaults
    :raises nova_vqos.policy.PolicyError: when it cannot be honoured
    """
    policy = policies.parse(extra_specs, vcpus) or policies.ServerPolicy(vcpus)
    return Override(generation, name, vcpus, policy.units,
                    **{field: getattr(policy, field) for field in FOLLOWED})


def effective(extra_specs: Mapping[str, str], vcpus: int,
              override: Override | None) -> policies.ServerPolicy | None:
    """The policy of a server by its flavor as booted and the override.

    :param extra_specs: of the flavor as booted
    :param vcpus: likewise
    :returns: None where neither has a key of ours
    :raises nova_vqos.policy.PolicyError: when they contradict each other
    """
    if override is None:
        return policies.parse(extra_specs, vcpus)
    return policies.parse({
        **extra_specs, **{key: getattr(override, field)
                          for field, key in FOLLOWED.items()}}, vcpus)


def match(overrides: Overrides, flavor_id: str, name: str,
          vcpus: int) -> tuple[Override | None, str]:
    """The override of the flavor that a server was booted with.

    Only the extra specs of a flavor can change. So a flavor with the same id
    and another name or number of vCPUs is a new one, as is a flavor with the
    same name and another id.

    :param flavor_id: as booted, as the next two; '' where unknown
    :returns: and ''; None and the reason where there is an override of
        another flavor with that id or name; None and '' where there is none
    """
    found = overrides.get(flavor_id)
    if found is not None:
        if (found.name, found.vcpus) == (name, vcpus):
            return found, ''
        return None, (
            f'it was booted with flavor {name} of {vcpus} vCPUs, whose id '
            f'{flavor_id} is now that of {found.name} of {found.vcpus}')
    if not any(override.name == name for override in overrides.values()):
        return None, ''
    if not flavor_id:
        return None, ("its domain lacks the flavor's id, which Nova writes at "
                      'a hard reboot')
    return None, (f'it was booted with another flavor named {name}, with id '
                  f'{flavor_id}')


def merged(ours: Overrides, theirs: Overrides) -> Overrides:
    """The newer override of each flavor."""
    found = dict(ours)
    for flavor_id, override in theirs.items():
        if _order(override) > _order(found.get(flavor_id)):
            found[flavor_id] = override
    return found


def generation_of(overrides: Overrides) -> int:
    """The generation of the newest push; 0: there was no push."""
    return max((override.generation for override in overrides.values()),
               default=0)


def digest_of(overrides: Overrides) -> str:
    """A hash, the same of equal overrides."""
    text = json.dumps(to_dict(overrides), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def to_dict(overrides: Overrides) -> dict[str, dict[str, ty.Any]]:
    """Primitives only, fit for a message and for a file."""
    return {flavor_id: override.to_dict()
            for flavor_id, override in overrides.items()}


def from_dict(data: object, generation: int | None = None) -> Overrides:
    """The inverse of :func:`to_dict`, for untrusted input.

    :param generation: of all flavors; None: each has its own
    :raises PushInvalid: when the input is invalid
    """
    if not isinstance(data, Mapping):
        raise PushInvalid('flavors must be a mapping')
    if len(data) > MOST_FLAVORS:
        raise PushInvalid(f'flavors are {len(data)}, they must be '
                          f'{MOST_FLAVORS} at most')
    if generation is not None:
        check_generation(generation)
    return {_checked_text('the id of a flavor', flavor_id):
            _one_from_dict(fields, generation)
            for flavor_id, fields in data.items()}


def check_generation(generation: object, now_us: int | None = None,
                     most_ahead_us: int = MOST_AHEAD_US) -> int:
    """A generation, from untrusted input.

    :param now_us: the clock that it must not be far ahead of; None: any
    :raises PushInvalid: when the input is invalid
    """
    number = _checked_number('generation', generation, MOST_GENERATION)
    if now_us is not None and number > now_us + most_ahead_us:
        raise PushInvalid(
            f'generation {number} is {(number - now_us) / 1e6:.0f} s ahead of '
            f'the clock here, which may be {most_ahead_us / 1e6:.0f} s at '
            'most: correct the clock skew')
    return number


def _order(override: Override | None) -> tuple[ty.Any, ...]:
    # NOTE: of two pushes of the same microsecond all agents choose the same.
    return () if override is None else (
        *override._replace(units=override.units or 0),)


def _one_from_dict(data: object, generation: int | None) -> Override:
    wanted = {*_FIELDS, *(() if generation is not None else ('generation',))}
    if not isinstance(data, Mapping) or set(data) != wanted:
        raise PushInvalid('the fields of a flavor must be '
                          f'{", ".join(sorted(wanted))}')
    for field, key in FOLLOWED.items():
        try:
            policies.check_value(key, data[field])
        except policies.PolicyError as error:
            raise PushInvalid(str(error)) from error
    units = data['units']
    return Override(
        check_generation(data['generation']) if generation is None
        else generation,
        _checked_text('the name of a flavor', data['name']),
        _checked_number('vcpus', data['vcpus'], _MOST_VCPUS),
        None if units is None else _checked_number(
            'units', units, cpu_units.MAX_UNITS),
        **{field: data[field] for field in FOLLOWED})


def _checked_text(what: str, value: object) -> str:
    # NOTE: Nova refuses others too; control characters would reach logs and
    # terminals.
    if (not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS
            or any(unicodedata.category(character)[0] == 'C'
                   for character in value)):
        raise PushInvalid(f'{what} is {ascii(value)[:80]}, it must have 1 to '
                          f'{_MOST_CHARACTERS} printable characters')
    return value


def _checked_number(what: str, value: object, most: int) -> int:
    if (isinstance(value, bool) or not isinstance(value, int)
            or not 1 <= value <= most):
        raise PushInvalid(f'{what} is {repr(value)[:80]}, it must be a whole '
                          f'number from 1 to {most}')
    return value
