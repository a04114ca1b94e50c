# SPDX-License-Identifier: Apache-2.0
"""What agent and helper send each other: one JSON message each.

A request is ``{"method": "pin", "uuid": ..., "pcpus": "0-3"}``; its fields are
those of the method of :class:`.writer.Writer`. An answer is
``{"result": true}``, or ``{"error": "DomainBusy", "message": ...}``.
"""

from collections.abc import Callable, Mapping, Set
import json
import typing as ty
import uuid as uuids

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import writer

#: Of one message: the pins of hundreds of vCPUs fit.
MOST_BYTES = 128 * 1024

_MOST_VCPUS = 4096
# Of a quota, a period or a weight. libvirt has narrower bounds of its own.
_MOST_VALUE = 2 ** 53
_MOST_CHANGES = 16
_MOST_MESSAGE = 1000

#: All that the helper does, and the fields of the request, in the order of
#: the parameters of the writer's method.
METHODS: Mapping[str, tuple[str, ...]] = {
    'check': (),
    'write': ('uuid', 'changes'),
    'persist': ('uuid', 'cap', 'shares'),
    'limit_disks': ('uuid', 'disk_limit'),
    'pin': ('uuid', 'pcpus'),
    'place': ('uuid', 'pins'),
    'restore_pins': ('uuid', 'vcpus', 'pcpus'),
}

_ERRORS = {kind.__name__: kind for kind in (
    base.HypervisorError, base.Unavailable, base.DomainGone,
    base.DomainBusy)}

Fields = Mapping[str, ty.Any]


class RequestError(Exception):
    """A request that the agent never sends."""


def encode(message: Fields) -> bytes:
    """Write a message."""
    return json.dumps(message).encode('ascii')


def decode(message: bytes) -> Fields:
    """Read a message.

    :raises RequestError: when it is none
    """
    try:
        found = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise RequestError(f'{type(error).__name__}: {error}') from error
    if not isinstance(found, dict):
        raise RequestError('no mapping of fields')
    return found


def encode_changes(changes: ty.Iterable[base.Change]) -> list[ty.Any]:
    """The field ``changes`` of a request."""
    return [[change.parameter.value, change.value] for change in changes]


def encode_pins(pcpus_by_vcpu: Mapping[int, Set[int]]) -> dict[str, str]:
    """The field ``pins`` of a request."""
    return {str(vcpu): cpuset.format_pcpus(pcpus)
            for vcpu, pcpus in pcpus_by_vcpu.items()}


def encode_error(error: Exception) -> Fields:
    """The answer to a request that failed."""
    kind = next(name for name in (type(error).__name__, 'HypervisorError')
                if name in _ERRORS)
    return {'error': kind, 'message': str(error)[:_MOST_MESSAGE]}


def decode_answer(message: bytes) -> bool:
    """Read an answer.

    :returns: what the method of the writer returned; False where it has
        nothing to return
    :raises base.HypervisorError: when the request failed, or there is none
    """
    try:
        answer = decode(message)
    except RequestError as error:
        raise base.HypervisorError(f'no answer: {error}') from error
    if 'error' in answer:
        raise _ERRORS.get(str(answer['error']), base.HypervisorError)(
            str(answer.get('message', '')))
    return answer.get('result') is True


def execute(request: Fields, target: writer.Writer) -> bool | None:
    """Do what a request asks for.

    :raises RequestError: when it is none that the agent sends
    :raises base.HypervisorError: when it fails
    """
    method = str(request.get('method'))
    fields = METHODS.get(method)
    if fields is None:
        raise RequestError('unknown method')
    if set(request) != {'method', *fields}:
        raise RequestError('wrong fields')
    # All is read before anything is done.
    values = [_READERS[field](request[field]) for field in fields]
    result: bool | None = getattr(target, method)(*values)
    return result


def _uuid(value: object) -> str:
    try:
        if str(uuids.UUID(ty.cast(str, value))) == value:
            return value
    except (ValueError, AttributeError, TypeError):
        pass
    raise RequestError('uuid is none')


def _integer(value: object, most: int, name: str) -> int:
    if (not isinstance(value, int) or isinstance(value, bool)
            or not 0 <= value <= most):
        raise RequestError(f'{name} is no number from 0 to {most}')
    return value


def _shares(value: object) -> int:
    return _integer(value, _MOST_VALUE, 'shares')


def _cap(value: object) -> units.CpuCap | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise RequestError('cap is no quota and period')
    return units.CpuCap(*(_integer(one, _MOST_VALUE, 'cap')
                          for one in value))


def _disk_limit(value: object) -> throttle.DiskLimit | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or 0 in value:
        raise RequestError('disk_limit is no pair of limits')
    return throttle.DiskLimit(*(_integer(one, _MOST_VALUE, 'disk_limit')
                                for one in value))


def _changes(value: object) -> list[base.Change]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_CHANGES:
        raise RequestError('changes are no list')
    return [_change(one) for one in value]


def _change(value: object) -> base.Change:
    try:
        name, number = ty.cast(list[ty.Any], value)
        parameter = base.Parameter(name)
    except (ValueError, TypeError) as error:
        raise RequestError('a change is no parameter and value') from error
    return base.Change(parameter, None if number is None else _integer(
        number, _MOST_VALUE, 'a value'))


def _pcpus(value: object) -> Set[int]:
    try:
        pcpus = cpuset.parse_pcpus(ty.cast(str, value))
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError('pcpus are no list of pCPUs') from error
    if not pcpus:
        raise RequestError('no pCPU')
    return pcpus


def _pins(value: object) -> dict[int, Set[int]]:
    if not isinstance(value, dict) or len(value) > _MOST_VCPUS:
        raise RequestError('pins are no mapping')
    return {_vcpu(vcpu): _pcpus(pcpus) for vcpu, pcpus in value.items()}


def _vcpu(value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > 4:
        raise RequestError('a vCPU is no number')
    return _integer(int(value), _MOST_VCPUS, 'a vCPU')


def _vcpus(value: object) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST_VCPUS:
        raise RequestError('vcpus are no list')
    return [_integer(one, _MOST_VCPUS, 'a vCPU') for one in value]


_READERS: Mapping[str, Callable[[object], ty.Any]] = {
    'uuid': _uuid, 'changes': _changes, 'cap': _cap, 'shares': _shares,
    'disk_limit': _disk_limit, 'pcpus': _pcpus, 'pins': _pins, 'vcpus': _vcpus,
}
