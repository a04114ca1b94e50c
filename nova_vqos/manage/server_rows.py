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

"""What an agent tells of a server, as a row and as fields. Pure."""

from collections.abc import Callable, Iterable, Mapping
import statistics
import typing as ty

from nova_vqos.manage import columns

Brief = Mapping[str, ty.Any]

# The component of a bill that is no I/O, see nova_vqos.billing.meter.
_VCPU = 'vcpu'


class Placed(ty.NamedTuple):
    """A server where it runs.

    :ivar brief: as AgentManager.list_servers tells of it
    """

    host: str
    brief: Brief


def _rate(name: str) -> Callable[[Placed], ty.Any]:
    return lambda one: (one.brief.get('rates') or {}).get(name)


def _bill(name: str) -> Callable[[Placed], ty.Any]:
    return lambda one: (one.brief.get('bill') or {}).get(name)


def quantum_class(one: Placed) -> str:
    """Its class in force, with what it was recognised as."""
    name = one.brief.get('quantum_class') or ''
    quantum = one.brief.get('quantum') or {}
    found = quantum.get('recognised_class')
    return f'{name}: {found}' if found else name


def slice_us(one: Placed) -> int | None:
    """The shortest of its vCPUs; None: the kernel's own, or not known."""
    return min(_of_vcpus(one, 'slice_us'), default=None)


def run_us(one: Placed) -> float | None:
    """For how long its vCPUs ran at a time, on average."""
    runs_us = list(_of_vcpus(one, 'mean_run_us'))
    return statistics.fmean(runs_us) if runs_us else None


def dd_cu(one: Placed) -> float | None:
    """What the host spent on its I/O lately: all but its vCPUs."""
    lately = _bill('used_lately_cu')(one)
    return None if lately is None else sum(
        used for name, used in lately.items() if name != _VCPU)


delivered_cu = _rate('delivered_cu')
throttled = _rate('throttled')
debt_cu_s = _bill('debt_cu_s')


def is_arriving(one: Placed) -> bool:
    """Whether its guest has yet to begin there: it still runs elsewhere."""
    return bool(one.brief.get('arriving'))


def is_wrong(one: Placed) -> bool:
    """Whether its cap is not as it should be, or it has another problem."""
    return one.brief.get('right') is False or bool(one.brief.get('problem'))


#: Columns of a list, and of a long one the rest: name and what is shown.
SHORT: Mapping[str, Callable[[Placed], ty.Any]] = {
    'server_uuid': lambda one: one.brief['server_uuid'],
    'host': lambda one: columns.Shown(
        one.host, f'{one.host} (arriving)' if is_arriving(one) else one.host),
    'flavor': lambda one: one.brief.get('flavor'),
    'entitled_cu': lambda one: columns.number(one.brief.get('entitled_cu')),
    'delivered_cu': lambda one: columns.number(delivered_cu(one), 1),
    'throttled': lambda one: columns.share(throttled(one)),
    'dd_cu': lambda one: columns.number(dd_cu(one), 1),
    'debt_cu_s': lambda one: columns.number(debt_cu_s(one), 1),
    'class': quantum_class,
    'right': lambda one: columns.flag(one.brief.get('right')),
}
LONG: Mapping[str, Callable[[Placed], ty.Any]] = {
    **SHORT,
    'arriving': is_arriving,
    'name': lambda one: one.brief.get('name'),
    'project_id': lambda one: one.brief.get('project_id'),
    'dd_billing': lambda one: one.brief.get('dd_billing'),
    'slice_us': lambda one: columns.number(slice_us(one)),
    'run_us': lambda one: columns.number(run_us(one)),
    'last_recap': lambda one: columns.Shown(
        one.brief.get('last_recap'), recap(one.brief.get('last_recap'))),
    'problem': lambda one: one.brief.get('problem'),
}


def recap(last: Mapping[str, ty.Any] | None) -> str:
    """When a cap was last set anew, why, and how long it was wrong."""
    if last is None:
        return ''
    window = last.get('wrong_ms')
    return (f'{last["at"]}: {last["reason"]}, '
            + ('wrong for an unknown time' if window is None
               else f'wrong for {window:.0f} ms'))


def fields(one: Placed) -> list[tuple[str, ty.Any]]:
    """Names and values of all that is told of one server."""
    brief, rates = one.brief, one.brief.get('rates') or {}
    return [
        ('server_uuid', brief['server_uuid']), ('host', one.host),
        *((name, brief.get(name)) for name in (
            'name', 'project_id', 'flavor', 'origin', 'arriving')),
        ('entitled_cu', brief.get('entitled_cu')),
        ('delivered_cu', columns.Shown(
            delivered_cu(one), f'{delivered_cu(one) or 0:.2f} over '
            f'{rates.get("over_s", 0):.0f} s')),
        ('throttled', columns.Shown(
            throttled(one), f'{throttled(one) or 0:.1%}')),
        ('coefficient', _rounded(brief.get('coefficient'), 4)),
        ('vcpu_s', _rounded(brief.get('vcpu_s'), 1)),
        ('throttled_s', _rounded(brief.get('throttled_s'), 1)),
        ('right', columns.flag(brief.get('right'))),
        ('wanted', _cap(brief.get('wanted'))),
        ('last_recap', columns.Shown(brief.get('last_recap'),
                                     recap(brief.get('last_recap')))),
        ('dd_billing', brief.get('dd_billing')),
        *_bill_fields(brief.get('bill')),
        ('class', quantum_class(one)),
        ('slices', _slices(brief.get('quantum'))),
        ('writes', brief.get('writes')),
        ('tamperings', columns.Shown(
            brief.get('tamperings'), str(len(brief.get('tamperings') or ())))),
        ('problem', brief.get('problem')),
        ('policy_error', brief.get('policy_error')),
    ]


def _rounded(value: float | None, digits: int) -> columns.Shown:
    """For people; others get all digits."""
    return columns.Shown(value, '' if value is None else f'{value:.{digits}f}')


def _of_vcpus(one: Placed, name: str) -> Iterable[ty.Any]:
    vcpus = (one.brief.get('quantum') or {}).get('vcpus') or {}
    return [vcpu[name] for vcpu in vcpus.values()
            if vcpu.get(name) is not None]


def _cap(wanted: Mapping[str, ty.Any] | None) -> columns.Shown:
    if wanted is None:
        return columns.Shown(None, '')
    quota_us = wanted['quota_us']
    return columns.Shown(
        dict(wanted), 'no limit' if quota_us is None else
        f'{quota_us} of {wanted["period_us"]} us for each vCPU')


def _bill_fields(bill: Mapping[str, ty.Any] | None
                 ) -> list[tuple[str, ty.Any]]:
    if bill is None:
        return [('bill', columns.Shown(None, ''))]
    used, lately = bill['used_cu_s'], bill['used_lately_cu']
    return [
        ('bill', columns.Shown(dict(bill), '\n'.join(
            f'{name}: {used[name]:.2f} CU s, lately '
            f'{lately.get(name, 0):.2f} CU' for name in used))),
        *((name, _rounded(bill[name], 2)) for name in (
            'limit_cu', 'debt_cu_s', 'written_off_cu_s'))]


def _slices(quantum: Mapping[str, ty.Any] | None) -> columns.Shown:
    if quantum is None:
        return columns.Shown(None, '')
    return columns.Shown(dict(quantum), '\n'.join(
        f'vCPU {number}: {vcpu["kind"]}, '
        + ("the kernel's own slice" if vcpu['slice_us'] is None
           else f'slice {vcpu["slice_us"]} us')
        + ('' if vcpu['mean_run_us'] is None
           else f', ran {vcpu["mean_run_us"]:.0f} us at a time')
        + (f', on pCPUs {vcpu["pcpus"]}' if vcpu.get('pcpus') else '')
        for number, vcpu in quantum['vcpus'].items()))
